"""The timing loop rejects wrong answers."""

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.gate import _probe, _work


class _Client:
    """An in-process client with the real functions."""

    def __init__(self) -> None:
        self.arrays = 0

    def small(self, x: int) -> int:
        return _work.small(x)

    def floats(self, n: int) -> list[float]:
        return _work.floats(n)

    def take(self, values: list[float]) -> float:
        return _work.take(values)

    def array(self, nbytes: int, stamp: int) -> Any:
        self.arrays += 1
        return _work.array(nbytes, stamp).copy()

    def fail(self, message: str) -> None:
        _work.fail(message)

    def close(self) -> None:
        return


class _Wrong(_Client):
    def small(self, x: int) -> int:
        return x

    def floats(self, n: int) -> list[float]:
        return super().floats(n)[:-1]

    def take(self, values: list[float]) -> float:
        return values[0]

    def fail(self, message: str) -> None:
        raise ValueError("something")


class _Silent(_Wrong):
    def fail(self, message: str) -> None:
        return


class _Reused(_Client):
    def array(self, nbytes: int, stamp: int) -> Any:
        return _work.array(nbytes, stamp)


class _Stale(_Client):
    def array(self, nbytes: int, stamp: int) -> Any:
        return np.arange(nbytes // 4, dtype=np.float32)


@pytest.mark.parametrize("work", ["small", "floats", "take", "fail"])
def test_right_answers_are_timed(work: str) -> None:
    found = _probe.run_calls(_Client(), {"work": work, "seconds": 0.01})
    assert found["count"] >= 1
    assert 0 < found["p50"] <= found["p99"]


@pytest.mark.parametrize("work", ["small", "floats", "take", "fail"])
def test_a_wrong_answer_ends_the_measurement(work: str) -> None:
    with pytest.raises(AssertionError):
        _probe.run_calls(_Wrong(), {"work": work, "seconds": 0.01})


def test_a_function_that_does_not_raise_is_noticed() -> None:
    with pytest.raises(AssertionError, match="did not raise"):
        _probe.run_calls(_Silent(), {"work": "fail", "seconds": 0.01})


def _clock(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A clock that advances by `step` nanoseconds at each reading, regardless of the load."""
    ticks = itertools.count(0, step)
    monkeypatch.setattr(_probe, "now", lambda: next(ticks))


@pytest.mark.parametrize("keep", [False, True])
def test_arrays_are_warmed_then_timed(keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _clock(monkeypatch, 1_000)
    client = _Client()
    command = {"nbytes": 4_000, "keep": keep, "warm": 3, "seconds": 0.005}
    found = _probe.run_array(client, command)
    assert client.arrays == 3 + found["count"]
    assert found["read_p50"] >= found["p50"]


def test_slow_arrays_are_fetched_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    _clock(monkeypatch, 1_000_000)
    client = _Client()
    command = {"nbytes": 4_000, "keep": False, "warm": 3, "seconds": 0.001}
    assert _probe.run_array(client, command)["count"] == 1
    assert client.arrays == 2


def test_an_array_of_an_earlier_call_is_noticed() -> None:
    with pytest.raises(AssertionError, match="wrong answer"):
        _probe.run_array(_Stale(), {"nbytes": 4_000, "keep": False, "warm": 1, "seconds": 0.01})


def test_a_kept_array_that_is_overwritten_is_noticed() -> None:
    with pytest.raises(AssertionError, match="overwritten"):
        _probe.run_array(_Reused(), {"nbytes": 4_000, "keep": True, "warm": 1, "seconds": 0.01})


def test_connecting_is_tried_again_until_the_server_answers() -> None:
    tries: list[str] = []

    def connect(address: str) -> _Client:
        tries.append(address)
        if len(tries) < 3:
            raise ConnectionRefusedError(address)
        return _Client()

    module = ModuleType("client")
    module.__dict__["connect"] = connect
    assert isinstance(_probe.connect(module, "here", 5), _Client)
    assert tries == ["here"] * 3


def test_connecting_gives_up_at_the_deadline() -> None:
    def connect(address: str) -> _Client:
        raise ConnectionRefusedError(address)

    module = ModuleType("client")
    module.__dict__["connect"] = connect
    with pytest.raises(ConnectionRefusedError):
        _probe.connect(module, "here", 0.01)


def test_quantiles_are_in_microseconds() -> None:
    found = _probe.quantiles([1_000 * n for n in range(101)])
    assert found == {"p50": 50.0, "p99": 99.0, "mean": 50.0, "count": 101}
