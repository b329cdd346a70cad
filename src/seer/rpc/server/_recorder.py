"""The record of calls: one JSON line each, large values as blobs named by their SHA-256.

A call is only noted while it is answered; a thread writes it down a moment later, many at a time,
so that a small call hardly notices. What was sent cannot have changed by then: slots are sealed and
held until they are digested, arguments are kept as they came. A disk that is full costs records,
never calls; the controller is told.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue

from seer.rpc.client._streams import split_chunk

from ._blobs import Blobs
from ._calls import call_of
from ._execute import uses_gpu
from ._flood import Flood
from ._replies import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._calls import Begun, Call, Caller

    _Noted = bytes | tuple[Any, ...] | Exception
    """A line, a call that has none yet, somebody who waits for what came before, or a fault."""

PAUSE = 0.01
"""Seconds between two rounds of writing; what was answered since the last is lost in a crash."""
AT_ONCE = 500
"""Calls whose lines are made, some microseconds each, before others get the interpreter."""
TELL = 0.05
"""Seconds at least between two times that the controller is told of records."""
MAX_WAITING = 256 << 20
"""Bytes of arguments and results that may wait to be written; beyond, calls wait for the disk."""
MAX_STREAMED = 256 << 20
"""Bytes of streams' items that are kept until their calls end; of what comes beyond, the number."""

_dumps = json.dumps
_LINE = (
    b'{"time":%.6f,"caller":%s,"function":"%s","call":"%s","outcome":"%s","queue":%.6f,'
    b'"run":%.6f,"batch":%d,"bytes_in":%d,"bytes_out":%d,"source":"%s",'
    b'"result_digest":"%s","arguments":%s,"result":%s'
)


