"""How often to try again, by the way in which an attempt ended."""

from dataclasses import dataclass

from seer.errors import ConfigError
from seer.sweeps._journal import Outcome


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Further attempts per kind of failure. What the experiment itself got wrong is not retried."""

    failed: int = 0
    """The program ended with an error."""
    crashed: int = 1
    """The program was killed by a signal, such as for want of memory."""
    timeout: int = 0
    """It took longer than the sweep allows."""
    lost: int = 3
    """Where it ran is gone, or the sweep itself was killed."""

    def __post_init__(self) -> None:
        for name in ("failed", "crashed", "timeout", "lost"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ConfigError(f"Retry.{name}", value, "must be a whole number, 0 or more")

    def again(self, outcome: Outcome, before: list[Outcome]) -> bool:
        """Whether to try again after `outcome`, which came after the attempts `before`."""
        if outcome == "done":
            return False
        return before.count(outcome) < getattr(self, outcome)
