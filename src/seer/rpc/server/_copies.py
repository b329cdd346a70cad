"""Which copy runs which call: least loaded, or the caller's home; and what becomes of calls when a
copy comes, ends or shall go.

A copy gets no more calls than it can run at once. What is above that waits here, so turns are fair
over all copies, and a call is bound to a copy as late as can be. A call that was handed over and
whose copy ends is lost; it is made again only if its function is idempotent.

Everything here happens on the leading thread of the front.
"""

from __future__ import annotations

import time
from itertools import count

from seer.errors import (
    CallLostError,
    GateError,
    HandleError,
    InterfaceDiedError,
    InterfaceRestartedError,
)

from ._calls import QUEUED
from ._copy_link import CopyLink, lane_of, room_of
from ._freight import Freight
from ._guests import Guest
from ._stopping import stop_error
from ._waiting import ANYWHERE, Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from seer.rpc.client._responses import Response

    from ._calls import Call
    from ._front_execute import FrontExecutor
    from ._link import Link
    from ._loop import Loop
    from ._passing import Passing

MAX_TRIES = 3
"""How often an idempotent call is handed over at most."""
UNEXPLAINED = 5.0
"""Seconds that the supervisor is given to say why a connection to a copy was lost."""
DRAIN_EVERY = 0.05
_NEVER = float("inf")
_monotonic = time.monotonic


