"""Calls through the gate, as generated libraries make them."""

from __future__ import annotations

from ...errors import GateError, InterfaceDiedError, ProtocolError
from ..values._codec import (
    _dump,  # pyright: ignore[reportPrivateUsage]
    decode,
    decode_result,
    encode_call,
)
from ..values._pack import LEAVES
from ..wire._chunks import ChunkReader, split_chunk
from ..wire._protocol import RAISED, WireError
from ._attempts import Attempts
from ._connection import Connection
from ._deadline import current, deadline
from ._handles import Handle, write_index
from ._link import Link
from ._remote import error_from
from ._requests import Arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
    from typing import Any

    from ._responses import Response


_ASK = 10.0
"""Seconds to find out what became of an interface whose stream broke off."""


def connect(name: str, address: str | None = None) -> Gate:
    """The gate of a served interface; connections are made when they are needed.

    Args:
        name: The interface's name.
        address: Where it is; by default, where the session's environment says.
    """
    return Gate(name, address)


class Gate(Link):
    """One interface: its functions, budget, schema and handles.

    Attributes:
        restorers: What `decode` makes of tags that it does not know.
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
            RemoteError: The function raised; also an instance of the builtin class it raised.
            GateError: The call did not reach the function, or its result did not come back.
        """
        if (
            not kwargs
            and self.idle
            and not (current() or self.dropped_handles)
            and LEAVES.issuperset(map(type, args))
        ):
            return self._quick(function, args, tensors)
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
        objects for records and handles), which the gate converts by the function's hints.
        """
        from ._aio import arequest

        arguments = self.encode(function, args, kwargs or {}, plain=plain)
        return await arequest(self, "/v1/call/" + function, function, arguments, tensors)

    def stream(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tensors: bool = False,
    ) -> Iterator[Any]:
        """Call an exposed generator; its items as they come. Leaving the loop cancels it."""
        yield from self._stream(function, self.encode(function, args, kwargs or {}), tensors)

    def _stream(
        self, function: str, arguments: Arguments, tensors: bool, *, raw: bool = False
    ) -> Iterator[Any]:
        connection = None
        try:
            response, connection = self.exchange("/v1/call/" + function, function, arguments)
            if not response.streamed:
                raise ProtocolError(f"{function}() is no generator; call it")
            chunks = ChunkReader()
            while True:
                data = connection.read_some()
                if not data:
                    raise ConnectionResetError("the gate closed the connection")
                for chunk in chunks.feed(data):
                    if chunk is None:
                        self.idle.append(connection)
                        connection = None
                        return
                    ended, item = self.item(chunk, tensors, raw=raw)
                    if not ended:
                        yield item
        except (OSError, WireError) as error:
            if isinstance(error, GateError):
                raise
            raise self.broken_stream(function, error) from None
        finally:
            arguments.close()
            if connection is not None:
                connection.close()

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
        from ._aio import astream

        return astream(self, function, (args, kwargs or {}), tensors=tensors, plain=plain)

    def repeat(
        self,
        function: str,
        text: bytes,
        buffers: Sequence[Any] = (),
        *,
        handle: str = "",
        streamed: bool = False,
    ) -> Any:
        """Make a call whose arguments are written already, as a record has them.

        Args:
            function: Its name.
            text: The arguments' JSON text.
            buffers: What it refers to.
            handle: The handle to fetch from, in the place of a function to call.
            streamed: Whether the function is a generator.

        Returns:
            The result, of a generator the list of its items; arrays as `RawArray`.
        """
        if not self.fixed:
            self.settle_address()
        arguments = Arguments(text, buffers, shared=self.shared)
        if streamed:
            return list(self._stream(function, arguments, False, raw=True))
        path = "/v1/fetch/" + handle if handle else "/v1/call/" + function
        try:
            response, connection = self.exchange(path, function, arguments)
        finally:
            arguments.close()
        return self._result(function, response, connection, False, raw=True)

    def budget(self) -> dict[str, Any]:
        """What is left: limits and use of the caller's, the interface's and each function's."""
        return self.ask("GET", "/v1/budget")

    def schema(self) -> dict[str, Any]:
        """The interface's schema."""
        return self.ask("GET", "/v1/schema")

    def health(self) -> dict[str, Any]:
        """Whether the interface answers, and how busy it is."""
        return self.ask("GET", "/v1/health")

    def cancel(self, call: str) -> bool:
        """Cancel a call of this caller by its id; False if it is over."""
        return self.ask("POST", "/v1/cancel/" + call)["cancelled"]

    def fetch(self, handle: str, index: Any) -> Any:
        """A handle's value, or a part of it."""
        path = "/v1/fetch/" + handle
        arguments = () if index is None else (write_index(index),)
        return self._request(path, "fetch", arguments, {}, False)

    def free(self, handle: str) -> None:
        """Let a handle's value go."""
        self.ask("POST", "/v1/free/" + handle)

    # --- requests ----------------------------------------------------------------------------

    def encode(
        self,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        plain: bool = False,
    ) -> Arguments:
        """Lay out the arguments of a call."""
        if not self.fixed:
            self.settle_address()
        if plain:
            text = _dump({"args": list(args), "kwargs": dict(kwargs)}).encode("utf-8", "replace")
            return Arguments(text, (), shared=self.shared)
        buffers: list[Any] = []
        text = encode_call(function, args, kwargs, buffers, extra=_write_handle)
        return Arguments(text, buffers, shared=self.shared)

    def _request(
        self,
        path: str,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: bool,
    ) -> Any:
        arguments = self.encode(function, args, kwargs)
        try:
            response, connection = self.exchange(path, function, arguments)
        finally:
            if arguments.memfds:
                arguments.close()
        return self._result(function, response, connection, tensors)

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
        self.idle.append(connection)
        found = decode(response.text, buffers, torch=tensors, raw=raw, extra=self.restorers)
        return found["result"]

    def _quick(self, function: str, args: Sequence[Any], tensors: bool) -> Any:
        """The usual call (plain arguments, no deadline, a connection at hand) by a shorter way.

        Anything unusual about its answer is handled as by `_exchange`, which goes on from there.
        """
        try:
            text = b"[%s,{}]" % _dump(list(args)).encode()
            connection = self.idle.pop()
        except (ValueError, IndexError):
            # Huge numbers and lone surrogates are for the real encoder. Where another thread has
            # taken the last connection, one must be made.
            return self._request("/v1/call/" + function, function, args, {}, tensors)
        if connection.released:
            self.idle.append(connection)
            return self._request("/v1/call/" + function, function, args, {}, tensors)
        lines = self.lines
        line = lines.get(function)
        if line is None:
            head = f"POST /v1/call/{function} HTTP/1.1\r\n".encode()
            line = lines[function] = head + self.fixed + b"seer-call: "
        call = self.new_id()
        outcome: bytes | Response | BaseException
        try:
            outcome = connection.exchange_small(
                b"%s%s\r\ncontent-length: %d\r\n\r\n%s" % (line, call.encode(), len(text), text)
            )
        except BaseException as error:
            outcome = error
        else:
            if isinstance(outcome, bytes):
                self.idle.append(connection)
                return decode_result(outcome, torch=tensors, extra=self.restorers)
            if outcome.plain and outcome.epoch == self.epoch and outcome.status == RAISED:
                self.idle.append(connection)
                raise error_from(outcome.text)
        arguments = Arguments(text, (), shared=self.shared)
        path = "/v1/call/" + function
        response, connection = self.exchange(path, function, arguments, (call, outcome, connection))
        return self._result(function, response, connection, tensors)

    # --- values ------------------------------------------------------------------------------

    def _make_handle(self, found: dict[str, Any]) -> Handle:
        return Handle(self, found)

    def item(self, chunk: bytes, tensors: bool, *, raw: bool = False) -> tuple[bool, Any]:
        """What a chunk of a stream says: whether it is the end, and the item.

        Raises:
            Exception: The error that it carries.
        """
        line, buffers = split_chunk(chunk)
        if line.startswith(b'{"error"'):
            raise error_from(line)
        found = decode(line, buffers, torch=tensors, raw=raw, extra=self.restorers)
        return "item" not in found, found.get("item")

    def broken_stream(self, function: str, error: Exception) -> Exception:
        """The error for a stream that broke off."""
        if isinstance(error, WireError):
            return ProtocolError(str(error))
        lost = Attempts(function, 0.0)
        if isinstance(error, TimeoutError):
            return lost.silent()
        lost.lost(OSError(), sent=True)
        try:
            # The thread that closes the stream waits for this; a gate that runs answers at once.
            with deadline(_ASK):
                self.health()
        except InterfaceDiedError as died:
            return lost.unreachable(died)
        except (GateError, OSError):
            pass
        return lost.unreachable(InterfaceDiedError("the connection broke while it was streaming"))


def _write_handle(value: object) -> dict[str, Any] | None:
    return {"$seer": "handle", "id": value.reference()} if type(value) is Handle else None
