"""The record of calls: one JSON line for each call, with large values in files beside it.

While a call is answered, it is only added to a queue. A thread writes the queue a moment later,
many calls at a time, so a small call is hardly delayed. The values cannot change until then: slots
are sealed and held until their digest is taken, and arguments are kept as they arrived. A full disk
costs records, never calls. The readers of the record learn how many records were lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from seer.rpc.wire._chunks import split_chunk

from ._failures import uses_gpu
from ._follows import Follow, LineWriter, followers, given, owners, remove_folder
from ._refusals import Refusals
from ._shared import MARK_CELLS, NOTED

if TYPE_CHECKING:
    from ._callers import Caller
    from ._calls import Call
    from ._replies import Reply
    from ._shared import Shared

    _Ended = tuple[Call, Reply, float, float, int]

    _Item = _Ended | tuple[str, bytes, float] | Callable[[], None]

    """A call, a refused request (caller, line and time), or a function to call at this point."""

PAUSE = 0.01
"""Seconds between two rounds of writing. A crash loses the records of calls since the last one."""
AT_ONCE = 500
"""Lines to make before other threads get the interpreter. Each takes some microseconds."""
TELL = 0.05
"""Minimum seconds between two messages to the controller about records."""
MAX_WAITING = 256 << 20
"""Bytes of large arguments and results that may wait to be written. Above that, calls wait too."""
SMALL = 1024
"""Calls up to this many bytes are limited by their number, `MAX_CALLS`, instead of their size."""
MAX_CALLS = 100_000
"""Calls that may wait to be written. Above that, further ones wait too."""
MAX_STREAMED = 256 << 20
"""Bytes of streamed items that are kept until their calls end. Further items are only counted."""
STALLED = 30.0
"""Seconds that recording waits for a reader that takes nothing. Then it continues to write."""
_CALLERS = 4096

_dumps = json.dumps
_LINE = (
    b'{"time":%.6f,"caller":%s,"function":"%s","call":"%s","outcome":"%s","queue":%.6f,'
    b'"run":%.6f,"batch":%d,"bytes_in":%d,"bytes_out":%d,"source":"%s",'
    b'"result_digest":"%s","arguments":%s,"result":%s'
)


class Recorder:
    """Writes the calls of followed callers into the follows' folders, and keeps others in a ring.

    Args:
        folder: The folder that contains these folders; it is made on demand.
        results: Whether large values are written, or only their digests.
        source_hash: The digest of the interface file, for calls that only fetch a handle.
        follows: The follows that exist at the start.
        shared: Counts the calls that were noted and written, so a crash shows how many are lost.
        notify: Called with messages for the controller.
    """

    def __init__(
        self,
        folder: str,
        *,
        results: bool,
        source_hash: str,
        follows: dict[str, Follow],
        shared: Shared,
        notify: Callable[[dict[str, Any]], None],
    ) -> None:
        self.source_hash = source_hash
        self._folder = folder
        self._results = results
        self._notify = notify
        self._shared = shared
        self._cells = shared.recorded
        self._marks = shared.cells
        self._queued_count = 0
        self._made_count = 0
        self._queue: deque[_Item] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._attend_at = 0
        """The value of `_queued_count` above which adding a call pauses; 0 if the next call must
        wake the thread."""
        self._waiting = 0
        self._streamed = 0
        self._refusals = Refusals()
        self._callers: dict[str, bytes] = {}
        self._next_file = time.time_ns()
        self._follows = dict(follows)
        self._tracks = {
            name: Track(f"{folder}/{name}", follow.began_at, follow.sealed_at)
            for name, follow in follows.items()
        }
        self._tracks_by_caller: dict[str, list[Track]] = {}
        """The tracks of each caller that was looked up."""
        self._ring = Ring(f"{folder}/ring", shared)
        self._news = False
        self._clock = time.time() - time.monotonic()
        """The wall clock minus the monotonic one, at the beginning of a round of writing."""
        threading.Thread(target=self._work, name="seer-recorder", daemon=True).start()

    def hold(self, reply: Reply) -> None:
        """Keep a reply's slot from being reused until the reply is written."""
        if reply.slot is not None and reply.pool is not None:
            reply.pool.hold(reply.slot)

    def add(self, call: Call, reply: Reply, ended: float, seconds: float, size: int) -> None:
        """Note a call that was answered.

        Args:
            call: The call.
            reply: The answer.
            ended: When its function ended (monotonic).
            seconds: How long it ran.
            size: Bytes of arguments and answer.
        """
        mark = call.mark
        if mark < 0 and call.waiting is not None:
            mark = call.waiting
        # The next lines call nothing, so no other thread runs between them.
        count = self._queued_count = self._queued_count + 1
        if mark >= 0:
            # Before the count: if the process ends in between, the mark's number is above the
            # count, which shows that the call was not noted.
            self._marks[mark * MARK_CELLS + NOTED] = count
        self._cells[0] = count
        self._queue.append((call, reply, ended, seconds, size))
        if count > self._attend_at or size > SMALL:
            self._attend(size)

    def _enqueue(self, item: _Item, size: int = 0) -> None:
        """Queue what is not a call: a refused request of some bytes, or a function."""
        if size:
            self._cells[0] = self._queued_count = self._queued_count + 1
        self._queue.append(item)
        self._attend(size)

    def _attend(self, size: int) -> None:
        """Wake the thread if it sleeps, and wait a moment if it has too much to write."""
        if size > SMALL:
            self._waiting += size
        if not self._attend_at:
            self._attend_at = self._made_count + MAX_CALLS
            self._bell.put(None)
        if self._waiting > MAX_WAITING or self._queued_count > self._attend_at:
            time.sleep(PAUSE)

    def item(self, call: Call, chunk: bytes) -> None:
        """Keep an item of a stream for the record of its call, up to `MAX_STREAMED` bytes."""
        size = len(chunk)
        # The items after one that is left out are too, so that each item keeps its place.
        if call.left_out or self._streamed + size > MAX_STREAMED:
            call.left_out += 1
            return
        self._streamed += size
        if isinstance(call.items, list):
            call.items.append(chunk)
        else:
            call.items = [chunk]

    def refused(
        self, caller: Caller, path: str, kind: str, message: str, *, tool_call: str = ""
    ) -> None:
        """Note a refused request. In a flood, record some, and count the rest."""
        line = self._refusals.line(caller.name, path, kind, message, tool_call=tool_call)
        if line:
            self._refuse(caller.name, line)

    def _refuse(self, caller: str, line: bytes) -> None:
        self._enqueue((caller, line, time.monotonic()), len(line))

    def flush(self, done: Callable[[], None]) -> None:
        """Call `done` once everything noted so far is written or lost."""
        self._refuse_rest()
        self._enqueue(done)

    def _refuse_rest(self) -> None:
        for caller, line in self._refusals.rest():
            self._refuse(caller, line)

    # --- follows -----------------------------------------------------------------------------

    def follow(self, follow: Follow, done: Callable[[int], None]) -> None:
        """Write the calls of a follow's callers into its folder, beginning with those in the ring.

        Args:
            follow: The follow, new or with more callers than before.
            done: Called with the number of its new callers' calls that the ring has dropped.
        """

        def begin() -> None:
            self._follows[follow.id] = follow
            made = Track(f"{self._folder}/{follow.id}", follow.began_at)
            track = self._tracks.setdefault(follow.id, made)
            self._tracks_by_caller.clear()
            ring = self._ring
            callers = {name for name in ring.callers() if track in self._tracks_of(name)}
            for line, files in ring.take(callers):
                try:
                    track.adopt(line, files)
                except OSError as error:
                    track.lose(1, error)
            self._write()
            ring.forget(callers)
            done(sum(ring.dropped.pop(name, 0) for name in callers))

        self._enqueue(begin)

    def seal(self, identifier: str, at: float | None = None) -> float:
        """Close a follow to later calls, and return the time at which it was closed.

        Calls that still run belong to the follow.

        Args:
            identifier: The follow.
            at: When its run ended (monotonic); by default now.
        """
        track = self._tracks.get(identifier)
        if track is not None and track.sealed_at < float("inf"):
            return track.sealed_at
        self._refuse_rest()
        if at is None:
            at = time.monotonic()
        if track is not None:
            track.sealed_at = at
        ended = at
        self._enqueue(lambda: self._end_follow(identifier, ended))
        return at

    def _end_follow(self, identifier: str, at: float) -> None:
        """Let later calls, and those of the user's script, go to the next follow."""
        track = self._tracks.get(identifier)
        if track is not None:
            # It may have begun only after `seal`.
            track.sealed_at = min(track.sealed_at, at)
        follow = self._follows.get(identifier)
        if follow is not None:
            follow.prefix = ""
            self._tracks_by_caller.clear()

    def is_sealed(self, identifier: str) -> bool:
        """Whether the time whose calls belong to a follow has ended."""
        track = self._tracks.get(identifier)
        return track is not None and track.sealed_at < float("inf")

    def is_for(self, call: Call, identifier: str) -> bool:
        """Whether a call that has not ended belongs to a follow; on the recorder's own thread."""
        track = self._tracks.get(identifier)
        return track is not None and track in (self._tracks_for(call) or ())

    def unfollow(self, identifier: str, done: Callable[[], None]) -> None:
        """Stop writing for a follow; `done` is called after the last write to its folder."""
        track = self._tracks.get(identifier)
        if track is not None:
            # At once: its reader has left, so the thread must not wait for it.
            track.ended = True

        def end() -> None:
            self._follows.pop(identifier, None)
            track = self._tracks.pop(identifier, None)
            self._tracks_by_caller.clear()
            if track is not None:
                track.end()
            done()

        self._enqueue(end)

    def taken(self, identifier: str, size: int) -> None:
        """Note that a follow's reader has taken `size` bytes."""
        track = self._tracks.get(identifier)
        if track is not None:
            track.taken += size

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
                self._clock = time.time() - time.monotonic()
                # A call that is noted from now on rings the bell again.
                self._attend_at = 0
                for left in range(len(self._queue), -1, -AT_ONCE):
                    for _ in range(min(AT_ONCE, len(self._queue))):
                        self._keep_or_lose(self._queue.popleft())
                    self._write()
                    if left > AT_ONCE:
                        # Let other threads have the interpreter.
                        time.sleep(0.0005)
            now = time.monotonic()
            if self._news and now >= told + TELL:
                told = now
                self._tell()

    def _tell(self) -> None:
        self._news = False
        self._notify({"op": "recorded"})

    def _keep_or_lose(self, item: _Item) -> None:
        """Keep an item. If that fails unexpectedly, the other items are still kept."""
        try:
            self._keep(item)
        except Exception as error:
            import traceback

            sys.stderr.write(traceback.format_exc())
            for track in self._tracks.values():
                track.lose(1, error)

    def _keep(self, item: _Item) -> None:
        """Make the line of a queued item, and add it to its tracks or to the ring."""
        if callable(item):
            self._write()
            item()
            return
        try:
            if len(item) == 3:
                caller, line, made = item
                self._forget_size(len(line))
                tracks = [track for track in self._tracks_of(caller) if made <= track.sealed_at]
                self._put(tracks, caller, line, [])
            else:
                self._keep_call(*item)
        finally:
            # Only now, because lines may be written meanwhile. Also if it cannot be kept: it no
            # longer waits, and is counted as missing.
            self._made_count += 1

    def _keep_call(self, call: Call, reply: Reply, ended: float, seconds: float, size: int) -> None:
        caller = call.owner.name
        blobs = Blobs(self._next_file, keep=self._results)
        tracks = self._tracks_for(call)
        if tracks == []:
            self._ring.count(call.owner)
        try:
            line = self._line(call, reply, ended, seconds, blobs)
            if tracks is not None:
                self._put(tracks, caller, line, blobs.found)
        except Exception as error:
            # A record that cannot be written must not cost the others.
            for track in tracks or ():
                track.lose(1, error)
            if tracks == []:
                self._ring.drop(caller)
        finally:
            self._next_file = blobs.next
            self._forget_size(size)
            if reply.slot is not None and reply.pool is not None:
                reply.pool.let_go(reply.slot)

    def _forget_size(self, size: int) -> None:
        """Note that an item of some bytes no longer waits."""
        if size > SMALL:
            self._waiting -= size

    def _tracks_for(self, call: Call) -> list[Track] | None:
        owner = call.owner
        return owners(self._tracks_of(owner.name), call.queued_at, owner.unfollowed_at)

    def _put(
        self, tracks: list[Track], caller: str, line: bytes, blobs: list[tuple[int, memoryview]]
    ) -> None:
        if not tracks:
            self._ring.add(caller, line, blobs)
        for track in tracks:
            if track.is_full:
                self._wait_for_reader(track)
            try:
                track.add(line, blobs)
            except OSError as error:
                track.lose(1, error)

    def _tracks_of(self, caller: str) -> list[Track]:
        found = self._tracks_by_caller.get(caller)
        if found is None:
            if len(self._tracks_by_caller) >= _CALLERS:
                self._tracks_by_caller.clear()
            found = [self._tracks[name] for name in followers(self._follows, caller)]
            self._tracks_by_caller[caller] = found
        return found

    def _wait_for_reader(self, track: Track) -> None:
        """Wait until a follow's reader takes something, or has taken nothing for too long."""
        self._write()
        self._tell()
        seen, until = track.taken, time.monotonic() + STALLED
        while track.is_full and track.stalled != track.taken:
            if track.taken != seen:
                seen, until = track.taken, time.monotonic() + STALLED
            elif time.monotonic() > until:
                track.stalled = track.taken
            time.sleep(PAUSE)

    def _write(self) -> None:
        """Write the lines that were made, and report lines that could not be written."""
        for name, track in self._tracks.items():
            self._news = track.write() or self._news
            if track.lost:
                calls, track.lost = track.lost, 0
                self._notify({"op": "lost", "follow": name, "calls": calls, "why": track.why})
        self._ring.settle()
        self._cells[1] = self._made_count

    def _line(self, call: Call, reply: Reply, ended: float, seconds: float, blobs: Blobs) -> bytes:
        if call.items:
            # In two steps: no other thread runs between reading the sum and writing it.
            streamed = sum(map(len, call.items))
            self._streamed -= streamed
        arguments = blobs.text(_arguments(call, reply.outcome))
        argument_buffers = () if call.pristine is None else [*map(blobs.add, call.pristine())]
        text, views = reply.text, reply.buffers()
        if call.streaming:
            text, views = _stream_result(call, reply)
        result = blobs.text(text)
        buffers = [*map(blobs.add, views)] if views else ()
        digest = hashlib.sha256(text)
        for buffer in buffers:
            digest.update(buffer["sha256"].encode())
        started = call.started_at or ended
        line = _LINE % (
            ended + self._clock,
            self._quoted(call.owner.name),
            call.entry.name.encode(),
            call.id.encode(),
            b"ok" if reply.outcome == "ok" else reply.outcome.encode("ascii", "replace"),
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
        if call.tool_call:
            line += b',"tool_call":"%s"' % call.tool_call.encode()
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

    def _quoted(self, caller: str) -> bytes:
        found = self._callers.get(caller)
        if found is None:
            if len(self._callers) >= _CALLERS:
                self._callers.clear()
            found = self._callers[caller] = _dumps(caller).encode()
        return found


def _arguments(call: Call, outcome: str) -> bytes:
    """The JSON text of the arguments as `[args, kwargs]`."""
    body = call.body if type(call.body) is bytes else bytes(call.body)
    # Arguments that the gate could read are JSON. Those that it refused may be any bytes.
    if outcome == "ProtocolError" or not body.startswith(b"[[") or b"\n" in body:
        body = _dumps(given(body), separators=(",", ":")).encode()
    return body


def _stream_result(call: Call, reply: Reply) -> tuple[bytes, list[memoryview]]:
    """The items of a generator as they were sent, and how it ended."""
    lines: list[bytes] = []
    found: list[memoryview] = []
    for chunk in call.items:
        line, buffers = split_chunk(chunk)
        lines.append(line)
        found += buffers
    left_out = b'"left_out":%d,' % call.left_out if call.left_out else b""
    return b'{"stream":[%s],%s%s' % (b",".join(lines), left_out, reply.text[1:]), found


INLINE_TEXT = 64 * 1024
"""JSON text up to this size is in the line itself."""
MAX_BACKLOG = 1 << 30
"""Bytes of one follow that its reader may leave untaken. Above that, recording waits."""
RING_LINES = 16 << 20
"""Bytes of lines that the ring holds in memory."""
RING_BLOBS = 64 << 20
"""Bytes of large values that the ring holds in files."""


class Blobs:
    """The large texts and arrays of one line, in files named by numbers.

    Args:
        first: The first number to use.
        keep: Whether values are written to files, or only digests are recorded.
    """

    def __init__(self, first: int, *, keep: bool) -> None:
        self.found: list[tuple[int, memoryview]] = []
        self.next = first
        self._keep = keep

    def text(self, text: bytes) -> bytes:
        """The text for a line: the JSON itself, or a reference to its file."""
        if len(text) <= INLINE_TEXT:
            return text if text.isascii() else _utf8(text)
        return json.dumps({"blob": self.add(memoryview(text))}).encode()

    def add(self, view: memoryview) -> dict[str, Any]:
        """Keep a value, and return the reference to it for the line."""
        reference = {"sha256": hashlib.sha256(view).hexdigest(), "bytes": len(view)}
        if self._keep:
            reference["file"] = self.next
            self.found.append((self.next, view))
            self.next += 1
        return reference


class Track:
    """Writes the lines of one follow to its files.

    Attributes:
        lost: How many calls could not be written and were not reported yet.
        why: Why the last of them could not be written.
        taken: Bytes that its reader has taken, as the reader reports.
        ended: Whether the follow has ended, so nothing more is written.
        began_at: When the follow began (monotonic).
        sealed_at: When its run ended; calls that were made later are not part of it.
        stalled: The value of `taken` when recording stopped waiting for the reader; -1 before.
    """

    def __init__(self, folder: str, began_at: float, sealed_at: float = float("inf")) -> None:
        self.began_at = began_at
        self.sealed_at = sealed_at
        self.lost = 0
        self.why = ""
        self.taken = 0
        self.ended = False
        self.stalled = -1
        self._folder = folder
        self._writer = LineWriter(folder)
        self._lines: list[bytes] = []
        self._files: list[list[tuple[str, int]]] = []
        """The large values of each of these lines: path and bytes."""
        self._written = 0

    @property
    def is_full(self) -> bool:
        """Whether its reader must take something before more is written."""
        return self._written - self.taken > MAX_BACKLOG and not self.ended

    def add(self, line: bytes, blobs: list[tuple[int, memoryview]]) -> None:
        """Add a line, and write its large values at once.

        Raises:
            OSError: The values cannot be written.
        """
        if self.ended:
            return
        if not blobs:
            self._append(line, [])
            return
        files: list[tuple[str, int]] = []
        try:
            for number, view in blobs:
                size = store(f"{self._folder}/blobs", number, view)
                files.append((f"{self._folder}/blobs/{number}", size))
        except OSError:
            _remove(files)
            raise
        self._append(line, files)

    def adopt(self, line: bytes, files: list[str]) -> None:
        """Add a line of the ring, and move its files here.

        Raises:
            OSError: The files cannot be moved.
        """
        target = f"{self._folder}/blobs"
        moved: list[tuple[str, int]] = []
        try:
            for path in files:
                os.makedirs(target, exist_ok=True)  # noqa: PTH103 (import time)
                place = f"{target}/{path.rpartition('/')[2]}"
                os.rename(path, place)  # noqa: PTH104 (import time)
                moved.append((place, os.stat(place).st_size))  # noqa: PTH116 (import time)
        except OSError:
            _remove([*moved, *((path, 0) for path in files)])
            raise
        self._append(line, moved)

    def _append(self, line: bytes, files: list[tuple[str, int]]) -> None:
        self._lines.append(line)
        self._files.append(files)
        self._written += len(line) + (sum(size for _, size in files) if files else 0)

    def lose(self, calls: int, error: Exception) -> None:
        """Count calls that cannot be recorded."""
        self.lost += calls
        self.why = f"{type(error).__name__}: {error}"

    def write(self) -> bool:
        """Write the lines that were added; False if there were none."""
        lines, self._lines = self._lines, []
        files, self._files = self._files, []
        if not lines or self.ended:
            return False
        for index, error in self._writer.append(lines).items():
            # No line names these files, so no reader would take them.
            _remove(files[index])
            self._written -= len(lines[index]) + sum(size for _, size in files[index])
            self.lose(1, error)
        return True

    def end(self) -> None:
        """Close its file."""
        self.ended = True
        self._writer.close()


class Ring:
    """The most recent calls that no follow gets.

    Args:
        folder: For large values. Files that an earlier process left there are removed.
        shared: Counts the calls of each caller, so a crash shows how many are lost.
    """

    def __init__(self, folder: str, shared: Shared) -> None:
        self._folder = folder
        self._kept = shared.kept
        self._names: dict[int, str] = {}
        """Whose calls are counted, by the number of the caller, which another one may get later."""
        self._uncounted: list[Caller] = []
        self._held: deque[tuple[str, bytes, list[tuple[str, int]]]] = deque()
        self._lines = 0
        self._blobs = 0
        self.dropped: dict[str, int] = {}
        """How many calls of each caller were dropped."""
        remove_folder(folder)

    def count(self, caller: Caller) -> None:
        """Count a call for the caller's next run, from `settle` until `forget`."""
        self._uncounted.append(caller)

    def settle(self) -> None:
        """Show the supervisor what was counted, which no longer counts as unwritten."""
        for caller in self._uncounted:
            if self._names.get(caller.index) != caller.name:
                self._names[caller.index] = caller.name
                self._kept[caller.index] = 0.0
            self._kept[caller.index] += 1
        self._uncounted.clear()

    def forget(self, callers: set[str]) -> None:
        """Count again from 0: a run has the calls of these callers, or knows how many it lacks."""
        for number, name in self._names.items():
            if name in callers:
                self._kept[number] = 0.0

    def add(self, caller: str, line: bytes, blobs: list[tuple[int, memoryview]]) -> None:
        """Hold a line, and drop the oldest lines above the bounds."""
        files: list[tuple[str, int]] = []
        if sum(len(view) for _, view in blobs) > RING_BLOBS:
            self.drop(caller)
            return
        try:
            for number, view in blobs:
                store(self._folder, number, view)
                files.append((f"{self._folder}/{number}", len(view)))
                self._blobs += len(view)
        except OSError:
            self._discard(files)
            self.drop(caller)
            return
        self._held.append((caller, line, files))
        self._lines += len(line)
        while self._lines > RING_LINES or self._blobs > RING_BLOBS:
            oldest, text, its_files = self._held.popleft()
            self._lines -= len(text)
            self._discard(its_files)
            self.drop(oldest)

    def take(self, callers: set[str]) -> list[tuple[bytes, list[str]]]:
        """Remove and return the lines of some callers, with their files, which the taker owns."""
        taken: list[tuple[bytes, list[str]]] = []
        kept: deque[tuple[str, bytes, list[tuple[str, int]]]] = deque()
        for item in self._held:
            caller, line, files = item
            if caller not in callers:
                kept.append(item)
                continue
            self._lines -= len(line)
            self._blobs -= sum(size for _, size in files)
            taken.append((line, [path for path, _ in files]))
        self._held = kept
        return taken

    def callers(self) -> set[str]:
        """The callers whose calls it holds or has dropped."""
        return {caller for caller, _, _ in self._held} | set(self.dropped)

    def drop(self, caller: str) -> None:
        """Count a call that was dropped."""
        self.dropped[caller] = self.dropped.get(caller, 0) + 1

    def _discard(self, files: list[tuple[str, int]]) -> None:
        _remove(files)
        self._blobs -= sum(size for _, size in files)


def _remove(files: list[tuple[str, int]]) -> None:
    for path, _ in files:
        try:
            os.unlink(path)  # noqa: PTH108 (import time)
        except OSError:
            # The file is gone already, or its disk has become read-only. No reader takes it.
            continue


def store(folder: str, number: int, view: memoryview) -> int:
    """Write a large value, and return how many bytes it has.

    Raises:
        OSError: The value cannot be written. No part of it is left.
    """
    path = f"{folder}/{number}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (import time)
        fd = os.open(path, flags, 0o600)
    try:
        written = 0
        while written < len(view):
            written += os.write(fd, view[written : written + (1 << 24)])
    except OSError:
        os.unlink(path)  # noqa: PTH108 (import time)
        raise
    finally:
        os.close(fd)
    return written


def _utf8(text: bytes) -> bytes:
    """JSON text that every reader accepts: it escapes lone surrogates, which the wire allows."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return json.dumps(json.loads(text.decode("utf-8", "surrogatepass"))).encode()
    return text
