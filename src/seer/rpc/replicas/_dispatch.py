"""Chooses the copy for each call: the least loaded one, or its caller's home.

A copy gets only as many calls as it can run at once. Further calls wait here, so turns are fair
over all copies, and a call is assigned to a copy as late as possible.

When a copy ends, its calls are lost. A call is made again only if the copy has certainly not read
it, or if its function is idempotent. A caller that had state in that copy gets at most one error
for it. A draining copy finishes the calls that it runs.

All of this happens on the leading thread of the front.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from seer.errors import (
    CallCancelledError,
    CallLostError,
    GateBusyError,
    GateError,
    HandleError,
    InterfaceDiedError,
    InterfaceRestartedError,
)
from seer.rpc.server._calls import DONE, QUEUED
from seer.rpc.server._lanes import FairQueue

from ._calls import FrontCall, FrontCaller
from ._copy_client import CopyClient, CopyConnection, lane_of

if TYPE_CHECKING:
    import socket

    from seer.rpc.client._responses import Response
    from seer.rpc.server._loop import Loop

    from ._forwarding import Forwarding


UNEXPLAINED = 5.0
"""Seconds in which the supervisor should say why a connection to a copy was lost."""
MAX_TRIES = 3
"""Maximum number of times that an idempotent call is handed to a copy."""
DRAIN_EVERY = 0.05
"""Seconds between two checks of a draining copy."""
ANYWHERE = 0
"""The queue of calls that any copy can take; the others are named by their copies' numbers."""
_monotonic = time.monotonic


class WaitingCalls:
    """The calls that wait for one lane of the copies, with turns that are fair between callers.

    Each copy has a queue of calls that only it can take, because it is their caller's home. One
    more queue has the calls that any copy can take. A copy that has room compares the callers that
    are next in its two queues, and takes the call of the one whose last turn was earlier. So a
    caller that floods one queue delays itself, and not the callers in the other queue.

    Attributes:
        room: How many calls of this lane one copy can run at a time.
    """

    def __init__(self) -> None:
        self.room = 1
        self._queues: dict[int, FairQueue] = {}

    def put(self, number: int, call: FrontCall) -> None:
        """Add a call to the queue of a copy, or to the queue for all copies (`ANYWHERE`)."""
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = FairQueue()
        queue.put(call.owner, call)

    def pop(self, copy: int, *, bound_only: bool = False) -> FrontCall | None:
        """The next call that this copy can take, or None."""
        numbers = (copy,) if bound_only else (copy, ANYWHERE)
        while True:
            found = [q for number in numbers if (q := self._queues.get(number)) and q.turns]
            if not found:
                return None
            call = min(found, key=_last_turn).pop()
            if call.state != DONE:
                return call

    def discard(self, call: FrontCall) -> None:
        """Remove a call that will not run, if it is here."""
        for queue in self._queues.values():
            queue.discard(call)

    def empty(self, number: int) -> list[FrontCall]:
        """Remove and return all calls of a queue; the calls of each caller keep their order."""
        queue = self._queues.pop(number, None)
        found: list[FrontCall] = []
        while queue is not None and (call := queue.pop()) is not None:
            if call.state != DONE:
                found.append(call)
        return found


def _last_turn(queue: FairQueue) -> int:
    """When the caller that is next in a queue had its last turn."""
    caller = queue.turns[0]
    assert isinstance(caller, FrontCaller)
    return caller.turn


