"""A hostile caller cannot make the gate use much more memory than the caller itself uses."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from seer.workspace import Library

# Not at the same time as the tests of floods: the kernel counts descriptors in flight per user.
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("descriptors"),
]


class Target:
    """A gate with two callers: the attacker, which has raw connections, and another one."""

    def __init__(self, library: Library, stack: ExitStack) -> None:
        mine: Any = library.connect()
        self.other: Any = library.connect()
        mine.echo("x")
        self.other.echo("x")
        self._path = mine._gate.address.removeprefix("path:")
        self._stack = stack
        self.pid = self._gate_process()

    def connect(self) -> socket.socket:
        connected = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        connected.settimeout(30)
        connected.connect(self._path)
        return connected

    def resident_mib(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) >> 10

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def _gate_process(self) -> int:
        machine = re.search(r"machines/([^/]+)/", self._path)
        assert machine is not None
        found: list[int] = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
                mark = f"SEER_MACHINE={machine[1]}".encode()
                if b"rpc.server" in command and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return max(found)


@pytest.fixture
def target(library: Library) -> Iterator[Target]:
    with ExitStack() as stack:
        yield Target(library, stack)


def test_announced_bodies_cost_nothing_before_they_come(target: Target) -> None:
    before = target.resident_mib()
    for _ in range(3):
        head = b"POST /v1/call/echo HTTP/1.1\r\ncontent-length: %d\r\n\r\n{" % (1 << 30)
        target.connect().sendall(head)
        assert target.other.echo("x") == "x"
    assert target.resident_mib() - before < 100


def test_announced_bodies_count_against_their_caller(target: Target) -> None:
    head = b"POST /v1/call/echo HTTP/1.1\r\ncontent-length: %d\r\n\r\n{" % ((1 << 30) - 1)
    for _ in range(4):
        target.connect().sendall(head)
    fifth = target.connect()
    fifth.sendall(head)
    assert fifth.recv(65536).startswith(b"HTTP/1.1 413")
    assert target.other.echo("x") == "x"


def test_descriptors_sent_after_a_refusal_do_not_pile_up(target: Target) -> None:
    before = target.descriptors()
    refused = target.connect()
    refused.sendall(b"x\r\n\r\n")
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        for _ in range(60):
            socket.send_fds(refused, [b"x"], [null] * 60)
    except OSError:
        pass  # The gate may also close the connection.
    finally:
        os.close(null)
    assert target.other.echo("x") == "x"
    assert target.descriptors() - before < 100
