"""Which recorded call answers a new one, and a gate that serves recorded calls.

It tests the matching itself, for orders of calls that no program produces reliably.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from seer.errors import (
    CallLostError,
    GateError,
    InterfaceDiedError,
    RemoteError,
    ReplayDivergenceError,
)
from seer.rpc import client
from seer.rpc.server._refusals import Refusals
from seer.rpc.server._streams import recorded_stream
from seer.rpc.wire._http import head_prefix
from seer.runs import GateCall, RunRecord, new_run_id, open_run
from seer.runs.replay._gate import Answered, LiveGate, ReplayGate
from seer.runs.replay._live import Takeover
from seer.runs.replay._match import CallerTape, FirstCall, Match, Tapes
from seer.runs.replay._provider import gate_maker
from seer.runs.replay._requests import Asked
from tests.waiting import wait_until


def call(function: str, *args: Any, at: float, run: float = 0.1, **more: Any) -> GateCall:
    given: dict[str, Any] = {
        "interface": "tools",
        "caller": "lab-1",
        "function": function,
        "arguments": json.dumps([list(args), {}]),
        "result": json.dumps({"result": f"{function}{args}"}),
        "time": at + run,
        "run": run,
        **more,
    }
    return GateCall(**given)


def ask(tape: CallerTape, function: str, *args: Any) -> str:
    return tape.match(function, json.dumps([list(args), {}]), ()).call.result


def test_calls_are_answered_in_their_order() -> None:
    tape = CallerTape("lab-1", [call("f", 1, at=1), call("f", 2, at=2), call("f", 1, at=3)])
    assert [ask(tape, "f", n) for n in (1, 2, 1)] == [
        '{"result": "f(1,)"}',
        '{"result": "f(2,)"}',
        '{"result": "f(1,)"}',
    ]
    assert tape.left == 0


def test_a_call_out_of_order_is_a_divergence() -> None:
    tape = CallerTape("lab-1", [call("f", 1, at=1), call("f", 2, at=2)])
    with pytest.raises(
        ReplayDivergenceError, match=r"recorded: f\(1\)\n  now:      f\(2\)"
    ) as info:
        ask(tape, "f", 2)
    assert (info.value.recorded, info.value.found) == ("f(1)", "f(2)")
    assert ask(tape, "f", 1)


def test_of_equal_calls_that_overlapped_the_one_that_ended_first_comes_first() -> None:
    short = call("f", 1, at=1, run=1, result='"short"')
    tape = CallerTape("lab-1", [call("f", 1, at=0, run=10), short, call("f", 2, at=3)])
    assert [ask(tape, "f", n) for n in (1, 2, 1)] == [
        '"short"',
        '{"result": "f(2,)"}',
        '{"result": "f(1,)"}',
    ]


def test_calls_that_overlapped_may_come_in_any_order() -> None:
    calls = [call("f", 1, at=1, run=5), call("f", 2, at=2, run=1), call("f", 3, at=10)]
    tape = CallerTape("lab-1", calls)
    assert ask(tape, "f", 2)
    with pytest.raises(ReplayDivergenceError):
        ask(tape, "f", 3)
    assert ask(tape, "f", 1)
    assert ask(tape, "f", 3)


def test_the_order_of_keys_and_spaces_in_arguments_do_not_matter() -> None:
    tape = CallerTape("lab-1", [call("f", {"a": 1, "b": 2}, at=1)])
    assert tape.match("f", '[[ {"b":2, "a":1} ],{}]', ())


def test_arrays_are_part_of_a_call() -> None:
    tape = CallerTape("lab-1", [call("f", at=1, argument_buffers=("aa",))])
    with pytest.raises(ReplayDivergenceError, match="with arrays aa"):
        tape.match("f", "[[],{}]", ("bb",))


def test_what_was_refused_is_refused_again_whatever_its_arguments() -> None:
    tape = CallerTape("lab-1", [call("f", at=1, arguments=None, outcome="BudgetExceededError")])
    assert tape.match("f", "[[7],{}]", ()).call.outcome == "BudgetExceededError"


@pytest.mark.parametrize(
    "path", ["", "/v1/free/h1", "/v1/result/x-1"], ids=["unread", "free", "result"]
)
def test_a_refused_request_that_was_no_call_is_not_waited_for(path: str) -> None:
    line = {
        "request": path,
        "outcome": "ProtocolError",
        "error": "no",
        "refused": True,
        "time": 1.5,
    }
    refused = GateCall.from_gate("tools", {"caller": "lab-1", **line})
    tape = CallerTape("lab-1", [call("f", 1, at=1), refused, call("f", 2, at=2)])
    assert ask(tape, "f", 1) and ask(tape, "f", 2)
    assert tape.left == 0


def refusals(count: int, *, at: float) -> list[GateCall]:
    """What a gate writes of refused calls that follow each other fast."""
    clock = [at]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: clock[0])
        made = Refusals()
        lines: list[bytes] = []
        for _ in range(count):
            clock[0] += 0.001
            lines.append(made.line("lab-1", "/v1/call/f", "BudgetExceededError", "used up"))
        lines += [line for _, line in made.rest()]
    return [GateCall.from_gate("tools", json.loads(line)) for line in lines if line]


def test_refused_calls_of_which_only_the_number_is_recorded_are_refused_again() -> None:
    flood = refusals(400, at=2)
    assert 200 < len(flood) < 300
    tape = CallerTape("lab-1", [call("f", 1, at=1), *flood, call("g", at=5)])
    assert ask(tape, "f", 1)
    with pytest.raises(ReplayDivergenceError, match=r"f\(\.\.\.\), which was refused\n"):
        tape.match("h", "[[],{}]", ())
    found = [tape.match("f", f"[[{n}],{{}}]", ()) for n in range(400)]
    assert {match.call.outcome for match in found} == {"BudgetExceededError"}
    lines = [match.line for match in found if match.line is not None]
    assert sorted(lines, key=lambda line: line.time) == flood
    with pytest.raises(ReplayDivergenceError, match=r"recorded: g\(\)\n  now:      f\(400\)"):
        ask(tape, "f", 400)
    assert ask(tape, "g")


def test_a_function_that_was_refused_only_in_the_counted_part_is_refused_again() -> None:
    flood = refusals(400, at=2)
    tape = CallerTape("lab-1", [*flood, call("g", at=5)])
    for n in range(399):
        tape.match("f", f"[[{n}],{{}}]", ())
    found = tape.match("late", "[[],{}]", ())
    assert found.call.outcome == "BudgetExceededError"
    with pytest.raises(ReplayDivergenceError, match=r"recorded: g\(\)\n  now:      late\(\)"):
        tape.match("late", "[[],{}]", ())
    assert ask(tape, "g")


def test_a_refused_fetch_is_refused_again() -> None:
    line = {"request": "/v1/fetch/h1", "outcome": "HandleError", "error": "gone", "refused": True}
    tape = CallerTape("lab-1", [GateCall.from_gate("tools", line), call("f", 1, at=1)])
    with pytest.raises(ReplayDivergenceError, match="handle.fetch"):
        tape.match("handle.fetch", "[[],{}]", (), handle="h2")
    assert "gone" in tape.match("handle.fetch", "[[],{}]", (), handle="h1").call.result
    assert ask(tape, "f", 1)


def test_a_lost_call_without_arguments_is_matched_by_its_function_and_described_as_lost() -> None:
    lost: dict[str, Any] = {"arguments": None, "outcome": "CallLostError", "result": "lost"}
    tape = CallerTape("lab-1", [call("f", at=1, **lost), call("f", 2, at=2)])
    with pytest.raises(ReplayDivergenceError, match="too large to be recorded"):
        ask(tape, "g", 1)
    assert ask(tape, "f", 1) == "lost"
    assert ask(tape, "f", 2) == '{"result": "f(2,)"}'


def test_a_lost_call_without_arguments_does_not_take_the_place_of_one_that_overlapped_it() -> None:
    lost: dict[str, Any] = {"arguments": None, "outcome": "CallLostError", "result": "lost"}
    tape = CallerTape("lab-1", [call("f", at=1, run=5, **lost), call("f", 3, at=2)])
    assert ask(tape, "f", 3) == '{"result": "f(3,)"}'
    assert ask(tape, "f", 4) == "lost"
    assert tape.left == 0


def test_a_lost_call_that_waited_may_be_made_before_one_that_ended_meanwhile() -> None:
    line: dict[str, Any] = {
        "caller": "lab-1",
        "function": "f",
        "arguments": [[1], {}],
        "outcome": "CallLostError",
        "error": "f() was lost",
        "time": 9.0,
        "queue": 7.0,
        "run": 0.0,
    }
    waited = GateCall.from_gate("tools", line)
    tape = CallerTape("lab-1", [waited, call("g", 1, at=3)])
    assert "f() was lost" in ask(tape, "f", 1)
    assert ask(tape, "g", 1)


def stream(count: int, *, at: float, left_out: int, **more: Any) -> GateCall:
    result: dict[str, Any] = {"stream": [{"item": 1}], "left_out": left_out, "end": None}
    return call("parts", count, at=at, result=json.dumps(result), **more)


@pytest.mark.parametrize(
    ("more", "why"),
    [({}, "too large"), ({"outcome": "CallLostError"}, "the interface ended meanwhile")],
    ids=["too large", "lost"],
)
def test_a_stream_whose_items_are_not_all_recorded_is_refused_and_says_why(
    more: dict[str, Any], why: str
) -> None:
    tape = CallerTape("lab-1", [call("f", at=1), stream(7, at=2, left_out=3, **more)])
    assert ask(tape, "f")
    for _ in range(2):
        with pytest.raises(ReplayDivergenceError, match=rf"^call 2 .* 3 of .*parts\(7\).*{why}"):
            ask(tape, "parts", 7)
    with pytest.raises(ReplayDivergenceError, match=r"recorded: parts\(7\)\n  now:      f\(\)"):
        ask(tape, "f")


def test_a_complete_stream_is_answered_also_if_it_was_lost() -> None:
    lost = {"stream": [{"item": 1}], "error": {"type": "CallLostError", "message": "a copy ended"}}
    kept = call("parts", 1, at=1, outcome="CallLostError", result=json.dumps(lost))
    assert "a copy ended" in ask(CallerTape("lab-1", [kept]), "parts", 1)


def test_more_calls_than_recorded_are_a_divergence() -> None:
    with pytest.raises(ReplayDivergenceError, match="recorded: no more calls"):
        ask(CallerTape("lab-1", ()), "f", 1)


def test_a_caller_with_another_name_gets_the_tape_of_its_place() -> None:
    tapes = Tapes([call("f", 1, at=1, caller="x9-1"), call("f", 2, at=1, caller="x9-2")])
    assert tapes.tape("y3-2").caller == "x9-2"
    assert tapes.tape("y3-1").caller == "x9-1"
    assert tapes.tape("y3-3").left == 0
    adopted = Tapes([call("f", 1, at=1, caller="x9-1-0a1b")])
    assert adopted.tape("y3-1").caller == "x9-1-0a1b"
    assert tapes.tape("y3-2").caller == "x9-2"


def test_a_session_gets_the_tape_of_its_name_in_whatever_order_it_opens() -> None:
    recorded = [call("f", name, at=1, caller=name) for name in ("alpha-1", "beta-2", "beta-4")]
    tapes = Tapes([*recorded, call("f", 1, at=1, caller="local-aa11bb-3")])
    found = {name: tapes.tape(name).caller for name in ("beta-1", "alpha-2", "local-cc22dd-4")}
    assert found == {"beta-1": "beta-2", "alpha-2": "alpha-1", "local-cc22dd-4": "local-aa11bb-3"}
    assert tapes.tape("beta-5").caller == "beta-4"
    assert tapes.tape("beta-6").left == 0


def test_a_session_that_makes_no_calls_takes_no_tape_of_another() -> None:
    tapes = Tapes([call("f", 1, at=1, caller="lab-2")])
    tapes.open("lab-1")
    tapes.open("lab-2")
    # It makes a call now, and made none in the recording.
    assert tapes.tape("lab-1").left == 0
    assert tapes.tape("lab-2").left == 1


# --- over the wire --------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {"version": 1, "name": "tools", "functions": []}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., client.Gate]]:
    """Serves recorded calls on a socket; gives a real client of it."""
    gates: list[ReplayGate] = []

    def start(
        *calls: GateCall, blobs: dict[str, bytes] | None = None, live: LiveGate | None = None
    ) -> client.Gate:
        gate = ReplayGate(
            "tools",
            SCHEMA,
            list(calls),
            read_blob=lambda digest: (blobs or {})[digest],
            host_path=lambda path: tmp_path / path.lstrip("/"),
            live=live,
        )
        gate.serve_caller("lab-1", "/caller.sock")
        gates.append(gate)
        return client.connect("tools", f"path:{tmp_path / 'caller.sock'}")

    yield start
    for gate in gates:
        gate.close()


def test_the_real_client_gets_recorded_answers_and_errors(
    serve: Callable[..., client.Gate],
) -> None:
    failed = {"type": "RemoteError", "name": "KeyError", "bases": ["KeyError"], "message": "'x'"}
    gate = serve(
        call("f", 1, at=1, result='{"result":{"z":1,"a":[1.5,null]}}'),
        call("f", 2, at=2, outcome="KeyError", result=json.dumps({"error": failed})),
    )
    assert list(gate.call("f", [1])) == ["z", "a"]
    with pytest.raises(RemoteError) as info:
        gate.call("f", [2])
    assert isinstance(info.value, KeyError)
    with pytest.raises(GateError, match=r"replay: call 3 of 'lab-1' is not the recorded one"):
        gate.call("f", [3])
    assert gate.schema() == SCHEMA
    gate.close()


def test_a_lost_call_that_was_made_again_is_lost_and_made_again(
    serve: Callable[..., client.Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    idempotent = {"functions": [{"name": "f", "options": {"idempotent": True}}]}
    monkeypatch.setitem(SCHEMA, "functions", idempotent["functions"])
    lost = {"error": {"type": "CallLostError", "message": "f() was lost"}}
    told: dict[str, Any] = {"outcome": "CallLostError", "result": json.dumps(lost)}
    gate = serve(
        call("f", 1, at=1, **told), call("f", 1, at=2), call("f", 2, at=3, **told), call("g", at=4)
    )
    assert gate.call("f", [1]) == "f(1,)"
    with pytest.raises(CallLostError, match="was lost"):
        gate.call("f", [2])
    assert gate.call("g") == "g()"
    gate.close()


def test_a_live_gate_that_cannot_take_over_is_an_error_of_the_call(
    serve: Callable[..., client.Gate],
) -> None:
    class Gone:
        has_taken_over = False

        def holding_off(self) -> AbstractContextManager[bool]:
            return nullcontext(True)

        def take_over(self) -> None:
            raise InterfaceDiedError("the live 'tools' is gone")

        def answer(self, interface: str, caller: str, asked: object) -> Any:
            raise AssertionError("it has not taken over")

    gate = serve(call("f", 1, at=1), live=Gone())
    for _ in range(2):
        with pytest.raises(InterfaceDiedError, match="the live 'tools' is gone"):
            gate.call("f", [2])
    assert gate.call("f", [1]) == "f(1,)"
    gate.close()


def test_a_take_over_repeats_also_the_call_that_the_record_is_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takeover = Takeover()
    live, front = (
        ReplayGate(
            "tools",
            SCHEMA,
            [call("f", 1, at=1)],
            read_blob=lambda digest: b"",
            host_path=lambda path, side=side: tmp_path / f"{side}{path}",
            live=side_live,
        )
        for side, side_live in (("live", None), ("front", takeover))
    )
    for gate in (live, front):
        gate.serve_caller("lab-1", "/caller.sock")
    takeover.add_gate(front)
    takeover.add_caller("tools", "lab-1", tmp_path / "live/caller.sock")
    over = threading.Thread(target=takeover.take_over)
    match = CallerTape.match

    def slow(tape: CallerTape, *args: Any, **more: Any) -> Match:
        if not over.ident:
            over.start()
            # It waits for this call, so this takes the whole time.
            over.join(0.3)
        return match(tape, *args, **more)

    monkeypatch.setattr(CallerTape, "match", slow)
    with client.connect("tools", f"path:{tmp_path / 'front/caller.sock'}") as gate:
        assert gate.call("f", [1]) == "f(1,)"
    over.join(30)
    assert [made.function for made in live.tapes.played("lab-1")] == ["f"]
    assert takeover.has_taken_over
    for gate in (live, front):
        gate.close()


def test_calls_of_a_replays_record_are_repeated_in_the_order_of_that_replay(
    tmp_path: Path,
) -> None:
    record = RunRecord.create(
        tmp_path, new_run_id(), meta={"replay_of": "20260101-000000-0a1b2c3d"}
    )
    # The replay answered them at once, and its record says how long they took before.
    made = [call("plus", 1, at=9.9), call("double", at=5.01, run=5.0), call("plus", 10, at=9.92)]
    for item in made:
        record.call(item.to_json())
    record.update(interfaces={"tools": {"schema": SCHEMA, "name": "tools"}})
    record.close("completed")
    run = open_run(record.run_id, tmp_path)
    takeover = Takeover(of_replay=run.info.replay_of is not None)
    front = gate_maker(run, takeover)("tools", lambda path: tmp_path / f"front{path}")
    in_order = [
        call(item.function, *json.loads(item.arguments or "")[0], at=n)
        for n, item in enumerate(made)
    ]
    live = ReplayGate(
        "tools",
        SCHEMA,
        in_order,
        read_blob=lambda digest: b"",
        host_path=lambda path: tmp_path / f"live{path}",
    )
    for gate in (live, front):
        gate.serve_caller("lab-1", "/caller.sock")
    takeover.add_caller("tools", "lab-1", tmp_path / "live/caller.sock")
    with client.connect("tools", f"path:{tmp_path / 'front/caller.sock'}") as gate:
        for item in made:
            gate.call(item.function, json.loads(item.arguments or "")[0])
    takeover.take_over()
    assert live.tapes.played("lab-1") == in_order
    for gate in (live, front):
        gate.close()


def test_a_stream_whose_items_are_not_all_recorded_is_made_live_if_there_is_a_live_gate(
    serve: Callable[..., client.Gate],
) -> None:
    class Alive:
        has_taken_over = False

        def holding_off(self) -> AbstractContextManager[bool]:
            return nullcontext(not self.has_taken_over)

        def take_over(self) -> None:
            self.has_taken_over = True

        def answer(self, interface: str, caller: str, asked: Asked) -> Answered:
            text = '{"stream":[{"item":5}],"end":null}'
            return Answered(recorded_stream(text, [], head_prefix("replay")), 200, text, ())

    calls = (call("f", at=1), stream(7, at=2, left_out=1))
    with serve(*calls) as alone:
        alone.call("f")
        with pytest.raises(GateError, match=r"replay: call 2 .* lacks 1 of the items"):
            list(alone.stream("parts", [7]))
    with serve(*calls, live=Alive()) as gate:
        assert gate.call("f") == "f()"
        assert list(gate.stream("parts", [7])) == [5]


@pytest.mark.parametrize(
    "junk",
    [b"\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"POST /v1/call/f HTTP/1.1\r\n\r\n", b"x" * 20000],
)
def test_junk_is_refused_and_the_gate_goes_on(
    serve: Callable[..., client.Gate], tmp_path: Path, junk: bytes
) -> None:
    gate = serve(call("f", 1, at=1))
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(30)
        raw.connect(str(tmp_path / "caller.sock"))
        raw.sendall(junk)
        assert b"ProtocolError" in raw.recv(65536)
    assert gate.call("f", [1]) == "f(1,)"
    gate.close()


def test_a_call_whose_arrays_a_gate_refuses_is_refused_as_recorded(
    serve: Callable[..., client.Gate], tmp_path: Path
) -> None:
    line: dict[str, Any] = {"caller": "lab-1", "request": "/v1/call/f", "refused": True, "time": 1}
    line |= {"outcome": "ProtocolError", "error": "unsealed"}
    gate = serve(GateCall.from_gate("tools", line), call("f", 1, at=2))
    head = (
        b"POST /v1/call/f HTTP/1.1\r\nhost: g\r\ncontent-type: application/x-seer-frames\r\n"
        b"seer-json: 2\r\nseer-buffers: m0+0+4\r\nseer-memfds: 1\r\ncontent-length: 2\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as raw, (tmp_path / "no memfd").open("wb") as file:
        raw.settimeout(30)
        raw.connect(str(tmp_path / "caller.sock"))
        socket.send_fds(raw, [head + b"[]"], [file.fileno()])
        assert b"unsealed" in raw.recv(65536)
    assert gate.call("f", [1]) == "f(1,)"
    gate.close()


def test_descriptors_of_requests_that_are_never_whole_are_closed(
    serve: Callable[..., client.Gate], tmp_path: Path
) -> None:
    gate = serve(call("f", 1, at=1))
    assert gate.call("f", [1]) == "f(1,)"

    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = files()
    with (tmp_path / "passed").open("wb") as passed:
        for junk in (b"POST /v1/call/f HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(tmp_path / "caller.sock"))
                socket.send_fds(raw, [junk], [passed.fileno()] * 10)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(30)
            raw.connect(str(tmp_path / "caller.sock"))
            for _ in range(2):
                socket.send_fds(raw, [b"x"], [passed.fileno()] * 40)
            assert b"more than 64 descriptors came" in raw.recv(65536)
    wait_until(lambda: files() == before, "the descriptors are closed")
    gate.close()


@pytest.mark.parametrize(
    "numbers", [(0, 0), (3, 4), (1, 2)], ids=["of an older version", "of a later part", "of all"]
)
def test_an_interface_answers_with_the_calls_of_the_recorded_one_in_its_place(
    tmp_path: Path, numbers: tuple[int, int]
) -> None:
    record = RunRecord.create(tmp_path, new_run_id(), meta={})
    for number, caller in zip(numbers, ("a-1", "b-2"), strict=True):
        record.call(call("f", caller, at=1, caller=caller, served=number).to_json())
        about = {"schema": SCHEMA, **({"served": number, "name": "tools"} if number else {})}
        record.update(interfaces={f"tools#{number}" if number else "tools": about})
    record.close("completed")
    made = gate_maker(open_run(record.run_id, tmp_path))
    gates = [made("tools", lambda path: tmp_path / path) for _ in range(2)]
    asked = FirstCall("f", '[["a-1"],{}]')
    left = [(gate.tapes.tape("a-1", asked).left, gate.tapes.tape("b-2").left) for gate in gates]
    # Records of older versions do not say whose calls they are.
    assert left == ([(1, 1)] * 2 if numbers == (0, 0) else [(1, 0), (0, 1)])
    for gate in gates:
        gate.close()


@pytest.mark.parametrize(
    ("recorded", "order"),
    [
        (("alpha-1", "beta-1", "gamma-1"), ("gamma-1", "alpha-1", "beta-1")),
        (("lab-0a1b2c-1", "lab-1a1b2c-1", "lab-2a1b2c-1"), ("lab-aaaaaa-1",) * 3),
    ],
    ids=["named", "unnamed"],
)
def test_interfaces_of_one_name_that_are_served_in_another_order_answer_their_own_callers(
    tmp_path: Path, recorded: tuple[str, ...], order: tuple[str, ...]
) -> None:
    record = RunRecord.create(tmp_path, new_run_id(), meta={})
    for number, caller in enumerate(recorded, start=1):
        n = 0 if caller[0] in "abg" else number
        result = json.dumps({"result": number})
        made = call("f", n, at=1, caller=caller, served=number, result=result)
        record.call(made.to_json())
        about = {"schema": SCHEMA, "served": number, "name": "tools"}
        record.update(interfaces={f"tools#{number}": about})
    record.close("completed")
    run = open_run(record.run_id, tmp_path)
    gates = [gate_maker(run)("tools", lambda path, n=n: tmp_path / f"{n}{path}") for n in range(3)]
    numbers = (3, 1, 2)
    for n in (1, 2, 0):
        gates[n].serve_caller(order[n], "/caller.sock")
        with client.connect("tools", f"path:{tmp_path / f'{n}/caller.sock'}") as gate:
            assert gate.call("f", [0 if order[n][0] in "abg" else numbers[n]]) == numbers[n]
    for gate in gates:
        gate.close()


def test_a_call_as_a_record_keeps_it_comes_back() -> None:
    made = call("f", 1, at=1, argument_buffers=("aa",), result_buffers=("bb", "cc"))
    assert GateCall.from_json(json.loads(json.dumps(made.to_json()))) == made
    seeded = call("f", at=1, arguments='[[],{"seed":7}]')
    assert seeded.to_json()["seed"] == 7


def test_lines_of_a_gates_own_record_are_understood() -> None:
    line: dict[str, Any] = {
        "caller": "a-1",
        "function": "f",
        "call": "x-1",
        "outcome": "ok",
        "time": 5.0,
        "queue": 1.0,
        "run": 2.0,
        "batch": 3,
        "bytes_in": 4,
        "bytes_out": 5,
        "source": "s",
        "result_digest": "d",
        "arguments": [[1], {}],
        "result": {"result": {"b": 1, "a": 2}},
        "result_buffers": [{"sha256": "ff", "bytes": 9}],
    }
    found = GateCall.from_gate("tools", line)
    assert (found.arguments, found.result) == ("[[1],{}]", '{"result":{"b":1,"a":2}}')
    assert (found.started, found.result_buffers) == (2.0, ("ff",))
    refused = GateCall.from_gate(
        "tools",
        {"caller": "a-1", "request": "/v1/call/g", "outcome": "UnknownFunctionError", "time": 1.0}
        | {"error": "no g", "refused": True},
    )
    assert (refused.function, refused.arguments) == ("g", None)
    assert json.loads(refused.result)["error"]["message"] == "no g"
