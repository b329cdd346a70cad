"""Forwarding on: calls to copies, and what they stream back to callers."""

from __future__ import annotations

import time

from seer.errors import BudgetExceededError
from seer.rpc.server._replies import Reply
from seer.rpc.server._streams import LOOK_AGAIN, MAX_UNSENT, Pace

from ._errors import split_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.errors import GateError
    from seer.rpc.server._loop import Loop

    from ._calls import FrontCall
    from ._front_execute import FrontExecutor
    from ._link import Link

_END = b'{"end"'
_ITEM = b'{"item"'
_monotonic = time.monotonic


class Forwarding:
    """Writes requests to copies, and streams to callers."""

    def __init__(self, executor: FrontExecutor, loop: Loop) -> None:
        self._executor = executor
        self._loop = loop
        self.held: dict[Link, Pace] = {}
        """Links that are not read until their callers have read."""
        self._ends: dict[FrontCall, Reply] = {}
        """How streams end, once their last line has come."""

    def send(self, call: FrontCall, link: Link) -> None:
        """Send a call to the copy at the other end of `link`."""
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
                link.take_released(),
                call.headers,
                call.number,
                len(body),
            )
        )
        if len(body) <= 65536:
            link.send(head + body, call.memfds)
        else:
            link.send(head, call.memfds)
            link.send(bytes(body) if isinstance(body, memoryview) else body)

    def note_run(self, call: FrontCall, link: Link) -> None:
        """Note what a copy says of how a call ran."""
        reader = link.reader
        call.ran = max(reader.seconds, 0.0)
        call.gpu = reader.gpu
        call.batch = reader.batch

    # --- streams -----------------------------------------------------------------------------

    def begin_stream(self, call: FrontCall, link: Link) -> None:
        """A streamed answer has begun."""
        self.note_run(call, link)

    def chunk(self, call: FrontCall, link: Link, chunk: bytes) -> None:
        """Pass on an item, or keep the last line.

        Raises:
            CallCancelledError: Its caller reads too little.
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
            self._executor.streamer.send_chunk(call, chunk)
        except BudgetExceededError as error:
            call.over = error
            self._executor.gate.stop_call(call, "budget")
            return
        if call.connections and call.connections[0].unsent > MAX_UNSENT:
            self.held[link] = Pace(call, self._executor.gate)
            self.look_at(link)

    def end_stream(self, call: FrontCall) -> None:
        """The stream is over."""
        now = _monotonic()
        reply = self._ends.pop(call, None) or Reply(200, b'{"end":null}')
        reply = self._executor.stopped(call, reply.outcome, now) or reply
        self._finish(call, reply, now - call.started_at)

    def fail(self, call: FrontCall, error: GateError, seconds: float) -> None:
        """End a call with an error of the gate's own, whether or not its answer had begun."""
        self._ends.pop(call, None)
        self._finish(call, self._executor.refusal(error), seconds)

    def _finish(self, call: FrontCall, reply: Reply, seconds: float) -> None:
        self._executor.gate.finish(call, reply, _monotonic(), seconds)

    def look_at(self, link: Link) -> None:
        """Go on reading a stream whose caller has read, or look again later.

        Raises:
            CallCancelledError: Its caller reads too little.
        """
        pace = self.held.pop(link)
        waits = link.call is not None and pace.must_wait() is not None
        link.hold(waits)
        if waits:
            self.held[link] = pace
            self._loop.wake_by(_monotonic() + LOOK_AGAIN)
