"""What a session needs from a served library, as protocols. `environment` implements them."""

from pathlib import Path
from typing import Protocol


class GateSocket(Protocol):
    """The socket of one caller of a served interface, on this host."""

    @property
    def name(self) -> str:
        """The caller's name in the gate's record."""
        ...

    @property
    def path(self) -> Path:
        """The Unix socket. Every process that connects to it acts as this caller."""
        ...

    @property
    def address(self) -> str:
        """The address for the gate's client. It also says whether a relay forwards the bytes."""
        ...

    async def aclose(self) -> None:
        """End the caller: cancel its calls, free its handles and remove the socket."""
        ...


class Dependent(Protocol):
    """An object that must close when its sandbox or interface ends, such as a session."""

    async def owner_ends(self, owner: object) -> None:
        """Close, because `owner` (a sandbox or a served interface) is about to end."""
        ...


class Gate(Protocol):
    """A served interface that makes callers. A socket identifies a caller, not a name or token."""

    @property
    def hides_model(self) -> bool:
        """Whether the names of its models are hidden from callers."""
        ...

    async def open_caller(self, label: str) -> GateSocket:
        """Make a new caller.

        Args:
            label: The caller's name in records and listings, such as the session's name.
        """
        ...

    async def how_it_ended(self) -> str:
        """How the interface ended; empty while it runs, loads or restarts.

        Raises:
            SandboxLostError: The sandbox has ended; the message says how.
        """
        ...

    def add_dependent(self, dependent: Dependent) -> None:
        """Register an object whose `owner_ends` is called before the interface ends."""
        ...
