"""A machine's resource use is counted correctly, and an exceeded limit is named."""

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from seer.providers.agent.watchdog import Watchdog


def _watch(
    *,
    memory: int | None = None,
    processes: int | None = None,
    disk: int | None = None,
    files: int | None = None,
    writable: Path | None = None,
) -> Watchdog:
    folders = [os.fsencode(writable)] if writable is not None else []
    return Watchdog(
        memory=memory, processes=processes, disk=disk, files=files, writable=folders, group=None
    )


def _verdict(watch: Watchdog, root: int = 0) -> str | None:
    """What the watchdog finds; on a busy host, one count may take several looks."""
    return next((reason for _ in range(50) if (reason := watch.look(root))), None)


@pytest.fixture
def child() -> Generator[int]:
    """A process with 50 MB, three threads, and an unlinked file of 3 MB."""
    code = (
        "import os, sys, tempfile, threading, time\n"
        "data = bytearray(os.urandom(1 << 20) * 50)\n"
        "file = tempfile.TemporaryFile(); file.write(b'x' * 3_000_000); file.flush()\n"
        "for _ in range(2): threading.Thread(target=sys.stdin.read, daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def test_nothing_is_looked_at_where_nothing_is_limited() -> None:
    assert _watch().interval is None


def test_memory_of_the_tree_is_summed(child: int) -> None:
    assert _watch(memory=4 << 30).look(child) is None
    assert _watch(memory=30 << 20).look(child) == "memory limit of 30.0 MiB exceeded"
    assert _watch(memory=30 << 20).look(os.getpid()) == "memory limit of 30.0 MiB exceeded"


def test_near_its_limit_a_machine_is_looked_at_more_often(child: int) -> None:
    calm, alert = _watch(memory=4 << 30), _watch(memory=80 << 20)
    assert calm.look(child) is None
    assert alert.look(child) is None
    assert calm.interval is not None
    assert alert.interval is not None
    assert alert.interval < calm.interval


def test_processes_and_threads_are_counted(child: int) -> None:
    assert _watch(processes=3).look(child) is None
    assert _watch(processes=2).look(child) == "limit of 2 processes exceeded (3)"


def test_bytes_on_disk_are_counted_once_per_file(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_bytes(os.urandom(2_000_000))
    for number in range(5):
        (tmp_path / "a" / "b" / str(number)).hardlink_to(tmp_path / "a" / "file")
    assert _verdict(_watch(disk=3_000_000, writable=tmp_path)) is None
    reason = _verdict(_watch(disk=1 << 20, writable=tmp_path))
    assert reason == "disk limit of 1.0 MiB exceeded"


def test_links_are_not_followed_when_counting(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(os.urandom(2_000_000))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "link").symlink_to(tmp_path / "elsewhere")
    assert _verdict(_watch(disk=1_000_000, writable=tmp_path / "own")) is None


def test_open_files_without_a_name_count(child: int, tmp_path: Path) -> None:
    full = _verdict(_watch(disk=2_000_000, writable=tmp_path), child)
    assert full == "disk limit of 1.9 MiB exceeded"
    assert _verdict(_watch(disk=10_000_000, writable=tmp_path), child) is None


def test_large_folders_are_counted_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seer.providers.agent import watchdog

    monkeypatch.setattr(watchdog, "_SLICE", 0.0)
    for number in range(20):
        (tmp_path / str(number)).write_bytes(b"x" * 100_000)
    watch = _watch(disk=1_500_000, writable=tmp_path)
    looks = 1
    while watch.look(0) is None:
        looks += 1
    assert looks > 5


def test_files_without_bytes_count(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / str(number)).touch()
    assert _verdict(_watch(disk=1 << 30, files=30, writable=tmp_path)) is None
    reason = _verdict(_watch(disk=1 << 30, files=29, writable=tmp_path))
    assert reason == "limit of 29 files exceeded (it follows from the disk limit)"


def test_an_idle_machine_is_counted_ever_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seer.providers.agent import watchdog

    clock, counts = [0.0], [0]
    room = [(1 << 40, 1 << 30)]
    real = watchdog._count_files  # pyright: ignore[reportPrivateUsage]

    def count(folders: list[bytes], pids: list[int]) -> Iterator[tuple[int, int]]:
        counts[0] += 1
        return real(folders, pids)

    monkeypatch.setattr(watchdog.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(watchdog, "_count_files", count)
    monkeypatch.setattr(watchdog, "_room", lambda _: list(room))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    watch = _watch(disk=1 << 30, writable=tmp_path)
    for _ in range(1200):  # ten minutes
        assert watch.look(0) is None
        clock[0] += 0.5
    assert 10 < counts[0] < 30
    # A write that only this machine can have made triggers a check at once.
    before = counts[0]
    room[0] = (room[0][0] - (1 << 29), room[0][1])
    assert watch.look(0) is None
    assert counts[0] == before + 1
