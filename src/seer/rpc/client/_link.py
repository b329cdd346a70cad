"""The link to a gate: connections, the interface's incarnation, and attempts at a call.

A link is safe to use from any thread and after a fork. It keeps connections for use again, one for
each call that runs at the same time. What is sent and what comes of it is the `Gate`'s business.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import os
import time
import weakref
from _contextvars import ContextVar
from collections import deque

from ...errors import GateBusyError, GateError, InterfaceDiedError, ProtocolError
from ..values._codec import decode
from ..wire._protocol import HELLO, VERSION, WireError
from ._address import connect as open_connection
from ._address import from_environment
from ._attempts import AskIdempotent, Attempts, Retry
from ._connection import SILENCE, CannotPass, Connection
from ._deadline import current
from ._requests import Arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any, Self, TypeVar

    from ._responses import Response

    _Kind = TypeVar("_Kind", bound=Connection)

_MAX_FREED = 100
LINGER = 30.0
"""Seconds a call made over a link that can break goes on until it is asked for again."""


class Link:
    """The way to one interface.

    Attributes:
        name: The interface's name.
        address: Where connections are made to, once the first is.
        shared: Whether descriptors can pass: both ends are on one host.
        fixed: The header lines that all calls have in common.
        lines: The beginnings of the requests that were made before, by function.
        idle: Connections that are not in use.
        async_idle: The same for asynchronous calls.
        epoch: The incarnation of the interface that answered last.
        dropped_handles: Handles that nobody refers to any more, to be told with the next call.
    """

    def __init__(self, name: str, address: str | None = None) -> None:
        self.name = name
        self.dropped_handles: deque[str] = deque()
        self.address = ""
        self.epoch = ""
        self.shared = True
        self.fixed = b""
        self.lines: dict[str, bytes] = {}
        self.idle: list[Connection] = []
        self.async_idle: list[Any] = []
        self.explain: Callable[[], str] | None = None
        """Says how the interface ended, where that can be asked; empty where it is not known."""
        self._given = address
        self._idempotent: dict[str, bool] | None = None
        self._last: ContextVar[str] = ContextVar("seer_last_call", default="")
        self.after_fork()
        _links.add(self)

    def after_fork(self) -> None:
        """In a forked process: connections and ids of the parent are not ours."""
        _close_all(self.idle, self.async_idle)
        self._tag = os.urandom(6).hex()
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Close all connections; the gate can still be used, which opens new ones."""
        _close_all(self.idle, self.async_idle)

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

    def head(self, connection: Connection, path: str, call: str, attempts: Attempts) -> bytes:
        """The head of a call's request, without what describes the body."""
        head = b"POST %s HTTP/1.1\r\n%sseer-call: %s\r\n" % (
            path.encode(),
            self.fixed,
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
        call = f"{self._tag}-{next(self._numbers)}"
        self._last.set(call)
        return call

    def last_call(self) -> str:
        """The id of the last call that this thread or task made; empty before the first."""
        return self._last.get()

    def exchange(
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
                if attempts.until:
                    attempts.left()
                try:
                    connection = self._take()
                except InterfaceDiedError as error:
                    raise attempts.unreachable(error) from None
                outcome = self._attempt(connection, path, call, attempts, arguments)
            if isinstance(outcome, BaseException):
                retry = self._failed(attempts, connection, outcome)
            else:
                try:
                    judged = self._judge(attempts, outcome, connection, function)
                except GateBusyError:
                    if not arguments.memfds:
                        raise
                    # It may be descriptors that the gate has no room for.
                    arguments.go_inline()
                    judged = Retry(0.0)
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
            head = self.head(connection, path, call, attempts)
            try:
                return connection.exchange(arguments.message(head), arguments.memfds)
            except CannotPass:
                arguments.go_inline()
                return connection.exchange(arguments.message(head), [])
        except BaseException as error:
            return error

    def _failed(self, attempts: Attempts, connection: Connection, error: BaseException) -> Retry:
        # After a KeyboardInterrupt, or another exception of a signal handler, the answer is still
        # to come: the next call must not get it, and closing cancels this one.
        connection.close()
        if isinstance(error, GateError):
            raise error
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
        return connection.sent and not (self.shared and error.errno == errno.ECONNRESET)

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
            self.idle.append(connection)

    def judge(self, attempts: Attempts, response: Response) -> Retry | None:
        """What to do about a response; notes which incarnation it came from."""
        self.note_epoch(response)
        return attempts.answered(response)

    def note_epoch(self, response: Response) -> None:
        """Remember which incarnation answered."""
        if response.epoch != self.epoch and response.epoch not in ("", "none"):
            self._set_epoch(response.epoch)

    def _take(self) -> Connection:
        connection = taken(self.idle)
        return self._open() if connection is None else connection

    def dial(self) -> socket.socket:
        """A new connection to the gate.

        Raises:
            InterfaceDiedError: Nothing listens there any more.
            GateBusyError: It cannot be made just now.
        """
        try:
            return open_connection(self.address)
        except InterfaceDiedError as error:
            how = "" if self.explain is None else self.explain()
            raise InterfaceDiedError(how or str(error)) from None

    def _open(self) -> Connection:
        connection = Connection(self.dial())
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
            return Connection(self.dial())
        except BaseException:
            connection.close()
            raise
        if response.close:
            connection.close()
            return Connection(self.dial())
        return connection

    def settle_address(self) -> None:
        """Find out where the interface is, before the first connection."""
        address = self._given or from_environment(self.name)
        # Over a relay there are no descriptors, and links that break.
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
        # Last: another thread must find no line in it that was made of what was before.
        self.lines = {}

    def ask(self, method: str, path: str) -> Any:
        """A request that is answered at once and may be repeated."""
        if not self.fixed:
            self.settle_address()
        attempts = Attempts(path, current())
        length = b"content-length: 0\r\n" if method == "POST" else b""
        while True:
            connection = self._take()
            message = b"%s %s HTTP/1.1\r\nhost: gate\r\nseer-gate: %d\r\n%s\r\n" % (
                method.encode(),
                path.encode(),
                VERSION,
                length,
            )
            try:
                connection.wait_at_most(attempts.patience or SILENCE)
                response = connection.exchange([message], [])
            except WireError as error:
                connection.close()
                raise ProtocolError(str(error)) from None
            except TimeoutError:
                connection.close()
                raise attempts.silent() from None
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
            self._idempotent = read_idempotent(self.ask("GET", "/v1/schema"))
        return self._idempotent.get(function, False)


def read_idempotent(schema: dict[str, Any]) -> dict[str, bool]:
    """Which functions of an interface may be called again after a loss."""
    return {f["name"]: bool(f["options"].get("idempotent")) for f in schema["functions"]}


def taken(connections: list[_Kind]) -> _Kind | None:
    """One of the idle connections, taken out of their list; None where there is none.

    Other threads take some too, so a list that has one may have none a moment later.
    """
    try:
        return connections.pop()
    except IndexError:
        return None


def _close_all(*lists: list[Any]) -> None:
    """Close idle connections; nothing is sent and nothing awaited."""
    for connections in lists:
        while (connection := taken(connections)) is not None:
            connection.close()


def _close_at_exit() -> None:
    """Generated libraries are imported and never closed, which is no mistake of their user's."""
    for link in list(_links):
        link.close()


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork() -> None:
    for link in list(_links):
        link.after_fork()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_at_exit)
