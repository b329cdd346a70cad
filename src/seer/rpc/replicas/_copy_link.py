"""One copy of the interface as the front sees it: what it has to do, and the ways to it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from seer.rpc.server._channel import framed
from seer.rpc.server._lanes import MAX_THREADS
from seer.rpc.server._socket import NonBlockingSocket

from ._link import Link

if TYPE_CHECKING:
    from typing import Any

    from seer.rpc.server._entries import Entry
    from seer.rpc.server._loop import Loop

    from ._calls import FrontCall, FrontCaller
    from ._link import Receiver

MAX_IDLE = 256
"""Connections to one copy that are kept for use again."""
MAX_TASKS = 64


def lane_of(entry: Entry) -> str:
    """What bounds the calls of a function: the main thread, or a bound of its own."""
    return "" if entry.lane == "main" else entry.name


def room_of(entry: Entry) -> int:
    """How many calls of a function's lane one copy can really run at a time."""
    if entry.lane == "main":
        return 1
    if entry.lane == "batch":
        return entry.options.batch
    if entry.lane == "threads":
        return min(entry.options.max_concurrency or 1, MAX_THREADS)
    return min(entry.options.max_concurrency or MAX_TASKS, MAX_TASKS)


class _ToCopy(NonBlockingSocket):
    """The front's end of the channel to a copy. The front must never wait for a copy."""

    def on_readable(self) -> None:
        """A copy says nothing here: only the end of the channel comes."""
        try:
            if self.socket.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def on_refused(self) -> None:
        """A connection could not be passed. The front reads its end at the other socket."""


class CopyLink:
    """A copy.

    Args:
        number: Its number, which no other copy has had.
        end: The front's end of the channel to it.
        loop: Watches the sockets.
        receiver: Hears of answers.

    Attributes:
        calls: The calls that it has.
        busy: How many of them are in each lane.
        used: When it was last given a call, as a count; for taking turns.
        draining: Since when it gets no new callers (monotonic); 0 while it does.
    """

    def __init__(self, number: int, end: socket.socket, loop: Loop, receiver: Receiver) -> None:
        self.number = number
        self.calls: set[FrontCall] = set()
        self.busy: dict[str, int] = {}
        self.used = 0
        self.draining = 0.0
        self._loop = loop
        self._receiver = receiver
        self._channel = _ToCopy(end, loop)
        self._idle: dict[FrontCaller, list[Link]] = {}
        self._kept = 0

    def has_room(self, entry: Entry) -> bool:
        """Whether it can run one more call of this function."""
        return self.busy.get(lane_of(entry), 0) < room_of(entry)

    def tell(self, message: dict[str, Any], end: socket.socket | None = None) -> None:
        """Tell the copy something; `end` is passed to it and closed here.

        Raises:
            OSError: No descriptor can be passed just now.
        """
        descriptors = [] if end is None else [end.detach()]
        self._channel.send_parts([framed(message, len(descriptors))], descriptors)

    def link_for(self, caller: FrontCaller) -> Link:
        """A connection for a call of this caller, who alone has ever used it.

        Raises:
            OSError: There can be no more descriptors, or none can be passed just now.
        """
        links = self._idle.get(caller)
        if links:
            link = links.pop()
            self._take_one(caller, links)
            return link
        ours, theirs = socket.socketpair()
        try:
            self.tell({"op": "connect", "caller": caller.name, "index": caller.index}, theirs)
        except OSError:
            ours.close()
            raise
        return Link(ours, self._loop, caller, self._receiver)

    def keep(self, link: Link) -> None:
        """Keep a connection for the next call; those not used for longest are closed."""
        if link.closed or link.unsent or link.caller.gone:
            link.close()
            return
        # The last in the order is whose connection was used last.
        links = self._idle.pop(link.caller, [])
        self._idle[link.caller] = links
        links.append(link)
        self._kept += 1
        while self._kept > MAX_IDLE:
            caller, oldest = next(iter(self._idle.items()))
            oldest.pop(0).close()
            self._take_one(caller, oldest)

    def _take_one(self, caller: FrontCaller, links: list[Link]) -> None:
        """Note that one of a caller's connections is not idle any more."""
        self._kept -= 1
        if not links:
            del self._idle[caller]

    def forget_link(self, link: Link) -> None:
        """Drop an idle connection that was lost."""
        links = self._idle.get(link.caller, [])
        if link in links:
            links.remove(link)
            self._take_one(link.caller, links)

    def part_with(self, caller: FrontCaller) -> None:
        """Have the copy forget a caller that was removed, and of whom nothing runs there."""
        for link in list(self._idle.get(caller, ())):
            self.forget_link(link)
            link.close()
        self.tell({"op": "remove", "caller": caller.name})

    def close(self) -> None:
        """Close all ways to it."""
        for links in self._idle.values():
            for link in links:
                link.close()
        self._idle.clear()
        self._kept = 0
        self._channel.close()
