"""For every fault of the interface, callers get a typed error soon, and nothing hangs."""

import contextlib
import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seer.errors import (
    CallLostError,
    GateError,
    InterfaceDiedError,
    InterfaceRestartedError,
)
from tests.rpc.serving import SOON, ControlFailed, Served, exchange, serving, wait_until

pytestmark = pytest.mark.full

SOURCE = """
    import ctypes
    import multiprocessing
    import os
    import signal
    import sys
    import time

    state = {"calls": 0}

    @expose
    def small(x: int) -> int:
        state["calls"] += 1
        return x + 1

    @expose
    def calls() -> int:
        return state["calls"]

    @expose
    def nap(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @expose
    def leave(code: int) -> None:
        sys.stderr.write("last words\\n")
        os._exit(code)

    @expose
    def segfault() -> None:
        ctypes.string_at(0)

    @expose
    def hold_the_gil(seconds: float) -> float:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        return seconds

    @expose
    def eat(gigabytes: int) -> int:
        data = []
        for _ in range(gigabytes * 16):
            data.append(bytearray(os.urandom(1 << 20)) * 64)
        return len(data)

    @expose
    def starve() -> int:
        import resource
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
        return free

    workers = []

    @expose
    def fork_worker() -> int:
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        worker.start()
        workers.append(worker.pid)
        return worker.pid

    @expose(max_concurrency=2)
    def fork_and_nap(seconds: float) -> None:
        fork_worker()
        time.sleep(seconds)

    @expose
    def children() -> dict:
        while len(workers) < 2:
            time.sleep(0.005)
        return {"pid": os.getpid(), "workers": workers}

    @expose
    def come_back(after: float) -> int:
        time.sleep(after)
        return os.fork()

    @expose(max_concurrency=2)
    def come_back_to_a_thread() -> int:
        return os.fork()

    @expose
    async def come_back_to_a_loop() -> int:
        return os.fork()

    @expose(idempotent=True)
    def safe(path: str) -> str:
        if not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    @expose
    def items():
        for i in range(1000):
            yield i
            if i == 5:
                os._exit(9)
"""


def test_a_call_whose_answer_cannot_be_recorded_ends_with_a_typed_error(tmp_path: Path) -> None:
    source = """
        from seer.rpc.server._recorder import Recorder

        def out_of_memory(*_, **__):
            raise MemoryError

        @expose
        def broken() -> int:
            Recorder.add = out_of_memory
            return 1
    """
    with serving(source, record=str(tmp_path / "record")) as served:
        gate = served.gate()
        assert "MemoryError" in soon(lambda: gate.call("broken"), GateError)
        assert gate.health()["calls"] == 0


def soon(call: Callable[[], object], kind: type[BaseException]) -> str:
    """The message of the error, which must come soon."""
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - begin < SOON
    return str(caught.value)


def in_flight(served: Served, function: str, *args: object) -> Callable[[], BaseException]:
    """Start a call and wait until it runs; returns a function that waits for its error."""
    found: list[BaseException] = []

    def call() -> None:
        try:
            served.gate().call(function, args)
        except GateError as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: served.calls() >= 1)

    def result() -> BaseException:
        thread.join(timeout=SOON)
        assert found, "the call has no error"
        return found[0]

    return result


def test_a_kill_during_a_call_is_a_lost_call_and_later_ones_say_how_it_ended() -> None:
    with serving(SOURCE) as served:
        error = in_flight(served, "nap", 60.0)
        begin = time.monotonic()
        served.kill_interface()
        found = error()
        assert time.monotonic() - begin < SOON
        assert isinstance(found, CallLostError)
        assert "SIGKILL" in str(found)
        assert "nap()" in str(found)
        assert "SIGKILL" in soon(lambda: served.gate().call("small", (1,)), InterfaceDiedError)
        assert served.control("GET", "/v1/health")["state"] == "dead"


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_workers_that_a_function_forked_keep_no_caller_waiting(replicas: int) -> None:
    with serving(SOURCE, restart="on-failure", replicas=replicas) as served:
        gate = served.gate()
        gate.call("fork_worker")
        error = in_flight(served, "fork_and_nap", 60.0)
        home = gate.call("children")
        try:
            os.kill(home["pid"], signal.SIGKILL)
            assert isinstance(error(), CallLostError)
            with contextlib.suppress(InterfaceRestartedError):
                gate.call("small", (1,))
            assert gate.call("small", (1,)) == 2
        finally:
            for worker in home["workers"]:
                os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
