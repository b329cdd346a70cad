"""Streams: the items of generators, one chunk each, sent no faster than the caller reads them.

A generator stays on its lane from the first item to the last, so that what it holds over a `yield`
(a lock, `torch.no_grad()`) does not affect other calls. So it must not wait long for its reader. A
caller that stops reading loses the stream after a while. While calls of other callers wait for the
lane, a generator may run further ahead of a slow reader. If that is not enough, its call is
cancelled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from seer.errors import CallCancelledError, GateError
from seer.rpc.wire._protocol import INLINE_ALIGN, STREAM_TYPE, aligned

from ._calls import DONE, QUEUED, Call
from ._replies import Reply, size_of

if TYPE_CHECKING:
    from ._connection import Connection
    from ._execute import Executor, Lane
    from ._gate import Gate

MAX_UNSENT = 4 << 20
"""Bytes by which a stream may be ahead of its reader."""
MAX_AHEAD = 64 << 20
"""The same while calls of other callers wait for its lane."""
STALL = 30.0
"""Seconds that a function waits for a caller that reads nothing of its stream."""
PATIENCE = 1.0
"""Total seconds that other callers wait for the lane of a stream whose reader is slow."""
LOOK_AGAIN = 0.02
"""Seconds between two checks of a slow reader."""
STREAM_END = b'{"end":null}'
"""The last line of a stream that ended well."""
_monotonic = time.monotonic


class Streamer:
    """Sends what generators yield."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(
        self, call: Call, lane: Lane, items: Generator[Any]
    ) -> tuple[BaseException | None, GateError | None]:
        """Send the items of a generator until it ends or is stopped.

        Returns:
            What the generator raised, and why the gate ended it.
        """
        attempt = self._executor.attempt
        refused: GateError | None = None
        while True:
            item, raised = attempt(call, lane, next, (items,), {})
            if raised is not None:
                break
            try:
                self.send_item(call, item)
            except GateError as error:
                refused = error
                break
            except Exception as error:  # from a property of the user's class
                raised = error
                break
        if isinstance(raised, StopIteration):
            return None, None
        try:
            items.close()
        except BaseException as error:
            raised = raised or error
        return raised, refused

    def send_item(self, call: Call, item: Any) -> None:
        """Send one item, and wait until its caller has read enough of the earlier ones.

        Raises:
            GateError: The item cannot be sent, or its caller reads too slowly.
        """
        self.send(call, item)
        if not call.connections or call.connections[0].unsent <= MAX_UNSENT:
            return
        pace = Pace(call, self._executor.gate)
        while (connection := pace.must_wait()) is not None:
            connection.wait_for_room(LOOK_AGAIN)

    def send(self, call: Call, item: Any) -> None:
        """Send one item without waiting, and note it for the record.

        Raises:
            GateError: The item cannot be sent, or a budget has no room for it.
        """
        self.send_chunk(call, self._chunk(call, item))

    def send_chunk(self, call: Call, data: bytes) -> None:
        """Count, send and note one chunk; the first one with the head of the answer.

        Raises:
            BudgetExceededError: A budget has no room for it.
        """
        if call.state == DONE:
            return
        call.tally.take_bytes(len(data), f"one more item of what {call.entry.name}() streams")
        framed = b"%x\r\n%s\r\n" % (len(data), data)
        with call.owner.lock:
            if call.state == DONE:
                # Its caller was answered, and already has the end of the stream.
                return
            if not call.streaming:
                call.streaming = True
                gate = self._executor.gate
                framed = stream_head(gate.prefix + gate.run_headers(call)) + framed
            if call.mark >= 0:
                # First: if the process ends now, the record says that items are missing.
                self._executor.shared.streams(call.mark)
            for connection in call.connections[:1]:
                connection.send(framed)
        recorder = self._executor.recorder
        if recorder is not None:
            recorder.item(call, data)

    def _chunk(self, call: Call, item: Any) -> bytes:
        """One item as a chunk: a line of JSON, followed by its buffers."""
        buffers: list[Any] = []
        text = self._executor.encoded(call, item, buffers)
        if not buffers:
            return b'{"item":%s}\n' % text
        sizes = json.dumps([size_of(buffer) for buffer in buffers]).encode()
        return _laid_out(b'{"item":%s,"buffers":%s' % (text, sizes), buffers)


