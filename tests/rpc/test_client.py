"""The client: threads, forks, addresses, interrupts, and that a call is executed at most once."""

import array
import asyncio
import contextvars
import gc
import os
import pickle
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from seer.errors import (
    BudgetExceededError,
    CallLostError,
    InterfaceDiedError,
    InterfaceRestartedError,
    ProtocolError,
    RemoteError,
)
from seer.rpc._bundles import client_bundle, server_bundle
from seer.rpc.client import Gate, connect, deadline
from seer.rpc.client._connection import SILENCE
from seer.rpc.client._deadline import current
from seer.rpc.client._errors import error_from
from seer.rpc.client._responses import Response
from seer.rpc.client._tool_call import tool_call
from tests.rpc.serving import Served, read_answer, run_together, serving

SOURCE = """
    import os

    state = {"calls": 0}

    @expose
    def small(x: int) -> int:
        state["calls"] += 1
        return x + 1

    @expose
    def calls() -> int:
        return state["calls"]

    @expose
    def text(value: str) -> str:
        return value
"""

EARLIER = """
    from collections.abc import Iterator
    import numpy as np
    from seer.rpc.wire import _http

    _http._KNOWN -= {b"seer-tool-call"}
    calls = 0

    @expose
    def count(values: np.ndarray) -> int:
        global calls
        calls += 1
        return calls

    @expose
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)
"""

full = pytest.mark.full


@pytest.fixture(scope="module")
def served() -> Generator[Served]:
    with serving(SOURCE) as served:
        yield served


@full
def test_many_threads_share_a_gate(served: Served) -> None:
    gate = served.gate()

    def call() -> list[int]:
        return [gate.call("small", (i,)) for i in range(50)]

    assert all(found == list(range(1, 51)) for found in run_together(call, 16))


@full
def test_connections_may_go_while_a_call_is_made(served: Served) -> None:
    gate = served.gate()

    class Closing(tuple[int, ...]):
        """Arguments that are read while another thread takes or closes the connections."""

        def __iter__(self) -> Iterator[int]:
            gate.close()
            return super().__iter__()

    assert gate.call("small", (1,)) == 2
    assert gate.call("small", Closing((2,))) == 3


@full
def test_a_call_made_while_another_incarnation_is_noted_does_not_spoil_later_ones(
    served: Served,
) -> None:
    gate = served.gate()
    gate.call("small", (1,))
    refused: list[InterfaceRestartedError] = []

    class Racing(str):
        """The epoch of an interface process; a call is made in the middle of storing it."""

        __slots__ = ()

        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            try:
                gate.call("small", (1,))
            except InterfaceRestartedError as error:
                refused.append(error)
            return super().encode(encoding, errors)

    old, new = Response(200), Response(200)
    old.epoch, new.epoch = "gone", Racing(gate.epoch)
    gate.note_epoch(old)
    gate.note_epoch(new)
    assert len(refused) == 1
    assert gate.call("small", (1,)) == 2


@full
def test_a_forked_process_has_connections_and_ids_of_its_own(served: Served) -> None:
    gate = served.gate()
    assert gate.call("small", (1,)) == 2
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b"%d" % sum(gate.call("small", (i,)) for i in range(100)))
        finally:
            os._exit(0)
    os.close(write)
    mine = sum(gate.call("small", (i,)) for i in range(100))
    with os.fdopen(read) as file:
        assert int(file.read()) == mine == 5050
    os.waitpid(pid, 0)


@full
def test_a_repeated_id_is_never_executed_again(served: Served) -> None:
    before = served.gate().call("calls")
    body = b"[[1],{}]"
    message = (
        b"POST /v1/call/small HTTP/1.1\r\nseer-call: again\r\ncontent-length: 8\r\n\r\n" + body
    )
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(30)
            connected.connect(str(served.socket_path("a")))
            connected.sendall(message)
            assert read_answer(connected) == (200, b'{"result":2}')
    assert served.gate().call("calls") == before + 1


