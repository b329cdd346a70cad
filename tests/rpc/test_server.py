"""The gate from outside: what can be called, by hand and through the client."""

import json
import shutil
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.errors import ArgumentError, RemoteError, ResultError, UnknownFunctionError
from tests.rpc.serving import (
    HOLD,
    SOON,
    ControlFailed,
    Served,
    exchange,
    holding,
    http,
    run_together,
    serving,
    wait_until,
)

pytestmark = pytest.mark.full

SOURCE = (
    '''
    """Tools for tests."""
    import threading
    import time
    from typing import Literal

    calls = []

    @expose
    def small(x: int) -> int:
        """Add one."""
        calls.append(x)
        return x + 1

    @expose
    def seen() -> list:
        return calls

    @expose
    def which_thread() -> bool:
        return threading.current_thread() is threading.main_thread()

    @expose
    def echo(value: dict) -> dict:
        return value

    @expose
    def fail(message: str) -> None:
        raise ValueError(message)

    class Own(KeyError):
        pass

    @expose
    def fail_own() -> None:
        raise Own("mine")

    @expose
    def fail_chained() -> None:
        try:
            {}["a"]
        except KeyError as error:
            raise RuntimeError("outer") from error

    @expose
    def leave() -> None:
        raise SystemExit(3)

    @expose
    def unsendable() -> dict:
        return {"a": [1, 2, object()]}


    @expose
    def items(n: int):
        for i in range(n):
            yield {"i": i}
        if n > 100:
            raise ValueError("too many")

    @expose
    async def later(x: int) -> int:
        import asyncio
        await asyncio.sleep(0.05)
        return x * 2

    waiting = []

    @expose
    async def meet(n: int) -> int:
        import asyncio
        waiting.append(n)
        while len(waiting) < n:
            await asyncio.sleep(0.005)
        return n

    everybody = threading.Barrier(4)

    @expose
    async def later_items(n: int):
        for i in range(n):
            yield i

    @expose(max_concurrency=4)
    def parallel() -> str:
        everybody.wait(60)
        return threading.current_thread().name

    def hidden() -> str:
        return "secret"
'''
    + HOLD
)


@pytest.fixture(scope="module")
def served() -> Generator[Served]:
    with serving(SOURCE) as served:
        yield served


def test_a_function_is_called_and_module_state_lasts(served: Served) -> None:
    gate = served.gate()
    assert gate.call("small", (41,)) == 42
    assert gate.call("small", (), {"x": 1}) == 2
    assert 41 in gate.call("seen")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_can_call_a_function(served: Served) -> None:
    command = ["curl", "-s", "--unix-socket", str(served.socket_path("a"))]
    command += ["http://gate/v1/call/small", "-d", '{"args": [1]}']
    out = subprocess.run(command, capture_output=True, timeout=20, check=True).stdout
    assert json.loads(out) == {"result": 2}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_reads_a_stream_line_by_line(served: Served) -> None:
    command = ["curl", "-s", "--unix-socket", str(served.socket_path("a"))]
    command += ["http://gate/v1/call/items", "-d", '{"args": [2]}']
    out = subprocess.run(command, capture_output=True, timeout=20, check=True).stdout
    assert [json.loads(line) for line in out.splitlines()] == [
        {"item": {"i": 0}},
        {"item": {"i": 1}},
        {"end": None},
    ]


def test_functions_run_on_the_thread_that_imported_the_module(served: Served) -> None:
    assert served.gate().call("which_thread") is True


@pytest.mark.parametrize("name", ["hidden", "calls", "small.__globals__", "__import__", "..", "~1"])
def test_what_is_not_exposed_cannot_be_reached(served: Served, name: str) -> None:
    with pytest.raises((UnknownFunctionError, Exception)) as caught:
        served.gate().call(name)
    assert type(caught.value).__name__ in ("UnknownFunctionError", "ProtocolError")


def test_an_unknown_function_is_an_attribute_error_that_names_what_there_is(
    served: Served,
) -> None:
    with pytest.raises(AttributeError, match="small"):
        served.gate().call("smal")


