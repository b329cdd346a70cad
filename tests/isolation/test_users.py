"""A jail's user belongs to no other jail, in this process or another.

It reserves users itself, because a jail shows only its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seer.errors import IsolationError
from seer.isolation import _users
from seer.isolation._users import take_user

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three users, and locks of this test's own."""
    monkeypatch.setattr(_users, "_FOLDER", tmp_path / "users")
    monkeypatch.setattr(_users, "MACHINE_UIDS", range(70001, 70004))


def test_every_user_is_given_once_and_again_when_it_is_free() -> None:
    taken = [take_user() for _ in range(3)]
    assert {uid for uid, _ in taken} == {70001, 70002, 70003}
    with pytest.raises(IsolationError, match="all 3 users for machines"):
        take_user()
    freed, fd = taken.pop()
    os.close(fd)
    uid, fd = take_user()
    assert uid == freed
    for held in (fd, *(fd for _, fd in taken)):
        os.close(held)


def test_a_user_lasts_as_long_as_any_process_holds_it() -> None:
    uid, fd = take_user()
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[fd]
    ) as holder:
        os.close(fd)
        others = [take_user() for _ in range(2)]
        assert uid not in {other for other, _ in others}
        with pytest.raises(IsolationError):
            take_user()
        holder.communicate()
    again, fd = take_user()
    assert again == uid
    for held in (fd, *(fd for _, fd in others)):
        os.close(held)


def test_many_processes_at_once_get_different_users(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from seer.isolation import _users\n"
        "_users._FOLDER = Path(sys.argv[1]); _users.MACHINE_UIDS = range(1, 40)\n"
        "print(_users.take_user()[0], flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "users")]
    holders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    found: list[str] = []
    for holder in holders:
        assert holder.stdout is not None
        found.append(holder.stdout.readline())
    for holder in holders:
        holder.communicate()
    assert len(set(found)) == 6


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_that_is_written_to_already_decides_the_user(tmp_path: Path) -> None:
    folder, other = tmp_path / "one", tmp_path / "two"
    folder.mkdir()
    other.mkdir()
    uid, fd = take_user([folder])
    for path in (folder, other):
        os.chown(path, uid, uid)
    same, shared = take_user([folder])
    # Its owner has another machine now that never wrote here.
    different, third = take_user([other])
    assert same == uid != different
    for held in (fd, shared, third):
        os.close(held)


def test_a_folder_for_locks_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_users, "_FOLDER", Path("/proc/seer-users"))
    with pytest.raises(IsolationError, match="'/proc/seer-users' is not writable"):
        take_user()