@full
def test_an_id_used_for_another_function_is_refused(served: Served) -> None:
    for function, status in ((b"small", 200), (b"text", 400)):
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(30)
            connected.connect(str(served.socket_path("a")))
            head = b"POST /v1/call/%s HTTP/1.1\r\nseer-call: shared-id\r\n" % function
            connected.sendall(head + b"content-length: 8\r\n\r\n[[1],{}]")
            assert read_answer(connected)[0] == status


@full
@pytest.mark.parametrize(
    "value",
    ["", "plain", "ümläut 漢字", "\ud800", '"\\\n\x00', "x" * 100_000],
    ids=["empty", "plain", "wide", "surrogate", "quotes", "long"],
)
def test_any_text_survives_the_round_trip(served: Served, value: str) -> None:
    gate = served.gate()
    for _ in range(2):
        assert gate.call("text", (value,)) == value


@full
@pytest.mark.parametrize("bits", [0, 1, 63, 64, 200, 20_000])
def test_any_number_survives_the_round_trip(served: Served, bits: int) -> None:
    gate = served.gate()
    for value in (2**bits, -(2**bits), 2**bits):
        assert gate.call("small", (value,)) == value + 1


@full
@pytest.mark.parametrize("kind", ["path", "frames:path"])
async def test_a_gate_of_an_earlier_version_is_not_told_the_tool_call(
    tmp_path: Path, kind: str
) -> None:
    with serving(EARLIER, record=str(tmp_path / "record")) as served:
        followed = served.follow("a")
        gate = served.gate(kind=kind)
        values = np.ones(100_000)

        def count() -> int:
            with tool_call("one"):
                return gate.call("count", (values,))

        # Several threads may be refused, and their arrays are sent again.
        assert sorted(run_together(count, 4)) == [1, 2, 3, 4]
        with tool_call("two"):
            assert await gate.acall("count", (values,)) == 5
            assert list(served.gate(kind=kind).stream("numbers", (3,))) == [0, 1, 2]
        lines = served.recorded(followed)
    assert [line["function"] for line in lines if "function" in line] == [*["count"] * 5, "numbers"]
    assert 2 <= sum(line.get("refused", False) for line in lines) <= 5


@full
def test_a_connector_hands_out_connections(served: Served) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stop = threading.Event()

    def hand_out() -> None:
        while here.recv(16) and not stop.is_set():
            with socket.socket(socket.AF_UNIX) as connected:
                connected.connect(str(served.socket_path("a")))
                rights = array.array("i", [connected.fileno()])
                here.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    keeper = threading.Thread(target=hand_out)
    keeper.start()
    try:
        gate = connect("interface", f"fd:{there.fileno()}")
        assert gate.call("small", (1,)) == 2
        assert all(found == 3 for found in run_together(lambda: gate.call("small", (2,)), 4))
        gate.close()
    finally:
        stop.set()
        there.close()
        keeper.join(timeout=30)
        here.close()


def test_a_connector_that_finds_nobody_says_so() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        here.send(b"-111")
        with pytest.raises(InterfaceDiedError, match="-111"):
            connect("interface", f"fd:{there.fileno()}").call("small", (1,))


def test_a_socket_that_is_gone_is_a_dead_interface(tmp_path: Path) -> None:
    with pytest.raises(InterfaceDiedError, match="nothing listens"):
        connect("interface", f"path:{tmp_path}/none.sock").call("small", (1,))


@pytest.mark.parametrize("address", ["tcp:1", "fd:x", "path:", ""])
def test_an_address_of_no_known_form_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEER_GATE_INTERFACE", raising=False)
    with pytest.raises(ProtocolError):
        connect("interface", address).call("small", (1,))


def test_without_an_address_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEER_GATE_TOOLS", "path:/nowhere/x.sock")
    with pytest.raises(InterfaceDiedError, match="/nowhere"):
        connect("tools").call("f")