class Dispatch:
    """All copies of the front, and the calls that they run.

    Args:
        forwarding: Begins and finishes calls, and passes on calls and answers.
        loop: Watches the sockets.
        grace: Seconds that a caller's handles keep a draining copy running.
        drained: Called with the number of a drained copy that has finished its work.
    """

    def __init__(
        self,
        forwarding: Forwarding,
        loop: Loop,
        *,
        grace: float,
        drained: Callable[[int], None],
    ) -> None:
        self._forwarding = forwarding
        self._loop = loop
        self._copies: dict[int, CopyClient] = {}
        self._waiting: dict[str, WaitingCalls] = {}
        self._homeless: list[FrontCall] = []
        """Calls that need a home while there is no copy for it."""
        self._orphans: dict[FrontCall, float] = {}
        """Calls whose connection was lost, and until when to wait for the reason."""
        self._turns = count(1)
        self._numbers = count(1)
        self._dead = ""
        self._grace = grace
        self._drained = drained

    # --- calls -------------------------------------------------------------------------------

    def submit(self, call: FrontCall) -> None:
        """Hand a call to a copy, or let it wait for one."""
        caller = call.caller
        if self._dead:
            self._forwarding.gate.refuse_call(call, InterfaceDiedError(self._dead))
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
            waiting = self._waiting[lane] = WaitingCalls()
        waiting.room = call.entry.room
        call.queue = self
        waiting.put(ANYWHERE if copy is None else copy.number, call)

    def discard(self, call: FrontCall) -> None:
        """Forget a waiting call that will not run."""
        if call in self._homeless:
            self._homeless.remove(call)
        waiting = self._waiting.get(lane_of(call.entry))
        if waiting is not None:
            waiting.discard(call)

    def _place(self, call: FrontCall, caller: FrontCaller) -> CopyClient | None:
        """The copy for a call that only one copy can run; else None.

        None with `call.bound` means that the call cannot run now: it waits for a home, or it was
        refused.
        """
        call.bound = False
        found: CopyClient | None
        if call.target:
            found = caller.places.where(call.target)
            if found is None:
                # It was freed or lost since the call arrived.
                call.bound = True
                self._forwarding.gate.refuse_call(
                    call, HandleError(f"handle {call.target!r} no longer exists")
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
            self._forwarding.gate.refuse_call(call, restarted(lost))
            return None
        if found is None:
            found = self._home_of(caller)
            if found is None:
                call.queue = self
                self._homeless.append(call)
        return found

    def _home_of(self, caller: FrontCaller) -> CopyClient | None:
        """The copy that is a caller's home; it is chosen at the first call that needs one."""
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
        return [g for g in self._forwarding.gate.callers.values() if isinstance(g, FrontCaller)]

    def _hand_over(self, call: FrontCall, copy: CopyClient) -> None:
        caller = call.caller
        try:
            connection = copy.connection_for(caller)
        except OSError as error:
            words = f"no connection to a copy could be made: {error.strerror}; make fewer calls"
            self._forwarding.gate.refuse_call(call, GateBusyError(words))
            return
        try:
            caller.check_unread()
        except GateBusyError as error:
            copy.keep(connection)
            self._forwarding.gate.refuse_call(call, error)
            return
        forwarding = self._forwarding
        if not forwarding.begin(call, forwarding.marks.try_take(), self):
            copy.keep(connection)
            return
        caller.turn = copy.used = next(self._turns)
        key = lane_of(call.entry)
        copy.busy[key] = copy.busy.get(key, 0) + 1
        copy.calls.add(call)
        caller.running[copy] = caller.running.get(copy, 0) + 1
        connection.call = call
        call.copy = copy.number
        call.at, call.copy_connection = copy, connection
        call.tries += 1
        call.number = next(self._numbers)
        try:
            self._forwarding.send(call, connection)
        except OSError as error:
            connection.call = None
            connection.close()
            self._release(call)
            self._requeue(call)
            words = f"arrays cannot be passed to a copy just now: {error.strerror}; try again"
            self._forwarding.gate.refuse_call(call, GateBusyError(words))

    def _requeue(self, call: FrontCall) -> None:
        """Let a call that has left its copy wait again."""
        call.requeue()
        self._forwarding.release_mark(call)

    def interrupt(self, call: FrontCall) -> None:
        """Tell the copy that has a call to stop it."""
        if call.at is not None:
            message = {"op": "cancel", "caller": call.owner.name, "call": str(call.number)}
            call.at.tell(message)

    def _release(self, call: FrontCall) -> CopyClient | None:
        """Note that a copy no longer has a call, and return the copy."""
        caller = call.caller
        copy = call.at
        if copy is None:
            return None
        call.at = None
        self._orphans.pop(call, None)
        copy.calls.discard(call)
        copy.busy[lane_of(call.entry)] -= 1
        caller.running[copy] -= 1
        if not caller.running[copy]:
            del caller.running[copy]
            if caller.gone:
                copy.forget_caller(caller)
        return copy

    def _hand_over_waiting(self, copy: CopyClient, lane: str) -> None:
        """Give waiting calls to a copy while it has room."""
        waiting = self._waiting.get(lane)
        if waiting is None or self._copies.get(copy.number) is not copy:
            return
        while copy.busy.get(lane, 0) < waiting.room:
            call = waiting.pop(copy.number, bound_only=bool(copy.draining))
            if call is None:
                return
            self._hand_over(call, copy)

    # --- answers (a connection's receiver) ---------------------------------------------------

    def answered(self, connection: CopyConnection, response: Response) -> None:
        """Handle a copy's answer."""
        call = connection.call
        if call is None:
            connection.close()
            return
        copy = call.at
        if copy is not None:
            call.caller.places.learn(response.text, copy)
        if response.streamed:
            self._forwarding.note_run(call, connection)
            connection.stream_on()
            return
        connection.call = None
        self._forwarding.note_run(call, connection)
        # The copy gets its next call before the caller gets this answer, so that it does not idle.
        self._vacate(call)

        def done() -> None:
            connection.release(response)
            self._return_connection(connection, None if response.close else copy)

        self._forwarding.ended(call, response, connection.lend(response), done)

    def streamed(self, connection: CopyConnection, chunk: bytes | None) -> None:
        """Handle a chunk of a streamed answer; None for its end."""
        call = connection.call
        if call is None:
            connection.close()
            return
        copy = call.at
        if chunk is not None:
            if copy is not None:
                call.caller.places.learn(chunk, copy)
            try:
                self._forwarding.chunk(call, connection, chunk)
            except CallCancelledError as error:
                self._cut(connection, error)
            return
        self._vacate(call)
        self._forwarding.end_stream(call)
        self._return_connection(connection, copy)

    def _look_at_streams(self) -> None:
        """Check whether callers have read from streams that wait for them."""
        for connection in list(self._forwarding.held):
            try:
                self._forwarding.look_at(connection)
            except CallCancelledError as error:
                self._cut(connection, error)

    def _cut(self, connection: CopyConnection, error: CallCancelledError) -> None:
        """End a stream whose caller reads too slowly; closing the connection stops its copy."""
        call, connection.call = connection.call, None
        connection.close()
        if call is not None:
            seconds = _monotonic() - call.started_at
            self._vacate(call)
            self._forwarding.fail(call, error, seconds)

    def broken(self, connection: CopyConnection) -> None:
        """Handle a lost connection. Most likely its copy has ended; then the supervisor says so."""
        call = connection.call
        if call is None:
            for copy in self._copies.values():
                copy.forget_connection(connection)
            return
        connection.call = None
        until = _monotonic() + UNEXPLAINED
        self._orphans[call] = until
        self._loop.wake_by(until)

    def _vacate(self, call: FrontCall) -> None:
        """Note that a call has left its copy, and give the copy its next calls."""
        copy = self._release(call)
        if copy is not None:
            if copy.draining:
                self._continue_draining(copy, _monotonic())
            self._hand_over_waiting(copy, lane_of(call.entry))

    def _return_connection(self, connection: CopyConnection, copy: CopyClient | None) -> None:
        connection.call = None
        if copy is None or self._copies.get(copy.number) is not copy:
            connection.close()
        else:
            copy.keep(connection)

    # --- copies that come and go -------------------------------------------------------------

    def add(self, number: int, end: socket.socket) -> None:
        """Use a copy that is ready."""
        copy = CopyClient(number, end, self._loop, self)
        self._copies[number] = copy
        homeless, self._homeless = self._homeless, []
        for call in homeless:
            if call.state == QUEUED and not call.cause:
                self.submit(call)
        for lane in list(self._waiting):
            self._hand_over_waiting(copy, lane)

    def ended(self, number: int, why: str) -> None:
        """Handle the end of a copy: end its calls, and refuse those that waited only for it."""
        copy = self._copies.pop(number, None)
        if copy is None:
            return
        for call in list(copy.calls):
            if call.copy_connection is not None:
                # Its answer may still be in the socket.
                call.copy_connection.drain()
        words = f"copy {number} of the interface has ended: {why}"
        self._move(copy, words, self._lose(copy, words))
        copy.close()

    def _lose(self, copy: CopyClient, why: str) -> set[FrontCaller]:
        """End the calls of a copy that has ended; return the callers that need no further error."""
        told: set[FrontCaller] = set()
        now = _monotonic()
        for call in list(copy.calls):
            caller = call.caller
            self._release(call)
            if call.copy_connection is not None:
                call.copy_connection.call = None
                call.copy_connection.close()
            seconds = now - call.started_at
            if call.cause:
                self._forwarding.fail(call, call.stop_error(now), seconds)
            elif (
                call.copy_connection is not None
                and call.copy_connection.unread
                and not call.streaming
            ):
                # The copy has not read the call, so it waits again as if it had not been sent.
                self._requeue(call)
                if call.bound:
                    told.add(caller)
                    self._forwarding.gate.refuse_call(call, restarted(why))
                else:
                    self._loop.post(lambda call=call: self._again(call))
            elif self._may_repeat(call):
                # Charge the run that was lost. The next run is charged separately.
                call.tally.charge(seconds)
                self._requeue(call)
                if call.bound:
                    # The caller gets no error: an idempotent call may run without the state of
                    # earlier calls, as after a restart of a single process.
                    told.add(caller)
                self._loop.post(lambda call=call: self._again(call))
            else:
                if call.bound:
                    told.add(caller)
                self._forwarding.fail(call, _lost(call, why), seconds)
        return told

    def _may_repeat(self, call: FrontCall) -> bool:
        if call.streaming or not call.entry.options.idempotent or call.tries >= MAX_TRIES:
            return False
        return not call.target and call.caller.places.named_in(call.body) is None

    def _again(self, call: FrontCall) -> None:
        if call.state == QUEUED and not call.cause:
            caller = call.caller
            # An idempotent function may run again although the caller's state is gone.
            kept, caller.lost = caller.lost, ""
            self.submit(call)
            caller.lost = kept
            self._forwarding.gate.note_waiting(call)

    def _move(self, copy: CopyClient, why: str, told: set[FrontCaller]) -> None:
        """Forget the homes and handles at a copy that has ended; refuse the calls that waited."""
        waited = [call for w in self._waiting.values() for call in w.empty(copy.number)]
        for caller in self._callers():
            if caller.home is copy or caller.places.at(copy):
                caller.places.forget(copy)
                caller.home = None if caller.home is copy else caller.home
                caller.lost = "" if caller in told else why
        for call in waited:
            caller = call.caller
            caller.lost = ""
            self._forwarding.gate.refuse_call(call, restarted(why))

    def drain(self, wanted: int) -> list[int]:
        """Drain the `wanted` copies with the fewest dependent callers, and return their numbers."""
        staying = [copy for copy in self._copies.values() if not copy.draining]
        weight = {
            copy: sum(g.places.at(copy) * 1000 + (g.home is copy) for g in self._callers())
            for copy in staying
        }
        # At least one stays, because other copies may have ended meanwhile.
        going = sorted(staying, key=lambda c: (weight[c], -c.number))[
            : min(wanted, len(staying) - 1)
        ]
        now = _monotonic()
        for copy in going:
            copy.draining = now
        for copy in going:
            self._continue_draining(copy, now)
        return [copy.number for copy in going]

    def _continue_draining(self, copy: CopyClient, now: float) -> None:
        """Move callers away from a draining copy; close the copy when none is left."""
        late = now >= copy.draining + self._grace
        for caller in self._callers():
            held = caller.places.at(copy)
            if held and late:
                # Calls that run there may finish. The caller's next calls go to other copies.
                caller.places.forget(copy)
                caller.lost = f"copy {copy.number} was stopped, because fewer copies are wanted now"
                caller.home = None if caller.home is copy else caller.home
            elif caller.home is copy and not held and (late or not caller.running.get(copy)):
                caller.home = None
        self._resubmit_waiting(copy)
        at_home = any(g.home is copy or g.places.at(copy) for g in self._callers())
        if copy.calls or at_home:
            self._loop.wake_by(now + DRAIN_EVERY)
        elif self._copies.pop(copy.number, None) is not None:
            copy.close()
            self._drained(copy.number)

    def _resubmit_waiting(self, copy: CopyClient) -> None:
        """Submit again the calls that waited for a copy; their callers may get new homes."""
        for waiting in self._waiting.values():
            for call in waiting.empty(copy.number):
                self.submit(call)

    def remove(self, caller: FrontCaller) -> None:
        """Forget a caller whose calls were told to stop."""
        caller.gone = True
        for copy in self._copies.values():
            if not caller.running.get(copy):
                copy.forget_caller(caller)

    def give_up(self, why: str) -> None:
        """End all calls, because no further copy will be started."""
        self._dead = why
        for copy in list(self._copies.values()):
            self.ended(copy.number, why)
        waiting = [*self._homeless, *(c for w in self._waiting.values() for c in w.empty(ANYWHERE))]
        self._homeless = []
        for call in waiting:
            if call.state == QUEUED and not call.cause:
                self._forwarding.gate.refuse_call(call, InterfaceDiedError(why))

    def due(self, now: float) -> None:
        """Check all that depends on time: slow readers, lost connections, draining copies."""
        self._look_at_streams()
        for call, until in list(self._orphans.items()):
            if now < until:
                self._loop.wake_by(until)
                continue
            seconds = now - call.started_at
            self._vacate(call)
            words = "the gate itself failed: the connection to a copy was lost; its log says where"
            self._forwarding.fail(call, GateError(words), seconds)
        for copy in list(self._copies.values()):
            if copy.draining:
                self._continue_draining(copy, now)


def restarted(why: str) -> InterfaceRestartedError:
    """The error for a call that was not executed because its caller's home has ended."""
    return InterfaceRestartedError(
        f"{why}. The state and the handles that this caller had there are gone; this call was not"
        " executed"
    )


def _lost(call: FrontCall, why: str) -> CallLostError:
    return CallLostError(
        f"{call.entry.name}() was lost; whether it had an effect is not known. {why[:1].upper()}"
        f"{why[1:]}"
    )
