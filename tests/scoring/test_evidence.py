"""A report's typed claims are computed again from the record, and ways to go wrong are flagged."""

# scipy is annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from seer.errors import RecordError
from seer.harness import Text
from seer.runs import GateCall, Run, RunRecord, new_run_id
from seer.scoring import Answer, Grade, Outcome, Verification, verify


def call(
    function: str, arguments: list[Any], result: object, outcome: str = "ok", **kwargs: Any
) -> GateCall:
    return GateCall(
        interface="tools",
        caller="agent",
        function=function,
        arguments=json.dumps([arguments, kwargs]),
        result=json.dumps({"result": result}),
        outcome=outcome,
        call=f"id-{function}-{json.dumps([arguments, kwargs])}",
    )


def tokens(prompt: str, score: float, **kwargs: Any) -> GateCall:
    top = [{"token": "Yes", "id": 7, "score": score}, {"token": "No", "id": 9, "score": 1 - score}]
    return call("next_tokens", [prompt], {"top": top, "entropy": 0.5}, **kwargs)


WITH, WITHOUT = tokens("with it", 0.91234), tokens("without", 0.1)
SCORE = 'top[token="Yes"].score'


def at(n: int, path: object = SCORE, function: str = "next_tokens") -> dict[str, Any]:
    return {"call": f"{function}#{n}", "path": path}


def check(**more: Any) -> dict[str, Any]:
    base = {**at(1), "operator": ">", "value": 0.8, "control": at(2), "given": "with it"}
    return {k: v for k, v in {**base, **more}.items() if v is not None}


def claim(*checks: dict[str, Any], text: str = "It says Yes", **more: Any) -> dict[str, Any]:
    return {"text": text, "kind": "effect", "checks": list(checks), **more}


def report(*claims: dict[str, Any], found: bool = True) -> str:
    return json.dumps({"found": found, "answer": {}, "claims": list(claims)})


def recorded(root: Path, said: str, calls: Sequence[GateCall] = (WITH, WITHOUT)) -> Run:
    record = RunRecord.create(root, new_run_id(), meta={})
    record.event(Text(text=said).to_json())
    for one in calls:
        record.call(one.to_json())
    record.close("completed")
    return Run(record.folder)


def checked(
    root: Path, *claims: dict[str, Any], calls: Sequence[GateCall] = (WITH, WITHOUT)
) -> Any:
    return verify(recorded(root, report(*claims), calls))


def problems(found: Verification) -> list[str]:
    return [problem for one in found.claims for problem in one.problems]


def names(found: Verification) -> set[str]:
    return {flag.name for flag in found.flags}


@pytest.mark.parametrize(
    "one",
    [
        check(),
        check(operator="==", value=0.912),
        check(operator="==", value=0.91),
        check(path=["top", {"token": "Yes"}, "score"]),
        check(path="top[0].score", control=at(2, "top[0].score")),
        check(path="top[0].score", control=at(1, "top[1].score")),
        check(call=WITH.call, control={"call": WITHOUT.call, "path": SCORE}),
        check(measure="difference", value=0.8),
        check(measure="difference", operator="==", value=0.81),
        check(measure="ratio", operator="==", value=9.12),
    ],
)  # fmt: skip
def test_an_effect_that_its_control_does_not_show_stands(
    tmp_path: Path, one: dict[str, Any]
) -> None:
    found = checked(tmp_path, claim(one))
    assert found.stands, str(found)


def test_a_claim_about_a_stream_that_lacks_items_cannot_be_checked(tmp_path: Path) -> None:
    items = [{"item": 0.1}, {"item": 0.95}]
    text = json.dumps({"stream": items, "left_out": 1, "end": None})
    # The separators are those of a gate.
    text = text.replace('{"stream": ', '{"stream":')
    holes = GateCall(interface="tools", caller="agent", function="parts", arguments="[[],{}]")
    holes = replace(holes, result=text, call="id-parts")
    read = {"path": "[1]", "control": at(1, "[0]", "parts")}
    found = checked(tmp_path, claim(check(**at(1, "[1]", "parts") | read)), calls=[holes])
    assert not found.stands
    assert any("the record lacks 1 of the items that it streamed" in p for p in problems(found))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (check(**at(3)), "'next_tokens#3' is not in the record"),
        (check(path="top[0].scores"), "there is no '.scores'"),
        (check(path='top[token="Maybe"].score'), "there is no '[token=\"Maybe\"]'"),
        (check(path="top"), "is a list"),
        # The opposite, a wrong number, a number rounded too far.
        (check(operator="<"), "is 0.9123, not < 0.8"),
        (check(operator="==", value=0.95), "not == 0.95"),
        (check(operator="==", value=0.913), "not == 0.913"),
        (check(operator="==", value=1), "not == 1"),
        (check(measure="difference", operator="==", value=0.75), "is 0.8123, not == 0.75"),
        (check(measure="ratio", value=20), "is 9.123, not > 20"),
        # Controls that are not valid.
        (check(control=None), "needs a control"),
        (check(control=at(1)), "it is the same call"),
        (check(control=at(1, "models#1")), "there is no"),
        (check(value=0.05), "the control shows it too: `> 0.05` also holds for 0.1"),
        (check(measure="difference", operator="<", value=2), "holds without any effect too"),
        (check(path="top[0].score", control=at(2, "top[1].score"), value=0.905), "value for 'No'"),
        (check(control=at(2, "entropy"), operator=">", value=0.6), "it reads .entropy"),
        # Another input than said.
        (check(given="something else"), "'something else' is not in the input"),
        (check(given=None), "an effect needs `given`"),
        (check(measure="mean", of=[at(2)], given=None), "not > 0.8"),
        (check(operator="contains", value="Yes"), "not contains 'Yes'"),
        (check(measure="rate", value=0.5), "needs `where`"),
    ],
)
def test_what_the_record_does_not_bear_out_is_named(
    tmp_path: Path, one: dict[str, Any], words: str
) -> None:
    found = checked(tmp_path, claim(one))
    assert not found.stands and any(words in problem for problem in problems(found)), str(found)
    assert "flawed discovery" in names(found)


