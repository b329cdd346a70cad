"""What a served library must offer to whoever opens a session with it. No machinery here."""

from pathlib import Path
from typing import Protocol


class GateSocket(Protocol):
    """One caller's own door to a served interface, on this host."""

    @property
    def path(self) -> Path:
        """The Unix socket; whoever connects to it is this caller."""
        ...

    @property
    def address(self) -> str:
        """The same for the gate's client, which must know when bytes are passed on elsewhere."""
        ...

    async def aclose(self) -> None:
        """End the caller: its calls are cancelled, its handles freed, the socket removed."""
        ...


class Dependent(Protocol):
    """Something that cannot go on without what it was made for, such as a session."""

    async def owner_ends(self, owner: object) -> None:
        """A sandbox, or an interface that one serves, is about to end."""
        ...


class Gate(Protocol):
    """A served interface that hands out callers. A caller is a socket, never a name or a token."""

    @property
    def hides_model(self) -> bool:
        """Whether callers must not learn which model is behind it."""
        ...

    async def open_caller(self, label: str) -> GateSocket:
        """Make a new caller.

        Args:
            label: What the record and the listings call it, such as the session's name.
        """
        ...

    async def how_it_ended(self) -> str:
        """How the interface ended; empty while it runs, loads or is started again.

        Raises:
            SandboxLostError: Its sandbox has ended; the message says how.
        """
        ...

    def add_dependent(self, dependent: Dependent) -> None:
        """Have something told before the interface ends with its sandbox."""
        ...