@full
def test_a_path_longer_than_an_address_is_reached(served: Served) -> None:
    folder = served.folder / ("d" * 60) / ("e" * 60)
    folder.mkdir(parents=True)
    path = folder / "long.sock"
    message = {"name": "long", "socket": str(path)}
    served.control("POST", "/v1/callers", message)
    gate = Gate("interface", f"path:{path}")
    assert gate.call("small", (1,)) == 2
    gate.close()


@full
def test_the_shipped_client_works_without_seer(served: Served, tmp_path: Path) -> None:
    for name, source in client_bundle().items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    program = (
        "import sys, _seer_gate\n"
        "gate = _seer_gate.connect('interface')\n"
        "print(gate.call('small', (1,)))\n"
        "try:\n    gate.call('small', ('x',))\n"
        "except TypeError as e:\n    print(type(e).__module__)\n"
        "print(sorted(m for m in sys.modules if m.startswith('seer')))\n"
    )
    env = {"SEER_GATE_INTERFACE": f"path:{served.socket_path('a')}", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["2", "_seer_gate.errors", "[]"]


@full
def test_a_gate_that_is_never_closed_ends_silently_with_the_process(served: Served) -> None:
    program = (
        "import asyncio, os\n"
        "from seer.rpc.client import connect\n"
        f"gate = connect('interface', 'path:{served.socket_path('a')}')\n"
        "gate.call('small', (1,))\n"
        "print(asyncio.run(gate.acall('small', (1,))), flush=True)\n"
        "child = os.fork()\n"
        "if child == 0:\n    gate.call('small', (2,))\n"
        "else:\n    os.waitpid(child, 0)\n"
    )
    command = [sys.executable, "-X", "dev", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("2\n", "")


@full
def test_a_gate_that_is_dropped_open_warns_once_and_one_that_is_closed_does_not(
    served: Served,
) -> None:
    address = f"path:{served.socket_path('a')}"
    with connect("interface", address) as closed:
        assert closed.call("small", (1,)) == 2
    del closed
    gc.collect()
    left = connect("interface", address)
    left.call("small", (1,))
    with pytest.warns(ResourceWarning, match="'interface' was dropped") as caught:
        del left
        gc.collect()
    assert len(caught) == 1


@full
def test_the_shipped_server_works_without_the_rest_of_seer(tmp_path: Path) -> None:
    for name, source in server_bundle().items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    program = (
        "import seer.rpc.server._process, seer, sys; print(seer.__file__, 'asyncio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.strip() == f"{tmp_path}/seer/__init__.py False", done.stderr


def answer_slowly(listener: socket.socket, signs: int) -> None:
    """A gate that shows `signs` signs of life, 0.1 s apart, before it answers a call."""
    head = b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\ncontent-type: application/json\r\n"
    text = b'{"result":5}'
    answer = head + b"content-length: %d\r\n\r\n%s" % (len(text), text)
    connected, _ = listener.accept()
    with connected:
        for request in range(2):
            if not connected.recv(65536):
                return
            pause = threading.Event()
            for _ in range(signs if request else 0):
                pause.wait(0.1)
                connected.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
            if request == 0 or signs:
                connected.sendall(answer)
            else:
                connected.recv(1)


@contextmanager
def slow_gate(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[socket.socket, int], None],
    signs: int,
) -> Generator[Gate]:
    """A client that considers a gate dead after 2 s, and a gate that `answer` plays."""
    monkeypatch.setattr("seer.rpc.client._transport.SILENCE", 2.0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        server = threading.Thread(target=answer, args=(listener, signs))
        server.start()
        with connect("x", f"path:{folder / 's'}") as gate:
            yield gate
        server.join(30)
        assert not server.is_alive()


@pytest.mark.parametrize("signs", [24, 0])
def test_a_call_lasts_as_long_as_there_are_signs_of_life(
    signs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_gate(tmp_path, monkeypatch, answer_slowly, signs) as gate:
        if signs:
            assert gate.call("hour", ()) == 5
        else:
            with pytest.raises(CallLostError, match="no sign of life"):
                gate.call("hour", ())


def whole_request(connected: socket.socket) -> bytes:
    """One request with its body, even if it arrives in many pieces; empty at the end."""
    data = b""
    while more := connected.recv(65536):
        data += more
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return data


@contextmanager
def answering(folder: Path, *answers: bytes) -> Generator[Gate]:
    """A gate whose one connection gets these answers, one after the other."""
    head = b"seer-gate: 1\r\nseer-epoch: e1\r\ncontent-type: application/json\r\n"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "gate.sock"))
        listener.listen()
        waiting = iter([b'200 OK {"result":{}}', *answers])

        def answer() -> None:
            connected = listener.accept()[0]
            with connected:
                while whole_request(connected):
                    status, reason, text = next(waiting).split(b" ", 2)
                    line = b"HTTP/1.1 %s %s\r\n" % (status, reason)
                    length = b"content-length: %d\r\n\r\n" % len(text)
                    connected.sendall(line + head + length + text)

        server = threading.Thread(target=answer)
        server.start()
        with connect("scripted", f"path:{folder}/gate.sock") as gate:
            yield gate
        server.join(30)


RAISED = b'500 Error {"error":{"type":"RemoteError","name":"KeyError","bases":["KeyError"],' + (
    b'"message":"no value"}}'
)


def test_a_raised_exception_leaves_no_cycle_behind(tmp_path: Path) -> None:
    with answering(tmp_path, *[b'200 OK {"result":1}'] * 2, *[RAISED] * 4) as gate:
        assert [gate.call("f"), gate.call("f")] == [1, 1]
        gc.collect()
        gc.disable()
        try:
            for _ in range(4):
                with pytest.raises(KeyError, match="no value") as raised:
                    gate.call("f")
                gone = weakref.ref(raised.value)
                del raised
                assert gone() is None
        finally:
            gc.enable()


def test_an_answer_that_cannot_be_read_leaves_its_connection_to_one_caller(tmp_path: Path) -> None:
    answers = [b'200 OK {"result":1}'] * 2 + [b'200 OK {"result":]}', b'200 OK {"result":2}']
    with answering(tmp_path, *answers) as gate:
        assert [gate.call("f"), gate.call("f")] == [1, 1]
        with pytest.raises(ProtocolError):
            gate.call("f")
        assert len(gate.idle) == len(set(gate.idle)) == 1
        assert gate.call("f") == 2


def test_a_deadline_is_not_the_next_calls(tmp_path: Path) -> None:
    with answering(tmp_path, *[b'200 OK {"result":1}'] * 4) as gate:
        gate.call("f")
        with deadline(5):
            gate.call("f")
        assert patience(gate) < SILENCE
        gate.call("f")
        assert patience(gate) == SILENCE
        gate.call("f")
        assert patience(gate) == SILENCE


def patience(gate: Gate) -> int:
    """The timeout of a read on the connection that was used last, in whole seconds."""
    option = gate.idle[-1].socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    return struct.unpack("ll", option)[0]


@pytest.mark.parametrize("within", [nullcontext(), deadline(60)], ids=["usual", "deadline"])
def test_what_a_signal_handler_raises_leaves_no_answer_to_the_next_call(
    tmp_path: Path, within: nullcontext[None] | deadline
) -> None:
    handled = threading.Event()

    def handle(*_signal: object) -> None:
        handled.set()
        raise BudgetExceededError("of something else")

    def serve(listener: socket.socket) -> None:
        number = 0
        for _ in range(2):
            connected, _ = listener.accept()
            with connected, suppress(ConnectionError):
                while whole_request(connected):
                    number += 1
                    if number == 4:
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                        handled.wait(30)
                    text = b'{"result":%d}' % number
                    head = b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\n"
                    connected.sendall(head + b"content-length: %d\r\n\r\n" % len(text) + text)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen()
            server = threading.Thread(target=serve, args=(listener,), daemon=True)
            server.start()
            with connect("x", f"path:{tmp_path / 's'}") as gate, within:
                assert [gate.call("f"), gate.call("f")] == [2, 3]
                with pytest.raises(BudgetExceededError, match="of something else"):
                    gate.call("f")
                assert gate.call("f") == 5
            server.join(30)
    finally:
        signal.signal(signal.SIGUSR1, before)


def stream_slowly(listener: socket.socket, signs: int) -> None:
    """Answer `GET /v1/health`, then stream two items with signs of life in between."""
    health = b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\ncontent-length: 13\r\n\r\n"
    head = (
        b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\n"
        b"content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    connected, _ = listener.accept()
    with connected:
        connected.recv(65536)
        connected.sendall(health + b'{"result":{}}')
        connected.recv(65536)
        connected.sendall(head + b'b\r\n{"item":1}\n\r\n')
        pause = threading.Event()
        for _ in range(signs):
            pause.wait(0.1)
            connected.sendall(b"1\r\n\n\r\n")
        if signs:
            connected.sendall(b'b\r\n{"item":2}\n\r\nd\r\n{"end":null}\n\r\n0\r\n\r\n')
        while connected.recv(65536):
            continue


@pytest.mark.parametrize("signs", [24, 0])
def test_a_stream_lasts_as_long_as_there_are_signs_of_life(
    signs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_gate(tmp_path, monkeypatch, stream_slowly, signs) as gate:
        items = gate.stream("hours", ())
        assert next(items) == 1
        if signs:
            assert list(items) == [2]
        else:
            with pytest.raises(CallLostError, match="no sign of life"):
                next(items)


def test_no_class_is_ever_looked_up_by_a_name_off_the_wire() -> None:
    def arrived(name: str, bases: list[str]) -> Exception:
        text = pickle_free_json(name, bases)
        return error_from(text)

    error = arrived(
        "os.system", ["system", "eval", "KeyboardInterrupt", "SystemExit", "ValueError"]
    )
    assert isinstance(error, ValueError)
    assert isinstance(error, RemoteError)
    assert not isinstance(error, (KeyboardInterrupt, SystemExit))
    assert type(error).__name__ == "RemoteError"
    assert isinstance(arrived("X", ["StopIteration"]), RemoteError)
    assert not isinstance(arrived("X", ["StopIteration"]), StopIteration)
    assert str(arrived("X", ["UnicodeDecodeError"])) == "what"
    assert isinstance(arrived("X", ["UnicodeDecodeError"]), UnicodeDecodeError)
    assert isinstance(arrived("X", ["OSError"]), OSError)


def pickle_free_json(name: str, bases: list[str]) -> bytes:
    import json

    found = {"type": "RemoteError", "name": name, "bases": bases, "message": "what"}
    return json.dumps({"error": found}).encode()


def test_a_remote_error_survives_pickling_in_the_callers_own_process() -> None:
    error = error_from(pickle_free_json("Own", ["KeyError", "LookupError"]))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, KeyError)
    assert (str(again), type(again).__name__) == ("what", "Own")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"error": 3}',
        b'{"error": {"type": "RemoteError"}}',
        b'{"error":' * 9999,
        b'{"error": {"type": "RemoteError", "name": "E", "bases": 3}}',
    ],
    ids=range(6),
)
def test_an_error_of_no_known_form_is_a_protocol_error(text: bytes) -> None:
    assert isinstance(error_from(text), ProtocolError)


