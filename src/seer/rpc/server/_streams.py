"""Generators: their items are sent as they come, one chunk each, no faster than they are read.

A generator stays on its lane from the first item to the last, so that what it holds over a `yield`
(a lock, `torch.no_grad()`) does not leak into other calls. A caller that stops reading for a while
is therefore cut off.
"""

from __future__ import annotations

import json
import time

from seer.errors import CallCancelledError, GateError
from seer.rpc._values import encode
from seer.rpc.client._wire import INLINE_ALIGN, STREAM_TYPE, aligned

from ._failures import Stopped
from ._replies import Reply
from ._stopping import stop_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from ._calls import Call
    from ._execute import Executor

MAX_UNSENT = 4 << 20
STALL = 30.0
"""Seconds a caller may leave a stream unread while its function waits."""
_monotonic = time.monotonic


class Streamer:
    """Sends what generators yield."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, call: Call, lane: int, runner: Any, items: Generator[Any]) -> None:
        """Run a generator to its end, or until its caller is gone."""
        error: BaseException | None = None
        try:
            while True:
                try:
                    runner.enter(call)
                    if call.cause:
                        raise Stopped
                    item = next(items)
                    runner.leave(call)
                except StopIteration:
                    runner.leave(call)
                    break
                if not self.send_item(call, item):
                    raise unread(call)
        except BaseException as problem:
            runner.leave(call)
            error = problem
        try:
            runner.enter(None)
            items.close()
        except BaseException as problem:
            error = error or problem
        self.end(call, lane, error)

    def send_item(self, call: Call, item: Any) -> bool:
        """Send one item; False if the caller does not read.

        Raises:
            GateError: It cannot be sent.
        """
        self.send(call, item)
        connection = call.connections[0] if call.connections else None
        return connection is None or connection.wait_for_room(MAX_UNSENT, STALL)

    def send(self, call: Call, item: Any) -> None:
        """Send one item, however much the caller has not read, and note it for the record.

        Raises:
            GateError: It cannot be sent.
        """
        data = self._chunk(call, item)
        self._send_chunk(call, data)
        recorder = self._executor.recorder
        if recorder is not None:
            recorder.item(call, data)

    def _chunk(self, call: Call, item: Any) -> bytes:
        """One item as a chunk: a line of JSON, and its buffers after it."""
        executor = self._executor
        buffers: list[Any] = []
        text = encode(
            item,
            buffers,
            frames=call.frames,
            function=call.entry.name,
            extra=call.owner.describe,
            scrub=executor.scrub,
        )
        text = executor.scrubbed(text)
        if not buffers:
            return b'{"item":%s}\n' % text
        sizes = json.dumps([_size(b) for b in buffers]).encode()
        return _laid_out(b'{"item":%s,"buffers":%s' % (text, sizes), buffers)

    def _send_chunk(self, call: Call, data: bytes) -> None:
        """Send a chunk, and the head before the first one."""
        framed = b"%x\r\n%s\r\n" % (len(data), data)
        with call.owner.lock:
            if not call.streaming:
                call.streaming = True
                framed = self._head() + framed
            for connection in call.connections[:1]:
                connection.send(framed)

    def _head(self) -> bytes:
        return stream_head(self._executor.gate.prefix)

    def end(self, call: Call, lane: int, error: BaseException | None) -> None:
        """Send the last chunk and settle the call."""
        executor = self._executor
        if error is None:
            reply = Reply(200, b'{"end":null}')
        elif isinstance(error, Stopped) and call.cause:
            reply = executor.refusal(stop_error(call, _monotonic()))
        elif isinstance(error, GateError) and not call.cause:
            reply = executor.refusal(error)
        else:
            reply = executor.failure(call, error)
        finish_stream(call, reply, executor.gate.prefix)
        executor.finish(call, lane, reply, _monotonic())


def recorded_stream(result: str, buffers: list[bytes], prefix: bytes) -> bytes:
    """The whole answer of a stream as it stands in a record.

    Args:
        result: The recorded result: `{"stream": [items], "end": null}`, or with an `error`.
        buffers: The contents of its buffers, in order.
        prefix: The lines that follow the status line of every answer.
    """
    found: dict[str, Any] = json.loads(result)
    items: list[dict[str, Any]] = found.pop("stream")
    found.pop("left_out", None)
    rest = iter(buffers)
    chunks: list[bytes] = []
    for item in items:
        taken = [next(rest) for _ in item.get("buffers", ())]
        chunks.append(_laid_out(json.dumps(item)[:-1].encode(), taken) if taken else _line(item))
    chunks.append(_line(found))
    framed = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"".join([stream_head(prefix), *framed, b"0\r\n\r\n"])


def finish_stream(call: Call, reply: Reply, prefix: bytes) -> None:
    """Make a reply the last chunk of a call's stream, with the head before it if there was none."""
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
    """A chunk: a line without its closing brace, and the buffers after it, each at its place."""
    line = line.ljust(aligned(len(line) + 2, INLINE_ALIGN) - 2) + b"}\n"
    reply = Reply(200, line)
    reply.add_buffers(buffers, None)
    return b"".join([line, *reply.inline])


def unread(call: Call) -> CallCancelledError:
    """The error for a stream whose caller has stopped reading."""
    return CallCancelledError(
        f"{call.entry.name}() was cancelled: its caller has not read for {STALL:g} s"
    )


def _size(buffer: Any) -> int:
    return buffer.nbytes if hasattr(buffer, "copy_into") else memoryview(buffer).nbytes
