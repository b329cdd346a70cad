"""What to serve and how: the options of `ScopedSandbox.serve`, checked before anything starts.

A detached sandbox stores its requests as JSON, so that a later process can adopt its interfaces.
"""

import keyword
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from seer.environment._start import Started
from seer.environment.config._checks import size
from seer.environment.models._provenance import ModelOrigin
from seer.errors import ConfigError, ServeError
from seer.providers.local._record import known_fields
from seer.rpc.interface._budget import Budget
from seer.rpc.server._config import (
    CALL_TIMEOUT,
    MAX_REPLICAS,
    check_call_timeout,
    check_replicas,
    check_tracebacks,
)
from seer.rpc.wire._memory import DEFAULT_ALLOWANCE

Tracebacks = Literal["names"] | bool
"""What callers see of tracebacks; see `ScopedSandbox.serve`."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """What to serve, and how."""

    file: Path
    name: str
    models: Mapping[str, str]
    """The folder of each model in the machine, by every name that the interface may use."""
    hidden: Mapping[str, str]
    """Names that no agent may learn, each with its replacement."""
    budget: Budget | None = None
    function_budgets: Mapping[str, Budget] = field(default_factory=dict[str, Budget])
    caller_budget: Budget | None = None
    """The limits for each caller."""
    caller_memory: int = DEFAULT_ALLOWANCE
    """Bytes of the interface's memory that each caller may hold."""
    restart: str = "never"
    tracebacks: Tracebacks = "names"
    replicas: int = 1
    """The initial number of copies."""
    call_timeout: float | None = CALL_TIMEOUT
    """Seconds that a call may run if its function has no timeout of its own."""
    origins: tuple[ModelOrigin, ...] = ()
    """Where the models really come from; for records only."""
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    has_network: bool = True

    def to_json(self) -> dict[str, Any]:
        """The request as plain data."""
        return {
            **vars(self),
            "file": str(self.file),
            "models": dict(self.models),
            "hidden": dict(self.hidden),
            "budget": None if self.budget is None else self.budget.to_json(),
            "caller_budget": None if self.caller_budget is None else self.caller_budget.to_json(),
            "function_budgets": {k: v.to_json() for k, v in self.function_budgets.items()},
            "origins": [asdict(origin) for origin in self.origins],
            "packages": dict(self.packages),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ServeRequest":
        """Read the output of `to_json`."""
        values = known_fields(cls, data)
        values["file"] = Path(values["file"])
        for name in ("budget", "caller_budget"):
            if values.get(name) is not None:
                values[name] = Budget.from_json(values[name])
        budgets: Mapping[str, Any] = values.get("function_budgets", {})
        values["function_budgets"] = {name: Budget.from_json(it) for name, it in budgets.items()}
        values["origins"] = tuple(
            ModelOrigin(**known_fields(ModelOrigin, origin)) for origin in values.get("origins", ())
        )
        return cls(**values)


def make_request(
    file: Path,
    name: str | None,
    running: Started,
    *,
    budget: Budget | None,
    restart: str,
    tracebacks: Tracebacks,
    replicas: int,
    function_budgets: Mapping[str, Budget],
    caller_budget: Budget | None,
    caller_memory: int | str | None,
    call_timeout: float | None,
) -> ServeRequest:
    """Check the options of `ScopedSandbox.serve`, and complete them from a running sandbox.

    Raises:
        ConfigError: An option has an invalid value.
        ServeError: There is no such file.
    """
    if restart not in ("never", "on-failure"):
        raise ConfigError("serve(restart=)", restart, "must be 'never' or 'on-failure'")
    check_number("serve(replicas=)", replicas)
    try:
        check_tracebacks(tracebacks)
    except ValueError:
        raise ConfigError(
            "serve(tracebacks=)", tracebacks, "must be 'names', True or False"
        ) from None
    try:
        check_call_timeout(call_timeout)
    except ValueError:
        raise ConfigError(
            "serve(call_timeout=)", call_timeout, "must be a number of seconds, or None"
        ) from None
    check_budget("serve(budget=)", budget)
    check_budget("serve(caller_budget=)", caller_budget)
    for function, limits in function_budgets.items():
        check_budget(f"serve(function_budgets=)[{function!r}]", limits)
    if not file.is_file():
        raise ServeError("there is no such file", file=str(file))
    name = name if name is not None else file.stem
    if not str(name).isidentifier() or keyword.iskeyword(str(name)):
        raise ConfigError(
            "serve(name=)", name, "must be a Python identifier, so that it can be imported"
        )
    return ServeRequest(
        file=file.absolute(),
        name=name,
        models=running.model_paths,
        hidden=running.hidden_names,
        budget=budget,
        function_budgets=function_budgets,
        caller_budget=caller_budget,
        caller_memory=_caller_memory(caller_memory, running.config.memory_bytes),
        restart=restart,
        tracebacks=False if running.hidden_names else tracebacks,
        replicas=replicas,
        call_timeout=call_timeout,
        origins=running.origins,
        packages=running.packages,
        has_network=running.config.network not in (None, "none"),
    )


def _caller_memory(wanted: int | str | None, memory: int | None) -> int:
    if wanted is not None:
        return size("serve(caller_memory=)", wanted)
    # Several callers together must still leave memory for the interface itself.
    return DEFAULT_ALLOWANCE if memory is None else min(DEFAULT_ALLOWANCE, memory // 8)


def check_budget(what: str, budget: object) -> None:
    """Check a budget.

    Raises:
        ConfigError: It is neither a budget nor None; `what` names the argument.
    """
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(what, budget, "must be a Budget, such as Budget(calls=100)")


def check_number(what: str, replicas: object) -> None:
    """Check a number of copies.

    Raises:
        ConfigError: It is not a valid number; `what` names the argument.
    """
    try:
        check_replicas(replicas)
    except ValueError:
        raise ConfigError(what, replicas, f"must be a whole number, 1 to {MAX_REPLICAS}") from None
