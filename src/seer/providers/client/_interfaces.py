"""The interfaces of what a machine gives out: byte streams, listening sockets, processes.

Each belongs to one machine and goes with it. What a machine itself must do is in `_base`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from seer.providers._spec import Stream, TerminalSize


class Channel(ABC):
    """A byte stream to or from a socket in the machine."""

    @abstractmethod
    async def read(self, n: int = 65536) -> bytes:
        """Read at most `n` bytes; `b""` at the end.

        Raises:
            SandboxLostError: The machine, or the way to it, is gone.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting while the other side is slow.

        Raises:
            SandboxLostError: The machine, or the way to it, is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close both directions. Closing twice is harmless."""


class Listener(ABC):
    """Accepts what programs in the machine connect to one Unix socket: an async iterator.

    Use it as an async context manager: the socket is there once it is entered, and is removed on
    the way out.
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()


class Process(ABC):
    """A command running in the machine. Closing it kills its whole process tree."""

    @abstractmethod
    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What it prints, as it prints it; ends when both streams are closed.

        They are closed for it once the command itself has ended and all it had printed is
        delivered: what it left in the background lives on, but is not waited for. A command that
        prints more than a buffer's worth waits for its reader. Iterate once.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Feed its standard input, waiting while the command is slow to take it.

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
        """Kill it and everything it started, also what has left its session.

        What it had printed until then can still be read. Harmless once it has ended.

        Raises:
            SandboxLostError: The machine is gone, or does not obey.
        """

    @abstractmethod
    async def resize(self, size: TerminalSize) -> None:
        """Tell a command in a terminal the terminal's new size; harmless for others."""

    @abstractmethod
    async def release(self) -> None:
        """Let it live on: from here it ends by itself or with its machine.

        What it prints from now on is lost, and nothing more can be done with this object. Used
        with `Machine.detach`, for services that outlive their controller.

        Raises:
            SandboxStateError: It has ended.
            SandboxLostError: The machine is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of it: if it still runs, it is killed with everything it started."""


class HostSocket:
    """A socket of a machine, as a file of this host."""

    relayed = False
    """Whether bytes are passed on: no descriptors go through, and the line may break."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def close(self) -> None:
        """Close it; what it leads to stays. Closing twice is harmless."""