class Recorder:
    """Writes `calls.jsonl` and `blobs/` in a folder.

    Args:
        folder: The folder; made if need be.
        results: Whether blobs are written, or only their digests.
        source_hash: Of the interface file; for calls that are of no function of it.
        notify: Told of what the controller should know.
    """

    def __init__(
        self,
        folder: str,
        *,
        results: bool,
        source_hash: str,
        notify: Callable[[dict[str, Any]], None],
    ) -> None:
        self.source_hash = source_hash
        self._folder = folder
        self._blobs = Blobs(f"{folder}/blobs", keep=results, notify=self._tell)
        self._notify = notify
        self._noted: deque[_Noted] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self._waiting = 0
        self._streamed = 0
        self._floods: dict[str, Flood] = {}
        self._callers: dict[str, bytes] = {}
        self._lost = 0
        self._file = -1
        self._news = False
        threading.Thread(target=self._work, name="seer-recorder", daemon=True).start()

    def hold(self, reply: Reply) -> None:
        """Keep a reply's slot from being used again until it is written down."""
        if reply.slot is not None and reply.pool is not None:
            reply.pool.hold(reply.slot)

    def add(
        self, call: Call | Begun, reply: Reply | bytes, ended: float, seconds: float, size: int
    ) -> None:
        """Note a call that was answered, with a plain result as its text.

        Args:
            call: The call.
            reply: The answer.
            ended: When its function was done (monotonic).
            seconds: How long it ran.
            size: Bytes of arguments and answer.
        """
        self._note((call, reply, ended, seconds, size), size)

    def _note(self, noted: _Noted, size: int) -> None:
        self._waiting += size
        self._noted.append(noted)
        if not self._rung:
            self._rung = True
            self._bell.put(None)
        if self._waiting > MAX_WAITING:
            time.sleep(PAUSE)

    def item(self, call: Call, chunk: bytes) -> None:
        """Keep an item of a stream for the record of its call; within bounds."""
        if self._streamed + len(chunk) > MAX_STREAMED:
            call.left_out += 1
            return
        self._streamed += len(chunk)
        if isinstance(call.items, list):
            call.items.append(chunk)
        else:
            call.items = [chunk]

    def refused(self, caller: Caller, path: str, kind: str, message: str) -> None:
        """Note a request that was refused. Of a flood of them only some, and how many they were."""
        now = time.time()
        flood = self._floods.setdefault(caller.name, Flood())
        if flood.passes(now):
            self._refuse(_refusal(caller.name, path, kind, message, now))
        elif flood.is_due(now):
            self._refuse(_summary(caller.name, flood, now))

    def _refuse(self, line: bytes) -> None:
        self._note(line, len(line))

    def flush(self, done: Callable[[], None]) -> None:
        """Have `done` called once everything noted so far is written down, or lost."""
        for caller, flood in list(self._floods.items()):
            if flood.held:
                self._refuse(_summary(caller, flood, time.time()))
        self._note((done,), 0)

    # --- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        told = 0.0
        while True:
            try:
                self._bell.get(timeout=TELL if self._news else None)
            except Empty:
                pass
            else:
                time.sleep(PAUSE)
                # Whatever is noted from here on rings again.
                self._rung = False
                for left in range(len(self._noted), -1, -AT_ONCE):
                    self._write(self._take())
                    if left > AT_ONCE:
                        # Others get the interpreter in between.
                        time.sleep(0.0005)
            now = time.monotonic()
            if self._news and now >= told + TELL:
                told = now
                self._news = False
                self._notify({"op": "recorded"})

    def _take(self) -> list[_Noted]:
        """What was noted first, its calls made into lines."""
        return [self._make(self._noted.popleft()) for _ in range(min(AT_ONCE, len(self._noted)))]

    def _make(self, noted: _Noted) -> _Noted:
        if not isinstance(noted, tuple) or len(noted) == 1:
            return noted
        size = noted[4]
        try:
            line = self._line(*noted[:4])
        except Exception as problem:
            # Whatever is wrong with one record, the others are written.
            self._waiting -= size
            return problem
        size -= len(line)
        self._waiting -= size
        return line

    def _write(self, items: list[_Noted]) -> None:
        """Write lines, tell of faults and those who wait."""
        lines: list[bytes] = []
        error: Exception | None = None
        waiting: list[Callable[[], None]] = []
        for item in items:
            if isinstance(item, bytes):
                lines.append(item)
            elif isinstance(item, Exception):
                error = item
            else:
                waiting.append(item[0])
        size = sum(map(len, lines))
        self._waiting -= size
        try:
            self._append(b"".join(lines))
        except OSError as problem:
            error = problem
            self._lost += len(lines)
        if error is not None:
            self._lost += len(items) - len(waiting) - len(lines)
            self._tell(f"{self._lost} calls could not be recorded: {error}")
        self._news = True
        for done in waiting:
            done()

    def _tell(self, message: str) -> None:
        self._notify({"op": "note", "kind": "record", "message": message})

    def _append(self, data: bytes) -> None:
        if self._file < 0:
            os.makedirs(f"{self._folder}/blobs", exist_ok=True)  # noqa: PTH103 (import time)
            path = os.path.join(self._folder, "calls.jsonl")  # noqa: PTH118 (import time)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
        start = os.fstat(self._file).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            # Whole lines only: what was begun is taken back.
            os.ftruncate(self._file, start)
            raise

    def _line(
        self, call: Call | Begun, reply: Reply | bytes, ended: float, seconds: float
    ) -> bytes:
        if isinstance(call, tuple):
            if isinstance(reply, bytes) and call[2].startswith(b"[[") and b"\n" not in call[2]:
                return self._usual_line(call, reply, ended, seconds)
            call = call_of(call)
        if isinstance(reply, bytes):
            reply = Reply(200, reply)
        streamed = sum(map(len, call.items))
        self._streamed -= streamed
        try:
            arguments, argument_buffers = self._arguments(call, reply.outcome)
            text, views = _stream_result(call, reply) if call.streaming else _result(reply)
            result = self._blobs.text(text)
            buffers = [self._blobs.add(view) for view in views]
        finally:
            if reply.slot is not None and reply.pool is not None:
                reply.pool.let_go(reply.slot)
        digest = hashlib.sha256(text)
        for buffer in buffers:
            digest.update(buffer["sha256"].encode())
        started = call.started_at or ended
        line = _LINE % (
            ended + time.time() - time.monotonic(),
            self._quoted(call.owner.name),
            call.entry.name.encode(),
            call.id.encode(),
            reply.outcome.encode("ascii", "replace"),
            started - call.queued_at,
            seconds,
            call.batch,
            call.bytes_in,
            reply.size,
            call.entry.source or self.source_hash.encode(),
            digest.hexdigest().encode(),
            arguments,
            result,
        )
        if call.copy:
            line += b',"copy":%d' % call.copy
        if call.gpu or ("torch" in sys.modules and uses_gpu()):
            line += b',"gpu":%.6f' % seconds
        if reply.traceback:
            line += b',"traceback":' + _dumps(reply.traceback).encode()
        if call.target:
            line += b',"handle":"%s"' % call.target.encode()
        if argument_buffers:
            line += b',"argument_buffers":' + _dumps(argument_buffers).encode()
        if buffers:
            line += b',"result_buffers":' + _dumps(buffers).encode()
        return line + b"}\n"

    def _usual_line(self, begun: Begun, text: bytes, ended: float, seconds: float) -> bytes:
        """The same for a call that went by the shortest way and gave a result."""
        connection, _, body, identifier, entry, _, _ = begun
        line = _LINE % (
            ended + time.time() - time.monotonic(),
            self._quoted(connection.caller.name),
            entry.name.encode(),
            identifier.encode(),
            b"ok",
            0.0,
            seconds,
            1,
            len(body),
            len(text),
            entry.source,
            hashlib.sha256(text).hexdigest().encode(),
            self._blobs.text(body),
            self._blobs.text(text),
        )
        if "torch" in sys.modules and uses_gpu():
            line += b',"gpu":%.6f' % seconds
        return line + b"}\n"

    def _quoted(self, caller: str) -> bytes:
        found = self._callers.get(caller)
        if found is None:
            found = self._callers[caller] = _dumps(caller).encode()
        return found

    def _arguments(self, call: Call, outcome: str) -> tuple[bytes, list[dict[str, Any]]]:
        """The arguments as `[args, kwargs]`, and their buffers."""
        body = call.body if type(call.body) is bytes else bytes(call.body)
        buffers = [self._blobs.add(view) for view in call.pristine_buffers()]
        # What the gate could read is JSON; what it refused may be anything.
        if outcome == "ProtocolError" or not body.startswith(b"[[") or b"\n" in body:
            try:
                found: Any = json.loads(body.decode("utf-8", "surrogatepass"))
            except (ValueError, RecursionError):
                return _dumps({"malformed": body[:2000].decode("latin-1")}).encode(), buffers
            if found.__class__ is dict:
                found = [found.get("args", []), found.get("kwargs", {})]
            body = _dumps(found, separators=(",", ":")).encode()
        return self._blobs.text(body), buffers


