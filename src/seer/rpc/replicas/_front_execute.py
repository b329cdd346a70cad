"""Accounting for calls that run in copies: begin and end them at the front, run none.

What a copy cannot know is settled here: budgets over all copies, the record, the deadline that a
budget gives. Copies decode, check, run and encode.
"""

from __future__ import annotations

import time
from queue import SimpleQueue
from threading import Thread

from seer.rpc.server._calls import DONE
from seer.rpc.server._execute import Executor
from seer.rpc.server._replies import Reply
from seer.rpc.server._shared import Marks
from seer.rpc.wire._protocol import WireError

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
_monotonic = time.monotonic


class FrontExecutor(Executor):
    """Begins and ends calls that run elsewhere."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        # The copy's own mark kills what does not stop in time: the process that serves all callers
        # must not die for one function.
        super().__init__(*arguments, **more, kills=False)
        self._gpu = False
        self._marks = Marks()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = False

    def _uses_gpu(self) -> bool:
        return self._gpu

    def take_mark(self) -> int:
        """A place where the supervisor sees that a call runs; -1 where none is left."""
        return self._marks.try_take()

    def give_mark(self, mark: int) -> None:
        """Give such a place back."""
        if mark >= 0:
            self.shared.end(mark)
            self._marks.give(mark)

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
        self._gpu = self._gpu or call.gpu
        finish = self.gate.finish
        if call.state == DONE:
            # Its caller was answered before.
            finish(call, Reply(200, b""), now, seconds)
            done()
            return
        if response.status != 200:
            text, outcome, traceback = split_error(response.text)
            reply = self.stopped(call, outcome, now) or Reply(response.status, text, outcome)
            reply.traceback = traceback
            finish(call, reply, now, seconds)
            done()
            return
        reply = Reply(200, bytes(response.text))
        if not buffers:
            finish(call, reply, now, seconds)
            done()
            return

        def copy() -> None:
            try:
                reply.add_buffers(buffers, self._pool(call))
                finish(call, reply, now, seconds)
            except (OSError, MemoryError, WireError) as error:
                finish(call, self.fault(error), now, seconds)
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
        if call.over is None and (not call.cause or outcome not in _STOPPED):
            return None
        return self.refusal(call.stop_error(now))