@pytest.mark.parametrize(
    ("function", "args"),
    [
        ("come_back", (0.0,)),
        ("come_back", (0.1,)),  # another thread leads
        ("come_back_to_a_thread", ()),
        ("come_back_to_a_loop", ()),
    ],
)
def test_a_forked_process_that_comes_back_to_the_gate_answers_nobody_and_ends(
    function: str, args: tuple[float, ...], replicas: int
) -> None:
    with serving(SOURCE, replicas=replicas) as served:
        gate = served.gate()
        for _ in range(3):
            forked = gate.call(function, args)
            assert gate.call("small", (1,)) == 2
            wait_until(lambda forked=forked: not is_running(forked))


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_function_that_ends_the_process_says_with_which_status() -> None:
    with serving(SOURCE, tracebacks=True) as served:
        message = soon(lambda: served.gate().call("leave", (7,)), CallLostError)
        assert "status 7" in message
        assert "last words" in message


@pytest.mark.parametrize("options", [{"blind": True}, {}], ids=["hidden", "names"])
def test_the_output_is_told_to_the_controller_and_not_to_callers(options: dict[str, bool]) -> None:
    with serving(SOURCE, **options) as served:
        message = soon(lambda: served.gate().call("leave", (7,)), CallLostError)
        assert "last words" not in message
        assert "last words" in served.control("GET", "/v1/health")["ended"]


def test_why_a_copy_could_not_be_started_is_not_told_with_hidden_models() -> None:
    hidden = {"org/secret-one": "model_0"}
    with serving(SOURCE, hidden=hidden, restart="on-failure", replicas=2) as served:
        served.write("raise ValueError('no org/secret-one here')")
        for copy in served.control("GET", "/v1/health")["copies"]:
            os.kill(copy["pid"], signal.SIGKILL)
        wait_until(lambda: served.control("GET", "/v1/health")["state"] == "dead", timeout=60)
        message = soon(lambda: served.gate().call("leave", (7,)), InterfaceDiedError)
        assert "could not be started" in message
        assert "secret" not in message
        assert "secret" in str(served.control("GET", "/v1/health")["notes"])


def test_why_it_could_not_be_loaded_again_is_not_told_with_hidden_models() -> None:
    with serving(SOURCE, hidden={"org/secret-one": "model_0"}, restart="on-failure") as served:
        served.write("raise ValueError('no org/secret-one here')")
        served.kill_interface()
        wait_until(lambda: served.control("GET", "/v1/health")["state"] == "dead")
        message = soon(lambda: served.gate().call("leave", (7,)), InterfaceDiedError)
        assert "loading it again failed" in message
        assert "secret" not in message
        # The controller is told.
        assert "no org/secret-one here" in served.control("GET", "/v1/health")["ended"]


def test_a_segfault_is_told_as_such() -> None:
    with serving(SOURCE) as served:
        assert "SIGSEGV" in soon(lambda: served.gate().call("segfault"), CallLostError)


def test_a_stream_that_breaks_off_is_a_lost_call() -> None:
    with serving(SOURCE) as served:
        message = soon(lambda: list(served.gate().stream("items")), CallLostError)
        assert "status 9" in message


def test_after_a_restart_each_caller_is_told_once_and_state_is_new() -> None:
    with serving(SOURCE, restart="on-failure") as served:
        gate, other = served.gate(), served.gate()
        assert gate.call("small", (1,)) == 2
        assert other.call("calls") == 1
        served.kill_interface()
        for one in (gate, other):
            soon(lambda one=one: one.call("small", (1,)), InterfaceRestartedError)
            assert one.call("calls") == 0


def test_only_idempotent_functions_are_called_again() -> None:
    with serving(SOURCE, restart="on-failure") as served:
        marker = served.folder / "marker"
        gate = served.gate()
        assert gate.call("small", (1,)) == 2
        assert gate.call("safe", (str(marker),)) == "done"
        error = in_flight(served, "nap", 60.0)
        served.kill_interface()
        assert isinstance(error(), CallLostError)