def recorded_stream(result: str, buffers: list[bytes], prefix: bytes) -> bytes:
    """The whole answer of a recorded stream.

    Args:
        result: The recorded result: `{"stream": [items], "end": null}`, or with an `error`. All
            items must be in it.
        buffers: The contents of its buffers, in order.
        prefix: The lines that follow the status line of every answer.
    """
    found: dict[str, Any] = json.loads(result)
    items: list[dict[str, Any]] = found.pop("stream")
    rest = iter(buffers)
    chunks: list[bytes] = []
    for item in items:
        taken = [next(rest) for _ in item.get("buffers", ())]
        chunks.append(_laid_out(json.dumps(item)[:-1].encode(), taken) if taken else _line(item))
    chunks.append(_line(found))
    framed = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"".join([stream_head(prefix), *framed, b"0\r\n\r\n"])


def finish_stream(call: Call, reply: Reply, prefix: bytes) -> None:
    """Make a reply the last chunk of a call's stream; with the head if nothing was sent before."""
    text = reply.text + b"\n"
    last = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    if not call.streaming:
        call.streaming = True
        last = stream_head(prefix) + last
    reply.last_chunk = last


def stream_head(prefix: bytes) -> bytes:
    """The head of a streamed answer."""
    return b"HTTP/1.1 200 OK\r\n%scontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n" % (
        prefix,
        STREAM_TYPE,
    )


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _laid_out(line: bytes, buffers: list[Any]) -> bytes:
    """A chunk: a line, which is given without its closing brace, and its aligned buffers."""
    line = line.ljust(aligned(len(line) + 2, INLINE_ALIGN) - 2) + b"}\n"
    reply = Reply(200, line)
    reply.add_buffers(buffers, None)
    return b"".join([line, *reply.inline])


class Pace:
    """Decides whether a stream must wait for its reader; asked until the stream may continue."""

    __slots__ = ("_call", "_gate", "_looked", "_unsent", "_until")

    def __init__(self, call: Call, gate: Gate) -> None:
        self._call = call
        self._gate = gate
        self._looked = 0.0
        self._unsent = 0
        self._until = 0.0

    def must_wait(self) -> Connection | None:
        """The connection to wait for; None if the stream can continue, or its call was stopped.

        Raises:
            CallCancelledError: The caller has not read for too long, or reads too slowly while
                calls of other callers wait.
        """
        call = self._call
        connection = call.connections[0] if call.connections else None
        if connection is None or connection.unsent <= MAX_UNSENT or connection.closed or call.cause:
            return None
        now = _monotonic()
        unsent = connection.unsent
        if not self._looked or unsent < self._unsent:
            self._until = now + STALL
        self._unsent = unsent
        if now >= self._until:
            raise CallCancelledError(
                f"{call.entry.name}() was cancelled: its caller has not read for {STALL:g} s"
            )
        if others_wait(self._gate, call):
            if unsent <= MAX_AHEAD and call.owner.reads_enough():
                return None
            call.waited += now - (self._looked or now)
            if call.waited > PATIENCE:
                raise CallCancelledError(
                    f"{call.entry.name}() was cancelled: its caller reads too slowly while calls"
                    f" of others wait for it; {unsent} bytes are unread"
                )
        self._looked = now
        return connection


def others_wait(gate: Gate, call: Call) -> bool:
    """Whether calls of other callers wait for the thread of a call."""
    lane, entry = _LANES.get(call.entry.lane), call.entry
    return any(
        other.state == QUEUED and (other.entry is entry or _LANES.get(other.entry.lane) == lane)
        for caller in tuple(gate.callers.values())
        if caller is not call.owner
        for other in tuple(caller.calls.values())
    )


_LANES = {"main": 1, "batch": 1, "async": 2}
"""The lanes that functions share. With threads, each function has its own."""
