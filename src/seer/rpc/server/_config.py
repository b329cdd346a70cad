"""The server's configuration, which the controller writes as one JSON object in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from seer.rpc.interface._budget import Budget
from seer.rpc.wire._memory import DEFAULT_ALLOWANCE

if TYPE_CHECKING:
    from seer.rpc.interface._schema import Function

    from ._follows import Follow

    Tracebacks = Literal["names"] | bool

MAX_REPLICAS = 256
RESTARTS = ("never", "on-failure")
CALL_TIMEOUT = 600.0
"""Seconds that a call may run by default."""


def check_replicas(replicas: object) -> None:
    """Check a number of copies.

    Raises:
        ValueError: It is not a whole number in the allowed range.
    """
    if type(replicas) is not int or not 1 <= replicas <= MAX_REPLICAS:
        raise ValueError(f"replicas={replicas!r}: it must be a whole number, 1 to {MAX_REPLICAS}")


def check_tracebacks(tracebacks: object) -> None:
    """Check the setting for what callers see of tracebacks.

    Raises:
        ValueError: It is not one of the choices.
    """
    if tracebacks != "names" and type(tracebacks) is not bool:
        raise ValueError(f"tracebacks={tracebacks!r}: it must be 'names', True or False")


def check_call_timeout(seconds: object) -> None:
    """Check the time that calls may run.

    Raises:
        ValueError: It is neither None nor a number of seconds.
    """
    if seconds is None:
        return
    if type(seconds) not in (int, float) or not 0 < float(seconds) < float("inf"):  # pyright: ignore[reportArgumentType]
        raise ValueError(f"call_timeout={seconds!r}: it must be a number of seconds, or None")


@dataclass(slots=True, eq=False)
class CallerConfig:
    """A caller: its name, the path of its socket, and its budget."""

    name: str
    socket: str
    budget: Budget

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> CallerConfig:
        """Read a caller from JSON.

        Raises:
            ValueError: It is malformed.
        """
        if set(found) - {"name", "socket", "budget"}:
            raise ValueError(f"a caller has name, socket and budget, not {sorted(found)}")
        return cls(
            str(found["name"]), str(found["socket"]), Budget.from_json(found.get("budget") or {})
        )


@dataclass(slots=True, eq=False, kw_only=True)
class ServerConfig:
    """How to serve one interface.

    Attributes:
        name: The interface's name.
        file: The interface file.
        control: Path of the control socket, which no jail can reach.
        callers: The callers at the start.
        models: Model names and their paths.
        hidden: The model names that no agent may learn, each with its alias.
        blind: Whether callers see no details of the server; by default, if there are hidden models.
        tracebacks: What callers see of tracebacks: "names" for functions and line numbers, True
            for source lines and files too, False for nothing.
        restart: `never` or `on-failure`.
        budget: The budget of the whole interface.
        function_budgets: The budgets of single functions.
        changed_budgets: The function budgets that were changed while serving; not in the file.
        record: The folder for the record of calls; empty for no record.
        follows: The follows by id; not in the file.
        lost_calls: What to answer if a client sends a call again that was lost with the last
            process, by caller and id; not in the file.
        record_results: Whether the record holds large arguments and results, or only their digests.
        call_timeout: Seconds that a call of a function without `timeout=` may run; None for no
            limit.
        grace: Seconds between telling a function to stop at its timeout and killing the process.
        max_body: The largest request, in bytes.
        caller_memory: Bytes of the interface process that one caller may hold in handles and
            arguments. It may hold as many again in arrays of results.
        replicas: How many copies of the interface to run. With more than one there is a front.
        drain: Seconds that callers' handles keep a draining copy running.
    """

    name: str
    file: str
    control: str
    callers: list[CallerConfig] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    blind: bool | None = None
    tracebacks: Tracebacks = "names"
    restart: str = "never"
    budget: Budget = field(default_factory=Budget)
    function_budgets: dict[str, Budget] = field(default_factory=dict)
    record: str = ""
    record_results: bool = True
    call_timeout: float | None = CALL_TIMEOUT
    grace: float = 2.0
    max_body: int = 1 << 30
    caller_memory: int = DEFAULT_ALLOWANCE
    replicas: int = 1
    drain: float = 10.0
    changed_budgets: dict[str, Budget] = field(init=False, default_factory=dict)
    follows: dict[str, Follow] = field(init=False, default_factory=dict)
    lost_calls: dict[tuple[str, str], str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.restart not in RESTARTS:
            raise ValueError(f"restart={self.restart!r}: it must be one of {', '.join(RESTARTS)}")
        check_replicas(self.replicas)
        check_tracebacks(self.tracebacks)
        check_call_timeout(self.call_timeout)

    @classmethod
    def from_json(cls, text: str) -> ServerConfig:
        """Read a configuration.

        Raises:
            ValueError: It is malformed.
        """
        found: dict[str, Any] = json.loads(text)
        unknown = sorted({*found} - {one.name for one in fields(cls) if one.init})
        if unknown:
            raise ValueError(f"the server's configuration has no field {unknown[0]!r}")
        found["callers"] = list(map(CallerConfig.from_json, found.get("callers") or []))
        found["models"] = found.get("models") or {}
        found["hidden"] = found.get("hidden") or {}
        found["budget"] = Budget.from_json(found.get("budget") or {})
        budgets: dict[str, Any] = found.get("function_budgets") or {}
        found["function_budgets"] = {k: Budget.from_json(v) for k, v in budgets.items()}
        return cls(**found)

    def budget_of(self, function: Function) -> Budget:
        """The budget of one function; the lower of `max_calls` and the budget's `calls` applies.

        A budget that was changed while serving replaces the configured one. If it limits `calls`,
        that limit also replaces `max_calls`.
        """
        most = function.options.max_calls
        changed = self.changed_budgets.get(function.name)
        budget = changed or self.function_budgets.get(function.name, Budget())
        if most is None or (changed is not None and changed.calls is not None):
            return budget
        limits = budget.to_json()
        limits["calls"] = min(limits.get("calls", most), most)
        return Budget.from_json(limits)
