"""The front's side of a copy: its connections, its messages, and what its answers add to the wire.

The front is the copy's only client. A `CopyConnection` carries one call at a time over the gate's
own protocol. The front reads answers without blocking, passes on the chunks of a stream as they
arrive, and stops reading while the caller does not read them. Each answer of a copy also says how
the call ran, and has the whole traceback for the record.
"""

from __future__ import annotations

import json
import os
import socket
from errno import ECONNRESET
from typing import TYPE_CHECKING, Any

from seer.rpc.client._responses import Response, ResponseReader
from seer.rpc.server._message_socket import framed
from seer.rpc.server._socket import NonBlockingSocket
from seer.rpc.wire._chunks import ChunkReader
from seer.rpc.wire._descriptors import LOST, SPACE, close_all, received
from seer.rpc.wire._protocol import RemoteBuffer, WireError

if TYPE_CHECKING:
    from seer.rpc.server._entries import Entry
    from seer.rpc.server._loop import Loop

    from ._calls import FrontCall, FrontCaller
    from ._dispatch import Dispatch


_READ_SIZE = 65536
_READ_AT_ONCE = 4 << 20
_WHOLE = "whole_traceback"
"""The field of an error in which a copy sends the whole traceback."""
RAN = b"seer-ran"
"""The header in which a copy says how long a call ran, whether the copy uses a GPU, and how many
calls ran together."""


class RunReader(ResponseReader):
    """Reads answers of a copy, with the header that says how the call ran.

    Attributes:
        seconds: How long it ran; negative if the copy did not say.
        gpu: Whether the copy uses a GPU.
        batch: How many calls ran together.
    """

    __slots__ = ("batch", "gpu", "seconds")

    def __init__(self) -> None:
        super().__init__()
        self.seconds = -1.0
        self.gpu = False
        self.batch = 1

    def _parse(self, head: bytes) -> Response | None:
        response = super()._parse(head)
        if response is not None:
            self.seconds, self.gpu, self.batch = -1.0, False, 1
            _, found, rest = head.partition(b"\r\n%s: " % RAN)
            if found:
                seconds, gpu, batch = rest.partition(b"\r\n")[0].split(b" ")
                self.seconds, self.gpu, self.batch = float(seconds), gpu == b"1", int(batch)
        return response


