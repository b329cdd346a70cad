"""Callers: their listening sockets, their connections, and what the gate keeps for each of them.

Results of finished calls are kept for a while, so that they can be fetched again by id. An id is
remembered for longer than its result. A call whose result is gone (it was too large, was streamed,
or was in memory that was released) is never executed again.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from _thread import allocate_lock
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from seer.errors import GateBusyError
from seer.rpc.interface._budget import Budget, Meter, Tally
from seer.rpc.values._handles import HandleTable
from seer.rpc.wire._memory import Allowance
from seer.rpc.wire._protocol import CANNOT_PASS

from ._connection import Connection
from ._failures import error_text
from ._listeners import BACKLOG
from ._replies import Reply, plain_message
from ._shared import FIRST_CALLER, Shared, first_place
from ._socket import read_arrived

if TYPE_CHECKING:
    from ._calls import Call
    from ._config import ServerConfig
    from ._entries import Entry
    from ._gate import Gate
    from ._loop import Loop


KEEP_SECONDS = 600.0
KEEP_BYTES = 64 << 20
"""Bytes of kept results; only results above `SMALL` count."""
KEEP_COUNT = 32768
SMALL = 1024
"""Results up to this size are kept as long as their ids."""


class Results:
    """One caller's finished calls, bounded in age, number and bytes; needs the caller's lock."""

    __slots__ = ("_bytes", "_large", "_order", "_seconds", "known")

    def __init__(self, seconds: float = KEEP_SECONDS) -> None:
        self._seconds = seconds
        self.known: dict[str, tuple[str, Reply | bytes | None, float]] = {}
        """By id of the call: the function's name, the reply (a plain result as its text; None if it
        was dropped), and when it was added."""
        self._order: deque[str] = deque()
        self._large: OrderedDict[str, None] = OrderedDict()
        """The ids of the results above `SMALL` that are kept, oldest first."""
        self._bytes = 0

    def add(self, call: str, function: str, reply: Reply | bytes | None, now: float) -> None:
        """Keep a reply, and drop the oldest ones above the bounds.

        Args:
            call: The call's id.
            function: The function's name.
            reply: The reply; a plain result as its JSON text; None if it cannot be sent again.
            now: The time (monotonic).
        """
        size = len(reply) if isinstance(reply, bytes) else _size(reply)
        if size > KEEP_BYTES:
            reply, size = None, 0
        self.known[call] = (function, reply, now)
        order = self._order
        order.append(call)
        if size > SMALL:
            self._large[call] = None
            self._bytes += size
            while self._bytes > KEEP_BYTES:
                self.drop(next(iter(self._large)))
        if len(order) > KEEP_COUNT:
            self._forget(order.popleft())

    def expire(self, now: float) -> None:
        """Forget what is too old."""
        order = self._order
        while order and self.known[order[0]][2] < now - self._seconds:
            self._forget(order.popleft())

    def get(self, call: str, now: float) -> tuple[str, Reply | None] | None:
        """The function's name, and the reply or None if it was dropped; None for an unknown id."""
        self.expire(now)
        found = self.known.get(call)
        if found is None:
            return None
        function, reply, _ = found
        return function, Reply(200, reply) if isinstance(reply, bytes) else reply

    def drop(self, call: str) -> None:
        """Drop a reply, and remember that the call was executed."""
        found = self.known.get(call)
        if found is not None:
            function, reply, when = found
            self._uncount(call, reply)
            self.known[call] = (function, None, when)

    def _forget(self, call: str) -> None:
        _, reply, _ = self.known.pop(call)
        self._uncount(call, reply)

    def _uncount(self, call: str, reply: Reply | bytes | None) -> None:
        if call in self._large:
            del self._large[call]
            self._bytes -= _size(reply)


def _size(reply: Reply | bytes | None) -> int:
    if reply is None:
        return 0
    return len(reply) if isinstance(reply, bytes) else reply.kept_size


MAX_CONNECTIONS = 1024
"""Connections that one caller may have at once."""


MAX_UNREAD = 256 << 20
"""Bytes of answers that one caller may leave unread before it can call again."""


