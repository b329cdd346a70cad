"""Calls through the gate, as generated libraries make them.

A `Gate` is safe to use from any thread and after a fork. It keeps connections for use again, one
for each call that runs at the same time.
"""

# ruff: noqa: TID252 (in a jail the packages above have other names)

from __future__ import annotations

import errno
import itertools
import os
import time
import weakref
from collections import deque

from ...errors import GateError, InterfaceDiedError, ProtocolError
from .._pack import LEAVES
from .._values import _dump, decode, encode_call  # pyright: ignore[reportPrivateUsage]
from ._address import connect as open_connection
from ._address import from_environment
from ._attempts import AskIdempotent, Attempts, Retry
from ._connection import SILENCE, Connection
from ._deadline import current
from ._handles import Handle, write_index
from ._remote import error_from
from ._requests import Arguments
from ._streams import ChunkReader, split_chunk
from ._wire import HELLO, VERSION, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from typing import Any

    from ._responses import Response

_MAX_FREED = 100
LINGER = 30.0
"""Seconds a call made over a link that can break goes on until it is asked for again."""


def connect(name: str, address: str | None = None) -> Gate:
    """The gate of a served interface; connections are made when they are needed.

    Args:
        name: The interface's name.
        address: Where it is; by default, where the session's environment says.
    """
    return Gate(name, address)


