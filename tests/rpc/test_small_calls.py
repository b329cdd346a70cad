"""Many small calls over one connection: each is run, counted and answered like the first."""

import json
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import ArgumentError, RemoteError, ResultError
from tests.rpc.serving import SOON, Served, read_answer, serving, wait_until

pytestmark = pytest.mark.full

SOURCE = """
    import os
    import time
    import numpy as np

    log = []

    @expose
    def give(value: object) -> object:
        log.append("give")
        return value

    @expose
    def add(x: int, y: float = 0.5) -> float:
        return x + y

    @expose
    def wait(release: str) -> str:
        log.append("wait")
        try:
            while not os.path.exists(release):
                time.sleep(0.002)
        finally:
            log.append("left")
        return "waited"

    @expose
    def wait_and_fail(release: str) -> str:
        wait(release)
        raise ValueError("waited")

    @expose
    def seen() -> list[str]:
        return log

    @expose
    def ones(count: int) -> np.ndarray:
        return np.ones(count)

    @expose
    def module() -> object:
        return {"a": [0, os]}

    @expose
    def fail(kind: str) -> None:
        if kind == "exit":
            raise SystemExit(3)
        if kind == "mute":
            raise Mute
        raise KeyError(kind)

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError
"""


class Caller:
    """A connection by hand, whose requests are alike."""

    def __init__(self, served: Served, function: str, headers: str = "") -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(served.socket_path("a")))
        epoch = served.gate().health()["epoch"]
        self._head = (
            f"POST /v1/call/{function} HTTP/1.1\r\nseer-gate: 1\r\nseer-accept: frames\r\n"
            f"seer-epoch: {epoch}\r\n{headers}seer-call: "
        ).encode()

    def send(self, call: str, body: bytes) -> None:
        """Send a request."""
        length = b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._socket.sendall(self._head + call.encode() + length + body)

    def answer(self) -> tuple[int, Any]:
        """The answer, without the traceback, which differs from place to place."""
        status, text = read_answer(self._socket)
        found: dict[str, Any] = json.loads(text)
        if "error" in found:
            found["error"].pop("traceback", None)
        return status, found

    def call(self, call: str, body: bytes) -> tuple[int, Any]:
        """Send a request and return its answer."""
        self.send(call, body)
        return self.answer()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@pytest.fixture(scope="module")
def served() -> Generator[Served]:
    with serving(SOURCE) as served:
        yield served


def warm(served: Served, function: str, body: bytes, headers: str = "") -> Caller:
    """A connection that has made a call."""
    caller = Caller(served, function, headers)
    caller.call(f"warm-{function}-{id(caller)}", body)
    return caller


def running(served: Served) -> int:
    """How many calls run."""
    gate = served.gate()
    try:
        return gate.health()["calls"]
    finally:
        gate.close()


