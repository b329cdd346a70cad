"""Budgets: what is counted, for which caller, and what happens when they are used up."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from seer.errors import BudgetExceededError, DeadlineExceededError
from seer.rpc import Budget
from seer.rpc.client import deadline
from tests.rpc.serving import SOON, ControlFailed, run_together, serving, wait_until

SOURCE = """
    import time
    from collections.abc import AsyncIterator, Iterator

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
    def items(count: int, size: int) -> Iterator[str]:
        for _ in range(count):
            yield "x" * size

    @expose
    async def items_async(count: int, size: int) -> AsyncIterator[str]:
        for _ in range(count):
            yield "x" * size

    @expose(batch=8, batch_wait=0.01)
    def nap_together(seconds: list[float]) -> list[float]:
        time.sleep(max(seconds))
        return seconds

    @expose(batch=8, batch_wait=0.01)
    def stubborn_together(seconds: list[float]) -> list[float]:
        end = time.monotonic() + max(seconds)
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except BaseException:
                pass
        return seconds

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
@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
@pytest.mark.parametrize("function", ["items", "items_async"])
def test_a_stream_delivers_no_more_than_the_budgets_bytes(replicas: int, function: str) -> None:
    callers = {"a": {"bytes": 100_000}}
    with serving(SOURCE, callers=callers, replicas=replicas) as served:
        gate = served.gate()
        came = 0
        with pytest.raises(BudgetExceededError, match=rf"one more item of what {function}\(\)"):
            for item in gate.stream(function, (400, 10_000)):
                came += len(item)
        assert came == 90_000
        used = gate.budget()["caller"]["used"]["bytes"]
        assert came <= used <= 100_000
        # The rest of the budget can be used.
        assert len(list(gate.stream(function, (3, 1000)))) == 3
        wait_until(lambda: gate.health()["detached"] == 0)


@full
@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_an_interrupted_batch_is_charged_for_what_it_ran(replicas: int) -> None:
    callers = {"a": {"seconds": 2.0}, "b": {}}
    with serving(SOURCE, callers=callers, replicas=replicas) as served:
        gate, other = served.gate(), served.gate("b")
        with pytest.raises(BudgetExceededError, match="time budget"):
            gate.call("nap_together", (60.0,))
        # A copy counts from when it begins, a little later than the front sets the limit.
        assert 1.6 <= gate.budget()["caller"]["used"]["seconds"] < SOON
        with pytest.raises(BudgetExceededError, match="used up"):
            gate.call("nap_together", (60.0,))
        # A function that does not stop is also charged for the time that it continues.
        with pytest.raises(DeadlineExceededError), deadline(0.5):
            other.call("stubborn_together", (1.5,))
        wait_until(lambda: other.health()["detached"] == 0)
        assert other.budget()["caller"]["used"]["seconds"] >= 1.5


@full
@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_usage_without_limits_is_exact_also_of_callers_that_left(replicas: int) -> None:
    names = [f"c{number}" for number in range(10)]
    with serving(SOURCE, callers={name: {} for name in names}, replicas=replicas) as served:
        for name in names:
            with closing(served.gate(name)) as gate:
                assert [gate.call("small", (i,)) for i in range(13)] == list(range(13))
            served.control("POST", f"/v1/remove/{name}")
        used = served.control("GET", "/v1/budget")
        assert used["interface"]["calls"] == used["functions"]["small"]["calls"] == 130
        assert used["interface"]["seconds"] > 0


@full
def test_usage_without_limits_outlives_a_crash() -> None:
    with serving(SOURCE, restart="on-failure") as served:
        gate = served.gate()
        for i in range(3):
            gate.call("small", (i,))
        with pytest.raises(ConnectionError):
            gate.call("crash")
        used = served.control("GET", "/v1/budget")["callers"]["a"]
        assert used["calls"] == 4
        assert used["seconds"] > 0.25


@full
@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_a_caller_sees_nothing_of_what_others_use_or_do(replicas: int) -> None:
    budget = {"calls": 100, "bytes": 10_000_000}
    with serving(
        SOURCE, budget=budget, callers={"a": {}, "b": {"calls": 9}}, replicas=replicas
    ) as served:
        gate, other = served.gate("a"), served.gate("b")
        before = other.budget()
        with ThreadPoolExecutor(1) as pool:
            for _ in range(5):
                gate.call("small", (1,))
            running = pool.submit(gate.call, "nap", (1.0,))
            wait_until(lambda: gate.health()["calls"] == 1)
            assert (other.health()["calls"], other.budget()) == (0, before)
            running.result(timeout=SOON)
        assert before["interface"] == {"limit": budget}
        assert before["functions"]["rare"] == {"limit": {"calls": 3}}
        assert before["caller"]["left"] == {"calls": 9}


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
        # Limits that the change does not name come from the file.
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