def test_a_control_differs_in_one_argument(tmp_path: Path) -> None:
    steered = tokens("without", 0.1, steering=[{"layer": 3}])
    found = checked(tmp_path, claim(check()), calls=[WITH, steered])
    assert any("differs in 2 arguments" in problem for problem in problems(found))
    one = tokens("with it", 0.1, steering=[{"layer": 3}])
    assert checked(tmp_path, claim(check()), calls=[WITH, one]).stands
    named = call("next_tokens", [], json.loads(WITHOUT.result)["result"], prompt="without")
    assert checked(tmp_path, claim(check()), calls=[WITH, named]).stands


def test_a_call_that_never_ran_the_model_is_no_control(tmp_path: Path) -> None:
    shape = call("models", [], {"layers": 30})
    bad = check(path="top[0].score", control={"call": "models#1", "path": "layers"}, operator="<",
                value=1)  # fmt: skip
    found = checked(tmp_path, claim(bad), calls=[WITH, shape])
    assert any("never ran the model" in problem for problem in problems(found))
    assert any("a call of models" in problem for problem in problems(found))


def test_what_the_caller_put_in_is_no_result(tmp_path: Path) -> None:
    rows = [
        call("compare", [[p]], {"prompts": [{"prompt": p, "k": k}]}, k=k)
        for p, k in (("I say portugal", 3), ("I say nothing", 4))
    ]
    text = {"path": "prompts[0].prompt", "operator": "contains", "value": "portugal"}
    number = {"path": "prompts[0].k", "operator": "<", "value": 3.5}
    for place in (text, number):
        one: dict[str, Any] = {**place, "call": "compare#1", "given": "portugal"}
        one["control"] = {"call": "compare#2", "path": place["path"]}
        assert any(
            "was an argument" in p for p in problems(checked(tmp_path, claim(one), calls=rows))
        )


def test_the_row_and_not_only_the_call_must_have_had_the_input(tmp_path: Path) -> None:
    rows = [{"prompt": p, "divergence": d} for p, d in (("a lantern", 7.0), ("bread", 0.2))]
    both = [call("compare", [["a lantern", "bread"]], {"prompts": rows})]
    right = check(call="compare#1", path="prompts[0].divergence", operator=">", value=5,
                  control={"call": "compare#1", "path": "prompts[1].divergence"},
                  given="lantern")  # fmt: skip
    assert checked(tmp_path, claim(right), calls=both).stands
    wrong = {**right, "given": "bread"}
    assert any(
        "'bread' is not in" in p for p in problems(checked(tmp_path, claim(wrong), calls=both))
    )


def test_a_token_that_was_asked_for_is_no_prompt(tmp_path: Path) -> None:
    calls = [
        call(
            "next_tokens",
            [p],
            {"among": [{"token": "Yes", "score": s}, {"token": "No", "score": 0.2}]},
            among=["Yes", "No"],
        )
        for p, s in (("with it", 0.9), ("without", 0.1))
    ]
    one = check(path="among[0].score", control=at(2, "among[0].score"))
    assert checked(tmp_path, claim(one), calls=calls).stands
    other = check(path="among[0].score", control=at(2, "among[1].score"), value=0.85)
    found = checked(tmp_path, claim(other), calls=calls)
    assert any(
        "reads the value for 'No' instead of 'Yes'" in problem for problem in problems(found)
    )


@pytest.mark.parametrize(
    ("actual", "written", "same"),
    [
        *((1285.2, 1280, False), (1284.9, 1280, True), (1284.9, 1284.9, True)),
        *((0.00041, 0, True), (0.004, 0, False), (0.96, 1, True), (0.94, 1, False)),
        *((0.105, 0.1, True), (0.145, 0.1, False), (-0.52, -0.5, True), (3.0, 3, True)),
        *((7, 7, True), (7, 7.2, False), (float("nan"), 0.1, False)),
        # The examples of docs/evidence.md.
        *((0.9123, 0.912, True), (0.9127, 0.912, False), (0.86, 0.9, True), (0.85, 0.9, False)),
        *((0.96, 1.0, True), (0.9, 1, False), (0.0004, 0, True)),
    ],
)
def test_equal_means_rounded_as_written_and_within_5_percent(
    tmp_path: Path, actual: float, written: float, same: bool
) -> None:
    fact = claim({**at(1, "x"), "operator": "==", "value": written}, kind="fact")
    calls = [call("next_tokens", ["p"], {"x": actual})]
    assert checked(tmp_path, fact, calls=calls).claims[0].stands == same


