"""A call on its way through the interface process, and the caller it belongs to."""

from __future__ import annotations

from _thread import allocate_lock

from seer.errors import GateBusyError
from seer.rpc._handles import HandleTable
from seer.rpc._pool import Allowance
from seer.rpc.client._wire import KEEP_ALIVE

from ._results import Results
from ._shared import first_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from seer.rpc._budget import Meter, Tally
    from seer.rpc._wire import Request

    from ._connection import Connection
    from ._entries import Entry
    from ._replies import Reply
    from .replicas._freight import Freight

QUEUED, RUNNING, DONE = 0, 1, 2
_NEVER = float("inf")
MAX_UNREAD = 256 << 20
"""Bytes of answers that one caller may leave unread before it can call again."""
SMALL = 65536
"""Bodies up to this size are not counted as pending."""


class Call:
    """One call of one function. Its state changes under the caller's lock.

    Attributes:
        owner: The caller.
        tally: What counts it.
        entry: The function.
        target: The handle that is fetched, for that kind of call.
        expires: When it must be over (monotonic); infinite where nobody said.
        by_budget: Whether `expires` comes from a budget, not from a deadline.
        lost_at: When the last connection that waits for it was lost; 0 while there is one.
        beat_at: When its connections get the next sign of life.
        cause: Why it was told to stop: `deadline`, `budget`, `cancel` or `gone`; else empty.
        runner: What runs it, once it runs; has `interrupt(call)`.
        connections: Who waits for its answer.
        streaming: Whether parts of the answer are on their way.
        items: What was streamed, chunk by chunk; only where calls are recorded.
        left_out: How many items were streamed that are not among them.
        pristine: Gives the arguments' buffers as they came; only where calls are recorded.
        copy: The number of the interface's copy that has it; 0 where there are no copies.
        freight: What the front sends to that copy beside its text, and where it is; see `Freight`.
        gpu: Whether that copy has a GPU in use.
        ran: Seconds that it ran, as its copy says.
        waited: Seconds that others had to wait because its caller reads its stream slowly.
    """

    # What most calls leave as it is stands on the class: setting it each time would cost.
    batch = 1
    buffers: Sequence[Any] = ()
    by_budget = False
    cause = ""
    copy = 0
    freight: Freight | None = None
    gpu = False
    items: list[bytes] | tuple[()] = ()
    left_out = 0
    lost_at = 0.0
    pristine: Callable[[], list[memoryview]] | None = None
    ran = 0.0
    runner: Any = None
    started_at = 0.0
    state = QUEUED
    streaming = False
    target = ""
    waited = 0.0

    def __init__(
        self, owner: Caller, entry: Entry, request: Request, tally: Tally, now: float
    ) -> None:
        self.owner = owner
        self.entry = entry
        self.tally = tally
        self.id = request.call
        self.frames = request.frames
        self.shared = request.shared
        self.linger = request.linger
        self.expires = _NEVER if request.deadline is None else now + request.deadline
        self.queued_at = now
        self.beat_at = now + KEEP_ALIVE
        self.connections: list[Connection] = []
        self.body: bytes | bytearray | memoryview = b""
        self.bytes_in = request.length

    @property
    def place(self) -> int:
        """Of its function and caller, by which the supervisor knows them."""
        return self.owner.first_place + self.entry.place

    def pristine_buffers(self) -> list[memoryview]:
        """The arguments' buffers as they came, whatever the function did to its arrays."""
        return [] if self.pristine is None else self.pristine()


Begun = tuple["Connection", "Request", "bytes", str, "Entry", "Tally", float]
"""A call that was begun by the shortest way: its connection, request, body, id, function and tally,
and when. It is made into a `Call` only where somebody wants to see one."""


def call_of(begun: Begun) -> Call:
    """A running call, made of what is known of it."""
    connection, request, body, identifier, entry, tally, now = begun
    call = Call(connection.caller, entry, request, tally, now)
    call.id = identifier
    call.body = body
    call.bytes_in = len(body)
    call.state = RUNNING
    call.started_at = now
    return call


class Caller:
    """A socket, and all that belongs to who is behind it: calls, results, handles, arrays."""

    __slots__ = (
        "allowance",
        "batch",
        "bytes_pending",
        "calls",
        "clogged",
        "connections",
        "describe",
        "first_place",
        "handles",
        "index",
        "lock",
        "meter",
        "name",
        "restorers",
        "results",
        "tallies",
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
        """The last events among which it had a call."""
        self.tallies: dict[Entry, Tally] = {}
        self.bytes_pending = 0
        """Bytes of request bodies that were announced and are not yet used up."""

    def reads_enough(self) -> bool:
        """Whether it leaves no more answers unread than one caller may."""
        return not self.clogged or self._unread() <= self._most_unread()

    def check_unread(self) -> None:
        """Refuse a call of a caller that does not read its answers.

        Raises:
            GateBusyError: It leaves too many bytes unread.
        """
        if not self.reads_enough():
            raise GateBusyError(
                f"this caller has {self._unread()} bytes of answers that it does not read; it may"
                f" have {self._most_unread()}: read them first"
            )

    def _unread(self) -> int:
        return sum(connection.unsent for connection in tuple(self.clogged))

    def _most_unread(self) -> int:
        return min(MAX_UNREAD, self.allowance.limit // 4)

    def room(self) -> int:
        """Bytes that it may have more in arguments and handles; slots have as many of their own."""
        return self.allowance.limit - self.bytes_pending - self.handles.size

    def finish(self, call: Call, reply: Reply | bytes, now: float) -> list[Connection]:
        """Mark `call` as done and keep its reply; who waits for it, or nobody if it was done."""
        with self.lock:
            if call.state == DONE:
                return []
            call.state = DONE
            call.runner = None
            if call.bytes_in > SMALL:
                self.bytes_pending -= call.bytes_in
            waiting = call.connections
            call.connections = []
            if call.id[0] != "~":
                kept = None if call.streaming else reply
                self.results.add(call.id, call.entry.name, kept, now)
            # Last: who reads requests looks at both without the lock, here first, and an id that
            # is in neither is executed.
            del self.calls[call.id]
            return waiting