def break_off(listener: socket.socket, _signs: int) -> None:
    """Stream one item, break the connection, and send nothing on the next one."""
    connected, _ = listener.accept()
    with connected:
        connected.recv(65536)
        connected.sendall(
            b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\ncontent-length: 13\r\n\r\n"
            b'{"result":{}}'
        )
        connected.recv(65536)
        connected.sendall(
            b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\n"
            b"content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
            b'b\r\n{"item":1}\n\r\n'
        )
    connected, _ = listener.accept()
    with connected:
        while connected.recv(65536):
            continue


def test_a_stream_that_breaks_off_at_a_mute_gate_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_gate(tmp_path, monkeypatch, break_off, 0) as gate:
        monkeypatch.setattr("seer.rpc.client._transport.SILENCE", 600.0)
        monkeypatch.setattr("seer.rpc.client._transport.ASK", 0.1)
        monkeypatch.setattr("seer.rpc.client._attempts.MARGIN", 0.1)
        items = gate.stream("hours", ())
        assert next(items) == 1
        with pytest.raises(CallLostError, match="broke while it was streaming"):
            next(items)


# --- interrupted deadlines --------------------------------------------------------------------


def block() -> None:
    with deadline(60):
        assert current()


def nested() -> None:
    with deadline(60):
        block()
        assert current()