class Caller:
    """One caller: a socket, with the calls, results, handles and arrays behind it."""

    __slots__ = (
        "allowance",
        "batch",
        "bytes_pending",
        "calls",
        "clogged",
        "connections",
        "describe",
        "detached",
        "first_place",
        "handles",
        "index",
        "lock",
        "meter",
        "name",
        "restorers",
        "results",
        "tallies",
        "unfollowed_at",
    )

    def __init__(self, name: str, index: int, meter: Meter) -> None:
        self.name = name
        self.index = index
        self.first_place = first_place(index)
        self.meter = meter
        self.lock = allocate_lock()
        self.calls: dict[str, Call] = {}
        self.results = Results()
        self.connections: set[Connection] = set()
        self.clogged: set[Connection] = set()
        """Connections with answers that their peer has not read."""
        self.allowance = Allowance()
        self.handles = HandleTable(self.room)
        self.restorers = {"handle": self.handles.restore}
        self.describe = self.handles.describe
        self.batch = -1
        """The number of the last batch of events in which it had a call; see `Loop.batch`."""
        self.tallies: dict[Entry, Tally] = {}
        self.bytes_pending = 0
        """Bytes of request bodies that were announced and not freed yet."""
        self.detached: dict[Call, None] = {}
        """Calls that were answered while their functions still run; see `Gate.finish`."""
        self.unfollowed_at = 0.0
        """When the last finished run that followed this caller ended (monotonic). Calls made before
        then belong to that run or to an earlier one, never to a later one."""

    def reads_enough(self) -> bool:
        """Whether the caller's unread answers are within the limit."""
        return not self.clogged or self._unread() <= self._most_unread()

    def check_unread(self) -> None:
        """Refuse a call of a caller that does not read its answers.

        Raises:
            GateBusyError: It leaves too many bytes unread.
        """
        if not self.reads_enough():
            raise GateBusyError(
                f"this caller has {self._unread()} bytes of unread answers; at most"
                f" {self._most_unread()} are allowed: read them first"
            )

    def _unread(self) -> int:
        return sum(connection.unsent for connection in tuple(self.clogged))

    def _most_unread(self) -> int:
        return min(MAX_UNREAD, self.allowance.limit // 4)

    def room(self) -> int:
        """Bytes it may still use for arguments and handles. Slots have their own allowance."""
        return self.allowance.limit - self.bytes_pending - self.handles.size

    def answer(self, call: Call, reply: Reply, now: float) -> list[Connection]:
        """Keep a call's reply, forget the call, and return the connections that wait for it."""
        with self.lock:
            waiting = call.connections
            call.connections = []
            if call.id[0] != "~":
                # Most results are plain; of those, only the text is kept.
                plain = reply.status == 200 and not reply.pieces
                kept = None if call.streaming else reply.text if plain else reply
                self.results.add(call.id, call.entry.name, kept, now)
            # Last: the thread that reads requests checks `calls` and then `results`, without the
            # lock, and executes a call whose id is in neither.
            del self.calls[call.id]
            return waiting


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
        # Closed for a moment when descriptors run out, so that a peer can be accepted and refused.
        self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def add(self, name: str, index: int, budget: Budget, listener: socket.socket) -> None:
        """Accept connections of a caller."""
        caller = self.know(name, index, budget)
        self._listeners[name] = listener
        self._loop.watch(listener.fileno(), select.EPOLLIN, lambda _: self._accept(caller))

    def know(self, name: str, index: int, budget: Budget) -> Caller:
        """Add a caller without a listening socket."""
        base = self._shared.meter_base(FIRST_CALLER + index)
        caller = self._kind(name, index, Meter("this caller", budget, self._shared.cells, base))
        caller.allowance.limit = self._config.caller_memory
        self._gate.callers[name] = caller
        return caller

    def connect(self, caller: Caller, connected: socket.socket) -> None:
        """Serve a new connection of a caller."""
        caller.connections.add(
            Connection(connected, caller, self._loop, self._gate, self._config.max_body)
        )

    def remove(self, name: str) -> None:
        """Remove a caller with its connections, calls, handles and arrays."""
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
            # At once: no connection waits for it, and `Gate.due` no longer checks this caller.
            self._gate.detach_call(call, time.monotonic())
        caller.handles.clear()
        caller.allowance.close()

    def stop_reading(self) -> None:
        """Read no further requests and accept no further connections: the process is about to end.

        Unread requests stay in the sockets, so their senders learn that the process has ended.
        """
        for name, listener in self._listeners.items():
            self._loop.unwatch(listener.fileno())
            for connection in self._gate.callers[name].connections:
                self._loop.unwatch(connection.fd)

    def read_arrived(self, names: Iterable[str]) -> None:
        """Read the requests of some callers that have already arrived; on the leading thread.

        No call begins here, so this returns soon.
        """
        self._loop.direct = False
        for name in names:
            caller = self._gate.callers.get(name)
            if caller is not None:
                self._accept(caller, most=2 * BACKLOG)
                read_arrived(tuple(caller.connections))

    def _accept(self, caller: Caller, most: int = 64) -> None:
        listener = self._listeners.get(caller.name)
        if listener is None:
            return
        for _ in range(most):
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
        """Close connections that have sent their last answer, and return whether one was closed.

        They would be closed in a moment anyway. But a peer that was refused on one of them may
        already have connected again, and needs the descriptor.
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
            # Another thread took the descriptor. The socket stays ready, so do not spin on it.
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
