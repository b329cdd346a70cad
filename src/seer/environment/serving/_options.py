"""The options of `ScopedSandbox.serve`, checked before anything starts."""

import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seer.environment._start import Started
from seer.environment.config._checks import size
from seer.environment.serving._served import ServeRequest, Tracebacks
from seer.errors import ConfigError, ServeError
from seer.rpc.interface._budget import Budget
from seer.rpc.server._config import (
    MAX_REPLICAS,
    check_call_timeout,
    check_replicas,
    check_tracebacks,
)
from seer.rpc.wire._memory import DEFAULT_ALLOWANCE


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of `ScopedSandbox.serve`; see there."""

    budget: Budget | None
    restart: str
    tracebacks: Tracebacks
    replicas: int
    function_budgets: Mapping[str, Budget]
    caller_budget: Budget | None
    caller_memory: int | str | None
    call_timeout: float | None

    def request(self, file: Path, name: str | None, running: Started) -> ServeRequest:
        """What to serve in a sandbox that runs.

        Raises:
            ConfigError: An option has a value that cannot work.
            ServeError: There is no such file.
        """
        if self.restart not in ("never", "on-failure"):
            raise ConfigError("serve(restart=)", self.restart, "must be 'never' or 'on-failure'")
        check_number("serve(replicas=)", self.replicas)
        try:
            check_tracebacks(self.tracebacks)
        except ValueError:
            raise ConfigError(
                "serve(tracebacks=)", self.tracebacks, "must be 'names', True or False"
            ) from None
        try:
            check_call_timeout(self.call_timeout)
        except ValueError:
            raise ConfigError(
                "serve(call_timeout=)", self.call_timeout, "must be a number of seconds, or None"
            ) from None
        check_budget("serve(budget=)", self.budget)
        check_budget("serve(caller_budget=)", self.caller_budget)
        for function, budget in self.function_budgets.items():
            check_budget(f"serve(function_budgets=)[{function!r}]", budget)
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
            budget=self.budget,
            function_budgets=self.function_budgets,
            caller_budget=self.caller_budget,
            caller_memory=self._caller_memory(running),
            restart=self.restart,
            tracebacks=False if running.hidden_names else self.tracebacks,
            replicas=self.replicas,
            call_timeout=self.call_timeout,
            origins=running.origins,
            packages=running.packages,
            has_network=running.config.network not in (None, "none"),
        )

    def _caller_memory(self, running: Started) -> int:
        if self.caller_memory is not None:
            return size("serve(caller_memory=)", self.caller_memory)
        memory = running.config.memory_bytes
        # With several callers, the interface itself must still have room.
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
