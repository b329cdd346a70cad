"""One stream of a session, as a transport that asyncio's own readers and writers work with."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, cast

from seer.providers.remote.onhost import frames

_HIGH = 256 * 1024
_LOW = 64 * 1024

Post = Callable[[int, int, bytes], None]
"""Sends one frame of a stream."""


class StreamTransport(asyncio.Transport):
    """The controller's end of a stream. Nothing in it knows whether there is a wire just now."""

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
        self._high, self._low = _HIGH, _LOW
        self._ends = self._told_end = self._heard_end = False
        self._closing = self._lost = False

    # --- what arrives -------------------------------------------------------------------------

    def take(self, kind: int, payload: bytes) -> None:
        """Act on a frame of this stream."""
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
            # As of a socket: the other direction may go on.
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
        """The stream is over, in both directions."""
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
        """Send `data`, now or when the other side has room."""
        if self._closing or self._ends:
            return
        self._waiting += data
        self._pump()
        if len(self._waiting) > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._the_protocol.pause_writing()

    def _pump(self) -> None:
        while self._waiting and self._may_send > 0:
            size = min(frames.CHUNK, self._may_send)
            part = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._may_send -= len(part)
            self._post(frames.DATA, self._number, part)
        if len(self._waiting) <= self._low and self._protocol_paused:
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
        """End this direction once all is sent."""
        if not self._closing:
            self._ends = True
            self._pump()

    def can_write_eof(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Close once all is sent."""
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
        """Whether it is, or will be."""
        return self._closing

    def pause_reading(self) -> None:
        """Give no more credit."""
        self._paused = True

    def resume_reading(self) -> None:
        """Give credit again."""
        self._paused = False
        if not self._lost:
            self._give_credit()

    def is_reading(self) -> bool:
        """Whether credit is given."""
        return not self._paused and not self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set who hears of what arrives."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who hears of what arrives."""
        return self._the_protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when a writer is asked to pause."""
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return len(self._waiting)
