"""Reload: the file runs again between two calls, and kept values stay."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rpc.serving import ControlFailed, Served, serving, wait_until

pytestmark = pytest.mark.full

FIRST = """
    import time
    from seer.rpc import keep

    loads = []
    model = keep("model", lambda: loads.append(1) or {"loaded": time.time_ns()})
    state = {"calls": 0}

    @expose
    def version() -> int:
        state["calls"] += 1
        return 1

    @expose
    def loaded() -> int:
        return model["loaded"]

    @expose
    def calls() -> int:
        return state["calls"]

    @expose(max_concurrency=2)
    def wait_for(release: str) -> int:
        import os

        while not os.path.exists(release):
            time.sleep(0.005)
        return 1
"""
SECOND = (
    FIRST.replace("return 1", "return 2")
    + """
    @expose
    def more() -> str:
        return "new"
"""
)


def test_functions_are_replaced_and_kept_objects_stay() -> None:
    with serving(FIRST) as served:
        gate = served.gate()
        loaded = gate.call("loaded")
        assert gate.call("version") == 1
        served.write(SECOND)
        schema = served.control("POST", "/v1/reload")["schema"]
        assert "more" in {function["name"] for function in schema["functions"]}
        assert gate.call("version") == 2
        assert gate.call("more") == "new"
        assert gate.call("loaded") == loaded
        assert gate.call("calls") == 1


def test_a_call_that_runs_finishes_with_what_it_began_with() -> None:
    with serving(FIRST) as served:
        gate = served.gate()
        results: list[int] = []
        release = served.folder / "release"
        thread = threading.Thread(
            target=lambda: results.append(gate.call("wait_for", (str(release),)))
        )
        thread.start()
        wait_until(lambda: served.calls() == 1)
        served.write(SECOND)
        served.control("POST", "/v1/reload")
        assert gate.call("wait_for", (str(served.folder),)) == 2
        assert results == []
        release.touch()
        thread.join(timeout=30)
        assert results == [1]


def test_reloads_beside_a_long_call_leave_one_wait_for_its_end() -> None:
    source = (
        FIRST
        + """
    @expose
    def waits() -> int:
        import threading
        return sum(isinstance(thread, threading.Timer) for thread in threading.enumerate())
"""
    )
    with serving(source) as served, ThreadPoolExecutor() as pool:
        gate = served.gate()
        release = served.folder / "release"
        running = pool.submit(served.gate().call, "wait_for", (str(release),))
        try:
            wait_until(lambda: served.calls() == 1)
            for _ in range(6):
                served.control("POST", "/v1/reload")
            # A cancelled timer's thread may take a moment to end.
            wait_until(lambda: gate.call("waits") == 1)
        finally:
            release.touch()
        assert running.result() == 1


def test_a_file_that_cannot_be_served_leaves_the_old_one_in_place() -> None:
    with serving(FIRST) as served:
        gate = served.gate()
        served.write("def broken(:\n")
        with pytest.raises(ControlFailed) as caught:
            served.control("POST", "/v1/reload")
        assert caught.value.error["type"] == "ServeError"
        assert caught.value.error["line"] == 1
        assert gate.call("version") == 1


def test_tracebacks_show_the_new_source_after_a_reload() -> None:
    source = "@expose\ndef f() -> None:\n    raise ValueError('{}')\n"
    with serving(source.format("one"), tracebacks=True) as served:
        gate = served.gate()
        for word in ("one", "two"):
            served.write(source.format(word))
            served.control("POST", "/v1/reload")
            with pytest.raises(ValueError, match=word) as caught:
                gate.call("f")
            assert f"raise ValueError('{word}')" in getattr(caught.value, "remote_traceback", "")


def test_what_was_used_of_a_budget_outlives_a_reload() -> None:
    with serving(FIRST, function_budgets={"version": {"calls": 2}}) as served:
        gate = served.gate()
        gate.call("version")
        served.control("POST", "/v1/reload")
        gate.call("version")
        with pytest.raises(Exception, match="'version'"):
            gate.call("version")


def test_callers_come_and_go_while_it_is_served() -> None:
    with serving(FIRST) as served:
        message = {"name": "b", "socket": str(served.socket_path("b")), "budget": {"calls": 1}}
        served.control("POST", "/v1/callers", message)
        gate = served.gate("b")
        assert gate.call("version") == 1
        with pytest.raises(Exception, match="budget"):
            gate.call("version")
        with pytest.raises(ControlFailed, match="already"):
            served.control("POST", "/v1/callers", message)
        served.control("POST", "/v1/remove/b")
        assert not served.socket_path("b").exists()
        with pytest.raises(ConnectionError):
            gate.call("version")
        assert served.gate("a").call("version") == 1


MEMORY = """
    import dataclasses
    from collections.abc import Iterator

    import numpy as np

    # The allocator keeps what is smaller than 32 MiB for later instead of giving it back.
    big = np.ones(40 << 17)

    class Bad(ValueError):
        pass

    @dataclasses.dataclass
    class Record:
        size: int

    @expose
    def plain() -> int:
        return len(big)

    @expose
    def record() -> Record:
        return Record(len(big))

    @expose
    def bad() -> int:
        raise Bad(len(big))

    @expose(batch=4)
    def batched(x: list[int]) -> list[int]:
        return [len(big) for _ in x]

    @expose
    async def asynchronous() -> int:
        return len(big)

    @expose(max_concurrency=2)
    def threaded(release: str) -> int:
        while not os.path.exists(release):
            time.sleep(0.005)
        return len(big)

    @expose
    def stream() -> Iterator[int]:
        yield len(big)

    import os
    import time
