"""Memory of arrays on both sides: copies in parts, and pages that a caller has written to."""

import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from seer.rpc.client import _mappings
from seer.rpc.server import _replies


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
@pytest.mark.parametrize("size", [1, 4095, 4096, 10_000, 12_288, 99_999])
def test_a_copy_in_parts_is_the_whole_copy(
    size: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_replies, "APART", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    source = np.random.default_rng(size).bytes(size)
    target = bytearray(size)
    _replies.copy(memoryview(source), memoryview(target))
    assert bytes(target) == source


def test_a_copy_is_whole_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_replies, "APART", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(threading.Thread, "start", refuse)
    source, target = os.urandom(50_000), bytearray(50_000)
    _replies.copy(memoryview(source), memoryview(target))
    assert bytes(target) == source


PAGES = 64


@contextmanager
def lent() -> Generator[tuple[_mappings.Mapping, mmap.mmap]]:
    """A slot as the caller has it, and the server's own mapping of it."""
    size = PAGES * mmap.PAGESIZE
    fd = os.memfd_create("slot")
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as theirs:
        theirs[:] = b"a" * size
        yield _mappings.Mapping(0, fd, size), theirs


def no_scan(fd: int, request: int, *_rest: Any) -> int:
    raise OSError(25, "Inappropriate ioctl for device")


@pytest.fixture(params=["scan", "table"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "table":
        monkeypatch.setattr(fcntl, "ioctl", no_scan)


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("written", [(), (0,), (PAGES // 2,), (PAGES - 1,), range(PAGES)])
def test_what_a_caller_wrote_is_gone_when_its_slot_is_used_again(written: Any) -> None:
    released: deque[int] = deque()
    with lent() as (mapping, theirs):
        first = mapping.lend(released)
        assert bytes(first[:1]) == b"a"
        for page in written:
            first[page * mmap.PAGESIZE] = ord("x")
        own = _mappings._has_own_pages(mapping.memory, mapping.size)  # pyright: ignore[reportPrivateUsage]
        assert own == bool(written)
        del first
        assert list(released) == [0]
        theirs[:] = b"b" * len(theirs)
        assert set(bytes(mapping.lend(released))) == {ord("b")}
