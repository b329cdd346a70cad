"""A link: the operations on a remote host that a provider must implement.

A link holds the provider's credentials and encrypts the connection, so that higher layers need not
know about either. It may break at any time. `RemoteSession` keeps the state that must survive that.
Every method connects first if there is no connection.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a program on the host ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Wire(ABC):
    """An open byte stream to a socket on the host. It may end silently at any time."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send `data`. If the wire breaks, a part of it may be lost."""

    @abstractmethod
    def close(self) -> None:
        """Close the wire. Closing twice is harmless."""


class Link(ABC):
    """The connection to one host."""

    name: str
    """The host's name, for messages."""
    pump: tuple[str, ...] = ()
    """The command of a program on the host. Given a socket's path, it prints an empty line and then
    connects its standard input and output to the socket. It is set once the host has the code
    archive."""

    @abstractmethod
    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> Ran:
        """Run a program on the host to its end. Cancelling ends the program, or at least its input.

        Args:
            argv: The program and its arguments. Other users may see them, so they must not contain
                secrets.
            stdin: The program's standard input.
            on_stdout: Called with the program's output as it arrives; `Ran.stdout` is then empty.

        Raises:
            HostUnreachableError: There is no connection to the host, or it broke.
            ProviderError: The host answers, but refuses.
        """

    @abstractmethod
    async def dial(
        self, path: str, *, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Wire:
        """Open a byte stream to a Unix socket on the host.

        Args:
            path: The socket.
            on_data: Called on the event loop with arriving data.
            on_end: Called once when the stream has ended, for any reason.

        Raises:
            HostUnreachableError: There is no connection to the host.
            FileNotFoundError: Nothing is listening there.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the connection. The next use opens a new one. Closing twice is harmless."""


async def chunks(data: bytes | AsyncIterable[bytes], size: int = 1 << 20) -> AsyncIterator[bytes]:
    """The standard input of a program, in pieces of at most `size` bytes."""
    if isinstance(data, bytes):
        for start in range(0, len(data), size):
            yield data[start : start + size]
        return
    async for part in data:
        for start in range(0, len(part), size):
            yield part[start : start + size]