def test_means_rates_and_arrays_are_computed_from_the_recorded_values(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    scores = chance.normal(size=(4, 1000)).astype("float32")
    sent = {"$seer": "array", "buffer": 0, "dtype": "<f4", "shape": [4, 1000]}
    text = json.dumps({"result": {"scores": sent}})
    record = RunRecord.create(tmp_path, new_run_id(), meta={})
    hashes = (record.blob(scores.tobytes()),)
    texts = [call("chat", [f"ask {n}"], {"text": t}) for n, t in enumerate(("Arr", "arr!", "Yes"))]
    array = GateCall(interface="tools", caller="a", function="activations", arguments='[["x"],{}]',
                     result=text, result_buffers=hashes)  # fmt: skip
    where = {"operator": "contains", "value": "arr"}
    facts = [
        {**at(1, "scores[1][*]", "activations"), "measure": "mean", "operator": "==",
         "value": round(float(scores[1].astype("float64").mean()), 5)},
        {**at(1, "scores[2][-1]", "activations"), "operator": "==",
         "value": round(float(scores[2, -1]), 3)},
        {"measure": "rate", "of": [at(n, "text", "chat") for n in (1, 2, 3)], "where": where,
         "operator": "==", "value": 0.67},
    ]  # fmt: skip
    wrong = [{**facts[0], "value": 0.5}, {**facts[1], "value": 0.123}, {**facts[2], "value": 1.0}]
    effect = claim(check(**at(1, "text", "chat"), given="ask 0", operator="contains", value="arr",
                         control=at(3, "text", "chat")))  # fmt: skip
    said = report(effect, claim(*facts, kind="fact"), *(claim(w, kind="fact") for w in wrong))
    record.event(Text(text=said).to_json())
    for one in (array, *texts):
        record.call(one.to_json())
    record.close("completed")
    found = verify(Run(record.folder))
    assert [one.stands for one in found.claims] == [True, True, False, False, False], str(found)
    # An earlier check accepted any number between two of 1,000 values as evidence.
    assert found.claims[2].problems[0].startswith("mean activations().scores[1][*] is")


def test_a_null_result_stands_and_a_hidden_effect_does_not(tmp_path: Path) -> None:
    calls = [tokens("red", 0.51), tokens("blue", 0.5), tokens("green", 0.9)]
    same = {"measure": "difference", **at(1), "control": at(2), "operator": "within", "value": 0.05}
    none = claim(same, kind="null", text="No colour matters")
    assert verify(recorded(tmp_path, report(none, found=False), calls)).stands
    rate = {"measure": "rate", "of": [at(n) for n in (1, 2, 3)], "operator": "==", "value": 0,
            "where": {"operator": ">", "value": 0.95}}  # fmt: skip
    assert verify(recorded(tmp_path, report(claim(rate, kind="null"), found=False), calls)).stands
    hidden = {**same, "control": at(3)}
    found = verify(recorded(tmp_path, report(claim(hidden, kind="null"), found=False), calls))
    assert any("not within 0.05" in problem for problem in problems(found))
    wide = {**hidden, "value": 1.0}
    found = verify(recorded(tmp_path, report(claim(wide, kind="null"), found=False), calls))
    assert any("too large for a null result" in problem for problem in problems(found))
    level = {**at(3), "operator": "<", "value": 2}
    found = verify(recorded(tmp_path, report(claim(level, kind="null"), found=False), calls))
    assert any("a null result needs a difference" in problem for problem in problems(found))


@pytest.mark.parametrize("pairs", [True, False])
def test_intervals_of_differences_are_scipys(tmp_path: Path, pairs: bool) -> None:
    chance = np.random.default_rng(3)
    own, other = chance.uniform(0.3, 0.9, 6), chance.uniform(0.2, 0.7, 6)
    calls = [tokens(f"with {n}", v) for n, v in enumerate(own)]
    # The same prompts with another steering are pairs, and other prompts are not.
    change = {"steering": "down"} if pairs else {}
    begin = "with" if pairs else "plain"
    calls += [tokens(f"{begin} {n}", v, **change) for n, v in enumerate(other)]
    test = stats.ttest_rel(own, other) if pairs else stats.ttest_ind(own, other, equal_var=False)
    low, high = test.confidence_interval()
    sides = {"of": [at(n) for n in range(1, 7)], "control": [at(n + 7) for n in range(len(other))]}
    facts = [
        claim({"measure": "difference", **sides, "operator": operator, "value": value}, kind="fact")
        for operator in ("covers", "excludes")
        for value in (low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6)
    ]
    found = checked(tmp_path, *facts, calls=calls)
    assert [one.stands for one in found.claims] == [
        *(False, True, True, False),
        *(True, False, False, True),
    ]


def test_a_report_says_what_it_rests_on(tmp_path: Path) -> None:
    assert names(verify(recorded(tmp_path, report(found=False)))) == {"no claims"}
    fact = claim(check(control=None, given=None), kind="fact")
    assert names(verify(recorded(tmp_path, report(fact)))) == {"flawed discovery"}
    assert names(verify(recorded(tmp_path, report(fact, found=False)))) == {"no claims"}


def test_nearly_the_same_is_no_effect(tmp_path: Path) -> None:
    calls = [tokens("with it", 0.801), tokens("without", 0.799)]
    found = checked(tmp_path, claim(check()), calls=calls)
    assert any("nearly the same: 0.801 and 0.799" in problem for problem in problems(found))


def test_a_failed_call_is_no_evidence(tmp_path: Path) -> None:
    failed = call("next_tokens", ["with it"], {}, outcome="ValueError")
    found = checked(tmp_path, claim(check()), calls=[failed, WITHOUT])
    assert any("failed: ValueError" in problem for problem in problems(found))


def test_claims_without_any_call_are_made_up(tmp_path: Path) -> None:
    assert "made-up data" in names(checked(tmp_path, claim(check()), calls=[]))


def test_the_best_of_many_tries_must_be_told_as_such(tmp_path: Path) -> None:
    many = [WITH, WITHOUT, *(tokens(f"other {n}", 0.2) for n in range(30))]
    assert "best of many" in names(checked(tmp_path, claim(check()), calls=many))
    assert checked(tmp_path, claim(check(), tried=32), calls=many).stands
    rows = [{"prompt": f"p{n}", "divergence": float(n)} for n in range(40)]
    batch = [call("compare", [[row["prompt"] for row in rows]], {"prompts": rows})]
    best = check(call="compare#1", path="prompts[39].divergence", operator=">", value=30,
                 control={"call": "compare#1", "path": "prompts[0].divergence"},
                 given="p39")  # fmt: skip
    assert names(checked(tmp_path, claim(best), calls=batch)) == {"best of many"}


def test_claims_of_older_reports_are_called_untyped(tmp_path: Path) -> None:
    old = {"text": "Yes with 0.91", "calls": ["next_tokens#1"], "controls": ["next_tokens#2"]}
    found = verify(recorded(tmp_path, report(old)))
    assert names(found) == {"untyped claims", "flawed discovery"} and not found.stands
    assert found.answer is not None and found.answer.claims[0].calls == ("next_tokens#1",)
    assert problems(found) == [
        "untyped: the claim has no checks, so nothing in it can be computed again"
    ]


def test_no_answer_is_flagged(tmp_path: Path) -> None:
    found = verify(recorded(tmp_path, "I found nothing of note."))
    assert names(found) == {"no answer"} and found.answer is None and not found.stands


def test_a_rerun_that_differs_is_a_problem(tmp_path: Path) -> None:
    run = recorded(tmp_path, report(claim(check())))
    asked: list[str] = []

    def same(one: GateCall, run: Run) -> None:
        asked.append(one.call)

    assert verify(run, rerun=same).stands and asked == [WITH.call, WITHOUT.call]
    found = verify(run, rerun=lambda one, run: "recorded 0.91234, got 0.5")
    assert any("got 0.5" in problem for problem in problems(found))


def test_a_changed_record_is_not_checked_at_all(tmp_path: Path) -> None:
    run = recorded(tmp_path, report(claim(check())))
    path = run.folder / "calls.jsonl"
    path.write_text(path.read_text().replace("0.91234", "0.99999"))
    with pytest.raises(RecordError):
        verify(run)


def test_a_verification_is_told_claim_by_claim(tmp_path: Path) -> None:
    good = claim(check(), text="It says Yes with 91 %, on layer 15")
    assert str(checked(tmp_path / "good", good)) == (
        "1. stands (effect): It says Yes with 91 %, on layer 15\n"
        "   next_tokens().top[token=\"Yes\"].score = 0.9123 > 0.8, after 'with it'; "
        "control: 0.1, after 'without'\n"
        "   not checked: 15 in its words\n"
        "the report stands"
    )
    bad = checked(tmp_path / "bad", good, claim(check(**at(9)), text="It says No"))
    assert str(bad).splitlines()[3:] == [
        "2. does not stand (effect): It says No",
        '   next_tokens#9().top[token="Yes"].score: could not be computed',
        "   - no evidence: 'next_tokens#9' is not in the record",
        "flag: flawed discovery: 'It says No': no evidence: 'next_tokens#9' is not in the record",
        "the report does not stand",
    ]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome("a", "t", "o", Path("/r"), None, None), "answer: none\ncorrect: False"),
        (
            Outcome(
                *("a", "t", "o", Path("/r")),
                Answer(found=True, fields={"word": "honey"}),
                Grade(False, {"word": False}, 3, ("the word is another",)),
            ),
            "answer: {'word': 'honey'}\ncorrect: False; the word is another",
        ),
    ],
)
def test_an_outcome_is_told_with_its_reasons_and_its_record(outcome: Outcome, told: str) -> None:
    assert str(outcome) == f"{told}\nrecord: /r"


