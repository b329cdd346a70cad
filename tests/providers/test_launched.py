"""The files that a killed job leaves on a launcher's node are removed."""

import fcntl
import os
from pathlib import Path

from seer.providers.remote.onhost.launched import clean_node, state_on_node


def leftover(base: Path, name: str) -> Path:
    """The state of a machine whose processes were all killed."""
    machine = base / f"seer-node-{name}" / "seer" / "machines" / "m"
    machine.mkdir(parents=True)
    (machine / "lock").touch()
    (base / f"seer-node-{name}" / "lock").touch()
    return base / f"seer-node-{name}"


def test_the_state_of_a_job_that_was_killed_goes_with_the_next_job(tmp_path: Path) -> None:
    dead = leftover(tmp_path, "dead")
    (dead / "seer" / "machines" / "m" / "weights").write_bytes(b"w" * 100)
    clean_node(tmp_path)
    assert not dead.exists()


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    kept = leftover(tmp_path, "machine-lives")
    lock = os.open(kept / "seer" / "machines" / "m" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    half_made = tmp_path / "seer-node-half-made"
    half_made.mkdir()
    strange = tmp_path / "seer-other"
    strange.mkdir()
    (tmp_path / "seer-node-link").symlink_to(strange)
    with state_on_node(tmp_path) as state:
        clean_node(tmp_path)
        assert all(path.is_dir() for path in (kept, half_made, strange, state))
    os.close(lock)
    assert not state.exists()
    clean_node(tmp_path)
    assert not kept.exists()