def failing() -> None:
    with suppress(ValueError), deadline(60):
        raise ValueError


def interrupted(work: Callable[[], None], moment: int) -> bool:
    """Interrupt `work` at one of its moments, counted from 1; False if it has fewer moments.

    These are the beginnings of Python functions and the ends of C functions. The handlers of
    signals run then and at the end of each turn of a loop, and at no other moments.
    """
    left = moment
    codes = {function.__code__ for function in (block, nested, failing)}

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        if frame.f_code.co_filename.endswith("_deadline.py") or frame.f_code in codes:
            left -= event in {"call", "c_return"}
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    try:
        sys.setprofile(count)
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("work", [block, nested, failing])
def test_an_interrupt_at_any_moment_leaves_no_deadline_behind(work: Callable[[], None]) -> None:
    moments = 0
    assert current() == 0.0
    while interrupted(work, moments + 1):
        moments += 1
        assert current() == 0.0, moments
    assert moments > 10
    assert current() == 0.0


@contextmanager
def alarms() -> Generator[Callable[[float], None]]:
    """Gives a function that has this process interrupted after some seconds."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_real_interrupts_leave_no_deadline_behind() -> None:
    came = 0
    with alarms() as alarm:
        for number in range(2000):
            try:
                alarm(0.00002 + number % 50 * 0.000002)
                for _ in range(2000):
                    with deadline(60):
                        pass
            except KeyboardInterrupt:
                came += 1
            assert current() == 0.0, number
    assert came > 1000


def test_an_interrupted_inner_block_leaves_the_outer_deadline() -> None:
    with deadline(50):
        outer = current()
        for moment in range(1, 100):
            if not interrupted(block, moment):
                break
            assert current() == outer
        with deadline(10):
            assert current() < outer
        assert current() == outer


def test_a_deadline_can_be_used_again_but_not_within_its_block() -> None:
    again = deadline(60)
    for _ in range(2):
        with again:
            assert current()
            with pytest.raises(RuntimeError, match="entered already"), again:
                pass
            assert current()
        assert current() == 0.0


def test_a_deadline_ends_with_its_block_for_tasks_too() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def inside_and_after() -> list[float]:
        found = current()
        begun.set()
        await left.wait()
        return [found, current()]

    async def main() -> None:
        with deadline(60):
            until = current()
            task = asyncio.create_task(inside_and_after())
            await begun.wait()
        left.set()
        assert await task == [until, 0.0]

    again = deadline(60)
    with again:
        pass
    # It copies this context.
    asyncio.run(main())


def test_blocks_that_do_not_end_in_their_order_leave_nothing_behind() -> None:
    first, second = deadline(60), deadline(30)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert current()
    second.__exit__(None, None, None)
    assert current() == 0.0


def test_a_thread_has_no_deadline_of_another() -> None:
    found: list[float] = []
    with deadline(60):
        context = contextvars.Context()
        thread = threading.Thread(target=context.run, args=(lambda: found.append(current()),))
        thread.start()
        thread.join()
    assert found == [0.0]
