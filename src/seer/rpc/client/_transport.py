"""The transport to a gate: its connections, the interface's epoch, and the exchange of a call.

A transport is safe to use from any thread and after a fork. It keeps idle connections, one for each
call that runs at the same time. The exchange is written once, as steps (see `_drive`), for blocking
and asynchronous calls. `Gate` encodes what is sent and decodes what comes back.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import os
import weakref
from _contextvars import ContextVar
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from ...errors import GateBusyError, GateError, InterfaceDiedError, ProtocolError
from ..values._codec import decode
from ..wire._protocol import HELLO, RAISED, VERSION, WireError
from ._address import connect as open_connection
from ._address import from_environment
from ._attempts import AskIdempotent, Attempts, TryAgain
from ._connection import SILENCE, CannotPass, Connection
from ._deadline import current, deadline
from ._drive import Wait, drive
from ._errors import error_from
from ._requests import Arguments
from ._tool_call import current as current_tool_call

if TYPE_CHECKING:
    import socket

    from ._drive import Steps
    from ._responses import Response

_MAX_FREED = 100
LINGER = 30.0
"""Seconds that a call over a relay continues without a connection, so the client can reconnect."""
_NO_TOOL_CALL = "unknown header b'seer-tool-call'"
"""How a gate of an earlier version refuses a request with that header, without executing it."""
ASK = 10.0
"""Seconds to find out whether the interface of a broken stream still runs."""


class Transport:
    """The connections to one interface.

    Attributes:
        name: The interface's name.
        address: The interface's address; empty before the first call.
        shared: Whether descriptors can be passed, because both ends are on one host.
        fixed: The header lines that all calls have in common.
        idle: Connections that are not in use.
        async_idle: The same for asynchronous calls.
        epoch: The epoch of the last answer.
        dropped_handles: Handles that nothing refers to any more. The next call tells the gate.
    """

    def __init__(self, name: str, address: str | None = None) -> None:
        self.name = name
        self.dropped_handles: deque[str] = deque()
        self.address = ""
        self.epoch = ""
        self.shared = True
        self.fixed = b""
        self.idle: list[Connection] = []
        self.async_idle: list[Connection] = []
        self.explain: Callable[[], str] | None = None
        """Returns why the interface ended, or empty text; None if this process cannot know."""
        self._given = address
        self._names_tool_call = True
        """Whether the gate accepts `seer-tool-call`; assumed until the gate refuses it."""
        self._idempotent: dict[str, bool] | None = None
        self._last: ContextVar[str] = ContextVar("seer_last_call", default="")
        self.after_fork()
        _transports.add(self)

    def after_fork(self) -> None:
        """In a forked process: close the parent's connections, and use new call ids."""
        self.close()
        self._tag = os.urandom(6).hex()
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Close all idle connections. The next call opens new ones."""
        for connections in (self.idle, self.async_idle):
            while (connection := taken(connections)) is not None:
                connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "idle", None) or getattr(self, "async_idle", None):
            import warnings

            words = f"the gate {self.name!r} was dropped with open connections; close() it"
            warnings.warn(words, ResourceWarning, source=self, stacklevel=2)
            self.close()

    def _head(self, connection: Connection, path: str, call: str, left: float = 0.0) -> bytes:
        """The head of a call's request, without the lines that describe the body.

        Args:
            connection: Where it will be sent.
            path: The path of the request.
            call: The call's id.
            left: Seconds until the deadline; 0 for none.
        """
        tool_call = current_tool_call() if self._names_tool_call else ""
        head = b"POST %s HTTP/1.1\r\n%s%sseer-call: %s\r\n" % (
            path.encode(),
            self.fixed,
            b"seer-tool-call: %s\r\n" % tool_call.encode() if tool_call else b"",
            call.encode(),
        )
        if left:
            head += b"seer-deadline: %.6f\r\n" % left
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
        """A new id for a call, unique among all calls of this caller."""
        call = f"{self._tag}-{next(self._numbers)}"
        self._last.set(call)
        return call

    def last_call(self) -> str:
        """The id of the last call that this thread or task made; empty before the first."""
        return self._last.get()

    def first_attempt(
        self, path: str, text: bytes
    ) -> bytes | tuple[str, Response | BaseException, Connection] | None:
        """Make the first attempt at a blocking call without buffers in fewer steps than `exchange`.

        This is the one early exit of a call: it saves a quarter of a small call's time (see
        docs/decisions/gate-transport.md). It ends the call only if the function returned or raised.
        `exchange` continues from any other outcome.

        Args:
            path: The path of the request.
            text: The JSON text of the arguments.

        Returns:
            The text of the usual response; otherwise the argument `first` for `exchange`, which is
            None if no attempt was made.

        Raises:
            Exception: What the function raised.
        """
        if current():
            return None
        connection = taken(self.idle)
        if connection is None:
            return None
        call = self.new_id()
        outcome: bytes | Response | BaseException
        try:
            head = self._head(connection, path, call)
            message = b"%scontent-length: %d\r\n\r\n%s" % (head, len(text), text)
            outcome = connection.exchange_small(message)
        except BaseException as error:
            outcome = error
        else:
            if isinstance(outcome, bytes):
                self.idle.append(connection)
                return outcome
            if outcome.plain and outcome.epoch == self.epoch and outcome.status == RAISED:
                self.idle.append(connection)
                raise error_from(outcome.text)
        return call, outcome, connection

    def exchange(
        self,
        path: str,
        function: str,
        arguments: Arguments,
        first: tuple[str, Response | BaseException, Connection] | None = None,
        *,
        blocking: bool = True,
    ) -> Steps[tuple[Response, Connection]]:
        """Send a call until it is answered; `Attempts` decides when it is sent again.

        Args:
            path: The path of the request.
            function: The function's name, for messages.
            arguments: What to send; closed here.
            first: A first attempt that was made: the call's id, the outcome and the connection.
            blocking: Whether the sockets block; see `_drive`.
        """
        attempts = Attempts(function, current())
        call, outcome, connection = first or (self.new_id(), None, None)
        without_tool_call = False
        try:
            while True:
                if outcome is None or connection is None:
                    if attempts.until:
                        attempts.left()
                    try:
                        connection = yield from self._take(blocking=blocking)
                    except InterfaceDiedError as error:
                        raise attempts.unreachable(error) from None
                    outcome = yield from self._attempt(connection, path, call, attempts, arguments)
                if isinstance(outcome, BaseException):
                    retry = self._failed(attempts, connection, outcome)
                else:
                    try:
                        retry = yield from self._judge(attempts, outcome, connection, function)
                    except GateBusyError:
                        if not arguments.memfds:
                            raise
                        # The gate may have no room for more descriptors.
                        arguments.go_inline()
                        retry = TryAgain(0.0)
                    except ProtocolError as error:
                        if without_tool_call or _NO_TOOL_CALL not in str(error):
                            raise
                        self._names_tool_call, without_tool_call = False, True
                        retry = TryAgain(0.0)
                    if retry is None:
                        return outcome, connection
                outcome = None
                if retry.renewed:
                    call = self.new_id()
                if retry.delay:
                    yield Wait(retry.delay)
        finally:
            arguments.close()

    def _attempt(
        self,
        connection: Connection,
        path: str,
        call: str,
        attempts: Attempts,
        arguments: Arguments,
    ) -> Steps[Response | BaseException]:
        """Send a call once, and return the response or the exception."""
        try:
            left = attempts.left() if attempts.until else 0.0
            head = self._head(connection, path, call, left)
            patience = attempts.patience or SILENCE
            try:
                message = arguments.message(head)
                return (yield from connection.exchange(message, arguments.memfds, patience))
            except CannotPass:
                arguments.go_inline()
                return (yield from connection.exchange(arguments.message(head), [], patience))
        except BaseException as error:
            return error

    def _failed(
        self,
        attempts: Attempts,
        connection: Connection,
        error: BaseException,
        *,
        resend: bool = False,
    ) -> TryAgain:
        """Close a connection that failed, and decide whether to try again.

        Args:
            attempts: The attempts at the request.
            connection: The connection.
            error: What happened.
            resend: Whether the request may be executed twice.
        """
        # After a KeyboardInterrupt, or another exception of a signal handler, the response may
        # still arrive. The next call must not read it. Closing the connection cancels this call.
        connection.close()
        if isinstance(error, GateError):
            raise error
        if isinstance(error, (TimeoutError, BlockingIOError)):
            raise attempts.silent() from None
        if isinstance(error, WireError):
            raise ProtocolError(str(error)) from None
        if isinstance(error, OSError):
            # The other idle connections have most likely failed too.
            self.close()
            sent = not resend and self._may_have_arrived(connection, error)
            return attempts.lost(error, sent=sent)
        raise error

    def _may_have_arrived(self, connection: Connection, error: OSError) -> bool:
        """Whether a request without a response may have been executed.

        A Unix socket that is closed with unread bytes resets its peer. So after a reset, the gate
        has not read the request, unless a relay has passed it on.
        """
        return connection.sent and not (self.shared and error.errno == errno.ECONNRESET)

    def _judge(
        self, attempts: Attempts, response: Response, connection: Connection, function: str
    ) -> Steps[TryAgain | None]:
        """Decide what a response means; None if it carries the result."""
        self.note_epoch(response)
        try:
            retry = attempts.answered(response)
        except AskIdempotent as question:
            connection.close()
            if self._idempotent is None:
                try:
                    schema = yield from self._ask("GET", "/v1/schema", blocking=connection.blocking)
                except InterfaceDiedError:
                    # The call cannot be made again in any case.
                    raise question.lost from None
                self._idempotent = read_idempotent(schema)
            if not self._idempotent.get(function, False):
                raise question.lost from None
            return attempts.made_again()
        except Exception:
            # The response carries an error. The connection can be used again.
            self.keep(connection)
            raise
        if retry is not None:
            connection.close()
        return retry

    def keep(self, connection: Connection) -> None:
        """Keep a connection for the next call, unless the gate closes it."""
        if connection.closing:
            connection.close()
        else:
            (self.idle if connection.blocking else self.async_idle).append(connection)

    def note_epoch(self, response: Response) -> None:
        """Remember the epoch of an answer."""
        if response.epoch != self.epoch and response.epoch not in ("", "none"):
            self._set_epoch(response.epoch)

    def _take(self, *, blocking: bool) -> Steps[Connection]:
        """An idle connection, or a new one."""
        connection = taken(self.idle if blocking else self.async_idle)
        if connection is not None:
            return connection
        connection = Connection(self.dial(), blocking=blocking)
        if self.epoch:
            return connection
        # A call that is sent again must not run in a different interface process than at first. So
        # the epoch must be known before the first call.
        try:
            response = yield from connection.exchange([HELLO], [])
            self.note_epoch(response)
        except WireError as error:
            connection.close()
            raise ProtocolError(str(error)) from None
        except OSError:
            connection.close()
        except BaseException:
            connection.close()
            raise
        else:
            if not response.close:
                return connection
            connection.close()
        return Connection(self.dial(), blocking=blocking)

    def dial(self) -> socket.socket:
        """A new connection to the gate.

        Raises:
            InterfaceDiedError: Nothing listens there any more.
            GateBusyError: No connection can be made just now.
        """
        try:
            return open_connection(self.address)
        except InterfaceDiedError as error:
            how = "" if self.explain is None else self.explain()
            raise InterfaceDiedError(how or str(error)) from None

    def settle_address(self) -> None:
        """Find the interface's address, before the first connection."""
        address = self._given or from_environment(self.name)
        # A relay cannot pass descriptors, and its connections may break.
        self.shared = not address.startswith("frames:")
        self.address = address.removeprefix("frames:")
        self._set_epoch(self.epoch)

    def _set_epoch(self, epoch: str) -> None:
        self.epoch = epoch
        self.fixed = b"host: gate\r\nseer-gate: %d\r\nseer-accept: %s\r\n%s%s" % (
            VERSION,
            b"shared" if self.shared else b"frames",
            b"" if self.shared else b"seer-linger: %d\r\n" % LINGER,
            b"seer-epoch: %s\r\n" % epoch.encode() if epoch else b"",
        )

    def ask(self, method: str, path: str) -> Any:
        """Make a request that is answered at once and may be repeated, and return the result."""
        return drive(self._ask(method, path, blocking=True))

    def _ask(self, method: str, path: str, *, blocking: bool) -> Steps[Any]:
        if not self.fixed:
            self.settle_address()
        attempts = Attempts(path, current())
        message = b"%s %s HTTP/1.1\r\nhost: gate\r\nseer-gate: %d\r\n%s\r\n" % (
            method.encode(),
            path.encode(),
            VERSION,
            b"content-length: 0\r\n" if method == "POST" else b"",
        )
        while True:
            connection = yield from self._take(blocking=blocking)
            try:
                patience = attempts.patience or SILENCE
                response = yield from connection.exchange([message], [], patience)
            except BaseException as error:
                retry = self._failed(attempts, connection, error, resend=True)
            else:
                self.keep(connection)
                retry = attempts.answered(response)
                if retry is None:
                    return decode(response.text)["result"]
            yield Wait(retry.delay)

    def broken_stream(self, function: str, error: Exception, *, blocking: bool) -> Steps[Exception]:
        """The error for a stream that broke off."""
        if isinstance(error, WireError):
            return ProtocolError(str(error))
        lost = Attempts(function, 0.0)
        if isinstance(error, TimeoutError):
            return lost.silent()
        lost.lost(OSError(), sent=True)
        try:
            # A gate that runs answers at once.
            with deadline(ASK):
                yield from self._ask("GET", "/v1/health", blocking=blocking)
        except InterfaceDiedError as died:
            return lost.unreachable(died)
        except (GateError, OSError):
            pass
        return lost.unreachable(InterfaceDiedError("the connection broke while it was streaming"))


def read_idempotent(schema: dict[str, Any]) -> dict[str, bool]:
    """Which functions of an interface are idempotent."""
    return {f["name"]: bool(f["options"].get("idempotent")) for f in schema["functions"]}


def taken(connections: list[Connection]) -> Connection | None:
    """Remove one of the idle connections; None if there is none.

    Other threads take connections too, so a list that is not empty may be empty a moment later.
    """
    try:
        return connections.pop()
    except IndexError:
        return None


def _close_at_exit() -> None:
    """Close the connections of generated libraries, which users import and never close."""
    for transport in list(_transports):
        transport.close()


_transports: weakref.WeakSet[Transport] = weakref.WeakSet()


def _after_fork() -> None:
    for transport in list(_transports):
        transport.after_fork()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_at_exit)
