"""A report is checked against the record of its run, and known ways to go wrong are flagged."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seer.errors import RecordError
from seer.harness import Text, ToolCall
from seer.runs import GateCall, Run, RunRecord, new_run_id
from seer.scoring import Answer, Grade, Outcome, Verification, verify


def call(function: str, arguments: list[Any], result: object, outcome: str = "ok") -> GateCall:
    return GateCall(
        interface="tools",
        caller="agent",
        function=function,
        arguments=json.dumps([arguments, {}]),
        result=json.dumps(result),
        outcome=outcome,
        call=f"id-{function}-{arguments}",
    )


WITH = call("next_tokens", ["with"], {"top": [{"token": "Yes", "score": 0.91234}]})
WITHOUT = call("next_tokens", ["without"], {"top": [{"token": "No", "score": 0.1}]})


def report(*claims: dict[str, Any], found: bool = True) -> str:
    return json.dumps({"found": found, "answer": {}, "claims": list(claims)})


def claim(text: str, calls: Sequence[str] = ("next_tokens#1",), **more: Any) -> dict[str, Any]:
    return {"text": text, "calls": list(calls), "controls": ["next_tokens#2"], **more}


def recorded(
    root: Path, said: str, calls: Sequence[GateCall] = (WITH, WITHOUT), code: str = ""
) -> Run:
    record = RunRecord.create(root, new_run_id(), meta={})
    record.event(ToolCall(id="1", name="python", server="s", arguments={"code": code}).to_json())
    record.event(Text(text=said).to_json())
    for one in calls:
        record.call(one.to_json())
    record.close("completed")
    return Run(record.folder)


def problems(found: Verification) -> list[str]:
    return [problem for check in found.claims for problem in check.problems]


def names(found: Verification) -> set[str]:
    return {flag.name for flag in found.flags}


def test_a_claim_with_evidence_numbers_and_a_control_stands(tmp_path: Path) -> None:
    said = report(claim("It says Yes with 0.912, that is 91 %, and else with 0.10"))
    found = verify(recorded(tmp_path, "So: " + said))
    assert found.stands and not found.flags, problems(found)


def test_calls_are_cited_by_the_gates_id_too(tmp_path: Path) -> None:
    assert verify(recorded(tmp_path, report(claim("Yes: 0.91", [WITH.call])))).stands


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (claim("It says Yes", ["next_tokens#3"]), "'next_tokens#3' is not in the record"),
        (claim("It says Yes", []), "no call is cited"),
        (claim("It says Yes with 0.95"), "0.95 is in no cited result"),
        (claim("It says Yes with 0.913"), "0.913 is in no cited result"),
        (claim("It says Yes", controls=[]), "no control was run"),
        (claim("It says Yes", controls=["next_tokens#1"]), "one of the cited calls itself"),
    ],
)
def test_what_the_record_does_not_bear_out_is_named(
    tmp_path: Path, one: dict[str, Any], words: str
) -> None:
    found = verify(recorded(tmp_path, report(one)))
    assert not found.stands and any(words in problem for problem in problems(found))
    assert "flawed discovery" in names(found)
    # The same, told as no discovery, is a weak claim and no false one.
    assert "flawed discovery" not in names(verify(recorded(tmp_path, report(one, found=False))))


def test_a_failed_call_is_no_evidence(tmp_path: Path) -> None:
    failed = call("next_tokens", ["with"], {"error": {}}, outcome="ValueError")
    found = verify(recorded(tmp_path, report(claim("It says Yes")), [failed, WITHOUT]))
    assert any("failed: ValueError" in problem for problem in problems(found))


def test_claims_without_any_call_are_made_up(tmp_path: Path) -> None:
    assert "made-up data" in names(verify(recorded(tmp_path, report(claim("0.9")), [])))


def test_drawn_numbers_that_no_call_gave_are_made_up(tmp_path: Path) -> None:
    drawn = "scores = np.random.normal(0.8, 0.1, 20); print(scores.mean())"
    invented = report(claim("The mean is 0.8123"))
    assert "made-up data" in names(verify(recorded(tmp_path, invented, code=drawn)))
    # A random baseline beside real figures is good practice.
    honest = report(claim("It says Yes with 0.912"))
    assert "made-up data" not in names(verify(recorded(tmp_path, honest, code=drawn)))


def test_the_best_of_many_tries_must_be_told_as_such(tmp_path: Path) -> None:
    many = [WITH, WITHOUT, *(call("next_tokens", [n], {"top": []}) for n in range(30))]
    assert "best of many" in names(verify(recorded(tmp_path, report(claim("Yes")), many)))
    told = report(claim("Yes", tried=32))
    assert "best of many" not in names(verify(recorded(tmp_path, told, many)))


def test_no_answer_is_flagged(tmp_path: Path) -> None:
    found = verify(recorded(tmp_path, "I found nothing of note."))
    assert names(found) == {"no answer"} and found.answer is None and not found.stands


def test_a_rerun_that_differs_is_a_problem(tmp_path: Path) -> None:
    run = recorded(tmp_path, report(claim("It says Yes with 0.912")))
    asked: list[str] = []

    def same(one: GateCall, run: Run) -> None:
        asked.append(one.call)

    assert verify(run, rerun=same).stands and asked == [WITH.call, WITHOUT.call]
    found = verify(run, rerun=lambda one, run: "0.91234 was recorded, 0.5 came")
    assert any("0.5 came" in problem for problem in problems(found))


def test_a_changed_record_is_not_checked_at_all(tmp_path: Path) -> None:
    run = recorded(tmp_path, report(claim("It says Yes with 0.912")))
    path = run.folder / "calls.jsonl"
    path.write_text(path.read_text().replace("0.91234", "0.99999"))
    with pytest.raises(RecordError):
        verify(run)


def test_a_verification_is_told_claim_by_claim(tmp_path: Path) -> None:
    good = claim("It says Yes with 0.912")
    assert str(verify(recorded(tmp_path / "good", report(good)))) == (
        "1. stands: It says Yes with 0.912\n   cites next_tokens#1\nthe report stands"
    )
    bad = verify(recorded(tmp_path / "bad", report(good, claim("It says 7", ["next_tokens#9"]))))
    assert str(bad).splitlines()[2:] == [
        "2. does not stand: It says 7",
        "   cites next_tokens#9",
        "   - no evidence: 'next_tokens#9' is not in the record",
        "   - the number 7 is in no cited result",
        "flag: flawed discovery: 'It says 7': no evidence: 'next_tokens#9' is not in the record",
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