class SlotPart(RemoteBuffer):
    """A buffer of an answer that is in a slot of the copy."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self.nbytes = size
        self._fd = fd
        self._offset = offset

    def copy_into(self, target: memoryview) -> None:
        """Copy it to `target`, without holding the interpreter lock."""
        done = 0
        while done < self.nbytes:
            got = os.preadv(self._fd, [target[done:]], self._offset + done)
            if not got:
                raise WireError("a slot of the copy is shorter than its answer says")
            done += got


class CopyConnection(NonBlockingSocket):
    """One connection to a copy.

    Attributes:
        caller: The caller whose calls it carries.
        call: The call in progress.
        reader: Reads the answer.
        unread: Whether the copy has certainly not read the whole call.
    """

    def __init__(
        self, end: socket.socket, loop: Loop, caller: FrontCaller, receiver: Dispatch
    ) -> None:
        super().__init__(end, loop)
        self.caller = caller
        self.call: FrontCall | None = None
        self.reader = RunReader()
        self.unread = False
        self._receiver = receiver
        self._chunks: ChunkReader | None = None
        self._descriptors: list[int] = []
        self._slots: dict[int, int] = {}
        self._released: list[int] = []
        self._lent = False

    def lend(self, response: Response) -> list[SlotPart | memoryview]:
        """The buffers of an answer, in order; they are valid until `release`."""
        self._lent = True
        body = memoryview(response.body)
        return [
            SlotPart(self._slots[p.index], p.offset, p.size) if p.place == "s" else p.cut(body)
            for p in response.pieces
        ]

    def release(self, response: Response) -> None:
        """Note that an answer's buffers were read; the next call tells the copy."""
        self._lent = False
        self._released += sorted({p.index for p in response.pieces if p.place == "s"})
        if self.closed:
            self._close_slots()

    def take_released(self) -> bytes:
        """The header line that names the slots that were read; empty if there are none."""
        if not self._released:
            return b""
        slots, self._released = self._released, []
        return b"seer-release: %s\r\n" % b",".join(b"%d" % slot for slot in slots)

    def stream_on(self) -> None:
        """Read chunks from now on, because the answer is a stream."""
        self._chunks = ChunkReader()
        rest = self.reader.take_rest()
        if rest:
            self._feed_chunks(rest)

    def drain(self) -> None:
        """Read everything that a copy sent before it ended; the end itself is not reported."""
        try:
            while not self.closed and self.call is not None:
                self._read()
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._fail(error)

    def on_refused(self) -> None:
        """Close the connection, because its request could not be sent."""
        self.close()
        self._receiver.broken(self)

    def on_readable(self) -> None:
        """Read an answer, or a part of it."""
        try:
            self._read()
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._fail(error)
            self._receiver.broken(self)

    def _fail(self, error: OSError | WireError) -> None:
        # A Unix socket that is closed with unread bytes resets its peer.
        reset = isinstance(error, OSError) and error.errno == ECONNRESET
        self.unread = self.unread or self.failed or reset
        self.close()

    def _read(self) -> None:
        room = self.reader.room if self._chunks is None else None
        if room is not None:
            got = self.socket.recv_into(room[:_READ_AT_ONCE])
            room.release()
            if not got:
                raise ConnectionResetError
            response = self.reader.filled(got)
        else:
            data, ancillary, flags, _ = self.socket.recvmsg(_READ_SIZE, SPACE)
            self._descriptors += received(ancillary)
            if flags & LOST:
                raise WireError("the front has too many open files to take a copy's arrays")
            if not data:
                raise ConnectionResetError
            if self._chunks is not None:
                self._feed_chunks(data)
                return
            response = self.reader.feed(data)
        if response is not None:
            self._take_slots(response)
            self._receiver.answered(self, response)

    def _take_slots(self, response: Response) -> None:
        if len(self._descriptors) != len(response.slots):
            raise WireError("the copy sent other descriptors than its answer says")
        for slot in response.dropped:
            fd = self._slots.pop(slot, None)
            if fd is not None:
                os.close(fd)
        for (slot, _), fd in zip(response.slots, self._descriptors, strict=True):
            self._slots[slot] = fd
        self._descriptors = []

    def _feed_chunks(self, data: bytes) -> None:
        chunks = self._chunks
        assert chunks is not None
        for chunk in chunks.feed(data):
            if chunk is None:
                self._chunks = None
            self._receiver.streamed(self, chunk)

    def on_closed(self) -> None:
        """Close its slots, unless they are being read; then `release` closes them."""
        if not self._lent:
            self._close_slots()

    def _close_slots(self) -> None:
        close_all((*self._descriptors, *self._slots.values()))
        self._descriptors = []
        self._slots = {}


def with_traceback(text: bytes, traceback: str) -> bytes:
    """The text of an error with the whole traceback, which the front removes."""
    found: dict[str, Any] = json.loads(text)
    found["error"][_WHOLE] = traceback
    return json.dumps(found).encode()


