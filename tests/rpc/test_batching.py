"""Batching: many calls, one call of the function, each with its own result."""

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from seer.errors import DeadlineExceededError
from seer.rpc.client import deadline
from tests.rpc.serving import HOLD, SOON, Served, holding, run_together, serving

pytestmark = pytest.mark.full

SOURCE = (
    """
    import asyncio
    import os
    import threading
    import time
    from collections.abc import Sequence

    batches = []

    @expose(batch=8, batch_wait=0.05)
    def double(x: list[int]) -> list[int]:
        batches.append(list(x))
        return [2 * item for item in x]

    @expose(batch=8, batch_wait=0.05)
    def scale(x: list[float], factor: float = 1.0) -> list[float]:
        batches.append(list(x))
        return [item * factor for item in x]

    @expose(batch=8, batch_wait=0.05)
    def picky(x: list[int]) -> list[int]:
        return [ValueError(f"no {item}") if item < 0 else item for item in x]

    @expose(batch=8, batch_wait=0.05)
    def seeded(x: list[int], *, seed: Sequence[int] = (7,)) -> list[int]:
        batches.append(list(x))
        return [item * 100 + one for item, one in zip(x, seed, strict=True)]

    both = threading.Barrier(2)

    @expose(batch=8, max_concurrency=4)
    def meeting(x: list[int], *, factor: int = 1, plus: Sequence[int] = (7,)) -> list[int]:
        both.wait(60)
        batches.append(list(x))
        return [ValueError("odd") if a % 2 else a * factor + b for a, b in zip(x, plus)]

    @expose(batch=8, batch_wait=0.05)
    def broken(x: list[int]) -> list[int]:
        return [1, *x]

    @expose(batch=8, batch_wait=0.05)
    def failing(x: list[int]) -> list[int]:
        raise RuntimeError("all of it")

    @expose(batch=8, batch_wait=0.05)
    def placed(x: list[int], factor: int, more: list[int] = (5,), /, *, plus: int = 0) -> list[int]:
        batches.append(list(x))
        return [a * factor + b + plus for a, b in zip(x, more, strict=True)]

    @expose(batch=8, batch_wait=0.05)
    def gap(factor: int = 3, x: list[int] = (4,), /) -> list[int]:
        return [item * factor for item in x]

    @expose(batch=8, batch_wait=0.05)
    async def awaited(x: list[int]) -> list[int]:
        await asyncio.sleep(0)
        batches.append(list(x))
        return [ValueError("odd") if item % 2 else item for item in x]

    @expose(batch=8)
    async def endless(x: list[int]) -> list[int]:
        try:
            await asyncio.Event().wait()
        finally:
            batches.append(["stopped"])

    @expose(batch=8, batch_wait=600)
    def patient(x: list[int]) -> list[int]:
        return x

    @expose(batch=8, batch_wait=0.05)
    def quoting(x: list[str]) -> list[str]:
        batches.append(list(x))
        if "bad" in x:
            raise ValueError(f"cannot do {x}")
        return [item.upper() for item in x]

    @expose(batch=8, batch_wait=0.05)
    async def quoting_async(x: list[str]) -> list[str]:
        return quoting(x)

    @expose(batch=8, batch_wait=0.05)
    def slow_alone(x: list[str]) -> list[str]:
        if len(x) > 1:
            batches.append(["together"])
            raise ValueError
        name, release = x[0].split(" ")
        batches.append([name])
        while not os.path.exists(release):
            time.sleep(0.01)
        return ["done"]

    @expose
    def seen() -> list:
        return batches

    @expose
    def quick() -> int:
        return 1
"""
    + HOLD
)


@pytest.fixture
def served() -> Generator[Served]:
    with serving(SOURCE, callers={"a": {}, "b": {}}) as served:
        yield served


def call_all(served: Served, function: str, values: Sequence[object]) -> list[object]:
    """Call with each value before any runs; results or errors in the order of the values."""
    gate = served.gate()
    results: list[object] = [None] * len(values)

    def call(i: int) -> None:
        try:
            results[i] = gate.call(function, (values[i],))
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(values))]
    with holding(served) as waiting:
        for thread in threads:
            thread.start()
        waiting(len(threads))
    for thread in threads:
        thread.join(timeout=SOON)
    return results


def test_concurrent_calls_run_together_and_each_gets_its_own(served: Served) -> None:
    assert call_all(served, "double", list(range(32))) == [2 * i for i in range(32)]
    assert [len(batch) for batch in served.gate().call("seen")] == [8, 8, 8, 8]


def test_a_lone_call_waits_no_longer_than_it_must(served: Served) -> None:
    gate = served.gate()
    gate.call("double", (1,))
    begin = time.monotonic()
    assert gate.call("patient", (2,)) == 2
    assert time.monotonic() - begin < SOON


def test_calls_wait_for_nobody_who_could_not_join(served: Served) -> None:
    gate, other = served.gate(), served.gate("b")
    begin = time.monotonic()
    assert [gate.call("patient", (i,)) for i in range(20)] == list(range(20))
    assert other.call("quick") == 1
    calls = iter([gate, other] * 10)
    lock = threading.Lock()

    def call() -> list[int]:
        with lock:
            own = next(calls)
        return [own.call("patient", (i,)) for i in range(10)]

    assert run_together(call, 2) == [list(range(10))] * 2
    assert time.monotonic() - begin < SOON


def test_positional_only_parameters_stay_in_their_places(served: Served) -> None:
    gate = served.gate()
    assert gate.call("placed", (2, 10)) == 25
    assert gate.call("placed", (2, 10, 1), {"plus": 100}) == 121
    assert (gate.call("gap"), gate.call("gap", (5,)), gate.call("gap", (5, 6))) == (12, 20, 30)


