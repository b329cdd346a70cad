"""Calls through the gate, as generated libraries make them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import GateError, ProtocolError
from ..values._codec import (
    decode,
    decode_result,
    encode_call,
    write_json,
)
from ..wire._chunks import ChunkReader, split_chunk
from ..wire._protocol import WireError
from ._connection import Connection
from ._drive import adrive, drive
from ._errors import error_from
from ._handles import Handle, write_index
from ._requests import Arguments
from ._transport import Transport

if TYPE_CHECKING:
    from ._drive import Steps
    from ._responses import Response


def connect(name: str, address: str | None = None) -> Gate:
    """The gate of a served interface; connections are made when they are needed.

    Args:
        name: The interface's name.
        address: Its address; by default, the one in the session's environment.
    """
    return Gate(name, address)


class Gate(Transport):
    """One interface: its functions, budget, schema and handles.

    Attributes:
        restorers: Make the values of tags that `decode` does not know.
    """

    def __init__(self, name: str, address: str | None = None) -> None:
        super().__init__(name, address)
        self.restorers = {"handle": self._make_handle}

    # --- what libraries call -----------------------------------------------------------------

    def call(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tensors: bool = False,
    ) -> Any:
        """Call an exposed function and wait for its result.

        Args:
            function: Its name.
            args: Positional arguments.
            kwargs: Arguments by name.
            tensors: Whether arrays in the result become torch tensors.

        Raises:
            RemoteError: The function raised. The error is also an instance of the builtin class.
            GateError: The call did not reach the function, or its result did not come back.
        """
        return self._request("/v1/call/" + function, function, args, kwargs or {}, tensors)

    async def acall(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tensors: bool = False,
        plain: bool = False,
    ) -> Any:
        """Like `call`, without blocking the event loop. Cancelling it cancels the call.

        With `plain`, the arguments are JSON data (base64 text for bytes, nested lists for arrays,
        objects for records and handles), which the gate converts by the function's type hints.
        """
        arguments = self._encode(function, args, kwargs or {}, plain=plain)
        path = "/v1/call/" + function
        found = await adrive(self.exchange(path, function, arguments, blocking=False))
        return self._result(function, *found, tensors)

    def stream(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tensors: bool = False,
    ) -> Iterator[Any]:
        """Call an exposed generator, and yield the items as they arrive.

        Leaving the loop cancels it.
        """
        stream = _Stream(
            self, function, lambda: self._encode(function, args, kwargs or {}), tensors=tensors
        )
        return stream.items()

    def astream(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tensors: bool = False,
        plain: bool = False,
    ) -> AsyncGenerator[Any, None]:
        """Like `stream`, for `async for`; `plain` as for `acall`."""
        stream = _Stream(
            self,
            function,
            lambda: self._encode(function, args, kwargs or {}, plain=plain),
            tensors=tensors,
            blocking=False,
        )
        return stream.aitems()

    def repeat(
        self,
        function: str,
        text: bytes,
        buffers: Sequence[Any] = (),
        *,
        handle: str = "",
        streamed: bool = False,
    ) -> Any:
        """Make a recorded call again.

        Args:
            function: Its name.
            text: The JSON text of the arguments.
            buffers: The buffers of the arguments.
            handle: The handle to fetch, instead of a function to call.
            streamed: Whether the function is a generator.

        Returns:
            The result; the list of items for a generator. Arrays are `RawArray`s.
        """
        if streamed:
            stream = _Stream(self, function, lambda: self._arguments(text, buffers), raw=True)
            return list(stream.items())
        arguments = self._arguments(text, buffers)
        path = "/v1/fetch/" + handle if handle else "/v1/call/" + function
        found = drive(self.exchange(path, function, arguments))
        return self._result(function, *found, False, raw=True)

    def budget(self) -> dict[str, Any]:
        """The limits of the caller, the interface and each function, and what the caller used."""
        return self.ask("GET", "/v1/budget")

    def schema(self) -> dict[str, Any]:
        """The interface's schema."""
        return self.ask("GET", "/v1/schema")

    def health(self) -> dict[str, Any]:
        """The interface's epoch and age, and the calls of this caller that run."""
        return self.ask("GET", "/v1/health")

    def cancel(self, call: str) -> bool:
        """Cancel a call of this caller by its id; False if it has ended."""
        return self.ask("POST", "/v1/cancel/" + call)["cancelled"]

    def fetch(self, handle: str, index: Any) -> Any:
        """A handle's value, or a part of it."""
        path = "/v1/fetch/" + handle
        arguments = () if index is None else (write_index(index),)
        return self._request(path, "fetch", arguments, {}, False)

    def free(self, handle: str) -> None:
        """Release a handle's value."""
        self.ask("POST", "/v1/free/" + handle)

    # --- requests ----------------------------------------------------------------------------

    def _encode(
        self,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        plain: bool = False,
    ) -> Arguments:
        """Lay out the arguments of a call."""
        if plain:
            text = write_json({"args": list(args), "kwargs": dict(kwargs)})
            return self._arguments(text.encode("utf-8", "replace"), ())
        buffers: list[Any] = []
        return self._arguments(
            encode_call(function, args, kwargs, buffers, extra=_write_handle), buffers
        )

    def _arguments(self, text: bytes, buffers: Sequence[Any]) -> Arguments:
        if not self.fixed:
            self.settle_address()
        return Arguments(text, buffers, shared=self.shared)

    def _request(
        self,
        path: str,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: bool,
    ) -> Any:
        buffers: list[Any] = []
        text = encode_call(function, args, kwargs, buffers, extra=_write_handle)
        first = None if buffers else self.first_attempt(path, text)
        if isinstance(first, bytes):
            return decode_result(first, torch=tensors, extra=self.restorers)
        arguments = self._arguments(text, buffers)
        found = drive(self.exchange(path, function, arguments, first))
        return self._result(function, *found, tensors)

    def _result(
        self,
        function: str,
        response: Response,
        connection: Connection,
        tensors: bool,
        *,
        raw: bool = False,
    ) -> Any:
        if response.streamed:
            connection.close()
            raise ProtocolError(f"{function}() is a generator; its results are streamed")
        buffers = connection.buffers(response) if response.pieces else ()
        self.keep(connection)
        found = decode(response.text, buffers, torch=tensors, raw=raw, extra=self.restorers)
        return found["result"]

    # --- values ------------------------------------------------------------------------------

    def _make_handle(self, found: dict[str, Any]) -> Handle:
        return Handle(self, found)


