"""Agent providers: the base class, and how they are found by name.

A provider drives one vendor's agent. It gets a request (plain data) and an `AgentContext`, through
which it calls tools and reports events. It knows nothing about MCP, records or limits.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from seer._settings import setting
from seer.errors import ConfigError, MissingExtraError
from seer.harness._limits import Limits, Price

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from seer.events import Event
    from seer.harness._context import AgentContext


@dataclass(frozen=True, kw_only=True)
class AgentRequest:
    """A request to an agent."""

    run_id: str
    provider: str
    """The name of the requested agent."""
    model: str | None
    system_prompt: str
    task: str
    agent: str = ""
    """The name of the agent that runs, as `find_agent` takes it: `scripted:steps.toml`."""
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    builtin_tools: tuple[str, ...] = ()
    """The vendor's own tools that the user asked for by name."""
    limits: Limits = field(default_factory=Limits)
    price: Price | None = None
    deltas: bool = False
    history: Sequence[Event] = ()
    """The events of the run that this one continues."""
    callers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The name of the run's session at the gate of each served library."""


class Agent(ABC):
    """An agent provider. Every provider must pass `seer.testing.agent_contract`."""

    name: str
    fork_of: tuple[str, int] | None = None
    """The run, and its turn, that this agent continues from."""
    uses_terminal: bool = False
    """Whether it shows events in the terminal itself, so that the run does not."""

    @abstractmethod
    def check(self, request: AgentRequest) -> None:
        """Check, quickly and without a network, that a run can start.

        Raises:
            MissingExtraError: The vendor's SDK is not installed.
            SecretMissingError: The vendor's key is not set.
            ConfigError: This provider cannot do what the request asks.
        """

    @abstractmethod
    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Drive the agent until it has nothing more to do.

        It reports failures of the vendor with `context.fail`. It ends everything that it started
        before it returns or raises, also when it is cancelled.
        """

    def model_name(self, request: AgentRequest) -> str | None:
        """The model that will be used, if that is known in advance."""
        return request.model

    def in_place_of(self, provider: str | Agent) -> Agent:
        """This agent, or a copy that knows which agent it replaces (see `SEER_AGENT`)."""
        return self

    def secrets(self, request: AgentRequest) -> tuple[str, ...]:
        """Values that must not appear in a record."""
        return (request.api_key,) if request.api_key else ()


def max_retries() -> int:
    """How often to retry a request that failed at the vendor: `SEER_AGENT_RETRIES`, or 4.

    Raises:
        ConfigError: The setting is not a whole number.
    """
    given = setting("SEER_AGENT_RETRIES")
    if given is None:
        return 4
    if not given.isdecimal():
        raise ConfigError("SEER_AGENT_RETRIES", given, "must be a whole number, such as 4")
    return int(given)


def require(agent: str, *, modules: Sequence[str], extra: str) -> None:
    """Check that packages are installed, without importing them, which can take seconds.

    Raises:
        MissingExtraError: A package is missing; the message names the extra.
    """
    for name in modules:
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # the parent package is missing too
            found = False
        if not found:
            raise MissingExtraError(
                f"provider {agent!r} needs the package {name!r}; install it with: "
                f'pip install "seer-interp[{extra}]"'
            )


_BUILTIN: dict[str, tuple[str, str]] = {
    "forked": ("seer.harness.agents._replay", "Forked"),
    "gemini": ("seer.harness.agents._gemini", "GeminiAgent"),
    "human": ("seer.harness.agents._human", "HumanAgent"),
    "replay": ("seer.harness.agents._replay", "ReplayAgent"),
    "openai": ("seer.harness.agents._openai", "OpenAIAgent"),
    "claude": ("seer.harness.agents._claude", "ClaudeAgent"),
    "scripted": ("seer.harness.agents._scripted", "Scripted"),
}
_OF_RUNS = {"forked": "forked:RUN@TURN", "replay": "replay:RUN"}
"""Agents that need a recorded run. Commands choose them, so listings leave them out."""
ENTRY_POINTS = "seer.agents"


def agent_names() -> list[str]:
    """The agents that can be named, including installed plugins."""
    return sorted({*_BUILTIN, *(point.name for point in _plugins())} - {*_OF_RUNS})


def find_agent(name: str) -> Agent:
    """The provider called `name`; the part after a colon is its argument (`scripted:steps.toml`).

    Raises:
        ConfigError: There is no such provider, it does not take an argument, or it needs one.
    """
    base, _, argument = name.partition(":")
    if base in _OF_RUNS and not argument:
        raise ConfigError("provider", name, f"say which run: {_OF_RUNS[base]}")
    if base in _BUILTIN:
        module, attribute = _BUILTIN[base]
        made: Any = getattr(importlib.import_module(module), attribute)
    else:
        points = [point for point in _plugins() if point.name == base]
        if not points:
            near = get_close_matches(base, agent_names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(agent_names())
            raise ConfigError(
                "provider", name, f"there is no agent {base!r}; there are: {known}{hint}"
            )
        made = points[0].load()
    if argument:
        from_argument = getattr(made, "from_argument", None)
        if from_argument is None:
            raise ConfigError("provider", name, f"{base!r} takes no argument after a colon")
        return from_argument(argument)
    return made()


def check_agent(name: str) -> None:
    """Check that an agent can run here: it exists, its SDK is installed and its key is set.

    Raises:
        ConfigError: There is no such agent.
        MissingExtraError: Its SDK is not installed.
        SecretMissingError: Its key is not set.
    """
    request = AgentRequest(run_id="", provider=name, model=None, system_prompt="", task="-")
    find_agent(name).check(request)


def _plugins() -> Iterable[EntryPoint]:
    # Imported late, because this import is slow.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)
