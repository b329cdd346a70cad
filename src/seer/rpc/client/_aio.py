"""Calls for event loops: the same as the blocking ones, but waiting is the loop's."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from ...errors import GateBusyError, GateError, InterfaceDiedError, ProtocolError
from ..values._codec import decode
from ..wire._chunks import ChunkReader
from ..wire._protocol import HELLO, WireError
from ._attempts import AskIdempotent, Attempts, Retry
from ._connection import ANCILLARY, SILENCE, CannotPass, Connection, received
from ._deadline import current
from ._link import taken
from ._responses import Response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from typing import Any

    from ._gate import Gate
    from ._requests import Arguments


class AsyncConnection(Connection):
    """A connection that waits without blocking. It belongs to no loop between two calls."""

    __slots__ = ()

    async def aexchange(
        self, parts: list[Any], descriptors: list[int], patience: float
    ) -> Response:
        """Like `exchange`."""
        self.sent = False
        self.socket.setblocking(False)
        try:
            await self._asend(parts, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            response = self._last_words()
            if response is None:
                raise
            return response
        self.sent = True
        return await self._aread(patience)

    async def _asend(self, parts: list[Any], descriptors: list[int]) -> None:
        first = True
        for part in parts:
            view = memoryview(part).cast("B")
            while len(view):
                try:
                    sent = self.send_with(view, descriptors) if first else self.socket.send(view)
                except BlockingIOError:
                    await self._ready(write=True, patience=SILENCE)
                    continue
                first = False
                view = view[sent:]

    async def _aread(self, patience: float) -> Response:
        reader = self._reader
        descriptors: list[int] = []
        response: Response | None = None
        until = time.monotonic() + patience
        while response is None:
            room = reader.room
            try:
                if room is None:
                    data, ancillary, flags, _ = self.socket.recvmsg(65536, ANCILLARY)
                    if ancillary or flags:
                        descriptors += received(ancillary, flags)
                    if not data:
                        raise ConnectionResetError("the gate closed the connection")
                    response = reader.feed(data)
                else:
                    count = self.socket.recv_into(room)
                    if not count:
                        raise ConnectionResetError("the gate closed the connection")
                    response = reader.filled(count)
                until = time.monotonic() + patience
            except BlockingIOError:
                await self._ready(write=False, patience=until - time.monotonic())
        if response.slots or descriptors or response.dropped:
            self._map(response, descriptors)
        self.closing = response.close
        return response

    async def aread_some(self) -> bytes:
        """Like `read_some`."""
        rest = self._reader.take_rest()
        while not rest:
            try:
                return self.socket.recv(65536)
            except BlockingIOError:
                await self._ready(write=False, patience=SILENCE)
        return rest

    async def _ready(self, *, write: bool, patience: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        fd = self.socket.fileno()
        add, remove = (
            (loop.add_writer, loop.remove_writer)
            if write
            else (loop.add_reader, loop.remove_reader)
        )
        add(fd, lambda: None if future.done() else future.set_result(None))
        timer = loop.call_later(
            max(patience, 0.0),
            lambda: None if future.done() else future.set_exception(TimeoutError()),
        )
        try:
            await future
        finally:
            timer.cancel()
            remove(fd)


async def arequest(
    gate: Gate,
    path: str,
    function: str,
    arguments: Arguments,
    tensors: bool,
) -> Any:
    """Make a call and await its result; see `Gate.acall`."""
    try:
        response, connection = await _aexchange(gate, path, function, arguments)
    finally:
        arguments.close()
    if response.streamed:
        connection.close()
        raise ProtocolError(f"{function}() is a generator; its results are streamed")
    buffers = connection.buffers(response) if response.pieces else ()
    gate.async_idle.append(connection)
    return decode(response.text, buffers, torch=tensors, extra=gate.restorers)["result"]


async def _aexchange(
    gate: Gate, path: str, function: str, arguments: Arguments
) -> tuple[Response, AsyncConnection]:
    attempts = Attempts(function, current())
    call = gate.new_id()
    while True:
        if attempts.until:
            attempts.left()
        try:
            connection = taken(gate.async_idle) or await _open(gate)
        except InterfaceDiedError as error:
            raise attempts.unreachable(error) from None
        try:
            head = gate.head(connection, path, call, attempts)
            response = await _send(connection, head, arguments, attempts.patience or SILENCE)
        except GateError:
            # Nothing is known of how far it got.
            connection.close()
            raise
        except TimeoutError:
            connection.close()
            raise attempts.silent() from None
        except WireError as error:
            connection.close()
            raise ProtocolError(str(error)) from None
        except OSError as error:
            connection.close()
            gate.close()
            retry = attempts.lost(error, sent=gate.may_have_arrived(connection, error))
        except BaseException:
            # Cancelled: closing the connection cancels the call.
            connection.close()
            raise
        else:
            try:
                retry = await _judge(gate, attempts, response, connection, function)
            except GateBusyError:
                if not arguments.memfds:
                    raise
                # It may be descriptors that the gate has no room for.
                arguments.go_inline()
                retry = Retry(0.0)
            if retry is None:
                return response, connection
        if retry.renewed:
            call = gate.new_id()
        await asyncio.sleep(retry.delay)


async def _send(
    connection: AsyncConnection, head: bytes, arguments: Arguments, patience: float
) -> Response:
    try:
        return await connection.aexchange(arguments.message(head), arguments.memfds, patience)
    except CannotPass:
        arguments.go_inline()
        return await connection.aexchange(arguments.message(head), [], patience)


async def _open(gate: Gate) -> AsyncConnection:
    if not gate.epoch:
        # See `Gate`: the incarnation is known before the first call.
        with suppress(OSError, WireError):
            hello = AsyncConnection(gate.dial())
            try:
                gate.note_epoch(await hello.aexchange([HELLO], [], SILENCE))
            finally:
                hello.close()
    return AsyncConnection(gate.dial())


async def _judge(
    gate: Gate,
    attempts: Attempts,
    response: Response,
    connection: AsyncConnection,
    function: str,
) -> Retry | None:
    try:
        retry = gate.judge(attempts, response)
    except AskIdempotent as question:
        connection.close()
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(None, gate.is_idempotent, function):
            raise question.lost from None
        return attempts.made_again()
    except Exception:
        # An error that is an answer: the connection is as good as before.
        if connection.closing:
            connection.close()
        else:
            gate.async_idle.append(connection)
        raise
    if retry is not None:
        connection.close()
    return retry


async def astream(
    gate: Gate,
    function: str,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    *,
    tensors: bool,
    plain: bool,
) -> AsyncGenerator[Any, None]:
    """Call a generator; see `Gate.astream`."""
    arguments = gate.encode(function, *given, plain=plain)
    connection: AsyncConnection | None = None
    try:
        response, connection = await _aexchange(gate, "/v1/call/" + function, function, arguments)
        if not response.streamed:
            raise ProtocolError(f"{function}() is no generator; call it")
        chunks = ChunkReader()
        while True:
            data = await connection.aread_some()
            if not data:
                raise ConnectionResetError("the gate closed the connection")
            for chunk in chunks.feed(data):
                if chunk is None:
                    gate.async_idle.append(connection)
                    connection = None
                    return
                ended, item = gate.item(chunk, tensors)
                if not ended:
                    yield item
    except (OSError, WireError) as error:
        if isinstance(error, GateError):
            raise
        raise gate.broken_stream(function, error) from None
    finally:
        arguments.close()
        if connection is not None:
            with suppress(OSError):
                connection.close()