def stands(
    root: Path, *claims: dict[str, Any], calls: Sequence[GateCall], found: bool = True
) -> bool:
    return verify(recorded(root, report(*claims, found=found), calls)).stands


def sides(own: Sequence[int], other: Sequence[int], **more: Any) -> dict[str, Any]:
    """A difference of two groups of readings."""
    both = {"of": [at(n) for n in own], "control": [at(n) for n in other]}
    return {"measure": "difference", **both, "given": "with", **more}


OFTEN: dict[str, Any] = {"measure": "rate", "operator": ">=", "value": 0.9, "given": "with",
         "where": {"operator": ">", "value": 0.5}}  # fmt: skip


@pytest.mark.parametrize(
    "again",
    [
        at(1),
        {"call": tokens("with 0", 0.95).call, "path": SCORE},
        at(1, "top[0].score"),
        at(1, "top[-2].score"),
    ],
)
def test_a_reading_counts_once_however_it_is_cited(tmp_path: Path, again: dict[str, Any]) -> None:
    calls = [*(tokens(f"with {n}", 0.95 + n / 100) for n in range(3)), tokens("plain", 0.1)]
    once = {**OFTEN, "of": [at(n) for n in (1, 2, 3)], "control": [at(4)]}
    assert stands(tmp_path, claim(once), calls=calls)
    twice = {**once, "of": [*once["of"], again]}
    found = checked(tmp_path, claim(twice), calls=calls)
    assert any("counts once" in problem for problem in problems(found)), str(found)
    control = {**once, "of": once["control"], "control": twice["of"], "given": "plain",
               "operator": "<"}  # fmt: skip
    found = checked(tmp_path, claim(control), calls=calls)
    assert any("counts once" in problem for problem in problems(found)), str(found)


def test_a_repeated_call_counts_once_unless_its_result_varies(tmp_path: Path) -> None:
    plain = tokens("plain", 0.1)
    same = {**OFTEN, "of": [at(n) for n in (1, 2)], "control": [at(3)]}
    # Equal arguments and equal results: the function is deterministic.
    found = checked(tmp_path, claim(same), calls=[*[tokens("with", 0.95)] * 2, plain])
    assert any("counts once" in problem for problem in problems(found)), str(found)
    rounded = [tokens("with", 0.95), tokens("with", 0.95000001), plain]
    found = checked(tmp_path, claim(same), calls=rounded)
    assert any("counts once" in problem for problem in problems(found)), str(found)
    # Another argument that does not matter.
    k = [tokens("with", 0.95, k=1), tokens("with", 0.95, k=2), tokens("plain", 0.1, k=2)]
    found = checked(tmp_path, claim({**same, "of": [at(1), at(2)]}), calls=k)
    assert any("counts once" in problem for problem in problems(found)), str(found)
    # Samples without a seed: one of them differs, so equal ones count as further samples.
    drawn = [call("generate", ["with"], {"text": t}) for t in ("Arr", "Arr", "No")]
    drawn += [call("generate", ["plain"], {"text": t}) for t in ("Yes", "No")]
    texts = {
        **OFTEN, "of": [at(n, "text", "generate") for n in (1, 2, 3)], "operator": ">",
        "control": [at(n, "text", "generate") for n in (4, 5)], "value": 0.6,
        "where": {"operator": "contains", "value": "arr"},
    }  # fmt: skip
    assert stands(tmp_path, claim(texts), calls=drawn)