async def test_awaited_calls_are_lost_and_found_alike() -> None:
    with serving(SOURCE, restart="on-failure") as served:
        gate = served.gate()
        assert await gate.acall("small", (1,)) == 2
        assert await gate.acall("safe", (str(served.folder / "marker"),)) == "done"
        with pytest.raises(CallLostError):
            await gate.acall("leave", (3,))
        assert await gate.acall("small", (1,)) == 2


def test_an_interface_that_keeps_crashing_is_given_up() -> None:
    with serving(SOURCE, restart="on-failure") as served:
        gate = served.gate()
        for _ in range(40):
            try:
                gate.call("leave", (1,))
            except InterfaceDiedError:
                break
            except GateError:
                continue
        else:
            raise AssertionError("it was started again for ever")
        assert served.control("GET", "/v1/health")["restarts"] <= 6


def test_a_stopped_process_is_killed_after_a_while() -> None:
    with serving(SOURCE, restart="on-failure") as served:
        error = in_flight(served, "nap", 60.0)
        served.kill_interface(signal.SIGSTOP)
        begin = time.monotonic()
        found = error()
        assert time.monotonic() - begin < SOON
        assert isinstance(found, CallLostError)
        assert "stopped" in str(found)


def test_a_function_that_holds_the_interpreter_past_its_deadline_is_killed() -> None:
    from seer.rpc.client import deadline

    with serving(SOURCE, grace=0.5) as served:
        gate = served.gate()
        begin = time.monotonic()
        with pytest.raises(GateError), deadline(0.5):
            gate.call("hold_the_gil", (60.0,))
        assert time.monotonic() - begin < SOON


POISONED = """
    import sys, types

    # As torch behaves after a kernel has failed: every later use of the device fails alike.
    broken = []

    def synchronize():
        if broken:
            raise RuntimeError("CUDA error: device-side assert triggered\\nmore of it")

    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
    sys.modules["torch"] = torch

    @expose
    def fine() -> int:
        return 1

    @expose
    def fails(sticky: bool) -> None:
        if sticky:
            broken.append(1)
        raise RuntimeError("CUDA error: something went wrong in a kernel")
"""


def test_a_cuda_error_that_poisons_the_process_ends_it_and_one_that_passes_does_not() -> None:
    with serving(POISONED) as served:
        gate = served.gate()
        soon(lambda: gate.call("fails", (False,)), RuntimeError)
        assert gate.call("fine") == 1
        assert "went wrong in a kernel" in soon(lambda: gate.call("fails", (True,)), RuntimeError)
        wait_until(lambda: served.control("GET", "/v1/health")["state"] == "dead")
        message = soon(lambda: served.gate().call("fine"), InterfaceDiedError)
        assert "a CUDA error made the process unusable" in message
        assert "device-side assert" in message


def test_after_a_cuda_error_it_is_started_again_where_that_was_asked_for() -> None:
    with serving(POISONED, restart="on-failure") as served:
        gate = served.gate()
        soon(lambda: gate.call("fails", (True,)), RuntimeError)
        wait_until(lambda: served.control("GET", "/v1/health")["restarts"] == 1)
        soon(lambda: gate.call("fine"), InterfaceRestartedError)
        assert gate.call("fine") == 1


def test_running_out_of_memory_is_a_typed_error() -> None:
    with serving(SOURCE) as served:
        limit = 1 << 30
        resource.prlimit(served.pid, resource.RLIMIT_AS, (limit, limit))
        gate = served.gate()
        with pytest.raises((MemoryError, CallLostError)):
            gate.call("eat", (4,))
        assert gate.call("small", (1,)) == 2


def test_no_descriptors_left_is_told_and_passes() -> None:
    with serving(SOURCE, callers={"a": {}, "b": {}}) as served:
        gate = served.gate()
        gate.call("starve")
        message = soon(lambda: served.gate("b").health(), GateError)
        assert "no room" in message
        assert gate.call("small", (1,)) == 2


def test_many_connections_of_one_caller_are_bounded() -> None:
    with serving(SOURCE, callers={"a": {}, "b": {}}) as served:
        held: list[socket.socket] = []
        try:
            refused = b""
            for _ in range(1100):
                connected = socket.socket(socket.AF_UNIX)
                connected.connect(str(served.socket_path("a")))  # waits for room in the backlog
                connected.settimeout(SOON)
                held.append(connected)
            refused = held[-1].recv(1000)
            assert b"503" in refused
            assert served.gate("b").call("small", (1,)) == 2
        finally:
            for connected in held:
                connected.close()


