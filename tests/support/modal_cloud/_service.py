"""A service of Modal's protocol of which only some calls exist.

The generated base classes demand every call of the protocol. Here a call that is not written is
answered as gRPC answers calls that a server does not know.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from grpclib import GRPCError, Status
from grpclib.const import Handler
from grpclib.server import Stream

AnyStream = Stream[Any, Any]
Call = Callable[[AnyStream], Awaitable[None]]


class _Generated(Protocol):
    def __mapping__(self) -> dict[str, Handler]: ...


class Service(ABC):
    """Serves those calls of `generated` that a subclass has as methods."""

    generated: type[Any]

    @abstractmethod
    async def admit(self, stream: AnyStream) -> None:
        """Let a call in, or raise.

        Raises:
            GRPCError: The caller may not call.
        """

    def __getattr__(self, name: str) -> Call:
        """A call that is not written."""
        if not name[:1].isupper():
            raise AttributeError(name)

        async def unknown(stream: AnyStream) -> None:
            raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not there in this cloud")

        return unknown

    def __mapping__(self) -> dict[str, Handler]:
        """All calls of the protocol, each behind `admit`."""
        generated = cast(type[_Generated], self.generated)
        found = generated.__mapping__(cast(_Generated, self))
        guarded: dict[str, Handler] = {}
        for path, handler in found.items():
            call = cast(Call, handler.func)  # pyright: ignore[reportUnknownMemberType]
            guarded[path] = handler._replace(func=self._guarded(call))
        return guarded

    def _guarded(self, call: Call) -> Call:
        async def guarded(stream: AnyStream) -> None:
            await self.admit(stream)
            await call(stream)

        return guarded


async def receive(stream: AnyStream) -> Any:
    """The request of a call.

    Raises:
        GRPCError: The caller sent none.
    """
    message = await stream.recv_message()
    if message is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "no request")
    return message
