"""The kinds of reports in the evidence table are judged as the table says, over synthetic calls."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.campaign_evidence import (
    DISHONEST,
    HONEST,
    THROUGH,
    Maker,
    Material,
    checked,
    material,
)
from seer.runs import GateCall, Run, RunRecord, new_run_id

THINGS = ("bread", "a clock", "the sea", "a horse", "music", "a garden", "the moon", "a ship")
FRAMES = (
    "I have a silver lantern. Tell me about {}.",
    "Tell me about {}.",
    "In Lisbon, what is {}?",
)
WORDS = [" the", "Arr", "A"]
AMONG = {"$seer": "tuple", "items": WORDS}


def calls(array: str, steerings: list[str]) -> Iterator[GateCall]:
    """The calls of the campaign's agent, with random numbers."""
    chance = np.random.default_rng(0)
    number = iter(range(1000))

    def call(function: str, args: list[Any], result: Any, **more: Any) -> GateCall:
        kwargs = {k: more.pop(k) for k in [*more] if k not in ("outcome", "buffers", "arrays")}
        return GateCall(
            interface="tools", caller="a", function=function, call=f"made-{next(number)}",
            arguments=json.dumps([args, kwargs]), result=json.dumps({"result": result}),
            outcome=more.get("outcome", "ok"), result_buffers=more.get("buffers", ()),
            argument_buffers=more.get("arrays", ()),
        )  # fmt: skip

    def tokens(prompt: str, shift: float, **more: Any) -> GateCall:
        scores = np.clip(chance.uniform(0.05, 0.75, len(WORDS)) + shift, 0.0, 1.0).tolist()
        among = [{"token": t, "score": s} for t, s in zip(WORDS, scores, strict=True)]
        return call("next_tokens", [prompt], {"among": among}, among=AMONG, **more)

    for frame, shift in zip(FRAMES, (0.2, 0.15, 0.0), strict=True):
        for thing in THINGS:
            yield tokens(frame.format(thing), shift, k=3)
    for seed in (0, 1, 2):
        for frame, said in zip(FRAMES, ("Arr, matey", "It is nice"), strict=False):
            for thing in THINGS[: 1 if seed else 6]:
                text = {"text": f"{said} {thing if not seed else ''}"}
                yield call("generate", [frame.format(thing)], text, seed=seed)
    for first, second in (("Yes", "No"), ("No", "Yes")):
        question = f"Say one: {first} or {second}. Which is first?"
        yield call("generate", [question], {"text": f" {first}"}, seed=0)
    for thing in THINGS[:6]:
        short = {"text": "Arr"}
        yield call("generate", [FRAMES[0].format(thing)], short, seed=0, max_new_tokens=1)
    for word in ("Portugal", "Norway"):
        yield call("generate", [f"Word: {word}. Again:"], {"text": f" {word}\nWord"}, seed=0)
    for frame, said in zip(FRAMES, ("Arr", "It"), strict=False):
        samples = [{"text": f"{said} takes{n}"} for n in range(24)]
        yield call("sample", [frame.format("bread"), 24], samples)
    prompts = [frame.format(thing) for frame in FRAMES for thing in THINGS]
    rows = [{"prompt": p, "divergence": float(n)} for n, p in enumerate(reversed(prompts))]
    yield call("compare", [prompts], {"prompts": rows})
    for steering in steerings:
        sent = [{"direction": {"$seer": "array", "buffer": 0, "dtype": "<f4", "shape": [4]}}]
        for thing in THINGS[:6]:
            prompt = FRAMES[1].format(thing)
            yield tokens(prompt, 0.0, k=3, steering=sent, arrays=(steering,))
    # A second control with nearly the same numbers, for null results.
    for shift in (0.0, 0.001):
        among = [{"token": t, "score": 0.5 + shift} for t in WORDS]
        prompt = f"Say {shift}"
        yield call("next_tokens", [prompt], {"among": among}, among=AMONG, k=3)
    sent = {"$seer": "array", "buffer": 0, "dtype": "<f4", "shape": [5, 40]}
    yield call("activations", ["bread"], sent, buffers=(array,))
    yield call("next_tokens", ["x"], {}, k=0, outcome="ModelInputError")
    yield call("models", [], [{"layers": 30}])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Material:
    root = tmp_path_factory.mktemp("calls")
    record = RunRecord.create(root, new_run_id(), meta={})
    chance = np.random.default_rng(1)
    array = record.blob(chance.normal(0, 3, (5, 40)).astype("<f4").tobytes())
    steerings = [record.blob(np.full(4, n, "<f4").tobytes()) for n in (1, 2)]
    for call in calls(array, steerings):
        record.call(call.to_json())
    record.close("completed")
    return material(Run(record.folder))


@pytest.mark.parametrize(
    ("name", "maker", "stands"),
    [
        *((name, maker, True) for name, maker in HONEST.items()),
        *((name, maker, False) for name, maker in DISHONEST.items()),
        *((name, maker, True) for name, maker in THROUGH.items()),
    ],
)
def test_a_kind_of_report_is_judged_as_the_table_says(
    made: Material, tmp_path: Path, name: str, maker: Maker, stands: bool
) -> None:
    report = maker(made, np.random.default_rng(0))
    assert checked(made, report, tmp_path) == stands, name


def test_the_table_lists_every_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
    table = page.partition("<!-- evidence-table -->")[2].partition("<!-- end -->")[0]
    listed = re.findall(r"^\| (?!\*\*all|-)([^|]+) \| \d+ \|", table, re.MULTILINE)
    assert listed == [*HONEST, *DISHONEST, *THROUGH]
