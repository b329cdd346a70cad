"""Transient folders are removed by their maker, or when the process ends in any way.

It tests internal helpers that everything in Seer uses.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seer._transient import TransientFolder
from seer.execution._folders import PrivateFolder
from tests.waiting import wait_until

OWNER = """
import os, sys
from pathlib import Path
from seer._transient import TransientFolder, _watcher, remove_at_end
from seer.execution._folders import PrivateFolder
root = Path(sys.argv[1])
root.mkdir()
kept = [TransientFolder("one", inside=root), TransientFolder("x"), PrivateFolder("session")]
for folder in kept:
    (folder.folder("deep") / "file").write_text("x")
file = root.parent / "file"
file.write_text("x")
remove_at_end(file)
print(_watcher._pid, flush=True)
for _ in sys.stdin:
    os.waitid(os.P_PID, _watcher._pid, os.WEXITED | os.WNOWAIT)
    kept.append(TransientFolder("more"))
    print(_watcher._pid, flush=True)
"""

full = pytest.mark.full


def folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def owner(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder / "root")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "XDG_STATE_HOME": str(folder / "state")},
    )


@pytest.mark.parametrize("inside", [True, False])
def test_a_folder_is_this_users_alone_and_gone_when_it_is_left(
    tmp_path: Path, inside: bool
) -> None:
    with TransientFolder("mine", inside=tmp_path if inside else None) as path:
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "deep").mkdir()
        (path / "deep" / "file").write_text("x")
    assert not path.exists()


def test_removing_twice_is_harmless() -> None:
    folder = TransientFolder("twice")
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_what_was_made_in_one_may_get_a_lasting_name(tmp_path: Path) -> None:
    with TransientFolder("draft", inside=tmp_path) as path:
        (path / "file").write_text("x")
        path.rename(tmp_path / "made")
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


def test_a_session_folder_of_a_live_process_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    root = tmp_path / "seer" / "sessions"
    first = PrivateFolder("first")
    with PrivateFolder("second") as second:
        assert sorted(folders(root)) == sorted([first.path, second])
    first.remove()
    assert folders(root) == []


# Names with line breaks: a list of lines would split them, and remove a stranger's folder too.
@full
@pytest.mark.parametrize("name", ["plain", "line\nbreak", "space "])
def test_all_is_gone_soon_after_the_process_was_killed(tmp_path: Path, name: str) -> None:
    strangers = tmp_path / name.partition("\n")[0]
    strangers.mkdir(exist_ok=True)
    place = tmp_path / name
    place.mkdir(exist_ok=True)
    made = [place / "root", place / "tmp", place / "state" / "seer" / "sessions"]
    with owner(place) as process:
        assert process.stdout is not None
        janitor = os.pidfd_open(int(process.stdout.readline()))
        assert [len(folders(root)) for root in made] == [1, 1, 1]
        process.send_signal(signal.SIGKILL)
    assert select.select([janitor], [], [], 60)[0], "what removes them did not end"
    os.close(janitor)
    assert [folders(root) for root in made] == [[], [], []]
    assert not (place / "file").exists()
    assert strangers.exists()


@full
def test_a_process_that_forgets_to_remove_leaves_nothing(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
    wait_until(lambda: folders(tmp_path / "tmp") == [], "no temporary folder")


FORKING = """
import os, sys
from seer._transient import TransientFolder
kept = TransientFolder("x")
(kept.folder("deep") / "file").write_text("x")
if os.fork() == 0:
    kept.remove()
    with TransientFolder("own"):
        print(kept.path.exists(), flush=True)
        sys.stdin.read()
    os._exit(0)
os.wait()
"""


@full
def test_a_fork_removes_nothing_of_its_parents_and_keeps_nothing_of_it_alive(
    tmp_path: Path,
) -> None:
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", FORKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        assert len(folders(tmp_path / "tmp")) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: len(folders(tmp_path / "tmp")) == 1, "the parent's folder is gone")
        process.stdin.close()
        wait_until(lambda: folders(tmp_path / "tmp") == [], "and then the fork's own")


@full
def test_a_janitor_that_was_killed_is_replaced_and_told_everything_again(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        first = int(process.stdout.readline())
        os.kill(first, signal.SIGKILL)
        process.stdin.write(b"more\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) != first
        assert len(folders(tmp_path / "tmp")) == 2
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: folders(tmp_path / "tmp") == [], "no temporary folder")


@full
def test_the_next_session_removes_what_is_left_when_all_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner(tmp_path) as process:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        process.send_signal(signal.SIGKILL)
    root = tmp_path / "state" / "seer" / "sessions"
    (root / "half-made").mkdir()
    assert len(folders(root)) == 2
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with PrivateFolder("next") as path:
        assert folders(root) == [path]
    assert folders(root) == []
