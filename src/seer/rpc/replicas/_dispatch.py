"""Which copy runs which call: the least loaded one, or its caller's home.

A copy gets no more calls than it can run at once. What is above that waits here, so turns are fair
over all copies, and a call is bound to a copy as late as can be. What happens when copies come and
go is `Copies`' part. Everything here happens on the leading thread of the front.
"""

from __future__ import annotations

import time
from itertools import count

from seer.errors import (
    CallCancelledError,
    GateBusyError,
    HandleError,
    InterfaceDiedError,
    InterfaceRestartedError,
)

from ._calls import FrontCall, FrontCaller
from ._copy_link import CopyLink, lane_of, room_of
from ._waiting import ANYWHERE, Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.rpc.client._responses import Response
    from seer.rpc.server._loop import Loop

    from ._front_execute import FrontExecutor
    from ._link import Link
    from ._passing import Passing

UNEXPLAINED = 5.0
"""Seconds that the supervisor is given to say why a connection to a copy was lost."""
_monotonic = time.monotonic


class Dispatch:
    """Hands calls to copies.

    Args:
        executor: Begins and ends calls.
        passing: Passes answers on.
        loop: Watches the sockets.
    """

    def __init__(self, executor: FrontExecutor, passing: Passing, loop: Loop) -> None:
        self._executor = executor
        self._passing = passing
        self._loop = loop
        self._copies: dict[int, CopyLink] = {}
        self._waiting: dict[str, Waiting] = {}
        self._homeless: list[FrontCall] = []
        """Calls that need a home while there is no copy to be one."""
        self._orphans: dict[FrontCall, float] = {}
        """Calls whose connection was lost, and until when the reason may come."""
        self._turns = count(1)
        self._numbers = count(1)
        self._dead = ""

    # --- calls -------------------------------------------------------------------------------

    def submit(self, call: FrontCall) -> None:
        """Hand a call to a copy, or let it wait for one."""
        caller = call.caller
        if self._dead:
            self._executor.gate.refuse_call(call, InterfaceDiedError(self._dead))
            return
        copy = self._place(call, caller)
        if copy is None and call.bound:
            return
        if copy is None:
            free = [c for c in self._copies.values() if not c.draining and c.has_room(call.entry)]
            if free:
                copy = min(free, key=lambda c: (len(c.calls), c.used))
                self._hand_over(call, copy)
                return
        elif copy.has_room(call.entry):
            self._hand_over(call, copy)
            return
        lane = lane_of(call.entry)
        waiting = self._waiting.get(lane)
        if waiting is None:
            waiting = self._waiting[lane] = Waiting()
        waiting.room = room_of(call.entry)
        call.queue = self
        waiting.put(ANYWHERE if copy is None else copy.number, caller, call)

    def discard(self, call: FrontCall) -> None:
        """Forget a call that waits and will not run."""
        if call in self._homeless:
            self._homeless.remove(call)
        waiting = self._waiting.get(lane_of(call.entry))
        if waiting is not None:
            waiting.discard(call.caller, call)

    def _place(self, call: FrontCall, caller: FrontCaller) -> CopyLink | None:
        """The one copy that can run a call, where only one can; None and `bound` if not now."""
        call.bound = False
        found: CopyLink | None
        if call.target:
            found = caller.places.where(call.target)
            if found is None:
                # It was freed, or lost, since the call came.
                call.bound = True
                self._executor.gate.refuse_call(
                    call, HandleError(f"there is no handle {call.target!r} any more")
                )
                return None
        else:
            found = caller.places.named_in(call.body)
        entry = call.entry
        needs_home = entry.options.stateful or entry.returns_handle
        if found is None and not needs_home:
            return None
        call.bound = True
        if caller.lost:
            lost, caller.lost = caller.lost, ""
            self._executor.gate.refuse_call(call, restarted(lost))
            return None
        if found is None:
            found = self._home_of(caller)
            if found is None:
                call.queue = self
                self._homeless.append(call)
        return found

    def _home_of(self, caller: FrontCaller) -> CopyLink | None:
        """The copy that is a caller's home; chosen at its first call that needs one."""
        if caller.home is None:
            lived = dict.fromkeys(self._copies.values(), 0)
            for other in self._callers():
                if other.home is not None:
                    lived[other.home] = lived.get(other.home, 0) + 1
            homes = [copy for copy in self._copies.values() if not copy.draining]
            if homes:
                caller.home = min(homes, key=lambda copy: (lived[copy], copy.number))
        return caller.home

    def _callers(self) -> list[FrontCaller]:
        return [g for g in self._executor.gate.callers.values() if isinstance(g, FrontCaller)]

    def _hand_over(self, call: FrontCall, copy: CopyLink) -> None:
        caller = call.caller
        try:
            link = copy.link_for(caller)
        except OSError as error:
            words = f"there is no way to a copy of the interface: {error.strerror}; use fewer calls"
            self._executor.gate.refuse_call(call, GateBusyError(words))
            return
        try:
            caller.check_unread()
        except GateBusyError as error:
            copy.keep(link)
            self._executor.gate.refuse_call(call, error)
            return
        mark = self._executor.take_mark()
        if not self._executor.begin(call, mark, self):
            self._executor.give_mark(mark)
            copy.keep(link)
            return
        caller.turn = copy.used = next(self._turns)
        key = lane_of(call.entry)
        copy.busy[key] = copy.busy.get(key, 0) + 1
        copy.calls.add(call)
        caller.running[copy] = caller.running.get(copy, 0) + 1
        link.call = call
        call.copy = copy.number
        call.at, call.link = copy, link
        call.tries += 1
        call.number = next(self._numbers)
        try:
            self._passing.send(call, link)
        except OSError as error:
            link.call = None
            link.close()
            self._release(call)
            call.requeue()
            words = f"arrays cannot be passed to a copy just now: {error.strerror}; try again"
            self._executor.gate.refuse_call(call, GateBusyError(words))

    def interrupt(self, call: FrontCall) -> None:
        """Have a call stopped that a copy has."""
        if call.at is not None:
            message = {"op": "cancel", "caller": call.owner.name, "call": str(call.number)}
            call.at.tell(message)

    def _release(self, call: FrontCall) -> CopyLink | None:
        """Note that a copy does not have a call any more; which copy that was."""
        caller = call.caller
        copy = call.at
        if copy is None:
            return None
        call.at = None
        self._orphans.pop(call, None)
        self._executor.give_mark(call.mark)
        call.mark = -1
        copy.calls.discard(call)
        copy.busy[lane_of(call.entry)] -= 1
        caller.running[copy] -= 1
        if not caller.running[copy]:
            del caller.running[copy]
            if caller.gone:
                copy.part_with(caller)
        return copy

    def _fill(self, copy: CopyLink, lane: str) -> None:
        """Give a copy what waits for it, as far as it has room."""
        waiting = self._waiting.get(lane)
        if waiting is None or self._copies.get(copy.number) is not copy:
            return
        while copy.busy.get(lane, 0) < waiting.room:
            call = waiting.pop(copy.number, bound_only=bool(copy.draining))
            if call is None:
                return
            self._hand_over(call, copy)

    # --- answers (a link's receiver) ---------------------------------------------------------

    def answered(self, link: Link, response: Response) -> None:
        """A copy's answer came."""
        call = link.call
        if call is None:
            link.close()
            return
        copy = call.at
        if copy is not None:
            self._learn(call, response.text, copy)
        if response.streamed:
            self._passing.begin_stream(call, link)
            link.stream_on()
            return
        link.call = None
        self._passing.note_run(call, link)
        # The copy gets its next call before the caller its answer: a copy that waits costs more.
        self._vacate(call)

        def done() -> None:
            link.release(response)
            self._rest(link, None if response.close else copy)

        self._executor.ended(call, response, link.lend(response), done)

    def streamed(self, link: Link, chunk: bytes | None) -> None:
        """A chunk of a streamed answer came, or its end."""
        call = link.call
        if call is None:
            link.close()
            return
        copy = call.at
        if chunk is not None:
            if copy is not None:
                self._learn(call, chunk, copy)
            try:
                self._passing.chunk(call, link, chunk)
            except CallCancelledError as error:
                self._cut(link, error)
            return
        self._vacate(call)
        self._passing.end_stream(call)
        self._rest(link, copy)

    def _look_at_streams(self) -> None:
        """Look whether callers have read of streams that wait for them."""
        for link in list(self._passing.held):
            try:
                self._passing.look_at(link)
            except CallCancelledError as error:
                self._cut(link, error)

    def _cut(self, link: Link, error: CallCancelledError) -> None:
        """End a stream whose caller reads too little; its copy stops when the link is closed."""
        call, link.call = link.call, None
        link.close()
        if call is not None:
            seconds = _monotonic() - call.started_at
            self._vacate(call)
            self._passing.fail(call, error, seconds)

    def broken(self, link: Link) -> None:
        """A connection was lost: most likely its copy has ended, which the supervisor will tell."""
        call = link.call
        if call is None:
            for copy in self._copies.values():
                copy.forget_link(link)
            return
        link.call = None
        until = _monotonic() + UNEXPLAINED
        self._orphans[call] = until
        self._loop.wake_by(until)

    def _learn(self, call: FrontCall, text: bytes | memoryview, copy: CopyLink) -> None:
        caller = call.caller
        caller.places.learn(text, copy)

    def _vacate(self, call: FrontCall) -> None:
        """A call has left its copy: the next one's turn."""
        copy = self._release(call)
        if copy is not None:
            if copy.draining:
                self._empty_further(copy, _monotonic())
            self._fill(copy, lane_of(call.entry))

    def _empty_further(self, copy: CopyLink, now: float) -> None:
        """A copy that shall go has a call less: see who else can leave it. See `Copies`."""

    def _rest(self, link: Link, copy: CopyLink | None) -> None:
        link.call = None
        if copy is None or self._copies.get(copy.number) is not copy:
            link.close()
        else:
            copy.keep(link)


def restarted(why: str) -> InterfaceRestartedError:
    """The error for a call whose caller's home has ended before it was executed."""
    return InterfaceRestartedError(
        f"{why}. The state and the handles that this caller had there are gone; this call was not"
        " executed"
    )