def split_error(text: bytes | memoryview) -> tuple[bytes, str, str]:
    """Split an error that a copy sent.

    Returns:
        The text for the caller; the name of the error for the record (the class that a function
        raised, or Seer's own); and the whole traceback, empty if the copy sent none.
    """
    text = bytes(text)
    try:
        found: dict[str, Any] = json.loads(text)
        error: dict[str, Any] = found["error"]
        name = str(error.get("name") or error["type"])
        traceback = str(error.pop(_WHOLE, ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return text, "GateError", ""
    return json.dumps(found).encode() if traceback else text, name, traceback


MAX_IDLE = 256
"""Idle connections to one copy that are kept."""


def lane_of(entry: Entry) -> str:
    """The name of the lane that bounds a function's calls: the main one, or the function's own."""
    return "" if entry.lane == "main" else entry.name


class _ToCopy(NonBlockingSocket):
    """The front's end of the message socket to a copy. The front must never wait for a copy."""

    def on_readable(self) -> None:
        """Read the end of the stream; a copy sends nothing here."""
        try:
            if self.socket.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def on_refused(self) -> None:
        """Do nothing: if a connection could not be passed, the front's end of it is closed."""


class CopyClient:
    """A copy, as the front sees it.

    Args:
        number: Its number, which no other copy has had.
        end: The front's end of the message socket to it.
        loop: Watches the sockets.
        receiver: Gets the answers.

    Attributes:
        calls: The calls that it has.
        busy: How many of them are in each lane.
        used: The number of the last turn in which it got a call.
        draining: Since when it gets no new callers (monotonic); 0 while it does.
    """

    def __init__(self, number: int, end: socket.socket, loop: Loop, receiver: Dispatch) -> None:
        self.number = number
        self.calls: set[FrontCall] = set()
        self.busy: dict[str, int] = {}
        self.used = 0
        self.draining = 0.0
        self._loop = loop
        self._receiver = receiver
        self._to_copy = _ToCopy(end, loop)
        self._idle: dict[FrontCaller, list[CopyConnection]] = {}
        self._idle_count = 0

    def has_room(self, entry: Entry) -> bool:
        """Whether it can run one more call of this function."""
        return self.busy.get(lane_of(entry), 0) < entry.room

    def tell(self, message: dict[str, Any], end: socket.socket | None = None) -> None:
        """Send the copy a message; `end` is passed to it and closed here.

        Raises:
            OSError: No descriptor can be passed just now.
        """
        descriptors = [] if end is None else [end.detach()]
        self._to_copy.send_parts([framed(message, len(descriptors))], descriptors)

    def connection_for(self, caller: FrontCaller) -> CopyConnection:
        """A connection for a call of this caller, which no other caller has used.

        Raises:
            OSError: There are too many open descriptors, or none can be passed just now.
        """
        connections = self._idle.get(caller)
        if connections:
            connection = connections.pop()
            self._take_one(caller, connections)
            return connection
        ours, theirs = socket.socketpair()
        try:
            self.tell({"op": "connect", "caller": caller.name, "index": caller.index}, theirs)
        except OSError:
            ours.close()
            raise
        return CopyConnection(ours, self._loop, caller, self._receiver)

    def keep(self, connection: CopyConnection) -> None:
        """Keep a connection for the next call; the least recently used ones are closed."""
        if connection.closed or connection.unsent or connection.caller.gone:
            connection.close()
            return
        # Callers are in the order in which their connections were last used.
        connections = self._idle.pop(connection.caller, [])
        self._idle[connection.caller] = connections
        connections.append(connection)
        self._idle_count += 1
        while self._idle_count > MAX_IDLE:
            caller, oldest = next(iter(self._idle.items()))
            oldest.pop(0).close()
            self._take_one(caller, oldest)

    def _take_one(self, caller: FrontCaller, connections: list[CopyConnection]) -> None:
        """Note that a connection of a caller is no longer idle."""
        self._idle_count -= 1
        if not connections:
            del self._idle[caller]

    def forget_connection(self, connection: CopyConnection) -> None:
        """Drop an idle connection that was lost."""
        connections = self._idle.get(connection.caller, [])
        if connection in connections:
            connections.remove(connection)
            self._take_one(connection.caller, connections)

    def forget_caller(self, caller: FrontCaller) -> None:
        """Tell the copy to forget a caller that was removed and has no running call there."""
        for connection in list(self._idle.get(caller, ())):
            self.forget_connection(connection)
            connection.close()
        self.tell({"op": "remove", "caller": caller.name})

    def close(self) -> None:
        """Close all connections to it."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        self._idle_count = 0
        self._to_copy.close()