class Gate:
    """The way to one interface.

    Attributes:
        name: The interface's name.
        address: Where connections are made to, once the first is.
        async_free: Connections of asynchronous calls that are not in use.
        epoch: The incarnation of the interface that answered last.
        dropped_handles: Handles that nobody refers to any more, to be told with the next call.
        restorers: What `decode` makes of tags that it does not know.
    """

    def __init__(self, name: str, address: str | None = None) -> None:
        self.name = name
        self.dropped_handles: deque[str] = deque()
        self._given = address
        self.address = ""
        self.epoch = ""
        self._shared = True
        self._fixed = b""
        self._lines: dict[str, bytes] = {}
        self._idempotent: dict[str, bool] | None = None
        self._free: list[Connection] = []
        self.async_free: list[Any] = []
        self.restorers = {"handle": self._make_handle}
        self.after_fork()
        _gates.add(self)

    def after_fork(self) -> None:
        """In a forked process: connections and ids of the parent are not ours."""
        self._free = []
        self.async_free = []
        self._tag = os.urandom(6).hex()
        self._numbers = itertools.count(1)

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
            tensors: Whether arrays in the result shall be torch tensors.

        Raises:
            RemoteError: The function raised; also an instance of the builtin class it raised.
            GateError: The call did not reach the function, or its result did not come back.
        """
        free = self._free
        if (
            not kwargs
            and free
            and not (current() or self.dropped_handles or free[-1].released)
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
    ) -> Any:
        """Like `call`, without blocking the event loop. Cancelling it cancels the call."""
        from ._aio import arequest

        return await arequest(self, "/v1/call/" + function, function, args, kwargs or {}, tensors)

    def stream(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tensors: bool = False,
    ) -> Iterator[Any]:
        """Call an exposed generator; its items as they come. Leaving the loop cancels it."""
        arguments = self.encode(function, args, kwargs or {})
        connection = None
        try:
            response, connection = self._exchange("/v1/call/" + function, function, arguments)
            if not response.streamed:
                raise ProtocolError(f"{function}() is no generator; call it")
            chunks = ChunkReader()
            while True:
                data = connection.read_some()
                if not data:
                    raise ConnectionResetError("the gate closed the connection")
                for chunk in chunks.feed(data):
                    if chunk is None:
                        self._free.append(connection)
                        connection = None
                        return
                    ended, item = self.item(chunk, tensors)
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
    ) -> AsyncIterator[Any]:
        """Like `stream`, for `async for`."""
        from ._aio import astream

        return astream(self, function, args, kwargs or {}, tensors)

    def budget(self) -> dict[str, Any]:
        """What is left: limits and use of the caller's, the interface's and each function's."""
        return self._ask("GET", "/v1/budget")

    def schema(self) -> dict[str, Any]:
        """The interface's schema."""
        return self._ask("GET", "/v1/schema")

    def health(self) -> dict[str, Any]:
        """Whether the interface answers, and how busy it is."""
        return self._ask("GET", "/v1/health")

    def cancel(self, call: str) -> bool:
        """Cancel a call of this caller by its id; False if it is over."""
        return self._ask("POST", "/v1/cancel/" + call)["cancelled"]

    def fetch(self, handle: str, index: Any) -> Any:
        """A handle's value, or a part of it."""
        path = "/v1/fetch/" + handle
        arguments = () if index is None else (write_index(index),)
        return self._request(path, "fetch", arguments, {}, False)

    def free(self, handle: str) -> None:
        """Let a handle's value go."""
        self._ask("POST", "/v1/free/" + handle)

    def close(self) -> None:
        """Close all connections; the gate can still be used, which opens new ones."""
        for connection in (*self._free, *self.async_free):
            connection.close()
        self._free.clear()
        self.async_free.clear()

    # --- requests ----------------------------------------------------------------------------

    def encode(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Lay out the arguments of a call."""
        if not self._fixed:
            self._settle_address()
        buffers: list[Any] = []
        text = encode_call(function, args, kwargs, buffers, extra=_write_handle)
        return Arguments(text, buffers, shared=self._shared)

    def head(self, connection: Connection, path: str, call: str, attempts: Attempts) -> bytes:
        """The head of a call's request, without what describes the body."""
        head = b"POST %s HTTP/1.1\r\n%sseer-call: %s\r\n" % (
            path.encode(),
            self._fixed,
            call.encode(),
        )
        if attempts.until:
            head += b"seer-deadline: %.6f\r\n" % attempts.left()
        if connection.released:
            slots = b",".join(b"%d" % slot for slot in connection.take_released())
            head += b"seer-release: %s\r\n" % slots
        if self.dropped_handles:
            dropped: list[str] = []
            while self.dropped_handles and len(dropped) < _MAX_FREED:
                dropped.append(self.dropped_handles.popleft())
            head += b"seer-free: %s\r\n" % ",".join(dropped).encode()
        return head

    def new_id(self) -> str:
        """An id for a call that no other call of this caller has."""
        return f"{self._tag}-{next(self._numbers)}"

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
            response, connection = self._exchange(path, function, arguments)
        finally:
            if arguments.memfds:
                arguments.close()
        return self._result(function, response, connection, tensors)

    def _result(
        self, function: str, response: Response, connection: Connection, tensors: bool
    ) -> Any:
        if response.streamed:
            connection.close()
            raise ProtocolError(f"{function}() is a generator; its results are streamed")
        buffers = connection.buffers(response) if response.pieces else ()
        self._free.append(connection)
        return decode(response.text, buffers, torch=tensors, extra=self.restorers)["result"]

    def _quick(self, function: str, args: Sequence[Any], tensors: bool) -> Any:
        """The usual call (plain arguments, no deadline, a connection at hand) by a shorter way.

        Anything unusual about its answer is handled as by `_exchange`, which goes on from there.
        """
        try:
            text = f"[{_dump(list(args))},{{}}]".encode()
        except ValueError:
            # Huge numbers and lone surrogates are for the real encoder.
            return self._request("/v1/call/" + function, function, args, {}, tensors)
        line = self._lines.get(function)
        if line is None:
            line = (
                b"POST /v1/call/%s HTTP/1.1\r\n" % function.encode() + self._fixed + b"seer-call: "
            )
            self._lines[function] = line
        call = self.new_id()
        connection = self._free.pop()
        outcome: Response | BaseException
        try:
            outcome = connection.exchange_small(
                b"%s%s\r\ncontent-length: %d\r\n\r\n%s" % (line, call.encode(), len(text), text)
            )
            if outcome.plain and outcome.epoch == self.epoch:
                self._free.append(connection)
                return decode(outcome.text, torch=tensors, extra=self.restorers)["result"]
        except BaseException as error:
            outcome = error
        arguments = Arguments(text, (), shared=self._shared)
        path = "/v1/call/" + function
        response, connection = self._exchange(
            path, function, arguments, (call, outcome, connection)
        )
        return self._result(function, response, connection, tensors)

    def _exchange(
        self,
        path: str,
        function: str,
        arguments: Arguments,
        first: tuple[str, Response | BaseException, Connection] | None = None,
    ) -> tuple[Response, Connection]:
        """Send a call until it is answered; see `Attempts` for what that means.

        Args:
            path: Of the request.
            function: The function's name, for messages.
            arguments: What to send.
            first: The call's id, and what came of a first attempt over which connection.
        """
        attempts = Attempts(function, current())
        call, outcome, connection = first or (self.new_id(), None, None)
        while True:
            if outcome is None or connection is None:
                try:
                    connection = self._free.pop() if self._free else self._open()
                except InterfaceDiedError as error:
                    raise attempts.unreachable(error) from None
                outcome = self._attempt(connection, path, call, attempts, arguments)
            if isinstance(outcome, BaseException):
                retry = self._failed(attempts, connection, outcome)
            else:
                judged = self._judge(attempts, outcome, connection, function)
                if judged is None:
                    return outcome, connection
                retry = judged
            outcome = None
            if retry.renewed:
                call = self.new_id()
            if retry.delay:
                time.sleep(retry.delay)

    def _attempt(
        self,
        connection: Connection,
        path: str,
        call: str,
        attempts: Attempts,
        arguments: Arguments,
    ) -> Response | BaseException:
        try:
            connection.wait_at_most(attempts.patience or SILENCE)
            head = self.head(connection, path, call, attempts) + arguments.headers + b"\r\n"
            return connection.exchange([head, *arguments.parts], arguments.memfds)
        except BaseException as error:
            return error

    def _failed(self, attempts: Attempts, connection: Connection, error: BaseException) -> Retry:
        if isinstance(error, GateError):
            # The deadline passed before anything was sent.
            self._free.append(connection)
            raise error
        # After a KeyboardInterrupt the answer is still to come, and closing cancels the call.
        connection.close()
        if isinstance(error, (TimeoutError, BlockingIOError)):
            raise attempts.silent() from None
        if isinstance(error, WireError):
            raise ProtocolError(str(error)) from None
        if isinstance(error, OSError):
            # The others are most likely as dead as this one.
            self.close()
            return attempts.lost(error, sent=self.may_have_arrived(connection, error))
        raise error

    def may_have_arrived(self, connection: Connection, error: OSError) -> bool:
        """Whether a request that got no answer may have been executed.

        A Unix socket that is closed with unread bytes resets its peer: such a request was not read.
        A relay may have passed it on all the same.
        """
        return connection.sent and not (self._shared and error.errno == errno.ECONNRESET)

    def _judge(
        self, attempts: Attempts, response: Response, connection: Connection, function: str
    ) -> Retry | None:
        try:
            retry = self.judge(attempts, response)
        except AskIdempotent as question:
            connection.close()
            if not self.is_idempotent(function):
                raise question.lost from None
            return attempts.made_again()
        except Exception:
            # An error that is an answer: the connection is as good as before.
            self.keep_or_close(connection)
            raise
        if retry is not None:
            connection.close()
        return retry

    def keep_or_close(self, connection: Connection) -> None:
        """Keep a connection for the next call, unless the gate closes it."""
        if connection.closing:
            connection.close()
        else:
            self._free.append(connection)

    def judge(self, attempts: Attempts, response: Response) -> Retry | None:
        """What to do about a response; notes which incarnation it came from."""
        self.note_epoch(response)
        return attempts.answered(response)

    def note_epoch(self, response: Response) -> None:
        """Remember which incarnation answered."""
        if response.epoch != self.epoch and response.epoch not in ("", "none"):
            self._set_epoch(response.epoch)

    def _open(self) -> Connection:
        connection = Connection(open_connection(self.address))
        if self.epoch:
            return connection
        try:
            # A call that is sent again must not run in another incarnation than the first time,
            # so the incarnation is known before the first call.
            response = connection.exchange([HELLO], [])
            self.note_epoch(response)
        except (OSError, WireError) as error:
            connection.close()
            if isinstance(error, WireError):
                raise ProtocolError(str(error)) from None
            return Connection(open_connection(self.address))
        except BaseException:
            connection.close()
            raise
        if response.close:
            connection.close()
            return Connection(open_connection(self.address))
        return connection

    def _settle_address(self) -> None:
        address = self._given or from_environment(self.name)
        # Over a relay there are no descriptors, and links that break.
        self._shared = not address.startswith("frames:")
        self.address = address if self._shared else "path:" + address[len("frames:") :]
        self._set_epoch(self.epoch)

    def _set_epoch(self, epoch: str) -> None:
        self.epoch = epoch
        self._lines = {}
        self._fixed = b"host: gate\r\nseer-gate: %d\r\nseer-accept: %s\r\n%s%s" % (
            VERSION,
            b"shared" if self._shared else b"frames",
            b"" if self._shared else b"seer-linger: %d\r\n" % LINGER,
            b"seer-epoch: %s\r\n" % epoch.encode() if epoch else b"",
        )

    def _ask(self, method: str, path: str) -> Any:
        """A request that is answered at once and may be repeated."""
        if not self._fixed:
            self._settle_address()
        attempts = Attempts(path, current())
        length = b"content-length: 0\r\n" if method == "POST" else b""
        while True:
            connection = self._free.pop() if self._free else self._open()
            message = b"%s %s HTTP/1.1\r\nhost: gate\r\nseer-gate: %d\r\n%s\r\n" % (
                method.encode(),
                path.encode(),
                VERSION,
                length,
            )
            try:
                response = connection.exchange([message], [])
            except WireError as error:
                connection.close()
                raise ProtocolError(str(error)) from None
            except OSError as error:
                connection.close()
                self.close()
                retry = attempts.lost(error, sent=False)
            except BaseException:
                connection.close()
                raise
            else:
                self.keep_or_close(connection)
                retry = attempts.answered(response)
                if retry is None:
                    return decode(response.text)["result"]
            time.sleep(retry.delay)

    def is_idempotent(self, function: str) -> bool:
        """Whether a call of the function may be made again after it was lost."""
        if self._idempotent is None:
            self._idempotent = read_idempotent(self.schema())
        return self._idempotent.get(function, False)

    # --- values ------------------------------------------------------------------------------

    def _make_handle(self, found: dict[str, Any]) -> Handle:
        return Handle(self, found)

    def item(self, chunk: bytes, tensors: bool) -> tuple[bool, Any]:
        """What a chunk of a stream says: whether it is the end, and the item.

        Raises:
            Exception: The error that it carries.
        """
        line, buffers = split_chunk(chunk)
        if line.startswith(b'{"error"'):
            raise error_from(line)
        found = decode(line, buffers, torch=tensors, extra=self.restorers)
        return "item" not in found, found.get("item")

    def broken_stream(self, function: str, error: Exception) -> Exception:
        """The error for a stream that broke off."""
        if isinstance(error, WireError):
            return ProtocolError(str(error))
        lost = Attempts(function, 0.0)
        lost.lost(OSError(), sent=True)
        try:
            self.health()
        except InterfaceDiedError as died:
            return lost.unreachable(died)
        except OSError:
            pass
        return lost.unreachable(InterfaceDiedError("the connection broke while it was streaming"))


def read_idempotent(schema: dict[str, Any]) -> dict[str, bool]:
    """Which functions of an interface may be called again after a loss."""
    return {f["name"]: bool(f["options"].get("idempotent")) for f in schema["functions"]}


def _write_handle(value: object) -> dict[str, Any] | None:
    return {"$seer": "handle", "id": value.reference()} if type(value) is Handle else None


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def _after_fork() -> None:
    for gate in list(_gates):
        gate.after_fork()


os.register_at_fork(after_in_child=_after_fork)
