"""Tells a launcher (`_launch`) what to become."""

import asyncio
import json
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio

from seer._addresses import address

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a launcher becomes."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    fds: tuple[int, ...] = ()
    done: Callable[[], None] = lambda: None
    """Called once the plan was handed over."""


Planner = Callable[[Sequence[str], Mapping[str, str]], Plan]
"""From the SDK's arguments and variables to a plan."""


class Door:
    """A socket at which one launcher asks, once."""

    def __init__(self, folder: Path, plan: Planner) -> None:
        self._plan = plan
        self._pid: int | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        with address(folder / "door") as where:
            self._listener.bind(where)
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop answering. Closing twice is harmless."""
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])
        self._listener.close()

    def kill(self) -> None:
        """End what the launcher became, now."""
        if self._pid is not None:
            try:
                os.kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                logger.debug("the agent's process has ended already")

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        peer, _ = await loop.sock_accept(self._listener)
        with peer:
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self._pid = struct.unpack("3i", credentials)[0]
            data = b""
            while not data.endswith(b"\n"):
                part = await loop.sock_recv(peer, 1 << 16)
                if not part:
                    return
                data += part
            asked = json.loads(data)
            plan = self._plan(
                cast("list[str]", asked["arguments"]), cast("dict[str, str]", asked["env"])
            )
            try:
                self._send(peer, plan)
            finally:
                plan.done()

    def _send(self, peer: socket.socket, plan: Plan) -> None:
        answer = {"argv": plan.argv, "env": dict(plan.env), "cwd": plan.cwd, "fds": plan.fds}
        data = json.dumps(answer).encode() + b"\n"
        peer.setblocking(True)
        peer.settimeout(5)
        sent = socket.send_fds(peer, [data], list(plan.fds)) if plan.fds else 0
        peer.sendall(data[sent:])
