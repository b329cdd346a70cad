"""Private folders: gone with their session, or with the process, however that ends."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seer.execution import PrivateFolder
from seer.execution._private import _watcher  # pyright: ignore[reportPrivateUsage]
from tests.waiting import wait_until

pytestmark = pytest.mark.full

OWNER = """
import os, sys
from seer.execution._private import PrivateFolder, _watcher
kept = [PrivateFolder("one"), PrivateFolder("two")]
(kept[0].outputs / "file").write_text("x")
print(_watcher._pid, flush=True)
sys.stdin.read()
"""


def wait_until_gone(root: Path) -> None:
    wait_until(lambda: not any(path.is_dir() for path in root.iterdir()), f"no folder in {root}")


def owner(state: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )


def test_they_are_gone_soon_after_their_process_was_killed(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        assert process.stdout is not None
        janitor = os.pidfd_open(int(process.stdout.readline()))
        root = tmp_path / "seer" / "sessions"
        assert len([path for path in root.iterdir() if path.is_dir()]) == 2
        process.send_signal(signal.SIGKILL)
    wait_until_gone(root)
    assert select.select([janitor], [], [], 15)[0], "what removed them did not end"
    os.close(janitor)


def test_a_janitor_that_was_killed_is_replaced_with_the_next_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = PrivateFolder("first")
    before = _watcher._pid  # pyright: ignore[reportPrivateUsage]
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    second = PrivateFolder("second")
    assert _watcher._pid != before  # pyright: ignore[reportPrivateUsage]
    for folder in (first, second):
        folder.remove()


def test_the_next_process_removes_what_is_left_when_all_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner(tmp_path) as process:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        process.send_signal(signal.SIGKILL)
    root = tmp_path / "seer" / "sessions"
    (root / "half-made").mkdir()
    assert len([path for path in root.iterdir() if path.is_dir()]) == 3
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = PrivateFolder("next")
    assert [path for path in root.iterdir() if path.is_dir()] == [folder.path]
    folder.remove()
    assert [path for path in root.iterdir() if path.is_dir()] == []
