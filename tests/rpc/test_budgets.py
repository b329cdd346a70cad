"""Budgets: what is counted, for whom, and what happens when it is used up."""

import time
from typing import Any

import pytest

from seer.errors import BudgetExceededError
from seer.rpc import Budget
from tests.rpc.serving import SOON, ControlFailed, run_together, serving

SOURCE = """
    import time

    @expose
    def small(x: int) -> int:
        return x

    @expose(max_calls=3)
    def rare() -> int:
        return 1

    @expose(cost=5)
    def dear() -> int:
        return 1

    @expose
    def nap(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @expose
    def text(n: int) -> str:
        return "x" * n

    @expose
    def crash() -> None:
        import os
        time.sleep(0.3)
        os._exit(1)
"""

full = pytest.mark.full


@full
def test_calls_of_a_caller_are_counted_and_refused_when_used_up() -> None:
    with serving(SOURCE, callers={"a": {"calls": 3}, "b": {}}) as served:
        gate = served.gate()
        for _ in range(3):
            gate.call("small", (1,))
        with pytest.raises(BudgetExceededError, match="this caller.*3 calls"):
            gate.call("small", (1,))
        assert gate.budget()["caller"]["left"] == {"calls": 0}
        assert served.gate("b").call("small", (1,)) == 1


@full
def test_the_interfaces_budget_is_shared_by_all_callers() -> None:
    with serving(SOURCE, budget={"calls": 4}, callers={"a": {}, "b": {}}) as served:
        for caller in ("a", "b"):
            for _ in range(2):
                served.gate(caller).call("small", (1,))
        for caller in ("a", "b"):
            with pytest.raises(BudgetExceededError, match="the interface"):
                served.gate(caller).call("small", (1,))


@full
def test_many_callers_at_once_never_get_more_than_the_budget() -> None:
    with serving(SOURCE, budget={"calls": 25}) as served:
        gate = served.gate()

        def call() -> int:
            try:
                return gate.call("small", (1,))
            except BudgetExceededError:
                return 0

        assert sum(run_together(call, 50)) == 25


@full
def test_a_function_is_refused_past_its_max_calls_and_others_are_not() -> None:
    with serving(SOURCE) as served:
        gate = served.gate()
        for _ in range(3):
            gate.call("rare")
        with pytest.raises(BudgetExceededError, match="'rare'"):
            gate.call("rare")
        assert gate.call("small", (1,)) == 1


@full
def test_a_dear_function_takes_its_cost() -> None:
    with serving(SOURCE, callers={"a": {"calls": 8}}) as served:
        gate = served.gate()
        gate.call("dear")
        assert gate.budget()["caller"]["left"] == {"calls": 3}
        with pytest.raises(BudgetExceededError):
            gate.call("dear")
        assert gate.call("small", (1,)) == 1


@full
def test_seconds_stop_a_running_call() -> None:
    with serving(SOURCE, callers={"a": {"seconds": 2.0}}) as served:
        gate = served.gate()
        gate.call("nap", (0.2,))
        begin = time.monotonic()
        with pytest.raises(BudgetExceededError, match="time budget"):
            gate.call("nap", (60.0,))
        assert time.monotonic() - begin < SOON
        with pytest.raises(BudgetExceededError, match="running time"):
            gate.call("small", (1,))


@full
def test_bytes_are_checked_before_a_result_is_sent() -> None:
    with serving(SOURCE, callers={"a": {"bytes": 10_000}}) as served:
        gate = served.gate()
        assert len(gate.call("text", (5000,))) == 5000
        with pytest.raises(BudgetExceededError, match="bytes"):
            gate.call("text", (8000,))
        assert len(gate.call("text", (1000,))) == 1000


@full
def test_what_was_refused_or_never_ran_costs_nothing() -> None:
    with serving(SOURCE, callers={"a": {"calls": 2}}) as served:
        gate = served.gate()
        for _ in range(5):
            with pytest.raises(AttributeError):
                gate.call("nothing")
        assert gate.budget()["caller"]["used"]["calls"] == 0


@full
def test_use_survives_a_crash() -> None:
    with serving(SOURCE, callers={"a": {"calls": 10}}, restart="on-failure") as served:
        gate = served.gate()
        gate.call("small", (1,))
        with pytest.raises(ConnectionError):
            gate.call("crash")
        assert gate.call("small", (1,)) == 1
        used = gate.budget()["caller"]["used"]
        assert used["calls"] == 3
        assert used["seconds"] > 0.25


@full
def test_the_controller_changes_a_budget_while_it_is_served() -> None:
    with serving(SOURCE, callers={"a": {"calls": 1}}) as served:
        gate = served.gate()
        gate.call("small", (1,))
        with pytest.raises(BudgetExceededError):
            gate.call("small", (1,))
        message = {"scope": "caller", "name": "a", "budget": {"calls": 2}}
        served.control("POST", "/v1/budget", message)
        assert gate.call("small", (1,)) == 1
        assert served.control("GET", "/v1/budget")["callers"]["a"]["calls"] == 2


@full
@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_a_functions_budget_that_was_changed_outlives_reloads_and_restarts(replicas: int) -> None:
    budgets = {"small": {"calls": 3}}
    with serving(
        SOURCE, replicas=replicas, restart="on-failure", function_budgets=budgets
    ) as served:
        gate = served.gate()

        def change(name: str, **limits: float) -> None:
            message = {"scope": "function", "name": name, "budget": limits}
            served.control("POST", "/v1/budget", message)

        def limits(name: str) -> dict[str, float]:
            return gate.budget()["functions"][name]["limit"]

        change("small", calls=5)
        change("rare", seconds=60)
        served.control("POST", "/v1/reload")
        # What the file says holds where the change says nothing.
        assert (limits("small"), limits("rare")) == ({"calls": 5}, {"calls": 3, "seconds": 60})
        change("rare", calls=4)
        served.control("POST", "/v1/reload")
        assert limits("rare") == {"calls": 4}
        served.kill_interface()
        with pytest.raises(ConnectionError):
            gate.call("small", (1,))
        assert [gate.call("rare") for _ in range(4)] == [1, 1, 1, 1]
        with pytest.raises(BudgetExceededError, match="'rare' is used up: 4 calls were allowed, 4"):
            gate.call("rare")
        assert (limits("small"), limits("rare")) == ({"calls": 5}, {"calls": 4})


@full
@pytest.mark.parametrize(
    ("scope", "name"), [("function", "smal"), ("caller", "nobody"), ("world", "")]
)
def test_a_budget_for_what_does_not_exist_is_refused(scope: str, name: str) -> None:
    with serving(SOURCE) as served:
        message = {"scope": scope, "name": name, "budget": {"calls": 1}}
        with pytest.raises(ControlFailed, match=f"there is no {scope} '{name}'"):
            served.control("POST", "/v1/budget", message)


@pytest.mark.parametrize(
    "limits", [{"calls": -1}, {"calls": "3"}, {"seconds": float("nan")}, {"bytes": True}]
)
def test_a_budget_that_cannot_work_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Budget"):
        Budget(**limits)


def test_a_budget_survives_its_json_form() -> None:
    budget = Budget(calls=3, gpu_seconds=1.5)
    assert Budget.from_json(budget.to_json()) == budget
    assert repr(budget) == "Budget(calls=3, gpu_seconds=1.5)"
    with pytest.raises(ValueError, match="cals"):
        Budget.from_json({"cals": 1})
