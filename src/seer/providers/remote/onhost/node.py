"""A machine that a launcher started, as its node sees it.

It is started as anywhere, with its state on the node's own disk, and wires are carried to its
session server until it ends. What a launcher is, and who asks it, is `launched`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any

from seer._addresses import address
from seer.providers.agent import wire
from seer.providers.agent.cleaning import remove_tree
from seer.providers.local._record import how_it_ended
from seer.providers.remote.onhost.multiplexer import NOTE, Multiplexer

StartMachine = Callable[[Mapping[str, Any]], Coroutine[Any, Any, dict[str, object]]]

_STATE = "seer-node-"


def serve_on_node(start_machine: StartMachine) -> None:
    """Start the machine that comes in the request, and carry wires to it until it ends."""
    multiplexer = Multiplexer(os.dup(0), os.dup(1))
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    first = multiplexer.receive()
    if first is None:
        return
    base = Path(os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir())
    sweep_node(base)
    with state_on_node(base) as state:
        os.environ["XDG_STATE_HOME"] = str(state)
        answer = asyncio.run(start_machine(json.loads(first[1])))
        multiplexer.send(NOTE, json.dumps({"ok": answer}).encode())
        _Node(multiplexer, str(answer["porter"]), str(answer["id"])).run()


@contextlib.contextmanager
def state_on_node(base: Path) -> Generator[Path]:
    """A folder for the state of one machine, with a lock that tells that it is in use."""
    state = Path(tempfile.mkdtemp(prefix=_STATE, dir=base))
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield state
    finally:
        shutil.rmtree(state, ignore_errors=True)
        os.close(lock)


def sweep_node(base: Path) -> None:
    """Remove what is left of jobs that a scheduler killed as a whole; nothing else does."""
    for state in base.glob(f"{_STATE}*"):
        # A lock that is not there yet is made just now; one that is held is in use.
        locks = [state / "lock", *state.glob("seer/machines/*/lock")]
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            if state.lstat().st_uid != os.geteuid():
                continue
            for path in locks:
                lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(os.fsencode(state))


class _Node:
    def __init__(self, multiplexer: Multiplexer, session_socket: str, machine_id: str) -> None:
        self._multiplexer = multiplexer
        self._session_socket = Path(session_socket)
        self._id = machine_id
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address(self._session_socket.with_name("keeper.sock")) as where:
            self._keeper.connect(where)

    def run(self) -> None:
        carrying = threading.Thread(target=self._carry, daemon=True)
        carrying.start()
        with contextlib.suppress(OSError):
            while self._keeper.recv(4096):
                continue
        known = how_it_ended(self._id)
        reason = known[0] if known is not None else "its keeper was killed"
        with contextlib.suppress(OSError):
            self._multiplexer.send(NOTE, json.dumps({"ended": reason}).encode())

    def _carry(self) -> None:
        self._multiplexer.run(lambda _: None, self._accept)
        # The process that launched this is gone, so the machine must not stay.
        asked = wire.encode({"op": "terminate", "reason": "its launcher is gone"})
        with contextlib.suppress(OSError):
            self._keeper.sendall(struct.pack(">I", len(asked) + 1) + wire.REQUEST + asked)

    def _accept(self, number: int) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address(self._session_socket) as where:
                peer.connect(where)
        except OSError:
            peer.close()
            self._multiplexer.send(number, b"")
            return
        self._multiplexer.add(number, peer)