def test_an_exception_arrives_with_its_builtin_base_message_and_traceback(served: Served) -> None:
    with pytest.raises(ValueError, match="bad thing") as caught:
        served.gate().call("fail", ("bad thing",))
    error = caught.value
    assert isinstance(error, RemoteError)
    assert error.type_name == "ValueError"
    assert ", in fail\nValueError: bad thing\n" in error.remote_traceback
    assert "seer" not in error.remote_traceback


def test_a_class_of_the_interface_arrives_by_name_with_its_builtin_base(served: Served) -> None:
    with pytest.raises(KeyError) as caught:
        served.gate().call("fail_own")
    assert type(caught.value).__name__ == "Own"
    assert str(caught.value) == "'mine'"


def test_a_chained_exception_shows_its_cause(served: Served) -> None:
    with pytest.raises(RuntimeError, match="outer") as caught:
        served.gate().call("fail_chained")
    assert isinstance(caught.value, RemoteError)
    assert "direct cause" in caught.value.remote_traceback


def test_a_function_that_exits_does_not_take_the_interface_along(served: Served) -> None:
    with pytest.raises(RemoteError) as caught:
        served.gate().call("leave")
    assert caught.value.type_name == "SystemExit"
    assert served.gate().call("small", (1,)) == 2


def test_wrong_arguments_are_refused_before_the_function_runs(served: Served) -> None:
    with pytest.raises(ArgumentError, match="'x'"):
        served.gate().call("small", ("no",))
    assert "no" not in served.gate().call("seen")


def test_a_result_that_cannot_be_sent_names_the_path(served: Served) -> None:
    with pytest.raises(ResultError, match=r"unsendable\(\).*\['a'\]\[2\]"):
        served.gate().call("unsendable")


def test_streams_arrive_item_by_item_and_end_with_their_error(served: Served) -> None:
    gate = served.gate()
    assert [item["i"] for item in gate.stream("items", (3,))] == [0, 1, 2]
    seen: list[int] = []
    with pytest.raises(ValueError, match="too many"):
        for item in gate.stream("items", (101,)):
            seen.append(item["i"])
    assert len(seen) == 101


def test_leaving_a_stream_ends_its_generator(served: Served) -> None:
    gate = served.gate()
    for item in gate.stream("items", (100,)):
        if item["i"] == 1:
            break
    assert gate.call("small", (1,)) == 2


def test_async_functions_run_side_by_side(served: Served) -> None:
    gate = served.gate()
    assert gate.call("later", (4,)) == 8
    assert list(gate.stream("later_items", (3,))) == [0, 1, 2]
    assert run_together(lambda: gate.call("meet", (20,)), 20) == [20] * 20


async def test_the_awaitable_forms_do_what_the_others_do(served: Served) -> None:
    gate = served.gate()
    assert await gate.acall("small", (1,)) == 2
    assert [item async for item in gate.astream("later_items", (3,))] == [0, 1, 2]
    with pytest.raises(ValueError, match="x"):
        await gate.acall("fail", ("x",))


def test_a_function_with_concurrency_runs_on_several_threads(served: Served) -> None:
    names = run_together(lambda: served.gate().call("parallel"), 4)
    assert len(set(names)) == 4


def test_health_and_budget_are_answered_while_a_function_runs(served: Served) -> None:
    with holding(served):
        assert served.calls() == 1
        assert served.gate().budget()


def test_health_shows_a_caller_nothing_of_the_host(served: Served) -> None:
    assert set(served.gate().health()) == {"epoch", "seconds", "calls", "detached"}