class _Stream:
    """A call of a generator: one request, and the items that come back for it.

    Args:
        gate: The interface.
        function: The generator's name.
        encode: Returns its arguments; called when the first item is requested.
        tensors: Whether arrays become torch tensors.
        raw: Whether arrays stay `RawArray`.
        blocking: Whether its socket blocks.
    """

    def __init__(
        self,
        gate: Gate,
        function: str,
        encode: Callable[[], Arguments],
        *,
        tensors: bool = False,
        raw: bool = False,
        blocking: bool = True,
    ) -> None:
        self._gate = gate
        self._function = function
        self._encode = encode
        self._tensors = tensors
        self._raw = raw
        self._blocking = blocking
        self._connection: Connection | None = None
        self._chunks = ChunkReader()
        self._ended = False

    def items(self) -> Iterator[Any]:
        """The items as they arrive."""
        try:
            while not self._ended:
                yield from self._decode(drive(self._read()))
        finally:
            self._close()

    async def aitems(self) -> AsyncGenerator[Any, None]:
        """The same for an event loop."""
        try:
            while not self._ended:
                for item in self._decode(await adrive(self._read())):
                    yield item
        finally:
            self._close()

    def _read(self) -> Steps[list[bytes | None]]:
        """The next chunks; None is the end."""
        gate, function, blocking = self._gate, self._function, self._blocking
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = yield from self._begin()
            return self._chunks.feed((yield from connection.read_some()))
        except (OSError, WireError) as error:
            if isinstance(error, GateError):
                raise
            broken = yield from gate.broken_stream(function, error, blocking=blocking)
        raise broken

    def _begin(self) -> Steps[Connection]:
        function = self._function
        response, connection = yield from self._gate.exchange(
            "/v1/call/" + function, function, self._encode(), blocking=self._blocking
        )
        if not response.streamed:
            connection.close()
            raise ProtocolError(f"{function}() is not a generator; call it")
        return connection

    def _decode(self, chunks: list[bytes | None]) -> Iterator[Any]:
        """The items in these chunks.

        Raises:
            Exception: The error that a chunk carries.
        """
        for chunk in chunks:
            if chunk is None:
                self._ended = True
                connection, self._connection = self._connection, None
                if connection is not None:
                    self._gate.keep(connection)
                return
            try:
                line, buffers = split_chunk(chunk)
            except WireError as error:
                raise ProtocolError(str(error)) from None
            if line.startswith(b'{"error"'):
                raise error_from(line)
            found = decode(
                line, buffers, torch=self._tensors, raw=self._raw, extra=self._gate.restorers
            )
            if "item" in found:
                yield found["item"]

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _write_handle(value: object) -> dict[str, Any] | None:
    return {"$seer": "handle", "id": value.reference()} if type(value) is Handle else None
