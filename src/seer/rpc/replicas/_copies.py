"""What becomes of calls, homes and handles when a copy comes, ends or shall go.

A call that was handed over and whose copy ends is lost. It is made again only if the copy has
certainly not read it, or if its function is idempotent. Who had state in that copy is told once. A
copy that shall go keeps what it runs until that has ended.
"""

from __future__ import annotations

import time

from seer.errors import CallLostError, GateError, InterfaceDiedError
from seer.rpc.server._calls import QUEUED

from ._calls import FrontCall, FrontCaller
from ._copy_link import CopyLink
from ._dispatch import Dispatch, restarted
from ._waiting import ANYWHERE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from seer.rpc.server._loop import Loop

    from ._front_execute import FrontExecutor
    from ._passing import Passing

MAX_TRIES = 3
"""How often an idempotent call is handed over at most."""
DRAIN_EVERY = 0.05
"""Seconds between two looks at a copy that shall go."""
_monotonic = time.monotonic


class Copies(Dispatch):
    """All copies that the front has.

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
        super().__init__(executor, passing, loop)
        self._grace = grace
        self._drained = drained

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
            if call.link is not None:
                # It may have answered with its last breath.
                call.link.drain()
        words = f"copy {number} of the interface has ended: {why}"
        self._move(copy, words, self._lose(copy, words))
        copy.close()

    def _lose(self, copy: CopyLink, why: str) -> set[FrontCaller]:
        """End the calls that a copy had; whose homes' end has thereby been told."""
        told: set[FrontCaller] = set()
        now = _monotonic()
        for call in list(copy.calls):
            caller = call.caller
            self._release(call)
            if call.link is not None:
                call.link.call = None
                call.link.close()
            seconds = now - call.started_at
            if call.cause:
                self._passing.fail(call, call.stop_error(now), seconds)
            elif call.link is not None and call.link.unread and not call.streaming:
                # The copy has not seen it: it goes on as if it had still waited here.
                call.requeue()
                if call.bound:
                    told.add(caller)
                    self._executor.gate.refuse_call(call, restarted(why))
                else:
                    self._loop.post(lambda call=call: self._again(call))
            elif self._may_repeat(call):
                # A run that came to nothing; the next one is counted by itself.
                call.tally.charge(seconds)
                call.requeue()
                if call.bound:
                    # As with one process that is started again: who made it again knows.
                    told.add(caller)
                self._loop.post(lambda call=call: self._again(call))
            else:
                if call.bound:
                    told.add(caller)
                self._passing.fail(call, _lost(call, why), seconds)
        return told

    def _may_repeat(self, call: FrontCall) -> bool:
        if call.streaming or not call.entry.options.idempotent or call.tries >= MAX_TRIES:
            return False
        caller = call.caller
        named = call.target or caller.places.named_in(call.body) is not None
        return not named

    def _again(self, call: FrontCall) -> None:
        if call.state == QUEUED and not call.cause:
            caller = call.caller
            # It is made again as its function allows, whatever became of the caller's state.
            kept, caller.lost = caller.lost, ""
            self.submit(call)
            caller.lost = kept

    def _move(self, copy: CopyLink, why: str, told: set[FrontCaller]) -> None:
        """Leave a copy that is no more: homes, handles, and the calls that waited for it."""
        waited = [call for w in self._waiting.values() for call in w.empty(copy.number)]
        for caller in self._callers():
            if caller.home is copy or caller.places.at(copy):
                caller.places.forget(copy)
                caller.home = None if caller.home is copy else caller.home
                caller.lost = "" if caller in told else why
        for call in waited:
            caller = call.caller
            caller.lost = ""
            self._executor.gate.refuse_call(call, restarted(why))

    def drain(self, wanted: int) -> list[int]:
        """Let so many copies go, those that the fewest callers depend on; their numbers."""
        staying = [copy for copy in self._copies.values() if not copy.draining]
        weight = {
            copy: sum(g.places.at(copy) * 1000 + (g.home is copy) for g in self._callers())
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
            self._empty_further(copy, now)
        return [copy.number for copy in going]

    def _empty_further(self, copy: CopyLink, now: float) -> None:
        """Move away from a copy who can be moved; let it go when nothing is left."""
        late = now >= copy.draining + self._grace
        for caller in self._callers():
            held = caller.places.at(copy)
            if held and late:
                # What runs there ends as it will; nothing more of this caller goes there.
                caller.places.forget(copy)
                caller.lost = f"copy {copy.number} was ended, since fewer copies are wanted now"
                caller.home = None if caller.home is copy else caller.home
            elif caller.home is copy and not held and (late or not caller.running.get(copy)):
                caller.home = None
        self._place_anew(copy)
        at_home = any(g.home is copy or g.places.at(copy) for g in self._callers())
        if copy.calls or at_home:
            self._loop.wake_by(now + DRAIN_EVERY)
        elif self._copies.pop(copy.number, None) is not None:
            copy.close()
            self._drained(copy.number)

    def _place_anew(self, copy: CopyLink) -> None:
        """Let calls that waited for a copy go where their callers are at home now."""
        for waiting in self._waiting.values():
            for call in waiting.empty(copy.number):
                self.submit(call)

    def remove(self, caller: FrontCaller) -> None:
        """Forget a caller; its calls were told to stop."""
        caller.gone = True
        for copy in self._copies.values():
            if not caller.running.get(copy):
                copy.part_with(caller)

    def give_up(self, why: str) -> None:
        """There will be no copy any more: end all calls."""
        self._dead = why
        for copy in list(self._copies.values()):
            self.ended(copy.number, why)
        waiting = [*self._homeless, *(c for w in self._waiting.values() for c in w.empty(ANYWHERE))]
        self._homeless = []
        for call in waiting:
            if call.state == QUEUED and not call.cause:
                self._executor.gate.refuse_call(call, InterfaceDiedError(why))

    def due(self, now: float) -> None:
        """Look at what depends on time: slow readers, lost connections, copies that shall go."""
        self._look_at_streams()
        for call, until in list(self._orphans.items()):
            if now < until:
                self._loop.wake_by(until)
                continue
            seconds = now - call.started_at
            self._vacate(call)
            words = "the gate itself failed: the connection to a copy was lost; its log says where"
            self._passing.fail(call, GateError(words), seconds)
        for copy in list(self._copies.values()):
            if copy.draining:
                self._empty_further(copy, now)


def _lost(call: FrontCall, why: str) -> CallLostError:
    return CallLostError(
        f"{call.entry.name}() was lost; whether it had an effect is not known. {why[:1].upper()}"
        f"{why[1:]}"
    )
