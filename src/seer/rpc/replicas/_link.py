"""A connection from the front to a copy: one call at a time, over the gate's own protocol.

The front is the copy's only client. Answers are read without waiting; a stream's chunks are handed
on as they come, and not read while the caller does not read them.
"""

from __future__ import annotations

import os
from errno import ECONNRESET
from typing import TYPE_CHECKING

from seer.rpc.client._responses import Response, ResponseReader
from seer.rpc.server._socket import NonBlockingSocket
from seer.rpc.wire._chunks import ChunkReader
from seer.rpc.wire._descriptors import LOST, SPACE, close_all, received
from seer.rpc.wire._protocol import WireError

if TYPE_CHECKING:
    import socket
    from typing import Protocol

    from seer.rpc.server._loop import Loop

    from ._calls import FrontCall, FrontCaller

    class Receiver(Protocol):
        """Who hears of answers."""

        def answered(self, link: Link, response: Response) -> None:
            """The call's answer came."""
            ...

        def streamed(self, link: Link, chunk: bytes | None) -> None:
            """A chunk of the answer came; None for the end."""
            ...

        def broken(self, link: Link) -> None:
            """The connection was lost."""
            ...


_READ_SIZE = 65536
_READ_AT_ONCE = 4 << 20
RAN = b"seer-ran"
"""The header by which a copy says how long a call ran, whether with a GPU, and in which batch."""


class RunReader(ResponseReader):
    """Reads answers of a copy, which say how the call ran.

    Attributes:
        seconds: How long it ran; negative where the copy did not say.
        gpu: Whether the copy has a GPU in use.
        batch: With how many calls it ran together.
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


class SlotPart:
    """A buffer of an answer that lies in a slot of the copy's."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self.nbytes = size
        self._fd = fd
        self._offset = offset

    def copy_into(self, target: memoryview) -> None:
        """Copy it; other threads run meanwhile."""
        done = 0
        while done < self.nbytes:
            got = os.preadv(self._fd, [target[done:]], self._offset + done)
            if not got:
                raise WireError("a slot of the copy is shorter than its answer says")
            done += got


class Link(NonBlockingSocket):
    """One connection.

    Attributes:
        caller: The caller whose calls it carries.
        call: The call that is on its way.
        reader: What the answer says.
        unread: Whether the copy has certainly not read all of the call.
    """

    def __init__(
        self, end: socket.socket, loop: Loop, caller: FrontCaller, receiver: Receiver
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
        """The buffers of an answer, in order; they stay as they are until `release`."""
        self._lent = True
        body = memoryview(response.body)
        return [
            SlotPart(self._slots[p.index], p.offset, p.size)
            if p.place == "s"
            else body[p.offset : p.offset + p.size]
            for p in response.pieces
        ]

    def release(self, response: Response) -> None:
        """Note that an answer's buffers are read; the copy is told with the next call."""
        self._lent = False
        self._released += sorted({p.index for p in response.pieces if p.place == "s"})
        if self.closed:
            self._close_slots()

    def take_released(self) -> bytes:
        """The header line that tells of the slots that are read; empty where there are none."""
        if not self._released:
            return b""
        slots, self._released = self._released, []
        return b"seer-release: %s\r\n" % b",".join(b"%d" % slot for slot in slots)

    def stream_on(self) -> None:
        """Read chunks from now on: the answer's head said so."""
        self._chunks = ChunkReader()
        rest = self.reader.take_rest()
        if rest:
            self._feed_chunks(rest)

    def drain(self) -> None:
        """Read all that came before the copy's end; nobody is told of the end itself."""
        try:
            while not self.closed and self.call is not None:
                self._read()
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._fail(error)

    def on_refused(self) -> None:
        """A request could not be sent: its call ends with this connection."""
        self.close()
        self._receiver.broken(self)

    def on_readable(self) -> None:
        """Take what came."""
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
        """Close its slots; slots that are being read are closed after that."""
        if not self._lent:
            self._close_slots()

    def _close_slots(self) -> None:
        close_all((*self._descriptors, *self._slots.values()))
        self._descriptors = []
        self._slots = {}