def _refusal(caller: str, path: str, kind: str, message: str, when: float) -> bytes:
    line = {
        "time": when,
        "caller": caller,
        "request": path,
        "outcome": kind,
        "error": message[:2000],
        "refused": True,
    }
    return _dumps(line).encode() + b"\n"


def _summary(caller: str, flood: Flood, when: float) -> bytes:
    words = f"{flood.take()} more requests were refused; too many to tell each"
    return _refusal(caller, "", "ProtocolError", words, when)


def _result(reply: Reply) -> tuple[bytes, list[memoryview]]:
    """The text of a reply, and its buffers."""
    if not reply.pieces:
        return reply.text, []
    inline = memoryview(b"".join([reply.text, *reply.inline]))
    found: list[memoryview] = []
    for piece in reply.pieces:
        if piece.place == "i":
            source = inline
        else:
            assert reply.slot is not None
            source = reply.slot.view
        found.append(source[piece.offset : piece.offset + piece.size])
    return reply.text, found


def _stream_result(call: Call, reply: Reply) -> tuple[bytes, list[memoryview]]:
    """What a generator gave: its items as they went over the wire, then how it ended."""
    lines: list[bytes] = []
    found: list[memoryview] = []
    for chunk in call.items:
        line, buffers = split_chunk(chunk)
        lines.append(line)
        found += buffers
    left_out = b'"left_out":%d,' % call.left_out if call.left_out else b""
    return b'{"stream":[%s],%s%s' % (b",".join(lines), left_out, reply.text[1:]), found