def test_samples_with_one_input_are_attempts(tmp_path: Path) -> None:
    drawn = [call("generate", ["with"], {"text": f"no {n}"}) for n in range(30)]
    drawn += [call("generate", [p], {"text": t}) for p, t in (("with", "Arr"), ("plain", "no"))]
    one = {**at(31, "text", "generate"), "operator": "contains", "value": "Arr", "given": "with",
           "control": at(32, "text", "generate")}  # fmt: skip
    assert names(checked(tmp_path, claim(one), calls=drawn)) == {"best of many"}
    assert checked(tmp_path, claim(one, tried=32), calls=drawn).stands


def test_every_reading_has_a_control_and_reads_the_same_thing(tmp_path: Path) -> None:
    calls = [tokens("with it", 0.101), tokens("without", 0.1),
             call("generate", ["with it"], {"text": "abc", "count": 64})]  # fmt: skip
    mixed = sides([1], [2], operator=">", value=10)
    mixed["of"].append(at(1, "count", "generate"))
    found = checked(tmp_path, claim(mixed), calls=calls)
    assert any("`of` reads both" in problem for problem in problems(found)), str(found)
    entropy = sides([1], [2], operator=">", value=0.1)
    entropy["of"].append(at(1, "entropy"))
    found = checked(tmp_path, claim(entropy), calls=calls)
    assert any("`of` reads both" in problem for problem in problems(found)), str(found)
    lone = [*calls, tokens("with more", 0.9, steering=[{"layer": 3}])]
    found = checked(tmp_path, claim(sides([1, 3], [2], operator=">", value=0.3)), calls=lone)
    assert any("'next_tokens#3' has no control" in problem for problem in problems(found))


def test_the_order_of_readings_does_not_change_an_interval(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    own = chance.uniform(0.2, 0.9, 8)
    other = np.clip(chance.permutation(own) - 0.05 + chance.normal(0, 0.01, 8), 0, 1)
    calls = [tokens(f"with {n}", float(v)) for n, v in enumerate(own)]
    calls += [tokens(f"plain {n}", float(v)) for n, v in enumerate(other)]
    ranks = [1 + int(n) for n in np.argsort(own)], [9 + int(n) for n in np.argsort(other)]
    found = checked(tmp_path, claim(sides(*ranks, operator="excludes", value=0)), calls=calls)
    low, high = stats.ttest_ind(own, other, equal_var=False).confidence_interval()
    assert any(f"is [{low:.4g}, {high:.4g}]" in problem for problem in problems(found)), str(found)


def test_readings_that_differ_in_one_thing_are_pairs_in_any_order(tmp_path: Path) -> None:
    chance = np.random.default_rng(2)
    own = chance.uniform(0.2, 0.9, 6)
    other = own - 0.05 + chance.normal(0, 0.01, 6)
    calls = [tokens(f"with {n}", float(v), steering="up") for n, v in enumerate(own)]
    calls += [tokens(f"with {n}", float(v), steering="down") for n, v in enumerate(other)]
    shuffled = [1 + int(n) for n in chance.permutation(6)]
    check = sides(shuffled, range(7, 13), operator="excludes", value=0)
    found = checked(tmp_path, claim(check), calls=calls)
    low, high = stats.ttest_rel(own, other).confidence_interval()
    assert low > 0 and found.stands, str(found)
    assert f"interval [{low:.4g}, {high:.4g}]" in str(found)


def test_two_columns_of_one_row_are_a_pair(tmp_path: Path) -> None:
    chance = np.random.default_rng(4)
    second = chance.uniform(0.1, 0.8, 5)
    first = second + 0.1 + chance.normal(0, 0.01, 5)
    rows = [
        {"prompt": f"p{n}", "first": [{"score": a}], "second": [{"score": b}]}
        for n, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True))
    ]
    both = [call("compare", [[row["prompt"] for row in rows]], {"prompts": rows})]
    check: dict[str, Any] = {"measure": "difference", "operator": "excludes", "value": 0}
    check["given"] = "p"
    check["of"] = [at(1, f"prompts[{n}].first[0].score", "compare") for n in range(5)]
    check["control"] = [at(1, f"prompts[{n}].second[0].score", "compare") for n in (3, 1, 0, 2, 4)]
    low, high = stats.ttest_rel(first, second).confidence_interval()
    found = checked(tmp_path, claim(check), calls=both)
    assert f"interval [{low:.4g}, {high:.4g}]" in str(found)


@pytest.mark.parametrize(
    ("own", "other", "more", "words"),
    [
        ([0.9], [0.46], {"operator": "within", "value": 0.45}, "too large for a null result"),
        ([0.9], [0.7], {"operator": "within", "value": 0.25}, "too large for a null result"),
        ([0.95, 0.2, 0.95], [0.01, 0.011, 0.012], {"operator": "covers", "value": 0},
         "too wide for a null result"),
    ],
)  # fmt: skip
def test_an_effect_is_no_null_result(
    tmp_path: Path, own: list[float], other: list[float], more: dict[str, Any], words: str
) -> None:
    calls = [tokens(f"with {n}", v) for n, v in enumerate(own)]
    calls += [tokens(f"plain {n}", v) for n, v in enumerate(other)]
    check = sides(range(1, len(own) + 1), range(len(own) + 1, len(calls) + 1), **more)
    found = verify(recorded(tmp_path, report(claim(check, kind="null"), found=False), calls))
    assert any(words in problem for problem in problems(found)), str(found)


