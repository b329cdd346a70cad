"""What a replayed gate says about budgets: the recorded limits, and what its caller has used."""

from collections.abc import Iterable, Mapping
from typing import Any

from seer.rpc.interface._budget import FIELDS, as_told
from seer.runs._calls import GateCall

_STOPPED = frozenset(
    {
        "BudgetExceededError",
        "CallCancelledError",
        "DeadlineExceededError",
        "GateError",
        "StillRunningError",
    }
)
"""The outcomes of calls that may have waited without being executed."""


def stopped_before_it_ran(call: GateCall) -> bool:
    """Whether a call ended while it waited for its turn."""
    return not call.run and call.outcome in _STOPPED


def budget_answer(about: Mapping[str, Any], played: Iterable[GateCall]) -> dict[str, Any]:
    """The answer to a caller that asks for its budget, as a live gate gives it.

    Args:
        about: The recorded description of the interface.
        played: The calls of the caller that were answered.
    """
    functions: list[dict[str, Any]] = about["schema"].get("functions", [])
    options: dict[str, dict[str, Any]] = {
        function["name"]: function.get("options", {}) for function in functions
    }
    limits = _limits(about.get("caller_budget"))
    used: dict[str, float] = dict.fromkeys(FIELDS, 0.0)
    for call in played:
        if call.arguments is None and not call.lost:
            continue  # it was refused
        if stopped_before_it_ran(call):
            continue
        used["calls"] += options.get(call.function, {}).get("cost", 1)
        used["seconds"] += call.run
        used["gpu_seconds"] += call.gpu
        used["bytes"] += call.bytes_in + call.bytes_out
    return {
        "caller": {
            "limit": limits,
            "used": as_told(used),
            "left": as_told({name: max(limit - used[name], 0) for name, limit in limits.items()}),
        },
        "interface": {"limit": _limits(about.get("budget"))},
        "functions": {
            name: {"limit": _of_function(about, name, found.get("max_calls"))}
            for name, found in options.items()
        },
    }


def _of_function(about: Mapping[str, Any], name: str, most: int | None) -> dict[str, float]:
    budgets: dict[str, dict[str, float]] = about.get("function_budgets") or {}
    limits = _limits(budgets.get(name))
    return limits if most is None else {**limits, "calls": min(limits.get("calls", most), most)}


def _limits(found: Mapping[str, float] | None) -> dict[str, float]:
    return dict(found or {})
