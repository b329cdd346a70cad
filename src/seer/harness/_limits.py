"""The limits of a run, the price of a model, and the meter that counts what a run uses.

The meter only counts what happens and says which limit is reached. `AgentContext` closes the tools
and ends the run.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seer.errors import ConfigError
from seer.events import LimitName, Usage


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may use. None means no limit.

    When a limit is reached, Seer closes the tools and gives the agent one last turn to conclude. It
    enforces limits in the same way for every vendor.
    """

    turns: int | None = None
    """Answers of the agent, without the concluding one."""
    tool_calls: int | None = None
    seconds: float | None = None
    """Seconds since the start of the run. A tool that is still running is cancelled."""
    tokens: int | None = None
    """Input and output, over all turns."""
    cost_usd: float | None = None
    """Needs a price, from the built-in price list or from `price=` of `run_agent`."""
    conclude_seconds: float = 120.0
    """How long the last turn may take before the agent is cut off."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: A limit is negative, zero where that cannot work, or not a number.
        """
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name == "tool_calls" else None
            if value is None and item.name != "conclude_seconds":
                continue
            whole = item.name in {"turns", "tool_calls", "tokens"}
            kind = int if whole else (int, float)
            if not isinstance(value, kind) or isinstance(value, bool):
                wanted = "a whole number" if whole else "a number"
                raise ConfigError(f"Limits.{item.name}", value, f"must be {wanted}, or None")
            if not (value > 0 or value == least):
                raise ConfigError(f"Limits.{item.name}", value, "must be greater than 0, or None")

    def changed(self, given: Mapping[str, Any]) -> "Limits":
        """These limits with some of them changed.

        Raises:
            ConfigError: A name is not a limit, or its value is invalid.
        """
        known = {item.name for item in dataclasses.fields(self)}
        if unknown := sorted(set(given) - known):
            raise ConfigError("limits", unknown, f"are not limits; known: {sorted(known)}")
        return dataclasses.replace(self, **given)

    def as_dict(self) -> dict[str, float | None]:
        """The limits by name, for events and records."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a model costs, in US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """None means the input price."""
    cache_write: float | None = None
    """None means the input price."""

    def cost(self, usage: Usage) -> float:
        """The cost of one answer."""
        cache_read = self.input if self.cache_read is None else self.cache_read
        cache_write = self.input if self.cache_write is None else self.cache_write
        fresh = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        return (
            max(fresh, 0) * self.input
            + usage.cache_read_tokens * cache_read
            + usage.cache_write_tokens * cache_write
            + usage.output_tokens * self.output
        ) / 1e6


def cost_of(usage: Usage, model: str | None, vendor: str) -> float | None:
    """The cost of one answer in US dollars, from a public price list; None if no price is known.

    The list comes with the package `genai-prices`; nothing is fetched.

    Args:
        usage: What the answer used.
        model: The model, as the vendor names it.
        vendor: The vendor, as the price list names it (`anthropic`, `openai`, `google`).
    """
    try:
        from genai_prices import Usage as Counted
        from genai_prices import calc_price
    except ImportError:
        return None
    if model is None:
        return None
    counted = Counted(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        return float(calc_price(counted, model, provider_id=vendor).total_price)
    except LookupError:
        return None


@dataclass(frozen=True)
class Crossing:
    """A limit that is reached."""

    limit: LimitName
    allowed: float
    used: float


@dataclass
class Meter:
    """What a run has used so far."""

    limits: Limits
    turns: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float | None = None

    def add(self, usage: Usage) -> Usage:
        """Count one answer; returns the event with the totals filled in."""
        self.tokens += usage.input_tokens + usage.output_tokens
        if usage.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost_usd
        return dataclasses.replace(usage, total_tokens=self.tokens, total_cost_usd=self.cost_usd)

    def crossed(self) -> Crossing | None:
        """The limit on tokens or cost that is reached, if any."""
        limits = self.limits
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return Crossing("tokens", limits.tokens, self.tokens)
        cost = self.cost_usd
        if limits.cost_usd is not None and cost is not None and cost >= limits.cost_usd:
            return Crossing("cost_usd", limits.cost_usd, cost)
        return None

    def no_more_tools(self) -> Crossing | None:
        """The limit on tool calls, if one more call would break it."""
        allowed = self.limits.tool_calls
        if allowed is not None and self.tool_calls >= allowed:
            return Crossing("tool_calls", allowed, self.tool_calls)
        return None

    def last_turn(self) -> Crossing | None:
        """The limit on turns, if the present turn is the last with tools."""
        allowed = self.limits.turns
        if allowed is not None and self.turns >= allowed:
            return Crossing("turns", allowed, self.turns)
        return None