def test_the_schema_is_what_the_file_says(served: Served) -> None:
    schema = served.gate().schema()
    names = {function["name"] for function in schema["functions"]}
    assert "small" in names
    assert "hidden" not in names


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/secret HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/call/small HTTP/1.1\r\n\r\n", 405),
        (b"PUT /v1/call/small HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 405),
        (b"POST /v1/call/small HTTP/1.1\r\n\r\n", 411),
        (b"POST /v1/call/small HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 411),
        (b"POST /v1/call/small HTTP/1.1\r\ncontent-length: 9999999999999\r\n\r\n", 413),
        (b"POST /v1/call/small HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST /v1/call/small HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n[]", 400),
        (b"GET /v1/health HTTP/1.0\r\n\r\n", 505),
        (b"GET /v1/health HTTP/1.1\r\nseer-gate: 2\r\n\r\n", 426),
        (b"GET /v1/health HTTP/1.1\r\nseer-unknown: 2\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\nseer-release: 7\r\n\r\n", 400),
        (b"GET /v1/../control HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/health?x=1 HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/call/small HTTP/1.1\r\ncontent-length: 1\r\n\r\n{", 400),
        (b"POST /v1/call/small HTTP/1.1\r\ncontent-length: 9\r\n\r\n[1, 2, 3]", 400),
        (b'POST /v1/call/small HTTP/1.1\r\ncontent-length: 21\r\n\r\n{"args":[1],"eval":1}', 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.1\r\nx: " + b"y" * 20000, 431),
    ],
)
def test_requests_that_break_the_rules_get_a_typed_refusal(
    served: Served, message: bytes, status: int
) -> None:
    found, text = exchange(served.socket_path("a"), message)
    assert (found, "error" in json.loads(text)) == (status, True)
    assert served.gate().call("small", (1,)) == 2


def test_a_request_with_another_version_is_told_both(served: Served) -> None:
    message = b"GET /v1/health HTTP/1.1\r\nseer-gate: 2\r\n\r\n"
    text = exchange(served.socket_path("a"), message)[1].decode()
    assert "version '2'" in text
    assert "this gate speaks 1" in text


def test_control_routes_are_not_on_a_callers_socket(served: Served) -> None:
    for method, path in [("POST", "/v1/stop"), ("POST", "/v1/reload"), ("POST", "/v1/callers")]:
        with pytest.raises(ControlFailed) as caught:
            http(served.socket_path("a"), method, path)
        assert caught.value.status == 404


def test_a_flood_of_async_calls_does_not_starve_another_caller(tmp_path: Path) -> None:
    source = """
        import asyncio
        import os

        seen = []

        @expose(max_concurrency=1)
        async def alone(x: int, until: str = "") -> None:
            while until and not os.path.exists(until):
                await asyncio.sleep(0.005)
            seen.append(x)

        @expose
        def order() -> list[int]:
            return seen
    """
    with serving(source, callers={"a": {}, "b": {}}) as served:
        flood, modest = served.gate("a"), served.gate("b")
        calls = [(flood, (0, str(tmp_path / "go"))), *[(flood, (1,))] * 20, *[(modest, (2,))] * 3]
        threads: list[threading.Thread] = []
        for number, (gate, args) in enumerate(calls, 1):
            threads.append(threading.Thread(target=gate.call, args=("alone", args)))
            threads[-1].start()
            wait_until(lambda number=number: served.calls() == number)
        (tmp_path / "go").touch()
        for thread in threads:
            thread.join(timeout=SOON)
        turns = flood.call("order")
        assert len(turns) == 24
        assert turns[:8].count(2) == 3


def test_a_flooding_caller_does_not_starve_another() -> None:
    with serving(SOURCE, callers={"a": {}, "b": {}}) as served:
        flood, modest = served.gate("a"), served.gate("b")
        threads = [
            threading.Thread(target=flood.call, args=("small", (number,))) for number in range(20)
        ]
        late = [threading.Thread(target=modest.call, args=("small", (100,))) for _ in range(3)]
        with holding(served) as waiting:
            for thread in threads:
                thread.start()
            waiting(20)
            for thread in late:
                thread.start()
            waiting(23)
        for thread in threads + late:
            thread.join(timeout=SOON)
        # One turn of the other caller for each of ours, although all its calls came first.
        turns = flood.call("seen")
        assert len(turns) == 23
        assert turns[:7].count(100) == 3