"""


def resident(served: Served) -> int:
    """The resident memory of the interface's process, in MiB."""
    return int(Path(f"/proc/{served.pid}/statm").read_text().split()[1]) * 4096 >> 20


def test_reloads_give_back_the_memory_of_every_module_before() -> None:
    with serving(MEMORY) as served:
        gate = served.gate()
        before = 0
        for number in range(10):
            for function in ("plain", "record", "asynchronous"):
                gate.call(function)
            with pytest.raises(ValueError):
                gate.call("bad")
            gate.call("batched", (1,))
            gate.call("threaded", (str(served.folder),))
            assert list(gate.stream("stream")) == [40 << 17]
            served.control("POST", "/v1/reload")
            if number == 0:
                before = resident(served)
        # Ten modules have 400 MiB. The one before the last may still be there now, and may
        # have been gone when the first figure was taken.
        wait_until(lambda: resident(served) < before + 60)


def test_a_module_goes_when_the_last_call_of_its_code_has_ended() -> None:
    with serving(MEMORY) as served:
        gate = served.gate()
        gate.call("plain")
        before = resident(served)
        release = served.folder / "release"
        with ThreadPoolExecutor() as pool:
            running = pool.submit(served.gate().call, "threaded", (str(release),))
            try:
                wait_until(lambda: gate.health()["calls"] == 1)
                served.control("POST", "/v1/reload")
                assert resident(served) > before + 20
            finally:
                release.touch()
            assert running.result() == 40 << 17
        wait_until(lambda: resident(served) < before + 20)


GPU = """
    import sys
    import types
    from functools import partial

    class Model:
        def __del__(self):
            events.append("gone")

    if "torch" not in sys.modules:
        torch = types.ModuleType("torch")
        torch.events = []
        torch.Tensor = type("Tensor", (), {})
        torch.cuda = types.SimpleNamespace(
            is_initialized=partial(bool, 1),
            empty_cache=partial(torch.events.append, "emptied"),
        )
        sys.modules["torch"] = torch
    events = sys.modules["torch"].events
    model = Model()
    model.itself = model

    @expose
    def seen() -> list[str]:
        return list(events)
"""


def test_a_model_that_is_not_kept_leaves_the_gpu_with_the_reload() -> None:
    with serving(GPU) as served:
        gate = served.gate()
        assert gate.call("seen") == []
        served.control("POST", "/v1/reload")
        assert gate.call("seen") == ["gone", "emptied"]