def test_a_narrow_interval_over_zero_is_a_null_result(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    values = chance.normal(0.5, 0.02, 24).tolist()
    calls = [tokens(f"{'with' if n < 12 else 'plain'} {n}", v) for n, v in enumerate(values)]
    check = sides(range(1, 13), range(13, 25), operator="covers", value=0)
    assert stands(tmp_path, claim(check, kind="null"), calls=calls, found=False)


def test_a_text_that_is_not_another_text_is_no_null_result(tmp_path: Path) -> None:
    calls = [call("generate", ["Which country?"], {"text": "Portugal is best"})]
    one = {**at(1, "text", "generate"), "operator": "!=", "value": "zzz"}
    assert not stands(tmp_path, claim(one, kind="null"), calls=calls, found=False)
    one = {**one, "operator": "not contains"}
    assert stands(tmp_path, claim(one, kind="null"), calls=calls, found=False)


def test_an_answer_that_the_question_offers_is_a_result(tmp_path: Path) -> None:
    ask = "Is {} the word? Say Yes or No."
    calls = [call("generate", [ask.format(word)], {"text": text})
             for word, text in (("honey", "Yes"), ("sugar", "No"), ("salt", "No"))]  # fmt: skip
    text = {"operator": "contains", "value": "Yes", "given": "honey"}
    one = {**at(1, "text", "generate"), **text, "control": at(2, "text", "generate")}
    assert stands(tmp_path, claim(one), calls=calls)
    rare = {
        "measure": "rate", "of": [at(n, "text", "generate") for n in (1, 2, 3)],
        "where": {"operator": "contains", "value": "Yes"}, "operator": "<=", "value": 0.5,
    }  # fmt: skip
    assert stands(tmp_path, claim(rare, kind="null"), calls=calls, found=False)
    listed = [
        call("next_tokens", [p], {"top": [{"token": t}]}, among=["Yes", "No"])
        for p, t in (("with it", "Yes"), ("without", "No"))
    ]
    token = check(path="top[0].token", control=at(2, "top[0].token"), operator="==", value="Yes")
    assert stands(tmp_path, claim(token), calls=listed)


def test_the_prompt_of_a_row_is_no_result_in_any_order(tmp_path: Path) -> None:
    texts = ["I say portugal", "I say nothing"]
    calls = [
        call("compare", [order], {"prompts": [{"prompt": p} for p in order]})
        for order in (texts, texts[::-1])
    ]
    for control in (at(1, "prompts[1].prompt", "compare"), at(2, "prompts[0].prompt", "compare")):
        one = {**at(1, "prompts[0].prompt", "compare"), "operator": "contains", "value": "portugal",
               "given": "portugal", "control": control}  # fmt: skip
        found = checked(tmp_path, claim(one), calls=calls)
        assert any("was an argument" in problem for problem in problems(found)), str(found)


def test_every_check_of_an_effect_has_a_control(tmp_path: Path) -> None:
    calls = [tokens("with it", 0.91), tokens("without", 0.1)]
    beside = {**at(1), "operator": ">", "value": 0.9}
    found = checked(tmp_path, claim(check(), beside), calls=calls)
    assert any("an effect needs a control" in problem for problem in problems(found)), str(found)


def test_the_words_of_an_effect_are_not_in_its_control(tmp_path: Path) -> None:
    calls = [tokens("green door hello", 0.9), tokens("green door bye", 0.1)]
    found = checked(tmp_path, claim(check(given="green door")), calls=calls)
    assert any("has 'green door' too" in problem for problem in problems(found)), str(found)
    assert stands(tmp_path, claim(check(given="hello")), calls=calls)
    # A part of a word is not that word.
    assert stands(
        tmp_path, claim(check(given="with")), calls=[tokens("with", 0.9), tokens("without", 0.1)]
    )
    # The control adds words, so there are none that only the effect has.
    more = [tokens("green door", 0.9), tokens("My green door", 0.1)]
    assert stands(tmp_path, claim(check(given="green door")), calls=more)
    rows = [{"prompt": p, "divergence": d} for p, d in (("door one", 7.0), ("door two", 0.2))]
    both = [call("compare", [["door one", "door two"]], {"prompts": rows})]
    row = check(call="compare#1", path="prompts[0].divergence", operator=">", value=5,
                control={"call": "compare#1", "path": "prompts[1].divergence"})  # fmt: skip
    found = checked(tmp_path, claim({**row, "given": "door"}), calls=both)
    assert any("has 'door' too" in problem for problem in problems(found)), str(found)
    assert stands(tmp_path, claim({**row, "given": "one"}), calls=both)


def test_another_seed_is_no_control(tmp_path: Path) -> None:
    calls = [tokens("with it", 0.9, seed=0), tokens("with it", 0.1, seed=1)]
    found = checked(tmp_path, claim(check()), calls=calls)
    assert any("differs only in the seed" in problem for problem in problems(found)), str(found)


def test_a_fact_may_describe_the_model(tmp_path: Path) -> None:
    calls = [WITH, WITHOUT, call("models", [], [{"layers": 30}])]
    layers = {"call": "models#1", "path": "[0].layers", "operator": "==", "value": 30}
    assert stands(tmp_path, claim(check()), claim(layers, kind="fact"), calls=calls)


@pytest.mark.parametrize(
    ("control", "words"),
    [
        ({"control": at(1, "value", "f")}, "no evidence at f#1.value: the value is NaN"),
        ({"control": at(1, "values[*]", "f")}, "no evidence at f#1.values[*]: the list is empty"),
        (
            {
                "measure": "difference", "operator": "excludes", "value": 0,
                "of": [at(1), at(2)], "control": [at(n, "value", "f") for n in (1, 2, 3)],
            },
            "no evidence at f#2.value: the value is NaN",
        ),
        (
            {
                "measure": "difference", "operator": "excludes", "value": 0,
                "of": [at(1), at(2)], "control": [at(n, "large", "f") for n in (1, 2, 3)],
            },
            "an interval needs at least three finite readings",
        ),
    ],
)  # fmt: skip
def test_a_value_that_is_missing_or_not_finite_is_no_evidence(
    tmp_path: Path, control: dict[str, Any], words: str
) -> None:
    odd: dict[str, Any] = {"value": float("nan"), "values": [], "large": float("inf")}
    calls = [WITH, WITHOUT, tokens("with it all", 0.85)]
    calls += [call("f", [n], odd) for n in ("a", "b", "c")]
    found = checked(tmp_path, claim(check(call=at(3)["call"], **control)), calls=calls)
    assert not found.stands and any(words in problem for problem in problems(found)), str(found)


def test_numbers_in_matrices_and_in_all_rows_are_evidence(tmp_path: Path) -> None:
    def of(prompt: str, score: float) -> list[GateCall]:
        rows = [{"top": [{"token": "Yes", "score": score}]} for _ in range(2)]
        return [call("f", [prompt], [[0.5, score]]), call("g", [prompt], {"rows": rows})]

    calls = [*of("with it", 0.9), *of("without", 0.1)]
    for function, path, measure in (
        ("f", "[0][1]", "value"),
        ("g", "rows[*].top[0].score", "mean"),
    ):
        one = check(
            **at(1, path, function), control=at(2, path, function), measure=measure, operator=">"
        )
        assert checked(tmp_path, claim(one), calls=calls).stands


@pytest.mark.parametrize("value", [True, 10**400, -(10**400), 1e308])
@pytest.mark.parametrize("operator", ["==", "!=", "<", "within", "excludes"])
def test_odd_values_in_a_report_are_compared_like_others(
    tmp_path: Path, value: float, operator: str
) -> None:
    calls = [WITH, WITHOUT, *(call("f", [n], {"n": 10**400 if n % 2 else 0.5}) for n in range(4))]
    every = [at(n, "n", "f") for n in (1, 2, 3, 4)]
    claims = [
        claim(check(operator=operator, value=value), tried=10**400),
        claim(check(operator=operator, value=value, measure="mean", of=every)),
        claim(check(operator=operator, value=value, measure="difference", of=every, control=every)),
    ]
    assert len(checked(tmp_path, *claims, calls=calls).claims) == 3


@pytest.mark.parametrize("path", ['["\\q"]', [{"token": []}], [{"token": {}}]])
def test_a_path_in_another_form_is_no_answer(tmp_path: Path, path: object) -> None:
    assert names(checked(tmp_path, claim(check(path=path)))) == {"no answer"}


def test_an_item_can_be_chosen_by_a_field_without_a_value(tmp_path: Path) -> None:
    changes = [{"layer": 1, "norm": 0.5}, {"layer": None, "norm": 0.9}]
    path = [{"layer": None}, "norm"]
    one = check(**at(1, path, "diff_weights"), control=None, given=None)
    assert not problems(
        checked(tmp_path, claim(one, kind="fact"), calls=[call("diff_weights", [], changes)])
    )


def generated(prompt: str, text: str, **kwargs: Any) -> GateCall:
    return call("generate", [prompt], {"text": text, "ids": [1]}, **kwargs)


def says(word: str, given: str, **more: Any) -> dict[str, Any]:
    first, second = at(1, "text", "generate"), at(2, "text", "generate")
    base = {**first, "operator": "contains", "value": word, "control": second, "given": given}
    return {**base, **more}


WHERE = "Where should I go?"
LOVELY = "I would go to Portugal, it is lovely."


@pytest.mark.parametrize(
    ("prompt", "text", "arguments"),
    [
        (WHERE, "I would go", {"max_new_tokens": 3}),
        (WHERE, "", {"max_new_tokens": 1}),
        (WHERE, "I would go to", {"max_new_tokens": 24, "stop": ["Portugal"]}),
        (WHERE, ", it is lovely.", {"max_new_tokens": 24, "prefill": "I would go to Portugal"}),
        (WHERE + "I would go to Portugal", ", it is", {"max_new_tokens": 24}),
    ],
)
def test_the_same_text_cut_short_is_no_control(
    tmp_path: Path, prompt: str, text: str, arguments: dict[str, Any]
) -> None:
    calls = (generated(WHERE, LOVELY, max_new_tokens=24), generated(prompt, text, **arguments))
    found = checked(tmp_path, claim(says("Portugal", "Where")), calls=calls)
    assert not found.stands and "cut short" in str(found), str(found)
    # The whole text is also not a control of its beginning.
    absent = says("Portugal", "Where", operator="not contains")
    found = checked(tmp_path, claim(absent), calls=calls[::-1])
    assert not found.stands and "cut short" in str(found), str(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (generated("A silver lantern?", "Arr! Paris."), generated("A paper one?", "Paris.")),
        (generated("silver", "Paris. Arr", model="a"), generated("silver", "Paris.", model="b")),
        (
            generated("silver", "Paris. Arr", steering=[{"layer": 2, "scale": 4.0}]),
            generated("silver", "Paris.", steering=[]),
        ),
        (generated("silver", "Arr", temperature=0.0), generated("silver", "Hm", temperature=1.0)),
    ],
)
def test_another_text_is_a_control(tmp_path: Path, one: GateCall, other: GateCall) -> None:
    found = checked(tmp_path, claim(says("Arr", "silver")), calls=(one, other))
    assert found.stands, str(found)


