"""The controller's end of a connection to a steward or keeper: frames over asyncio streams."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable

from seer.errors import RemoteFileError, SandboxLostError
from seer.providers.agent import wire

READ_LIMIT = 512 * 1024
PATIENCE = 60.0
"""Seconds within which a steward must answer a request, even on a busy machine."""

Lost = Callable[[], Awaitable[SandboxLostError]]
"""Returns the reason why a connection to a machine has ended."""


class Connection:
    """One connection to a machine, which is untrusted and may send anything."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: Lost
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._lost = lost

    async def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame, waiting while the other side is slow.

        Raises:
            SandboxLostError: The connection is gone.
        """
        try:
            self.writer.write((len(payload) + 1).to_bytes(4, "big") + kind)
            self.writer.write(payload)
            await self.writer.drain()
        except OSError:
            raise await self._lost() from None

    async def request(self, op: str, fields: "dict[str, wire.Encodable]") -> None:
        """Send the request that opens the connection; raises as `send` does."""
        await self.send(wire.REQUEST, wire.encode({"op": op, **fields}))

    async def receive(self) -> tuple[bytes, bytes]:
        """The next frame.

        Raises:
            SandboxLostError: The connection ended, or broke the protocol.
        """
        try:
            head = await self.reader.readexactly(5)
            length = int.from_bytes(head[:4], "big")
            if not 1 <= length <= wire.FRAME_LIMIT:
                raise SandboxLostError(
                    f"the sandbox's steward sent a frame of {length} bytes; it is broken or was "
                    f"tampered with, so end this sandbox and start another"
                )
            return head[4:5], await self.reader.readexactly(length - 1)
        except (asyncio.IncompleteReadError, OSError):
            raise await self._lost() from None

    async def expect_ok(self, *, patience: float | None = PATIENCE) -> "wire.Message":
        """Wait for the answer to the request.

        Args:
            patience: Seconds to wait for the answer; None if it follows much data.

        Raises:
            RemoteFileError: The operation failed in the machine.
            SandboxLostError: As from `receive`, or no answer came in time. An agent may have
                stopped its machine's steward.
        """
        try:
            async with asyncio.timeout(patience):
                kind, payload = await self.receive()
        except TimeoutError:
            raise SandboxLostError(
                f"the sandbox's steward has not answered for {patience:g} s: it was stopped, or "
                f"the machine is overloaded; terminate the sandbox and start another"
            ) from None
        if kind == wire.ERROR:
            raise remote_error(payload)
        if kind != wire.OK:
            raise broken(f"a frame of kind {kind!r} instead of an answer")
        return decoded(payload) if payload else {}

    def close(self) -> None:
        """Close at once; unsent data may be lost."""
        self.writer.close()


def decoded(payload: bytes) -> "wire.Message":
    """A payload as a dictionary; raises `SandboxLostError` if it is something else."""
    try:
        return wire.decode_message(payload)
    except wire.WireError as error:
        raise broken(str(error)) from None


def broken(what: str) -> SandboxLostError:
    """The error for a steward that violates the protocol."""
    return SandboxLostError(
        f"the sandbox's steward broke the protocol ({what}); it is broken or was tampered with, "
        f"so end this sandbox and start another"
    )


def remote_error(payload: bytes) -> RemoteFileError:
    """The error that the machine reports."""
    fields = decoded(payload)
    try:
        number = wire.get_int(fields, "errno", 0)
        said = wire.get_text(fields, "message", "")
        path = wire.get_text(fields, "path", "")
    except wire.WireError as error:
        raise broken(str(error)) from None
    known = number in errno.errorcode
    text = said or (os.strerror(number) if known else "failed")
    return RemoteFileError(number if known else errno.EIO, text, path or None)
