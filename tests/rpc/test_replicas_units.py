"""The parts of dispatching that need no process: fair turns, GPUs, handles, copy numbers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seer.rpc.interface._budget import Budget, Meter
from seer.rpc.replicas._calls import FrontCall, FrontCaller
from seer.rpc.replicas._copy_client import CopyClient, RunReader
from seer.rpc.replicas._dispatch import ANYWHERE, WaitingCalls
from seer.rpc.replicas._supervision import least_used, visible_gpus
from seer.rpc.server._calls import DONE, QUEUED
from seer.rpc.server._config import MAX_REPLICAS, ServerConfig
from seer.rpc.server._shared import Shared


def caller(name: str) -> FrontCaller:
    shared = Shared()
    return FrontCaller(name, 0, Meter("it", Budget(), shared.cells, shared.meter_base(0)))


def call_of(owner: FrontCaller) -> FrontCall:
    return cast("FrontCall", SimpleNamespace(owner=owner, state=QUEUED))


def owners(waiting: WaitingCalls, copy: int, count: int) -> str:
    """The callers whose calls a copy takes, in order, with turns as the front counts them."""
    found = ""
    for turn in range(1, count + 1):
        call = waiting.pop(copy)
        assert call is not None
        owner = cast("FrontCaller", call.owner)
        owner.turn = turn
        found += owner.name
    return found


def test_a_caller_that_floods_takes_one_turn_after_the_others() -> None:
    waiting = WaitingCalls()
    flood, modest = caller("f"), caller("m")
    for _ in range(6):
        waiting.put(ANYWHERE, call_of(flood))
    for _ in range(3):
        waiting.put(ANYWHERE, call_of(modest))
    assert owners(waiting, 1, 9) == "fmfmfmfff"
    assert waiting.pop(1) is None


def test_a_flood_for_any_copy_does_not_push_back_those_at_home() -> None:
    waiting = WaitingCalls()
    flood, first, second = caller("f"), caller("a"), caller("b")
    for _ in range(6):
        waiting.put(ANYWHERE, call_of(flood))
    for _ in range(2):
        waiting.put(1, call_of(first))
        waiting.put(1, call_of(second))
    assert sorted(owners(waiting, 1, 6)) == list("aabbff")


def test_a_copy_takes_no_calls_of_others_homes() -> None:
    waiting = WaitingCalls()
    one, two = caller("1"), caller("2")
    waiting.put(1, call_of(one))
    waiting.put(2, call_of(two))
    assert owners(waiting, 2, 1) == "2"
    assert waiting.pop(2) is None
    assert waiting.empty(1)[0].owner is one
    assert waiting.pop(1) is None


def test_a_copy_that_shall_go_takes_only_what_nobody_else_can() -> None:
    waiting = WaitingCalls()
    free, bound = caller("f"), caller("b")
    waiting.put(ANYWHERE, call_of(free))
    waiting.put(1, call_of(bound))
    taken = waiting.pop(1, bound_only=True)
    assert taken is not None
    assert taken.owner is bound
    assert waiting.pop(1, bound_only=True) is None


def test_calls_that_have_ended_are_passed_over() -> None:
    waiting = WaitingCalls()
    owner = caller("o")
    calls = [call_of(owner) for _ in range(3)]
    for call in calls:
        waiting.put(ANYWHERE, call)
    calls[0].state = calls[1].state = DONE
    assert waiting.pop(1) is calls[2]


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , GPU-ab ", ["3", "GPU-ab"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,-1,3", ["2"]),
    ],
)
def test_gpus_are_those_the_environment_names(named: str, found: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}) == found


def test_without_a_word_gpus_are_counted_by_their_devices(tmp_path: Path) -> None:
    for name in ("nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, str(tmp_path)) == ["0", "1"]
    assert visible_gpus({}, str(tmp_path / "nowhere")) == []


def test_a_new_copy_gets_the_gpu_with_the_fewest_copies() -> None:
    assert least_used(["0", "1", "2"], ["0", "2", None]) == "1"
    assert least_used(["0", "1"], ["0", "1", "0"]) == "1"
    assert least_used([], [None]) is None


def test_handles_are_learned_from_answers_and_found_in_arguments() -> None:
    told: list[dict[str, Any]] = []
    copy = cast("CopyClient", SimpleNamespace(tell=told.append))
    places = caller("g").places
    one, two = "a" * 32, "b" * 32
    places.learn(b'{"result":[{"$seer":"handle","id":"%s","type":"int"}]}' % one.encode(), copy)
    assert places.where(one) is copy
    assert places.where(two) is None
    assert places.named_in(b'[[{"id": "%s", "$seer": "handle"}], {}]' % one.encode()) is copy
    assert places.named_in(b'[["%s"], {}]' % two.encode()) is None
    assert places.at(copy) == 1
    assert not places.free(two)
    assert places.free(one)
    assert told == [{"op": "free", "caller": "g", "handle": one}]
    assert places.at(copy) == 0


def test_text_that_looks_like_a_handle_is_none() -> None:
    copy = cast("CopyClient", SimpleNamespace())
    places = caller("g").places
    places.learn(b'{"result":"{\\"$seer\\":\\"handle\\",\\"id\\":\\"%s\\"}"}' % (b"a" * 32), copy)
    assert places.at(copy) == 0


def test_an_answer_says_how_its_call_ran() -> None:
    reader = RunReader()
    head = b"HTTP/1.1 200 OK\r\nseer-gate: 1\r\nseer-epoch: e\r\n%scontent-length: 2\r\n\r\n{}"
    assert reader.feed(head % b"seer-ran: 1.250000 1 7\r\n") is not None
    assert (reader.seconds, reader.gpu, reader.batch) == (1.25, True, 7)
    assert reader.feed(head % b"") is not None
    assert (reader.seconds, reader.gpu, reader.batch) == (-1.0, False, 1)


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "2", None, MAX_REPLICAS + 1])
def test_a_number_of_copies_is_a_whole_number_from_one_on(wrong: Any) -> None:
    with pytest.raises(ValueError, match="replicas"):
        ServerConfig(name="i", file="f", control="c", replicas=wrong)