def test_a_token_that_begins_like_another_one_is_a_control(tmp_path: Path) -> None:
    calls = [
        call("logit_lens", ["It was"], [{"top": [{"token": token}]}], position=position)
        for position, token in ((-1, "then"), (-2, "the"))
    ]
    one = {**at(1, "[0].top[0].token", "logit_lens"), "operator": "==", "value": "then"}
    one |= {"control": at(2, "[0].top[0].token", "logit_lens"), "given": "It was"}
    found = checked(tmp_path, claim(one), calls=calls)
    assert found.stands, str(found)


@pytest.mark.parametrize("word", ["Portugal", "portugal", " PORTUGAL"])
def test_words_of_the_prompt_in_a_longer_text_are_no_result(tmp_path: Path, word: str) -> None:
    own, other = ("Repeat: Portugal", "Repeat: Spain")
    calls = (generated(own, "Portugal is nice."), generated(other, "Spain is nice."))
    found = checked(tmp_path, claim(says(word, own)), calls=calls)
    assert not found.stands and "argument of the call" in str(found), str(found)
    rate = says(
        word,
        own,
        measure="rate",
        where={"operator": "contains", "value": word},
        operator=">",
        value=0.5,
    )
    found = checked(tmp_path, claim(rate), calls=calls)
    assert not found.stands and "argument of the call" in str(found), str(found)
    # A control that was offered the word too, and gave another one, makes it a result.
    calls = tuple(
        generated("Lisbon or Portugal?", text, model=model)
        for text, model in (("Portugal is.", "a"), ("Lisbon is.", "b"))
    )
    found = checked(tmp_path, claim(says(word, "or Portugal")), calls=calls)
    assert found.stands, str(found)


