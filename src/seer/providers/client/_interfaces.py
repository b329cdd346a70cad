"""The interfaces of a machine's byte streams, listening sockets and processes.

Each belongs to one machine and ends with it. `_base` has the interface of the machine itself.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from seer.providers._spec import Stream, TerminalSize


class Channel(ABC):
    """A byte stream to or from a socket in the machine."""

    @abstractmethod
    async def read(self, n: int = 65536) -> bytes:
        """Read at most `n` bytes; `b""` at the end.

        Raises:
            SandboxLostError: The machine, or the connection to it, is gone.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting while the other side is slow.

        Raises:
            SandboxLostError: The machine, or the connection to it, is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close both directions. Closing twice is harmless."""


class Listener(ABC):
    """Accepts connections that programs in the machine make to one Unix socket. Iterate over it.

    Use it as an async context manager: entering creates the socket, leaving removes it.
    """

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    @abstractmethod
    async def __anext__(self) -> Channel:
        """The next connection; ends when the listener is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Stop listening and remove the socket. Closing twice is harmless."""

    async def __aenter__(self) -> Self:
        """Itself, bound."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()


class Process(ABC):
    """A command running in the machine. Closing it kills its whole process tree."""

    @abstractmethod
    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """The command's output as it is printed; ends when both streams are closed.

        The streams close once the command has ended and its output is delivered. Its background
        processes continue, and the streams do not wait for them. If the buffer is full, the command
        waits for its reader. Iterate only once.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting while the command is slow to read.

        Raises:
            SandboxStateError: It was started without standard input, or has ended.
            SandboxLostError: The machine is gone.
        """

    @abstractmethod
    async def close_stdin(self) -> None:
        """End its standard input."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""

    @abstractmethod
    async def wait(self) -> int:
        """Wait for its end. Returns its exit code; a negative number is a signal.

        Raises:
            SandboxLostError: The machine ended first.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Kill it and everything it started, even in other sessions.

        Its earlier output can still be read. Killing an ended command is harmless.

        Raises:
            SandboxLostError: The machine is gone, or does not respond.
        """

    @abstractmethod
    async def resize(self, size: TerminalSize) -> None:
        """Tell a command in a terminal the terminal's new size. Harmless for other commands."""

    @abstractmethod
    async def release(self) -> None:
        """Let the command outlive this object, until it ends by itself or with its machine.

        Its further output is lost, and this object can no longer be used. Use it with
        `Machine.detach`, for services that outlive their controller.

        Raises:
            SandboxStateError: It has ended.
            SandboxLostError: The machine is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close it. If it still runs, it is killed with everything it started."""


class HostSocket:
    """A socket of a machine, as a file on this host."""

    relayed = False
    """Whether it is a relay, which passes no descriptors and whose connections may break."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def close(self) -> None:
        """Close it; the machine's own socket stays. Closing twice is harmless."""
