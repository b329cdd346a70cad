"""Who may call: listening sockets, and the connections that come through them."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from seer.rpc.interface._budget import Budget, Meter
from seer.rpc.wire._protocol import CANNOT_PASS

from ._calls import Caller
from ._connection import Connection
from ._failures import error_text
from ._replies import plain_message
from ._shared import FIRST_CALLER

if TYPE_CHECKING:
    from ._config import ServerConfig
    from ._gate import Gate
    from ._loop import Loop
    from ._shared import Shared

MAX_CONNECTIONS = 1024
"""Connections that one caller may have at once."""


class Callers:
    """Accepts connections for all callers, on the leading thread."""

    def __init__(
        self,
        gate: Gate,
        loop: Loop,
        shared: Shared,
        config: ServerConfig,
        kind: type[Caller] = Caller,
    ) -> None:
        self._kind = kind
        self._gate = gate
        self._loop = loop
        self._shared = shared
        self._config = config
        self._listeners: dict[str, socket.socket] = {}
        # Given up for a moment when descriptors run out, to tell the peer instead of spinning.
        self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def add(self, name: str, index: int, budget: Budget, listener: socket.socket) -> None:
        """Accept connections of a caller."""
        caller = self.know(name, index, budget)
        self._listeners[name] = listener
        self._loop.watch(listener.fileno(), select.EPOLLIN, lambda _: self._accept(caller))

    def know(self, name: str, index: int, budget: Budget) -> Caller:
        """Have a caller, wherever its connections come from."""
        base = self._shared.meter_base(FIRST_CALLER + index)
        caller = self._kind(name, index, Meter("this caller", budget, self._shared.cells, base))
        caller.allowance.limit = self._config.caller_memory
        self._gate.callers[name] = caller
        return caller

    def connect(self, caller: Caller, connected: socket.socket) -> None:
        """Take a connection of a caller."""
        caller.connections.add(
            Connection(connected, caller, self._loop, self._gate, self._config.max_body)
        )

    def remove(self, name: str) -> None:
        """End a caller: its connections, calls, handles and arrays go."""
        caller = self._gate.callers.pop(name, None)
        listener = self._listeners.pop(name, None)
        if listener is not None:
            self._loop.unwatch(listener.fileno())
            listener.close()
        if caller is None:
            return
        for connection in list(caller.connections):
            connection.close()
        for call in list(caller.calls.values()):
            self._gate.stop_call(call, "gone")
            # Nobody waits, and nobody looks at the times of its calls any more.
            self._gate.detach_call(call, time.monotonic())
        caller.handles.clear()
        caller.allowance.close()

    def _accept(self, caller: Caller) -> None:
        listener = self._listeners.get(caller.name)
        if listener is None:
            return
        for _ in range(64):
            try:
                connected, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    if self._close_finished():
                        continue
                    self._turn_away(listener)
                elif error.errno in CANNOT_PASS:
                    # The socket stays ready, so do not spin on it.
                    time.sleep(0.005)
                return
            if len(caller.connections) >= MAX_CONNECTIONS:
                self._say_full(connected)
                continue
            self.connect(caller, connected)

    def _close_finished(self) -> bool:
        """Close connections that have their last answer; whether there were any.

        They are closed in a moment anyway. But a peer that was refused on one of them may already
        be back on another, which could use its descriptor.
        """
        closing = [
            connection
            for caller in self._gate.callers.values()
            for connection in tuple(caller.connections)
            if connection.closing
        ]
        for connection in closing:
            connection.finish()
        return any(connection.closed for connection in closing)

    def _turn_away(self, listener: socket.socket) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
        try:
            connected, _ = listener.accept()
            self._say_full(connected)
        except OSError:
            # Another thread was faster. The socket stays ready, so do not spin on it.
            time.sleep(0.005)
        try:
            self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._reserve = -1

    def _say_full(self, connected: socket.socket) -> None:
        text = error_text("GateBusyError", "the gate has no room for another connection; use fewer")
        try:
            connected.send(plain_message(503, self._gate.prefix, text, close=True))
        except OSError:
            return
        finally:
            connected.close()
