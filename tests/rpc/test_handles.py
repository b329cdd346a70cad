"""Handles: values that stay on the server and belong to one caller."""

import gc
import weakref
from collections.abc import Generator

import numpy as np
import pytest

from seer.errors import ArgumentError, HandleError
from seer.rpc.client import Handle
from tests.rpc.serving import ControlFailed, Served, http, serving, wait_until

pytestmark = pytest.mark.full

SOURCE = """
    import os
    import weakref
    import numpy as np
    from seer.rpc import Handle

    live = []

    @expose
    def make(n: int) -> Handle:
        value = np.arange(n * n, dtype=np.float32).reshape(n, n)
        live.append(weakref.ref(value))
        return value

    @expose
    def several() -> dict:
        return {"one": Handle([1, 2, 3]), "text": Handle("hello")}

    @expose
    def total(values: np.ndarray) -> float:
        return float(values.sum())

    @expose
    def shape(handle: Handle) -> list:
        return list(handle.value.shape)

    @expose
    def count() -> int:
        return sum(ref() is not None for ref in live)

    @expose(stateful=False)
    def count_here() -> list[int]:
        return [os.getpid(), count()]
"""


@pytest.fixture(params=[1, 2], ids=["one process", "copies"])
def served(request: pytest.FixtureRequest) -> Generator[Served]:
    with serving(SOURCE, callers={"a": {}, "b": {}}, replicas=request.param) as served:
        yield served


def test_a_handle_tells_its_shape_and_fetches_parts(served: Served) -> None:
    handle = served.gate().call("make", (10,))
    assert isinstance(handle, Handle)
    assert (handle.dtype, handle.shape) == ("float32", (10, 10))
    assert handle.fetch().shape == (10, 10)
    assert handle.fetch(3).tolist() == list(range(30, 40))
    assert handle.fetch(np.s_[2:4, ::5]).tolist() == [[20, 25], [30, 35]]
    assert handle[..., 0].tolist() == list(range(0, 100, 10))
    assert "float32" in repr(handle)


def test_a_handle_is_passed_to_other_functions(served: Served) -> None:
    gate = served.gate()
    handle = gate.call("make", (4,))
    assert gate.call("total", (handle,)) == 120
    assert gate.call("shape", (handle,)) == [4, 4]
    with pytest.raises(TypeError, match="Handle"):
        gate.call("shape", (np.zeros(3),))


def test_handles_inside_a_result(served: Served) -> None:
    found = served.gate().call("several")
    assert found["one"].fetch(np.s_[1:]) == [2, 3]
    assert found["text"].fetch() == "hello"
    assert found["text"].shape is None


def test_a_dropped_handle_frees_its_value_with_the_next_call(served: Served) -> None:
    gate = served.gate()
    handle = gate.call("make", (4,))
    assert gate.call("count") == 1
    gone = weakref.ref(handle)
    del handle
    gc.collect()
    assert gone() is None
    wait_until(lambda: gate.call("count") == 0)


def test_a_freed_handle_cannot_be_used(served: Served) -> None:
    gate = served.gate()
    handle = gate.call("make", (4,))
    handle.free()
    handle.free()
    assert gate.call("count") == 0
    with pytest.raises(HandleError, match="freed"):
        handle.fetch()
    with pytest.raises(HandleError, match="freed"):
        gate.call("total", (handle,))


def test_another_caller_can_neither_use_nor_free_nor_guess_it(served: Served) -> None:
    gate, other = served.gate("a"), served.gate("b")
    handle = gate.call("make", (4,))
    stolen = handle.reference()
    with pytest.raises(HandleError):
        other.fetch(stolen, None)
    other.free(stolen)
    with pytest.raises(ControlFailed) as caught:
        http(
            served.socket_path("b"),
            "POST",
            "/v1/call/total",
            {"args": [{"$seer": "handle", "id": stolen}]},
        )
    assert caught.value.error["type"] == "HandleError"
    assert gate.call("total", (handle,)) == 120
    assert len(stolen) == 32


def test_handles_end_with_their_caller(served: Served) -> None:
    gate = served.gate("a")
    handle = gate.call("make", (4,))
    other = served.gate("b")
    counts: dict[int, int] = {}

    def left() -> int:
        # Any copy may answer; the last answer of each copy counts.
        pid, count = other.call("count_here")
        counts[pid] = count
        return sum(counts.values())

    wait_until(lambda: left() == 1)
    served.control("POST", "/v1/remove/a")
    wait_until(lambda: left() == 0)
    del handle


def test_an_index_that_does_not_fit_is_an_argument_error(served: Served) -> None:
    handle = served.gate().call("make", (4,))
    with pytest.raises(ArgumentError):
        handle.fetch(99)
    with pytest.raises(TypeError):
        handle.fetch("x")
