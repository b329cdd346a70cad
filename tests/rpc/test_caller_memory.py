"""What one caller can make the interface's process hold: bounded in bytes, whatever it is."""

import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import HandleError, ProtocolError
from seer.rpc.client import _requests
from seer.rpc.client._wire import Piece
from tests.rpc.serving import Served, serving

pytestmark = pytest.mark.full

MIB = 1 << 20
LIMIT = 64 * MIB
SEALS = 1 | 2 | 4 | 8
SOURCE = """
    import numpy as np
    from seer.rpc import Handle

    shared = np.zeros(30 << 20, "u1")

    class Kept:
        def __init__(self, value):
            self.value = value

    @expose
    def make(mib: int, how: str = "array") -> Handle:
        value = np.ones(mib << 20, "u1")
        if how == "nested":
            return {"parts": [value, (1, 2)]}
        if how == "object":
            return Kept(value)
        if how == "view":
            return value[:1]
        if how == "bytes":
            return [bytes(mib << 20)]
        return value

    @expose
    def views(count: int) -> list[Handle]:
        return [Handle(shared[i:]) for i in range(count)]

    @expose
    def total(values: np.ndarray) -> float:
        return float(values.sum())

    @expose
    def length(text: str) -> int:
        return len(text)

    @expose
    def array(mib: int) -> np.ndarray:
        return np.ones(mib << 20, "u1")

    @expose
    def resident() -> int:
        return int(open("/proc/self/statm").read().split()[1]) * 4096
"""


@pytest.fixture
def served() -> Generator[Served]:
    with serving(SOURCE, caller_memory=LIMIT) as served:
        yield served


def memfd(size: int, pages: range) -> int:
    """A sealed memfd that has memory only where `pages` begin."""
    fd = os.memfd_create("attack", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    for page in pages:
        os.pwrite(fd, bytes(4096), page)
    fcntl.fcntl(fd, 1033, SEALS)
    return fd


@pytest.mark.parametrize(
    "pages",
    [
        range(0),
        range(1),
        range(0, 32 * MIB, 8192),
        range(0, 32 * MIB - 4096, 4096),
    ],
    ids=["empty", "one page", "every second page", "all but a page"],
)
def test_a_sparse_memfd_is_refused_and_takes_no_memory(
    served: Served, pages: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = served.gate()
    assert gate.call("total", (np.ones(MIB),)) == MIB
    before = gate.call("resident")

    def sparse(_buffers: list[Any]) -> tuple[int, list[Piece]]:
        return memfd(32 * MIB, pages), [Piece("m", 0, 0, 8 * MIB)]

    monkeypatch.setattr(_requests, "sealed_memfd", sparse)
    with pytest.raises(ProtocolError, match="holes are not accepted"):
        gate.call("total", (np.ones(MIB),))
    monkeypatch.undo()
    assert gate.call("total", (np.ones(MIB),)) == MIB
    assert gate.call("resident") < before + 16 * MIB


def test_buffers_that_overlap_cannot_multiply_what_was_sent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = served.gate()

    def overlapping(buffers: list[Any]) -> tuple[int, list[Piece]]:
        size = memoryview(buffers[0]).nbytes
        return memfd(size, range(0, size, 4096)), [Piece("m", 0, 0, size) for _ in buffers]

    monkeypatch.setattr(_requests, "sealed_memfd", overlapping)
    with pytest.raises(ProtocolError, match="more bytes than it"):
        gate.call("total", (np.ones(MIB), np.ones(MIB)))


@pytest.mark.parametrize("how", ["array", "nested", "object", "view", "bytes"])
def test_handles_are_bounded_by_their_bytes(served: Served, how: str) -> None:
    gate = served.gate()
    before = gate.call("resident")
    kept: list[Any] = []
    with pytest.raises(HandleError, match="caller_memory="):
        for _ in range(20):
            kept.append(gate.call("make", (10, how)))
    assert len(kept) == 6
    assert gate.call("resident") < before + LIMIT + 32 * MIB
    del kept[:3]
    assert gate.call("make", (20, how)) is not None
    # Another caller has an allowance of its own.
    message: dict[str, Any] = {"name": "b", "socket": str(served.socket_path("b")), "budget": {}}
    served.control("POST", "/v1/callers", message)
    assert served.gate("b").call("make", (50, how)) is not None


def test_handles_that_share_memory_are_counted_once(served: Served) -> None:
    gate = served.gate()
    handles = gate.call("views", (20,))
    more = gate.call("make", (30,))
    with pytest.raises(HandleError):
        gate.call("make", (10,))
    del handles[1:]
    with pytest.raises(HandleError):
        gate.call("make", (10,))
    handles.clear()
    assert gate.call("make", (20,)) is not None
    assert more is not None


def test_handles_and_arguments_are_bounded_together(served: Served) -> None:
    gate = served.gate()
    kept = gate.call("make", (40,))
    with pytest.raises(ProtocolError, match="this caller may hold"):
        gate.call("length", ("x" * (32 * MIB),))
    with pytest.raises(ProtocolError, match="are accepted"):
        gate.call("total", (np.ones(4 * MIB),))
    kept.free()
    assert gate.call("length", ("x" * (32 * MIB),)) == 32 * MIB
    assert gate.call("total", (np.ones(4 * MIB),)) == 4 * MIB


def test_a_result_beyond_the_allowance_comes_over_the_socket(served: Served) -> None:
    gate = served.gate()
    assert gate.call("array", (80,)).sum() == 80 * MIB
    shared = Path(f"/proc/{served.pid}/maps").read_text()
    assert "seer-slot" not in shared