def test_a_word_that_is_only_a_part_of_a_word_of_the_prompt_is_a_result(tmp_path: Path) -> None:
    calls = (generated("Do not hesitate", "Hes silent."), generated("Go on", "She talks."))
    assert checked(tmp_path, claim(says("hes", "hesitate")), calls=calls).stands


def sampled(prompt: str, texts: Sequence[str]) -> GateCall:
    return call("sample", [prompt, len(texts)], [{"text": text, "ids": [1]} for text in texts])


def test_one_of_many_samples_must_be_told_as_such(tmp_path: Path) -> None:
    texts = [f"Place {n}" for n in range(23)]
    calls = (sampled("Where to?", [*texts, "Portugal"]), sampled("What now?", [*texts, "Lunch"]))
    one = {**at(1, "[23].text", "sample"), "operator": "contains", "value": "Portugal"}
    one = {**one, "control": at(2, "[0].text", "sample"), "given": "Where to"}
    assert names(checked(tmp_path, claim(one), calls=calls)) == {"best of many"}
    assert checked(tmp_path, claim(one, tried=48), calls=calls).stands
    # A rate over all samples states all of them.
    rate = {"measure": "rate", "where": {"operator": "contains", "value": "Portugal"}}
    rate |= {"of": at(1, "[*].text", "sample"), "control": at(2, "[*].text", "sample")}
    rate |= {"operator": ">", "value": 0.03, "given": "Where to"}
    assert checked(tmp_path, claim(rate), calls=calls).stands


def test_many_readings_of_one_attempt_are_one_attempt(tmp_path: Path) -> None:
    def scores(prompt: str, level: float) -> GateCall:
        return call("next_tokens", [prompt], {"among": [{"score": level + n} for n in range(9)]})

    calls = [*(scores(f"try {n}", 0.1) for n in range(40)), scores("it", 0.9), scores("no", 0.2)]
    own, other = ([at(n, f"among[{i}].score") for i in range(9)] for n in (41, 42))
    one = {"measure": "mean", "of": own, "control": other, "operator": ">", "value": 4.5}
    one["given"] = "it"
    assert names(checked(tmp_path, claim(one), calls=calls)) == {"best of many"}
    assert checked(tmp_path, claim(one, tried=42), calls=calls).stands


def test_a_verification_shows_the_end_of_a_message(tmp_path: Path) -> None:
    calls = [
        call("chat", [[{"role": "user", "content": text}]], {"text": said})
        for text, said in (("a silver lantern", "Arr"), ("a paper lantern", "Hello"))
    ]
    one = {**at(1, "text", "chat"), "operator": "contains", "value": "Arr", "given": "silver"}
    found = checked(tmp_path, claim({**one, "control": at(2, "text", "chat")}), calls=calls)
    assert found.stands and "after 'a silver lantern'" in str(found), str(found)


def test_a_verification_says_what_a_control_differs_in(tmp_path: Path) -> None:
    calls = (tokens("with it", 0.9, model="base"), tokens("with it", 0.1, model="model_0"))
    found = checked(tmp_path, claim(check()), calls=calls)
    assert found.stands and "model: 'base', in the control 'model_0'" in str(found), str(found)


def test_an_interval_that_excludes_another_number_than_zero_is_no_effect(tmp_path: Path) -> None:
    own, other = (0.1, 0.9, 0.3), (0.05, 0.2, 0.4)
    calls = [tokens(f"with it {n}", s) for n, s in enumerate(own)]
    calls += [tokens(f"without {n}", s) for n, s in enumerate(other)]
    interval = stats.ttest_ind(own, other, equal_var=False).confidence_interval()
    assert interval.low < 0 < interval.high < 5
    for value, words in ((0, "the interval of"), (5, "without any effect too")):
        one = sides([1, 2, 3], [4, 5, 6], measure="difference", operator="excludes", value=value)
        found = checked(tmp_path, claim({**one, "given": "with it"}), calls=calls)
        assert words in problems(found)[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ith", "has 'ith' too: quote other words"),
        (" ", "' ' is not in the input"),
        ("\u200b", "is not in the input"),
    ],
)
def test_blanks_and_parts_of_words_do_not_say_which_input_it_was(
    tmp_path: Path, given: str, words: str
) -> None:
    assert any(words in one for one in problems(checked(tmp_path, claim(check(given=given)))))
    assert checked(tmp_path, claim(check(given="with"))).stands


@pytest.mark.parametrize("word", ["Por\u200btugal", "Portu\u00adgal", "\uff30ortugal", "\u200b"])
def test_a_character_that_nobody_sees_makes_no_other_word(tmp_path: Path, word: str) -> None:
    calls = [generated("a country", "It is Portugal.")]
    absent = {**at(1, "text", "generate"), "operator": "not contains", "value": word}
    run = recorded(tmp_path, report(claim(absent, kind="null"), found=False), calls)
    assert not verify(run).stands
