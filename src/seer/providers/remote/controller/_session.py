"""The controller's end of a session: streams to a machine that survive broken connections.

A session has one wire at a time. If the wire breaks, or stays silent for several heartbeats, the
session connects again; meanwhile, written data waits. The streams end only if reconnecting fails
for `lease` seconds, or if the session server no longer knows the session.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from seer.errors import HostUnreachableError, SandboxLostError, SeerError
from seer.providers.client._channel import StreamChannel
from seer.providers.client._connection import READ_LIMIT
from seer.providers.client._relay import hung_up, relay
from seer.providers.remote.controller._link import Link, Wire
from seer.providers.remote.onhost import frames

logger = logging.getLogger(__name__)

_BEATS = 4
_ATTEMPT = 10.0
"""Seconds for one attempt to open a wire."""
_FIRST_PAUSES = (0.1, 0.5)
_BRIEF = 0.5
"""The fewest seconds for the last attempt before the lease expires."""


def _now() -> float:
    """Seconds on a clock that also runs while the computer sleeps, if the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class RemoteSession:
    """All streams of this controller to one machine."""

    def __init__(
        self, link: Link, path: str, *, lease: float, gates: Mapping[str, Path] | None = None
    ) -> None:
        """Describe the session; `start` opens the first wire.

        Args:
            link: The connection to the host.
            path: The session server's socket on the host.
            lease: Seconds that the session server and the controller wait for each other.
            gates: Sockets of this host that streams from the machine may lead to, by name.
        """
        self._link = link
        self._path = path
        self._lease = lease
        self._gates = dict(gates or {})
        self._passing: set[asyncio.Task[None]] = set()
        self._beat = min(max(lease / 8, 0.1), 5.0)
        self._token = secrets.token_bytes(frames.TOKEN_BYTES)
        self._reliable = frames.Reliable()
        self._streams: dict[int, StreamTransport] = {}
        self._numbers = 0
        self._wire: Wire | None = None
        self._attempt: _Attempt | None = None
        self._cut = asyncio.Event()
        self._heard_at = 0.0
        self._maintaining: asyncio.Task[None] | None = None
        self.over: SandboxLostError | None = None
        """Why the streams have ended; None while they are open."""
        self.failure: SandboxLostError | None = None
        """Why the session failed; None while it is open, or if this side closed it."""
        self.unreachable = False
        """Whether the session ended because the host did not answer for a whole lease."""
        self.cuts = 0
        """How often a new wire replaced a broken one."""

    @property
    def connected(self) -> bool:
        """Whether a wire is open now."""
        return self._wire is not None

    async def start(self) -> None:
        """Open the first wire.

        Raises:
            HostUnreachableError: The host cannot be reached.
            SandboxLostError: The machine has ended already.
        """
        for pause in _FIRST_PAUSES:
            try:
                await self._connect(new=True)
                break
            except FileNotFoundError:
                raise SandboxLostError("the machine has ended already") from None
            except HostUnreachableError:
                # The host has just answered another request, so try again.
                await asyncio.sleep(pause)
        else:
            await self._connect(new=True)
        self._maintaining = asyncio.create_task(self._maintain())

    async def open(
        self, target: str, made: Callable[[asyncio.StreamReader], asyncio.StreamReaderProtocol]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream.

        Args:
            target: `steward` or `keeper`.
            made: Creates the protocol that feeds the reader.

        Raises:
            SandboxLostError: The session is over.
        """
        if self.over is not None:
            raise SandboxLostError(str(self.over))
        self._numbers += 1
        self._post(frames.OPEN, self._numbers, target.encode())
        return self._stream(self._numbers, made)

    def _stream(
        self, number: int, made: Callable[[asyncio.StreamReader], asyncio.StreamReaderProtocol]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        transport = StreamTransport(number, self._post, self._forget)
        reader = asyncio.StreamReader(limit=READ_LIMIT)
        protocol = made(reader)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._streams[number] = transport
        loop = asyncio.get_running_loop()
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _accept_from_gate(self, number: int, name: str) -> None:
        """Forward a connection from a program in the machine to a gate of this host."""
        reader, writer = self._stream(number, asyncio.StreamReaderProtocol)
        far = StreamChannel(reader, writer, hung_up)
        task = asyncio.create_task(self._pass_on(far, name))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass_on(self, far: StreamChannel, name: str) -> None:
        try:
            path = self._gates[name]
            reader, writer = await asyncio.open_unix_connection(path, limit=READ_LIMIT)
        except (KeyError, OSError) as error:
            logger.warning("gate %r cannot be reached: %s", name, error)
            await far.close()
            return
        await relay(far, StreamChannel(reader, writer, hung_up))

    async def close(self) -> None:
        """End the session. The session server closes its streams at once."""
        if self._maintaining is not None:
            self._maintaining.cancel()
            await asyncio.gather(self._maintaining, return_exceptions=True)
        if self._wire is not None:
            self._wire.write(frames.frame(frames.BYE, 0))
        self._hang_up()
        self._end(SandboxLostError("the connection to the machine was closed"))
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    # --- the wire -----------------------------------------------------------------------------

    async def _connect(self, *, new: bool, within: float = _ATTEMPT) -> None:
        """Connect, and resume where the last wire broke.

        Raises:
            HostUnreachableError: The attempt failed, but a later attempt may succeed.
            FileNotFoundError: The session server is gone.
            SandboxLostError: The session server no longer knows this session.
        """
        attempt = _Attempt(self)
        try:
            async with asyncio.timeout(within):
                wire = await self._link.dial(
                    self._path, on_data=attempt.on_data, on_end=attempt.on_end
                )
                attempt.wire = wire
                received = self._reliable.received
                wire.write(frames.attach(self._token, received=received, new=new, beat=self._beat))
                known, theirs = await attempt.answer
        except TimeoutError:
            attempt.close()
            raise HostUnreachableError(
                f"{self._link.name}: no answer within {within:.3g} s"
            ) from None
        except BaseException:
            attempt.close()
            raise
        if not known:
            attempt.close()
            raise SandboxLostError(
                "the machine's host has dropped this controller's session, because the connection "
                "was down for longer than the lease"
            )
        self._hang_up()
        try:
            lacking = b"".join(self._reliable.resume(theirs))
        except frames.FrameError as error:
            attempt.close()
            raise SandboxLostError(
                f"the machine's session server lost part of the session: {error}"
            ) from None
        self._attempt, self._wire = attempt, wire
        self._cut.clear()
        self._heard_at = _now()
        wire.write(lacking)
        attempt.deliver()
        if attempt.ended:
            self._cut.set()

    def _hang_up(self) -> None:
        attempt, self._attempt, self._wire = self._attempt, None, None
        if attempt is not None:
            attempt.close()

    async def _maintain(self) -> None:
        """Send heartbeats, and replace the wire when it breaks."""
        while True:
            try:
                async with asyncio.timeout(self._beat):
                    await self._cut.wait()
            except TimeoutError:
                if self._wire is not None and _now() < self._heard_at + self._beat * _BEATS:
                    self._wire.write(self._reliable.ack())
                    continue
            self._hang_up()
            try:
                await self._reconnect()
            except SandboxLostError as error:
                self.failure = error
                self._end(error)
                return

    async def _reconnect(self) -> None:
        began = _now()
        pause = 0.02
        gone = False
        logger.info("%s: the connection broke; connecting again", self._link.name)
        while True:
            try:
                left = began + self._lease - _now()
                await self._connect(new=False, within=min(max(left, _BRIEF), _ATTEMPT))
                break
            except HostUnreachableError as error:
                if _now() > began + self._lease:
                    self.unreachable = True
                    raise SandboxLostError(
                        f"{self._link.name} could not be reached for {self._lease:g} s, the "
                        f"machine's lease, so the machine has ended: {error}"
                    ) from None
                logger.debug("%s: %s", self._link.name, error)
            except FileNotFoundError:
                # Try twice, because a link that is about to break may also cause this error.
                if gone:
                    raise SandboxLostError(
                        "the process that serves the machine's connections is gone"
                    ) from None
                gone = True
            except SeerError as error:
                if isinstance(error, SandboxLostError):
                    raise
                raise SandboxLostError(f"{self._link.name}: {error}") from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)
        self.cuts += 1
        logger.info("%s: connected again after %.2f s", self._link.name, _now() - began)

    # --- frames -------------------------------------------------------------------------------

    def _post(self, kind: int, number: int, payload: bytes) -> None:
        if self.over is None:
            made = self._reliable.number(kind, number, payload)
            if self._wire is not None:
                self._wire.write(made)

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def handle_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame from the wire."""
        self._heard_at = _now()
        if kind == frames.ACK:
            self._reliable.acknowledged(payload)
            return
        if self._reliable.took(payload) and self._wire is not None:
            self._wire.write(self._reliable.ack())
        if kind == frames.OPEN and number > frames.INCOMING:
            self._accept_from_gate(number, payload.decode(errors="replace"))
            return
        stream = self._streams.get(number)
        if stream is not None:
            # Frames may still arrive for a stream that this side has closed.
            stream.take(kind, payload)

    def ended(self, attempt: "_Attempt") -> None:
        """Handle the end of a wire. If it is the current wire, replace it."""
        if attempt is self._attempt:
            self._cut.set()

    def _end(self, reason: SandboxLostError) -> None:
        if self.over is None:
            self.over = reason
        for stream in list(self._streams.values()):
            stream.lose(ConnectionAbortedError(str(reason)))


class _Attempt:
    """One wire, which first attaches to the session and then delivers frames."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._splitter = frames.Splitter()
        self._held: list[tuple[int, int, bytes]] | None = []
        self.ended = False
        self.wire: Wire | None = None
        self.answer: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()
        self._closed = False

    def on_data(self, data: bytes) -> None:
        if self._closed:
            return
        try:
            for kind, number, payload in self._splitter.feed(data):
                if not self.answer.done():
                    if kind != frames.ATTACHED:
                        raise frames.FrameError(f"a frame of kind {kind} before the first")
                    self.answer.set_result(frames.read_attached(payload))
                elif self._held is not None:
                    # The session handles them after the answer.
                    self._held.append((kind, number, payload))
                else:
                    self._session.handle_frame(kind, number, payload)
        except frames.FrameError as error:
            logger.warning("the machine's session server broke the protocol: %s", error)
            self.on_end()

    def deliver(self) -> None:
        """Pass frames to the session from now on, starting with those that have arrived."""
        held, self._held = self._held or [], None
        for kind, number, payload in held:
            self._session.handle_frame(kind, number, payload)

    def on_end(self) -> None:
        self.ended = True
        if self._closed:
            return
        if not self.answer.done():
            self.answer.set_exception(HostUnreachableError("the connection broke while it opened"))
        self._session.ended(self)

    def close(self) -> None:
        self._closed = True
        if self.answer.done():
            with contextlib.suppress(Exception, asyncio.CancelledError):
                self.answer.exception()
        else:
            self.answer.cancel()
        if self.wire is not None:
            self.wire.close()


_HIGH = 256 * 1024
_LOW = 64 * 1024

Post = Callable[[int, int, bytes], None]
"""Sends one frame of a stream."""


class StreamTransport(asyncio.Transport):
    """The controller's end of a stream, whether a wire is open or not."""

    def __init__(self, number: int, post: Post, forget: Callable[[int], None]) -> None:
        super().__init__()
        self._number = number
        self._post = post
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.Protocol | None = None
        self._waiting = bytearray()
        self._may_send = frames.WINDOW
        self._owed = 0
        self._paused = False
        self._protocol_paused = False
        self._ends = self._told_end = self._heard_end = False
        self._closing = self._lost = False

    # --- what arrives -------------------------------------------------------------------------

    def take(self, kind: int, payload: bytes) -> None:
        """Handle a frame of this stream."""
        if kind == frames.DATA:
            self._owed += len(payload)
            if not self._lost and not self._closing:
                self._the_protocol.data_received(payload)
            self._give_credit()
        elif kind == frames.CREDIT:
            self._may_send += frames.read_credit(payload)
            self._pump()
        elif kind == frames.END:
            self._heard_end = True
            # As with a socket, the other direction may continue.
            if not self._lost and not self._the_protocol.eof_received():
                self.close()
        elif kind == frames.CLOSE:
            number = int(payload) if payload.isdigit() else 0
            broken = number and not self._heard_end
            self.lose(ConnectionResetError(number, os.strerror(number)) if broken else None)

    def _give_credit(self) -> None:
        if not self._paused and self._owed >= frames.WINDOW // 4:
            self._post(*frames.credit(self._number, self._owed))
            self._owed = 0

    def lose(self, error: Exception | None) -> None:
        """End the stream in both directions."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._waiting.clear()
        self._forget(self._number)
        self._loop.call_soon(self._the_protocol.connection_lost, error)

    @property
    def _the_protocol(self) -> asyncio.Protocol:
        assert self._protocol is not None, "a stream's protocol is set before its first frame"
        return self._protocol

    # --- asyncio's side -----------------------------------------------------------------------

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        """Send `data`, now or when the other side grants credit."""
        if self._closing or self._ends:
            return
        self._waiting += data
        self._pump()
        if len(self._waiting) > _HIGH and not self._protocol_paused:
            self._protocol_paused = True
            self._the_protocol.pause_writing()

    def _pump(self) -> None:
        while self._waiting and self._may_send > 0:
            size = min(frames.CHUNK, self._may_send)
            part = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._may_send -= len(part)
            self._post(frames.DATA, self._number, part)
        if len(self._waiting) <= _LOW and self._protocol_paused:
            self._protocol_paused = False
            self._the_protocol.resume_writing()
        if self._waiting:
            return
        if self._closing and not self._lost:
            self._post(frames.CLOSE, self._number, b"")
            self.lose(None)
        elif self._ends and not self._told_end and not self._lost:
            self._told_end = True
            self._post(frames.END, self._number, b"")

    def write_eof(self) -> None:
        """End this direction once all data is sent."""
        if not self._closing:
            self._ends = True
            self._pump()

    def can_write_eof(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Close once all data is sent."""
        if not self._closing:
            self._closing = True
            self._pump()

    def abort(self) -> None:
        """Close now."""
        if not self._lost:
            self._waiting.clear()
            self._closing = True
            self._pump()

    def is_closing(self) -> bool:
        """Whether it is closed or about to close."""
        return self._closing

    def pause_reading(self) -> None:
        """Give no more credit."""
        self._paused = True

    def resume_reading(self) -> None:
        """Give credit again."""
        self._paused = False
        if not self._lost:
            self._give_credit()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol that gets the data."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that gets the data."""
        return self._the_protocol

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._waiting)
