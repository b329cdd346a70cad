"""Paths in folders that a hostile program can write to.

It tests the helpers themselves, with links and races that a jail's user could make.
"""

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from seer.errors import PathEscapeError
from seer.isolation import _beneath, connect_beneath, open_beneath, read_bytes
from seer.isolation._ownership import chown_tree


@pytest.fixture(params=["openat2", "walk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a secret beside it, with and without the kernel's help."""
    if request.param == "walk":

        def missing(*_: object) -> None:
            return None

        monkeypatch.setattr(_beneath, "_openat2", missing)
    (tmp_path / "secret").write_text("secret")
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub" / "a.txt").write_text("hello")
    return inside


def test_files_inside_are_read_by_path_and_by_descriptor(folder: Path) -> None:
    assert read_bytes(folder, "sub/a.txt") == b"hello"
    fd = os.open(folder, os.O_RDONLY)
    try:
        assert read_bytes(fd, Path("sub/./a.txt")) == b"hello"
    finally:
        os.close(fd)


def test_descriptors_are_closed_on_exec(folder: Path) -> None:
    fd = open_beneath(folder, "sub/a.txt")
    try:
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("path", ["../secret", "sub/../../secret", "/etc/passwd", "sub/..", "a\0b"])
def test_paths_that_climb_are_refused(folder: Path, path: str) -> None:
    with pytest.raises(PathEscapeError):
        read_bytes(folder, path)


@pytest.mark.parametrize(
    ("link", "to", "path"),
    [
        ("link", "../secret", "link"),
        ("link", "/etc/passwd", "link"),
        ("link", "sub/a.txt", "link"),
        ("link", "..", "link/secret"),
        ("link", "sub", "link/a.txt"),
        ("sub/link", "link", "sub/link"),
    ],
)
def test_links_are_refused_wherever_they_lead(folder: Path, link: str, to: str, path: str) -> None:
    (folder / link).symlink_to(to)
    with pytest.raises(PathEscapeError, match="symbolic link"):
        read_bytes(folder, path)
    with pytest.raises(PathEscapeError):
        open_beneath(folder, path, os.O_PATH)
    with pytest.raises(PathEscapeError):
        open_beneath(folder, path, os.O_WRONLY | os.O_CREAT)


def test_magic_links_are_refused(folder: Path) -> None:
    with pytest.raises(PathEscapeError):
        open_beneath("/proc/self", "cwd/x")


def test_ordinary_errors_stay_what_they_are(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bytes(folder, "none")
    with pytest.raises(NotADirectoryError):
        read_bytes(folder, "sub/a.txt/b")
    with pytest.raises(OSError) as caught:
        read_bytes(folder, "sub/a.txt", limit=3)
    assert caught.value.errno == errno.EFBIG


def test_a_planted_pipe_does_not_block_the_reader(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(PathEscapeError, match="not a regular file"):
        read_bytes(folder, "pipe")


def test_sockets_are_reached_however_long_their_path_is(folder: Path) -> None:
    deep = folder.joinpath(*["d" * 60] * 3)
    deep.mkdir(parents=True)
    fd = os.open(deep, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{fd}/s")
        os.close(fd)
        server.listen()
        with connect_beneath(folder, str((deep / "s").relative_to(folder))) as connection:
            accepted, _ = server.accept()
            with accepted:
                connection.sendall(b"hi")
                assert accepted.recv(2) == b"hi"


def test_a_link_to_a_socket_outside_is_not_connected_to(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder.parent / "outside"))
        server.listen()
        (folder / "door").symlink_to("../outside")
        with pytest.raises(PathEscapeError):
            connect_beneath(folder, "door")
    with pytest.raises(PathEscapeError, match="not a socket"):
        connect_beneath(folder, "sub/a.txt")


def test_a_folder_that_keeps_changing_never_leads_out(folder: Path) -> None:
    (folder.parent / "outer").mkdir()
    (folder.parent / "outer" / "a.txt").write_text("outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (folder / "sub").rename(folder / "kept")
            (folder / "sub").symlink_to("../outer")
            (folder / "sub").unlink()
            (folder / "kept").rename(folder / "sub")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(2000):
            try:
                assert read_bytes(folder, "sub/a.txt") == b"hello"
            except OSError:
                continue
    finally:
        stop.set()
        swapper.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_tree_changes_hands_without_following_links(folder: Path) -> None:
    (folder / "link").symlink_to("../secret")
    os.link(folder.parent / "secret", folder / "hard")
    chown_tree(folder, 4242, 4242)
    owner: Callable[[str], int] = lambda name: (folder / name).lstat().st_uid  # noqa: E731
    assert owner("sub") == owner("sub/a.txt") == owner("link") == folder.stat().st_uid == 4242
    assert (folder.parent / "secret").stat().st_uid == 0
