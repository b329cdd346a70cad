"""Accounting for calls that run in copies: begin and end them at the front, run none.

What a copy cannot know is settled here: budgets over all copies, the record, the deadline that a
budget gives. Copies decode, check, run and encode.
"""

from __future__ import annotations

import time
from queue import SimpleQueue
from threading import Thread

from seer.errors import GateError
from seer.rpc._budget import charge, give_back, seconds_left
from seer.rpc.client._wire import WireError
from seer.rpc.server._calls import QUEUED, RUNNING
from seer.rpc.server._execute import Executor, count
from seer.rpc.server._replies import Reply
from seer.rpc.server._stopping import stop_error

from ._errors import split_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from seer.rpc.client._responses import Response
    from seer.rpc.server._calls import Call

COPY_ASIDE = 1 << 20
"""Answers with at least so many bytes of buffers are copied on a thread of their own."""
_STOPPED = frozenset({"CallCancelledError", "DeadlineExceededError"})
_NEVER = float("inf")
_monotonic = time.monotonic


class FrontExecutor(Executor):
    """Begins and ends calls that run elsewhere."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._gpu = False
        self._lanes = list(range(128))
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = False

    def begin(self, call: Call, lane: int, runner: Any) -> bool:
        """Mark `call` as running and set its time limits; False if it was stopped.

        What does not stop in time is killed by the mark that the copy sets, not by one of here:
        the process that serves all callers must not die for one function.
        """
        now = _monotonic()
        owner = call.owner
        with owner.lock:
            if call.state != QUEUED or call.cause:
                return False
            call.state = RUNNING
            call.runner = runner
            call.started_at = now
        if lane >= 0:
            self.shared.begin(lane, call.place, call.id, now)
        timeout = call.entry.options.timeout
        if timeout is not None and now + timeout < call.expires:
            call.expires = now + timeout
        if call.tally.limited:
            left, meter = seconds_left(call.tally.meters, gpu=self._gpu)
            if meter is not None and now + left < call.expires:
                call.expires = now + left
                call.by_budget = True
        if call.expires < self.gate.loop.wake_at:
            self.gate.loop.wake_at = call.expires
        return True

    def take_lane(self, call: Call) -> int:
        """A place where the supervisor sees that it runs; -1 where none is needed or left."""
        if (self.recorder is None and not call.tally.limited) or not self._lanes:
            return -1
        return self._lanes.pop()

    def give_lane(self, lane: int) -> None:
        """Give such a place back."""
        if lane >= 0:
            self.shared.end(lane)
            self._lanes.append(lane)

    def ended(
        self, call: Call, response: Response, buffers: list[Any], done: Callable[[], None]
    ) -> None:
        """Send a copy's answer to the caller.

        Args:
            call: The call.
            response: The answer.
            buffers: Its buffers, where the copy has put them.
            done: Called on the leading thread once the buffers are read.
        """
        now = _monotonic()
        seconds = call.ran
        if response.status != 200:
            text, outcome, traceback = split_error(response.text)
            reply = self.stopped(call, outcome, now) or Reply(response.status, text, outcome)
            reply.traceback = traceback
            self.settle(call, reply, now, seconds)
            done()
            return
        reply = Reply(200, bytes(response.text))
        if not buffers:
            self.settle(call, reply, now, seconds)
            done()
            return

        def copy() -> None:
            try:
                reply.add_buffers(buffers, self._pool(call))
                self.settle(call, reply, now, seconds)
            except (OSError, MemoryError, WireError) as error:
                self.settle(call, self.fault(error), now, seconds)
            self.gate.loop.post(done)

        if sum(buffer.nbytes for buffer in buffers) < COPY_ASIDE:
            copy()
            return
        if not self._started:
            self._started = True
            Thread(target=self._copy, name="seer-copies", daemon=True).start()
        self._work.put(copy)

    def _copy(self) -> None:
        while True:
            self._work.get()()

    def stopped(self, call: Call, outcome: str, now: float) -> Reply | None:
        """The reply to a call that was told to stop and did; None for one that ended by itself."""
        if outcome not in _STOPPED:
            return None
        if not call.cause and now >= call.expires:
            # The copy's clock was the first to see it.
            call.cause = "budget" if call.by_budget else "deadline"
        return self.refusal(stop_error(call, now)) if call.cause else None

    def charge_lost(self, call: Call, seconds: float) -> None:
        """Count the time of a run that came to nothing, for a call that is made again."""
        if call.tally.limited:
            charge(call.tally.meters, seconds)

    def refuse(self, call: Call, error: GateError) -> None:
        """End a call that was not executed."""
        if call.tally.limited:
            give_back(call.tally.meters, call.entry.options.cost)
        self.gate.note(call.owner, f"/v1/call/{call.entry.name}", error)
        self.gate.finish(call, self.refusal(error))

    def _count(self, call: Call, seconds: float, size: int) -> None:
        self._gpu = self._gpu or call.gpu
        count(call.tally, seconds, seconds if call.gpu else 0.0, size)
