"""One rented machine, as its vendor knows it."""

from abc import ABC, abstractmethod

from seer.errors import SandboxLostError


class Rental(ABC):
    """A machine that is paid for until it is ended. Errors are Seer's, with the vendor's words."""

    id: str
    """The vendor's id of it."""
    price: float | None
    """US dollars per second; None where nobody says."""

    @abstractmethod
    async def lost(self) -> SandboxLostError | None:
        """How it ended; None while it is there.

        Raises:
            ProviderError: The vendor does not answer.
        """

    @abstractmethod
    async def gone(self, patience: float) -> bool:
        """Wait at most `patience` seconds for it to end by itself; whether it has.

        Raises:
            ProviderError: The vendor does not answer.
        """

    @abstractmethod
    async def end(self) -> None:
        """Give it back, and wait until the vendor has taken it. Twice is harmless.

        Raises:
            ProviderError: The vendor does not answer; the machine then ends by itself.
        """