def test_connections_that_say_nothing_are_bounded_while_nobody_serves() -> None:
    with serving(SOURCE, callers={"a": {}, "b": {}}) as served:
        served.kill_interface()
        wait_until(lambda: served.control("GET", "/v1/health")["state"] == "dead")
        held: list[socket.socket] = []
        try:
            for _ in range(400):
                connected = socket.socket(socket.AF_UNIX)
                connected.connect(str(served.socket_path("a")))  # waits for room in the backlog
                connected.settimeout(SOON)
                held.append(connected)
            assert held[0].recv(1000) == b""
            soon(lambda: served.gate("b").call("small", (1,)), InterfaceDiedError)
            supervisor = Path(f"/proc/{served.process.pid}/fd")
            assert len(list(supervisor.iterdir())) < 300
        finally:
            for connected in held:
                connected.close()


def test_half_a_request_and_a_closed_socket_harm_nobody() -> None:
    with serving(SOURCE) as served:
        for message in [
            b"",
            b"POST",
            b"POST /v1/call/small HTTP/1.1\r\ncontent-length: 100\r\n\r\n[[",
        ]:
            with socket.socket(socket.AF_UNIX) as connected:
                connected.connect(str(served.socket_path("a")))
                connected.sendall(message)
        assert served.gate().call("small", (1,)) == 2
        wait_until(lambda: served.calls() == 0)


def test_a_peer_that_never_reads_does_not_hold_up_others() -> None:
    with serving(SOURCE) as served, socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        body = b"[[],{}]"
        connected.sendall(
            b"POST /v1/call/items HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:3]
        )
        assert served.gate().call("small", (1,)) == 2


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("import nothing_like_this", 1, "nothing_like_this"),
        ("x = 1\n1 / 0\n", 2, "ZeroDivisionError"),
        ("def f(:\n    pass", 1, "SyntaxError"),
        ("x = 1", None, "no function is exposed"),
        ("@expose\ndef f(x) -> int:\n    return x", 1, "no type hint"),
        ("import sys\nsys.exit(2)", 2, "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_served_is_told_with_file_and_line(
    source: str, line: int | None, message: str
) -> None:
    with serving(source, wait=False) as served:
        with pytest.raises(ControlFailed) as caught:
            served.ready()
        error = caught.value.error
        assert error["type"] == "ServeError"
        assert error["file"] == str(served.file)
        assert message in error["message"]
        assert line is None or error["line"] == line


def test_a_process_that_dies_while_loading_is_told() -> None:
    with serving("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", wait=False) as served:
        with pytest.raises(ControlFailed, match="SIGKILL"):
            served.ready()
        status, text = exchange(served.socket_path("a"), b"GET /v1/health HTTP/1.1\r\n\r\n")
        assert (status, json.loads(text)["error"]["type"]) == (503, "InterfaceDiedError")


def test_what_the_interface_prints_while_loading_is_shown_at_once() -> None:
    source = """
        import os, sys, time
        print("loading 10 %", file=sys.stderr)
        print("to stdout")
        while not os.path.exists("release"):
            time.sleep(0.005)

        @expose
        def f() -> int:
            return 1
    """
    with serving(source, wait=False) as served:
        served.stderr(until="loading 10 %")
        assert served.process.stdout is not None
        assert served.process.stdout.readline() == b"to stdout\n"
        (served.folder / "release").touch()
        served.ready()


def test_calls_made_while_it_loads_wait_for_it() -> None:
    source = """
        import time
        time.sleep(0.5)

        @expose
        def f() -> int:
            return 1
    """
    with serving(source, wait=False) as served:
        assert served.gate().call("f") == 1


def test_when_the_supervisor_dies_the_interface_does_too() -> None:
    with serving(SOURCE) as served:
        pid = served.pid
        served.process.kill()
        served.process.wait(timeout=SOON)
        wait_until(lambda: not _alive(pid), timeout=SOON)
        soon(lambda: served.gate().call("small", (1,)), InterfaceDiedError)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # also if it is reaped between opening and reading
        return False
    return state != "Z"