BODIES = [
    b"[[1],{}]",
    b"[[null],{}]",
    b"[[NaN],{}]",
    b"[[1e999],{}]",
    b'[["\\ud800"],{}]',
    '[["\u00fc\U0001f600"],{}]'.encode(),
    b'[["\xff"],{}]',
    b'[["\xed\xa0\x80"],{}]',
    b'[[{"$seer":"tuple","items":[1,2]}],{}]',
    b'[[{"$seer":"unheard"}],{}]',
    b'[[{"\\u0024seer":1}],{}]',
    b'[[],{"value":{"a":[1,2]}}]',
    b'[[],{"other":1}]',
    b'[[1],{"value":1}]',
    b"[[1,2],{}]",
    b"[[],{}]",
    b'{"args":[1],"kwargs":{}}',
    b'{"args":1,"kwargs":{}}',
    b'{"0":1,"1":2}',
    b'"ab"',
    b"[[1],{}] ",
    b" [[1],{}]",
    b"[[1],{}]]",
    b"[[1],{}",
    b"[1,{}]",
    b"[[1],[]]",
    b"[[1],{},{}]",
    b"[]",
    b"1",
    b"",
    b"[[" + b"[" * 99 + b"]" * 99 + b"],{}]",
    b"[[" + b"[" * 101 + b"]" * 101 + b"],{}]",
    b"[[" + b"[" * 9000 + b"]" * 9000 + b"],{}]",
    b"[[" + b"9" * 5000 + b"],{}]",
    b'[["' + b"x" * 60000 + b'"],{}]',
    b"[[" + b"[]," * 200 + b"[]],{}]",
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_a_repeated_body_is_read_or_refused_as_the_first_time(served: Served, body: bytes) -> None:
    caller = Caller(served, "give")
    first = caller.call(f"first-{id(body)}", body)
    assert caller.call(f"second-{id(body)}", body) == first
    assert caller.call(f"third-{id(body)}", b"[[1],{}]") == (200, {"result": 1})
    caller.close()


def test_arguments_are_checked_and_converted(served: Served) -> None:
    gate = served.gate()
    for _ in range(3):
        assert gate.call("add", (1,)) == 1.5
        result = gate.call("add", (1, 2))
        assert (result, type(result)) == (3, float)
        with pytest.raises(ArgumentError, match="parameter 'x'"):
            gate.call("add", ("one",))


def test_results_of_any_kind_come_back(served: Served) -> None:
    gate = served.gate()
    for _ in range(3):
        assert gate.call("give", (1,)) == 1
        assert np.array_equal(gate.call("ones", (5,)), np.ones(5))
        with pytest.raises(ResultError, match=r"result\['a'\]\[1\]"):
            gate.call("module")


def test_whatever_a_function_raises_is_its_callers_to_see(served: Served) -> None:
    gate = served.gate()
    for _ in range(3):
        with pytest.raises(KeyError, match="other") as caught:
            gate.call("fail", ("other",))
        assert isinstance(caught.value, RemoteError)
        assert "line" in caught.value.remote_traceback
        assert "seer/rpc" not in caught.value.remote_traceback
        with pytest.raises(RemoteError) as exited:
            gate.call("fail", ("exit",))
        assert exited.value.type_name == "SystemExit"
        with pytest.raises(RemoteError, match="could not be made"):
            gate.call("fail", ("mute",))


def test_an_exception_without_a_text_costs_neither_its_connection_nor_a_second_call() -> None:
    with serving(SOURCE) as served:
        caller = Caller(served, "fail")
        for number in range(4):
            status, found = caller.call(f"mute-{number}", b'[["mute"],{}]')
            assert (status, found["error"]["name"]) == (500, "Mute")
        assert served.control("GET", "/v1/budget")["functions"]["fail"]["calls"] == 4
        caller.close()


def test_what_is_returned_with_an_array_is_looked_at_once() -> None:
    source = """
    import gc
    import weakref
    import numpy as np
    from seer.rpc import Handle

    class Thing:
        pass

    things = weakref.WeakSet()

    @expose
    def both() -> dict[str, object]:
        thing = Thing()
        things.add(thing)
        return {"handle": Handle(thing), "array": np.ones(3)}

    @expose
    def unsendable() -> dict[str, object]:
        return {**both(), "module": np}

    @expose
    def alive() -> int:
        gc.collect()
        return len(things)
    """
    with serving(source) as served:
        gate = served.gate()
        for _ in range(4):
            found = gate.call("both")
            assert np.array_equal(found["array"], np.ones(3))
            found["handle"].free()
        assert gate.call("alive") == 0
        caller = Caller(served, "unsendable")
        answers = [caller.call(f"unsendable-{number}", b"[[],{}]") for number in range(3)]
        assert "result['module'] is a module" in answers[0][1]["error"]["message"]
        assert answers == [answers[0]] * 3
        caller.close()


def test_arguments_that_do_not_fit_are_checked_once() -> None:
    source = """
    from typing import Annotated
    from pydantic import AfterValidator, BaseModel

    checked = []

    def check(value: int) -> int:
        checked.append(value)
        if value == 1:
            raise ValueError("not that one")
        if value == 2:
            raise SystemExit(3)
        if value == 3:
            raise Mute
        return value

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Given(BaseModel):
        value: Annotated[int, AfterValidator(check)]

    @expose
    def take(given: Given) -> list[int]:
        return checked
    """
    with serving(source) as served:
        caller = warm(served, "take", b'[[{"value":0}],{}]')
        for value, error in ((1, "ArgumentError"), (2, "ArgumentError"), (3, "GateError")):
            body = b'[[{"value":%d}],{}]' % value
            answers = [caller.call(f"{value}-{number}", body) for number in range(3)]
            assert answers == [answers[0]] * 3
            assert answers[0][1]["error"]["type"] == error
        assert caller.call("last", b'[[{"value":0}],{}]') == (
            200,
            {"result": [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0]},
        )
        caller.close()


def test_a_first_request_of_no_known_form_is_refused(served: Served) -> None:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(60)
        connected.connect(str(served.socket_path("a")))
        connected.sendall(b"\0call\r\ncontent-length: 0\r\n\r\n")
        assert read_answer(connected)[0] == 400


def test_a_connection_at_rest_keeps_nothing_of_what_was_reloaded() -> None:
    source = """
    import gc
    import sys
    import weakref

    class Weights:
        pass

    weights = Weights()
    sys.all_weights = getattr(sys, "all_weights", None) or weakref.WeakSet()
    sys.all_weights.add(weights)

    @expose
    def give(value: int) -> int:
        return value

    @expose
    def alive() -> int:
        gc.collect()
        return len(sys.all_weights)
    """
    with serving(source) as served:
        # Objects that exist at the start are never collected.
        served.control("POST", "/v1/reload")
        gate, other = served.gate(), served.gate()
        assert [gate.call("give", (1,)) for _ in range(3)] == [1] * 3
        before = other.call("alive")
        served.control("POST", "/v1/reload")
        assert other.call("alive") == before
        assert gate.call("give", (2,)) == 2


def test_a_call_read_in_the_middle_of_a_reload_does_not_bind_later_ones_to_the_old_function(
    tmp_path: Path,
) -> None:
    source = f"""
    import os
    import threading
    import time
    import seer.rpc.server._gate as gate

    expose_them, tally = gate.Gate.expose, gate.Tally
    exposed = threading.Event()

    def expose_and_tell(*given):
        expose_them(*given)
        if os.path.exists({str(tmp_path / "loading")!r}):
            exposed.set()

    def tally_slowly(*given):
        if os.path.exists({str(tmp_path / "loading")!r}):
            open({str(tmp_path / "reading")!r}, "w").close()
            exposed.wait(60)
        return tally(*given)

    gate.Gate.expose, gate.Tally = expose_and_tell, tally_slowly

    @expose
    def version() -> int:
        return 1
    """
    reloaded = f"""
    import os
    import time

    open({str(tmp_path / "loading")!r}, "w").close()
    while not os.path.exists({str(tmp_path / "reading")!r}):
        time.sleep(0.002)

    @expose
    def version() -> int:
        return 2
    """
    with serving(source) as served:
        caller = Caller(served, "version")
        served.write(reloaded)
        with ThreadPoolExecutor(1) as pool:
            reload = pool.submit(served.control, "POST", "/v1/reload")
            wait_until((tmp_path / "loading").exists)
            assert caller.call("first", b"[[],{}]") == (200, {"result": 1})
            reload.result(timeout=SOON)
        # The main thread watches the sockets again once a call has found it waiting.
        other = served.gate()
        assert [other.call("version") for _ in range(10)] == [2] * 10
        assert [caller.call(f"later-{i}", b"[[],{}]") for i in range(3)] == [
            (200, {"result": 2})
        ] * 3
        caller.close()


@pytest.mark.parametrize("function", ["wait", "wait_and_fail"])
def test_a_call_that_takes_long_is_seen_and_answered(
    served: Served, tmp_path: Path, function: str
) -> None:
    now, later = tmp_path / "now", tmp_path / "later"
    now.touch()
    gate = served.gate()

    def call(release: Path) -> Any:
        try:
            return gate.call(function, (str(release),))
        except ValueError as error:
            return f"{error}"

    assert call(now) == "waited"
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            future = pool.submit(call, later)
            wait_until(lambda: running(served) == 1)
            later.touch()
            assert future.result(timeout=SOON) == "waited"
            assert running(served) == 0
            later.unlink()


def test_a_call_can_be_cancelled(served: Served, tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    caller = warm(served, "wait", json.dumps([[str(tmp_path / "now")], {}]).encode())
    caller.send("endless", json.dumps([[str(tmp_path / "never")], {}]).encode())
    wait_until(lambda: running(served) == 1)
    gate = served.gate()
    assert gate.cancel("endless")
    status, found = caller.answer()
    assert (status, found["error"]["type"]) == (409, "CallCancelledError")
    assert not gate.cancel("endless")
    assert gate.call("seen")[-1] == "left"
    assert caller.call("after", json.dumps([[str(tmp_path / "now")], {}]).encode())[0] == 200
    caller.close()


def test_what_is_cancelled_while_its_arguments_are_checked_is_not_run(tmp_path: Path) -> None:
    source = """
    import os
    import time
    from typing import Annotated
    from pydantic import AfterValidator, BaseModel

    log = []

    def slowly(path: str) -> str:
        while not os.path.exists(path):
            time.sleep(0.002)
        return path

    class Given(BaseModel):
        path: Annotated[str, AfterValidator(slowly)]

    @expose
    def take(given: Given) -> int:
        log.append("ran")
        return 1

    @expose
    def seen() -> list[str]:
        return log
    """
    (tmp_path / "now").touch()
    now, later = (
        json.dumps([[{"path": str(tmp_path / name)}], {}]).encode() for name in ("now", "later")
    )
    with serving(source) as served:
        caller = warm(served, "take", now)
        assert caller.call("second", now) == (200, {"result": 1})
        caller.send("third", later)
        wait_until(lambda: running(served) == 1)
        gate = served.gate()
        assert gate.cancel("third")
        (tmp_path / "later").touch()
        assert caller.answer()[1]["error"]["type"] == "CallCancelledError"
        assert gate.call("seen") == ["ran"] * 2
        caller.close()


def test_a_caller_that_goes_away_cancels_its_call(served: Served, tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    caller = warm(served, "wait", json.dumps([[str(tmp_path / "now")], {}]).encode())
    caller.send("left", json.dumps([[str(tmp_path / "never")], {}]).encode())
    wait_until(lambda: running(served) == 1)
    caller.close()
    wait_until(lambda: running(served) == 0)
    assert served.gate().call("seen")[-1] == "left"


def test_a_call_that_may_linger_is_answered_on_another_connection(
    served: Served, tmp_path: Path
) -> None:
    (tmp_path / "now").touch()
    now, later = (json.dumps([[str(tmp_path / name)], {}]).encode() for name in ("now", "later"))
    caller = warm(served, "wait", now, "seer-linger: 60\r\n")
    caller.send("lingers", later)
    wait_until(lambda: running(served) == 1)
    caller.close()
    (tmp_path / "later").touch()
    again = Caller(served, "wait")
    assert again.call("lingers", later) == (200, {"result": "waited"})
    again.close()


def test_the_same_id_is_executed_once(served: Served, tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    now, later = (json.dumps([[str(tmp_path / name)], {}]).encode() for name in ("now", "later"))
    callers = [warm(served, "wait", now) for _ in range(3)]
    before = served.gate().call("seen").count("wait")
    for caller in callers:
        caller.send("once", later)
    wait_until(lambda: running(served) == 1)
    (tmp_path / "later").touch()
    assert [caller.answer() for caller in callers] == [(200, {"result": "waited"})] * 3
    assert callers[0].call("once", later) == (200, {"result": "waited"})
    assert served.gate().call("seen").count("wait") == before + 1
    for caller in callers:
        caller.close()


def test_a_request_before_the_answer_is_refused(served: Served, tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    caller = warm(served, "wait", json.dumps([[str(tmp_path / "now")], {}]).encode())
    body = json.dumps([[str(tmp_path / "never")], {}]).encode()
    caller.send("one", body)
    wait_until(lambda: running(served) == 1)
    caller.send("two", body)
    status, found = caller.answer()
    assert status == 400
    assert "before the first was answered" in found["error"]["message"]
    wait_until(lambda: running(served) == 0)
    caller.close()


def test_others_are_answered_while_a_call_runs(served: Served, tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    now, later = (json.dumps([[str(tmp_path / name)], {}]).encode() for name in ("now", "later"))
    callers = [warm(served, "wait", now) for _ in range(2)]
    other = warm(served, "give", b"[[1],{}]")
    callers[0].send("runs", later)
    wait_until(lambda: running(served) == 1)
    callers[1].send("waits", later)
    other.send("waits-too", b"[[2],{}]")
    wait_until(lambda: running(served) == 3)
    (tmp_path / "later").touch()
    assert [caller.answer()[0] for caller in (*callers, other)] == [200] * 3
    for caller in (*callers, other):
        caller.close()


def test_usage_is_counted_alike() -> None:
    with serving(SOURCE) as served:
        gate = served.gate()
        for _ in range(100):
            gate.call("add", (1,))
        found = served.control("GET", "/v1/budget")["functions"]["add"]
        assert found["calls"] == 100
        assert found["bytes"] == 100 * (len("[[1],{}]") + len('{"result":1.5}'))


def test_a_limit_that_is_set_holds_from_the_next_call_on() -> None:
    with serving(SOURCE) as served:
        gate = served.gate()
        assert [gate.call("add", (1,)) for _ in range(3)] == [1.5] * 3
        served.control(
            "POST", "/v1/budget", {"scope": "function", "name": "add", "budget": {"calls": 4}}
        )
        assert gate.call("add", (1,)) == 1.5
        with pytest.raises(Exception, match="budget of function 'add' is used up"):
            gate.call("add", (1,))


def test_after_a_reload_the_new_function_is_called() -> None:
    with serving(SOURCE) as served:
        gate = served.gate()
        assert [gate.call("add", (1,)) for _ in range(3)] == [1.5] * 3
        served.write(SOURCE.replace("return x + y", "return x - y"))
        served.control("POST", "/v1/reload")
        assert [gate.call("add", (1,)) for _ in range(3)] == [0.5] * 3


def test_a_crash_names_the_function_that_ran() -> None:
    source = (
        SOURCE
        + """
    @expose
    def end(now: bool) -> int:
        if now:
            os._exit(7)
        return 1
    """
    )
    with serving(source) as served:
        gate = served.gate()
        assert [gate.call("end", (False,)) for _ in range(3)] == [1] * 3
        with pytest.raises(Exception, match=r"status 7, while it ran end\(\)"):
            gate.call("end", (True,))


def test_records_have_the_same_fields(tmp_path: Path) -> None:
    with serving(SOURCE, record=str(tmp_path / "record")) as served:
        followed = served.follow("a")
        gate = served.gate()
        for _ in range(3):
            gate.call("add", (1,))
        first, *others = served.recorded(followed)
        assert len(others) == 2
        for line in (first, *others):
            assert line.pop("queue") >= 0
            assert all(line.pop(name) for name in ("time", "call", "run"))
        assert others == [first] * 2


def test_many_threads_of_one_caller_get_their_own_answers(served: Served) -> None:
    gate = served.gate()
    wrong: list[object] = []

    def calls(start: int) -> None:
        wrong.extend(i for i in range(start, start + 300) if gate.call("give", (i,)) != i)

    threads = [threading.Thread(target=calls, args=(1000 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
