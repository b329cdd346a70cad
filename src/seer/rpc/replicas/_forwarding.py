"""Forwarding: calls from the front to copies, and their results and streams back to callers.

The front does what a copy cannot: it applies budgets over all copies and the deadlines that follow
from them, and writes the record. Copies decode arguments, check them, run functions and encode
results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from seer.errors import BudgetExceededError, GateError
from seer.rpc.server._calls import DONE, Call
from seer.rpc.server._execute import Executor
from seer.rpc.server._replies import Reply
from seer.rpc.server._streams import LOOK_AGAIN, MAX_UNSENT, STREAM_END, Pace
from seer.rpc.wire._descriptors import duplicates

from ._copy_client import CopyConnection, split_error

if TYPE_CHECKING:
    from seer.rpc.client._responses import Response

    from ._calls import FrontCall

COPY_ASIDE = 1 << 20
"""Buffers of at least this many bytes are copied on a separate thread."""
_STOPPED = frozenset({"CallCancelledError", "DeadlineExceededError"})
_END = b'{"end"'
_ITEM = b'{"item"'
_monotonic = time.monotonic


class Forwarding(Executor):
    """Begins and finishes calls that copies run.

    Attributes:
        held: Connections that are not read until their callers have read more of their streams.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        # If a function does not stop in time, its copy is killed, because of a mark of the copy.
        # The front serves all callers and must not be killed because of one function.
        super().__init__(*arguments, **more, kills=False)
        self.held: dict[CopyConnection, Pace] = {}
        self._gpu = False
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = False
        self._ends: dict[FrontCall, Reply] = {}
        """The replies of streams whose last line has arrived."""

    def _uses_gpu(self) -> bool:
        return self._gpu

    def send(self, call: FrontCall, connection: CopyConnection) -> None:
        """Send a call to the copy at the other end of `connection`.

        Raises:
            OSError: Its descriptors cannot be passed just now.
        """
        if call.target:
            path = b"/v1/fetch/" + call.target.encode()
        else:
            path = b"/v1/call/" + call.entry.name.encode()
        accept = b"shared" if call.shared else b"frames"
        body = call.message or call.body
        head = (
            b"POST %s HTTP/1.1\r\nhost: gate\r\n%s%s%sseer-call: %d\r\ncontent-length: %d\r\n\r\n"
            % (
                path,
                b"seer-accept: %s\r\n" % accept if call.frames else b"",
                connection.take_released(),
                call.headers,
                call.number,
                len(body),
            )
        )
        if isinstance(body, memoryview):
            body = bytes(body)
        parts = [head + body] if len(body) <= 65536 else [head, body]
        connection.send_parts(parts, duplicates(call.memfds))

    def note_run(self, call: FrontCall, connection: CopyConnection) -> None:
        """Note how a call ran, as its copy says."""
        reader = connection.reader
        call.ran = max(reader.seconds, 0.0)
        call.gpu = reader.gpu
        call.batch = reader.batch

    def release_mark(self, call: Call) -> None:
        """Give back the mark of a call that waits again; `finish` does that for all others."""
        self.gate.note_waiting(call)
        if call.mark >= 0:
            self.shared.end(call.mark)
            self.marks.give(call.mark)
            call.mark = -1

    # --- replies -----------------------------------------------------------------------------

    def ended(
        self, call: Call, response: Response, buffers: list[Any], done: Callable[[], None]
    ) -> None:
        """Finish a call with a copy's response.

        Args:
            call: The call.
            response: The response.
            buffers: Its buffers, where the copy has put them.
            done: Called on the leading thread when the buffers were read.
        """
        now = _monotonic()
        seconds = call.ran
        self._gpu = self._gpu or call.gpu
        if call.state == DONE:
            # Its caller was answered before.
            reply = Reply(200, b"")
        elif response.status != 200:
            text, outcome, traceback = split_error(response.text)
            reply = self._stopped(call, outcome, now) or Reply(response.status, text, outcome)
            reply.traceback = traceback
        elif buffers:
            self._finish_with_buffers(call, bytes(response.text), buffers, now, done)
            return
        else:
            reply = Reply(200, bytes(response.text))
        self.finish(call, reply, now, seconds)
        done()

    def _finish_with_buffers(
        self, call: Call, text: bytes, buffers: list[Any], now: float, done: Callable[[], None]
    ) -> None:
        seconds = call.ran

        def copy() -> None:
            try:
                self.finish(call, self.laid_out(call, text, buffers), now, seconds)
            except Exception as error:
                # Nothing else would answer the call. And if this thread ended, later calls would
                # get no answer either.
                self.finish(call, self.fault(error), now, seconds)
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

    def when_copied(self, action: Callable[[], None]) -> None:
        """Let the leading thread call `action` when the answers that came before are sent."""
        if self._started:
            self._work.put(lambda: self.gate.loop.post(action))
        else:
            self.gate.loop.post(action)

    def _stopped(self, call: Call, outcome: str, now: float) -> Reply | None:
        """The reply to a call that was told to stop and did; None for one that ended by itself."""
        if call.over is None and (not call.cause or outcome not in _STOPPED):
            return None
        return self.refusal(call.stop_error(now))

    def fail(self, call: FrontCall, error: GateError, seconds: float) -> None:
        """Finish a call with an error of the gate, even if parts of its reply were sent."""
        self._ends.pop(call, None)
        self.finish(call, self.refusal(error), _monotonic(), seconds)

    # --- streams -----------------------------------------------------------------------------

    def chunk(self, call: FrontCall, connection: CopyConnection, chunk: bytes) -> None:
        """Pass on an item, or keep the last line.

        Raises:
            CallCancelledError: The caller reads too slowly.
        """
        if not chunk.startswith(_ITEM):
            text = chunk.rstrip(b"\n")
            outcome, traceback = "ok", ""
            if not text.startswith(_END):
                text, outcome, traceback = split_error(text)
            reply = self._ends[call] = Reply(200, text, outcome)
            reply.traceback = traceback
            return
        if call.over is not None:
            return
        try:
            self.streamer.send_chunk(call, chunk)
        except BudgetExceededError as error:
            call.over = error
            self.gate.stop_call(call, "budget")
            return
        if call.connections and call.connections[0].unsent > MAX_UNSENT:
            self.held[connection] = Pace(call, self.gate)
            self.look_at(connection)

    def end_stream(self, call: FrontCall) -> None:
        """Finish a call whose stream is over."""
        now = _monotonic()
        reply = self._ends.pop(call, None) or Reply(200, STREAM_END)
        reply = self._stopped(call, reply.outcome, now) or reply
        self.finish(call, reply, now)

    def look_at(self, connection: CopyConnection) -> None:
        """Continue to read a stream if its caller has read enough; else check again later.

        Raises:
            CallCancelledError: The caller reads too slowly.
        """
        pace = self.held.pop(connection)
        waits = connection.call is not None and pace.must_wait() is not None
        connection.pause(waits)
        if waits:
            self.held[connection] = pace
            self.gate.loop.wake_by(_monotonic() + LOOK_AGAIN)