class Copies:
    """Hands calls to copies.

    Args:
        executor: Begins and ends calls.
        passing: Passes answers on.
        loop: Watches the sockets.
        grace: Seconds that a caller's handles keep a copy which shall go.
        drained: Told the number of a copy that has nothing to do any more and shall go.
    """

    def __init__(
        self,
        executor: FrontExecutor,
        passing: Passing,
        loop: Loop,
        *,
        grace: float,
        drained: Callable[[int], None],
    ) -> None:
        self._executor = executor
        self._passing = passing
        self._loop = loop
        self._grace = grace
        self._drained = drained
        self._copies: dict[int, CopyLink] = {}
        self._waiting: dict[str, Waiting] = {}
        self._homeless: list[Call] = []
        """Calls that need a home while there is no copy to be one."""
        self._orphans: dict[Call, float] = {}
        """Calls whose connection was lost, and until when the reason may come."""
        self._turns = count(1)
        self._numbers = count(1)
        self._dead = ""

    # --- calls -------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Hand a call to a copy, or let it wait for one."""
        guest = call.owner
        assert isinstance(guest, Guest)
        freight = call.freight
        if freight is None:
            freight = call.freight = Freight()
        if self._dead:
            self._executor.refuse(call, InterfaceDiedError(self._dead))
            return
        copy = self._place(call, guest, freight)
        if copy is None and freight.bound:
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
        waiting.put(ANYWHERE if copy is None else copy.number, guest, call)

    def _place(self, call: Call, guest: Guest, freight: Freight) -> CopyLink | None:
        """The one copy that can run a call, where only one can; None and `bound` if not now."""
        freight.bound = False
        found: CopyLink | None
        if call.target:
            found = guest.places.where(call.target)
            if found is None:
                # It was freed, or lost, since the call came.
                freight.bound = True
                self._executor.refuse(
                    call, HandleError(f"there is no handle {call.target!r} any more")
                )
                return None
        else:
            found = guest.places.named_in(call.body)
        entry = call.entry
        needs_home = entry.options.stateful or entry.returns_handle
        if found is None and not needs_home:
            return None
        freight.bound = True
        if guest.lost and (needs_home or found is not None):
            lost, guest.lost = guest.lost, ""
            self._executor.refuse(call, _restarted(lost))
            return None
        if found is None:
            found = self._home_of(guest)
            if found is None:
                self._homeless.append(call)
        return found

    def _home_of(self, guest: Guest) -> CopyLink | None:
        """The copy that is a caller's home; chosen at its first call that needs one."""
        if guest.home is None:
            lived = dict.fromkeys(self._copies.values(), 0)
            for other in self._guests():
                if other.home is not None:
                    lived[other.home] = lived.get(other.home, 0) + 1
            homes = [copy for copy in self._copies.values() if not copy.draining]
            if homes:
                guest.home = min(homes, key=lambda copy: (lived[copy], copy.number))
        return guest.home

    def _guests(self) -> list[Guest]:
        return [g for g in self._executor.gate.callers.values() if isinstance(g, Guest)]

    def _hand_over(self, call: Call, copy: CopyLink) -> None:
        freight, guest = call.freight, call.owner
        assert freight is not None
        assert isinstance(guest, Guest)
        lane = self._executor.take_lane(call)
        if not self._executor.begin(call, lane, self):
            self._executor.give_lane(lane)
            return
        guest.turn = copy.used = next(self._turns)
        key = lane_of(call.entry)
        copy.busy[key] = copy.busy.get(key, 0) + 1
        copy.calls.add(call)
        guest.running[copy] = guest.running.get(copy, 0) + 1
        link = copy.link_for(guest)
        link.call = call
        call.copy = copy.number
        freight.copy, freight.link, freight.lane = copy, link, lane
        freight.tries += 1
        freight.number = next(self._numbers)
        self._passing.send(call, freight, link)

    def interrupt(self, call: Call) -> None:
        """Have a call stopped that a copy has."""
        freight = call.freight
        if freight is not None and freight.copy is not None:
            message = {"op": "cancel", "caller": call.owner.name, "call": str(freight.number)}
            freight.copy.tell(message)

    def _release(self, call: Call) -> CopyLink | None:
        """Note that a copy does not have a call any more; which copy that was."""
        freight, guest = call.freight, call.owner
        assert freight is not None
        assert isinstance(guest, Guest)
        copy = freight.copy
        if copy is None:
            return None
        freight.copy = None
        self._orphans.pop(call, None)
        self._executor.give_lane(freight.lane)
        copy.calls.discard(call)
        copy.busy[lane_of(call.entry)] -= 1
        guest.running[copy] -= 1
        if not guest.running[copy]:
            del guest.running[copy]
            if guest.gone:
                copy.part_with(guest)
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
        if call is None or call.freight is None:
            link.close()
            return
        copy = call.freight.copy
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
            self._rest(link, copy)

        self._executor.ended(call, response, link.lend(response), done)

    def streamed(self, link: Link, chunk: bytes | None) -> None:
        """A chunk of a streamed answer came, or its end."""
        call = link.call
        if call is None or call.freight is None:
            link.close()
            return
        copy = call.freight.copy
        if chunk is not None:
            if copy is not None:
                self._learn(call, chunk, copy)
            self._passing.chunk(call, link, chunk)
            return
        self._vacate(call)
        self._passing.end_stream(call)
        self._rest(link, copy)

    def broken(self, link: Link) -> None:
        """A connection was lost: most likely its copy has ended, which the supervisor will tell."""
        call = link.call
        if call is None or call.freight is None:
            for copy in self._copies.values():
                copy.forget_link(link)
            return
        link.call = None
        until = _monotonic() + UNEXPLAINED
        self._orphans[call] = until
        self._loop.wake_at = min(self._loop.wake_at, until)

    def _learn(self, call: Call, text: bytes | memoryview, copy: CopyLink) -> None:
        guest = call.owner
        assert isinstance(guest, Guest)
        guest.places.learn(text, copy)

    def _vacate(self, call: Call) -> None:
        """A call has left its copy: the next one's turn."""
        copy = self._release(call)
        if copy is not None:
            if copy.draining:
                self._drain_step(copy, _monotonic())
            self._fill(copy, lane_of(call.entry))

    def _rest(self, link: Link, copy: CopyLink | None) -> None:
        link.call = None
        if copy is None or self._copies.get(copy.number) is not copy:
            link.close()
        else:
            copy.keep(link)

    # --- copies come and go ------------------------------------------------------------------

    def add(self, number: int, end: socket.socket) -> None:
        """Use a copy that is ready."""
        copy = CopyLink(number, end, self._loop, self)
        self._copies[number] = copy
        homeless, self._homeless = self._homeless, []
        for call in homeless:
            if call.state == QUEUED and not call.cause:
                self.submit(call)
        for lane in list(self._waiting):
            self._fill(copy, lane)

    def ended(self, number: int, why: str) -> None:
        """A copy has ended: end what it had, and place anew what waited for it."""
        copy = self._copies.pop(number, None)
        if copy is None:
            return
        for call in list(copy.calls):
            if call.freight is not None and call.freight.link is not None:
                # It may have answered with its last breath.
                call.freight.link.drain()
        told = self._lose(copy, f"copy {number} of the interface has ended: {why}")
        self._move(copy, f"copy {number} of the interface has ended: {why}", told)
        copy.close()

    def _lose(self, copy: CopyLink, why: str) -> set[Guest]:
        """End the calls that a copy had; whose homes' end has thereby been told."""
        told: set[Guest] = set()
        now = _monotonic()
        for call in list(copy.calls):
            freight, guest = call.freight, call.owner
            assert freight is not None
            assert isinstance(guest, Guest)
            self._release(call)
            if freight.link is not None:
                freight.link.call = None
                freight.link.close()
            seconds = now - call.started_at
            if call.cause:
                self._passing.fail(call, stop_error(call, now), seconds)
            elif freight.link is not None and freight.link.unread and not call.streaming:
                # The copy has not seen it: it goes on as if it had still waited here.
                self._unbegin(call)
                if freight.bound:
                    told.add(guest)
                    self._executor.refuse(call, _restarted(why))
                else:
                    self._loop.post(lambda call=call: self._again(call))
            elif self._may_repeat(call, freight):
                self._executor.charge_lost(call, seconds)
                self._unbegin(call)
                self._loop.post(lambda call=call: self._again(call))
            else:
                if freight.bound:
                    told.add(guest)
                self._passing.fail(call, _lost(call, why), seconds)
        return told

    def _unbegin(self, call: Call) -> None:
        with call.owner.lock:
            call.state, call.runner, call.copy, call.started_at = QUEUED, None, 0, 0.0

    def _may_repeat(self, call: Call, freight: Freight) -> bool:
        if call.streaming or not call.entry.options.idempotent or freight.tries >= MAX_TRIES:
            return False
        guest = call.owner
        assert isinstance(guest, Guest)
        named = call.target or guest.places.named_in(call.body) is not None
        return not named

    def _again(self, call: Call) -> None:
        if call.state == QUEUED and not call.cause:
            guest = call.owner
            assert isinstance(guest, Guest)
            # It is made again as its function allows, whatever became of the caller's state.
            kept, guest.lost = guest.lost, ""
            self.submit(call)
            guest.lost = kept

    def _move(self, copy: CopyLink, why: str, told: set[Guest]) -> None:
        """Leave a copy that is no more: homes, handles, and the calls that waited for it."""
        waited = [call for w in self._waiting.values() for call in w.empty(copy.number)]
        for guest in self._guests():
            if guest.home is copy or guest.places.at(copy):
                guest.places.forget(copy)
                guest.home = None if guest.home is copy else guest.home
                guest.lost = "" if guest in told else why
        for call in waited:
            guest = call.owner
            assert isinstance(guest, Guest)
            guest.lost = ""
            self._executor.refuse(call, _restarted(why))

    def drain(self, wanted: int) -> list[int]:
        """Let so many copies go, those that the fewest callers depend on; their numbers."""
        staying = [copy for copy in self._copies.values() if not copy.draining]
        weight = {
            copy: sum(g.places.at(copy) * 1000 + (g.home is copy) for g in self._guests())
            for copy in staying
        }
        # One stays in any case: a copy that has ended meanwhile is not replaced by nothing.
        going = sorted(staying, key=lambda c: (weight[c], -c.number))[
            : min(wanted, len(staying) - 1)
        ]
        now = _monotonic()
        for copy in going:
            copy.draining = now
        for copy in going:
            self._drain_step(copy, now)
        return [copy.number for copy in going]

    def _drain_step(self, copy: CopyLink, now: float) -> None:
        """Move away from a copy who can be moved; let it go when nothing is left."""
        late = now >= copy.draining + self._grace
        for guest in self._guests():
            held = guest.places.at(copy)
            if held and late and not guest.running.get(copy):
                guest.places.forget(copy)
                guest.lost = f"copy {copy.number} was ended, since fewer copies are wanted now"
                guest.home = None if guest.home is copy else guest.home
            elif guest.home is copy and not held and (late or not guest.running.get(copy)):
                guest.home = None
        self._place_anew(copy)
        at_home = any(g.home is copy or g.places.at(copy) for g in self._guests())
        if copy.calls or at_home:
            self._loop.wake_at = min(self._loop.wake_at, now + DRAIN_EVERY)
        elif self._copies.pop(copy.number, None) is not None:
            copy.close()
            self._drained(copy.number)

    def _place_anew(self, copy: CopyLink) -> None:
        """Let calls that waited for a copy go where their callers are at home now."""
        for waiting in self._waiting.values():
            for call in waiting.empty(copy.number):
                self.submit(call)

    def remove(self, guest: Guest) -> None:
        """Forget a caller; its calls were told to stop."""
        guest.gone = True
        for copy in self._copies.values():
            if not guest.running.get(copy):
                copy.part_with(guest)

    def give_up(self, why: str) -> None:
        """There will be no copy any more: end all calls."""
        self._dead = why
        for copy in list(self._copies.values()):
            self.ended(copy.number, why)
        waiting = [*self._homeless, *(c for w in self._waiting.values() for c in w.empty(ANYWHERE))]
        self._homeless = []
        for call in waiting:
            if call.state == QUEUED and not call.cause:
                self._executor.refuse(call, InterfaceDiedError(why))

    def due(self, now: float) -> None:
        """Look at what depends on time: lost connections, and copies that shall go."""
        for call, until in list(self._orphans.items()):
            if now < until:
                self._loop.wake_at = min(self._loop.wake_at, until)
                continue
            seconds = now - call.started_at
            self._vacate(call)
            words = "the gate itself failed: the connection to a copy was lost; its log says where"
            self._passing.fail(call, GateError(words), seconds)
        for copy in list(self._copies.values()):
            if copy.draining:
                self._drain_step(copy, now)


def _restarted(why: str) -> InterfaceRestartedError:
    return InterfaceRestartedError(
        f"{why}. The state and the handles that this caller had there are gone; this call was not"
        " executed"
    )


def _lost(call: Call, why: str) -> CallLostError:
    return CallLostError(
        f"{call.entry.name}() was lost; whether it had an effect is not known. {why[:1].upper()}"
        f"{why[1:]}"
    )
