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
    """Accepts connections that programs in the machine make to one Unix socket. Iterate it.

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
        """What it prints, as it prints it; ends when both streams are closed.

        They are closed once the command itself has ended and its output is delivered. Programs that
        it left in the background live on, but are not waited for. A command that prints more than a
        buffer holds waits for its reader. Iterate only once.
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
        """Its exit code, once it has ended. Negative: that signal.

        Raises:
            SandboxLostError: The machine ended first.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Kill it and everything it started, even in other sessions.

        Its output up to then can still be read. Harmless once it has ended.

        Raises:
            SandboxLostError: The machine is gone, or does not respond.
        """

    @abstractmethod
    async def resize(self, size: TerminalSize) -> None:
        """Tell a command in a terminal the terminal's new size; harmless for others."""

    @abstractmethod
    async def release(self) -> None:
        """Let it outlive this object: it then ends by itself or with its machine.

        Its further output is lost, and this object can no longer be used. Used with
        `Machine.detach`, for services that outlive their controller.

        Raises:
            SandboxStateError: It has ended.
            SandboxLostError: The machine is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close it. If it still runs, it is killed with everything it started."""


class HostSocket:
    """A socket of a machine, as a file of this host."""

    relayed = False
    """Whether it is a relay: it passes no descriptors, and its connection may break."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def close(self) -> None:
        """Close it; the machine's own socket stays. Closing twice is harmless."""