def test_a_function_that_brings_calls_together_itself_gets_each_at_once(served: Served) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(served.gate().call, "meeting", (2,), {"factor": 10, "plus": 3})
        second = pool.submit(served.gate("b").call, "meeting", (4,))
        assert (first.result(60), second.result(60)) == (23, 11)
        odd = [pool.submit(served.gate(name).call, "meeting", (1,)) for name in ("a", "b")]
        assert all(isinstance(one.exception(60), ValueError) for one in odd)
    assert sorted(served.gate().call("seen")) == [[1], [1], [2], [4]]


def test_async_functions_are_batched_too(served: Served) -> None:
    results = call_all(served, "awaited", list(range(16)))
    assert results[::2] == list(range(0, 16, 2))
    assert all(isinstance(error, ValueError) for error in results[1::2])
    assert [len(batch) for batch in served.gate().call("seen")] == [8, 8]


def test_an_async_batch_is_stopped_at_its_deadline(served: Served) -> None:
    gate = served.gate()
    with pytest.raises(DeadlineExceededError), deadline(1.0):
        gate.call("endless", (1,))
    assert gate.call("seen") == [["stopped"]]


def test_calls_that_differ_in_a_shared_argument_run_apart(served: Served) -> None:
    gate = served.gate()
    factors = iter([1.0, 2.0] * 4)
    lock = threading.Lock()

    def call() -> tuple[float, float]:
        with lock:
            factor = next(factors)
        return factor, gate.call("scale", (3.0,), {"factor": factor})

    assert sorted(run_together(call, 8)) == [(1.0, 3.0)] * 4 + [(2.0, 6.0)] * 4
    assert gate.call("scale", (3.0,)) == 3.0


def test_a_call_without_a_batched_argument_joins_those_that_give_it(served: Served) -> None:
    gate = served.gate()
    seeds = iter([None, 3] * 4)
    lock = threading.Lock()

    def call() -> int:
        with lock:
            seed = next(seeds)
        return gate.call("seeded", (1,), {} if seed is None else {"seed": seed})

    with ThreadPoolExecutor(8) as pool, holding(served) as waiting:
        futures = [pool.submit(call) for _ in range(8)]
        waiting(8)
    assert sorted(future.result() for future in futures) == [103] * 4 + [107] * 4
    assert [len(batch) for batch in gate.call("seen")] == [8]


def test_the_error_of_one_item_is_its_callers_alone(served: Served) -> None:
    results = call_all(served, "picky", [1, -2, 3, -4])
    assert (results[0], results[2]) == (1, 3)
    assert isinstance(results[1], ValueError)
    assert str(results[1]) == "no -2"
    assert isinstance(results[3], ValueError)


def test_a_wrong_argument_does_not_spoil_the_batch(served: Served) -> None:
    results = call_all(served, "double", [1, "x", 3])
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], TypeError)


def test_a_list_of_another_length_is_an_error_that_says_so(served: Served) -> None:
    results = call_all(served, "broken", [1, 2])
    assert all(isinstance(r, TypeError) and "batch of" in str(r) for r in results)


def test_an_exception_of_the_function_reaches_all_whose_calls_raise_it(served: Served) -> None:
    assert all(isinstance(r, RuntimeError) for r in call_all(served, "failing", [1, 2, 3]))


@pytest.mark.parametrize("function", ["quoting", "quoting_async"])
def test_one_bad_item_neither_fails_other_callers_nor_shows_their_inputs(
    served: Served, function: str
) -> None:
    secret, bad = "the other agent's prompt", "bad"
    results = call_all(served, function, [secret, bad, "fine"])
    assert (results[0], results[2]) == (secret.upper(), "FINE")
    assert isinstance(results[1], ValueError)
    assert str(results[1]) == "cannot do ['bad']"
    assert secret not in getattr(results[1], "remote_traceback", "")
    together, *alone = served.gate().call("seen")
    assert sorted(together) == sorted([secret, bad, "fine"])
    assert alone == [[item] for item in together]


def test_a_call_stopped_while_it_waits_to_run_alone_is_not_run(served: Served) -> None:
    release = served.folder / "release"
    outcomes: dict[str, object] = {}

    def call(name: str, seconds: float) -> None:
        try:
            with deadline(seconds):
                outcomes[name] = served.gate().call("slow_alone", (f"{name} {release}",))
        except Exception as error:
            outcomes[name] = type(error)

    threads = [
        threading.Thread(target=call, args=(name, seconds))
        for name, seconds in (("first", 60.0), ("second", 1.5))
    ]
    with holding(served) as waiting:
        for number, thread in enumerate(threads):
            thread.start()
            waiting(number + 1)
    threads[1].join(timeout=SOON)
    release.touch()
    threads[0].join(timeout=SOON)
    assert outcomes == {"first": "done", "second": DeadlineExceededError}
    assert served.gate().call("seen") == [["together"], ["first"]]


def test_a_flooding_caller_shares_each_batch_with_others(served: Served) -> None:
    flood, modest = served.gate("a"), served.gate("b")
    threads = [threading.Thread(target=flood.call, args=("double", (1,))) for _ in range(24)]
    late = [threading.Thread(target=modest.call, args=("double", (100,))) for _ in range(2)]
    with holding(served) as waiting:
        for thread in threads:
            thread.start()
        waiting(24)
        for thread in late:
            thread.start()
        waiting(26)
    for thread in threads + late:
        thread.join(timeout=SOON)
    # Three batches were waiting when our calls came; ours are in the first.
    batches = flood.call("seen")
    assert sum(map(len, batches)) == 26
    assert batches[0].count(100) == 2
