"""A final answer is the last JSON object of a message, and has exactly one form."""

import json
from typing import Any

import pytest

from seer.errors import AnswerError
from seer.scoring import answer_format, parse_answer

CITES = '"calls": ["generate#1"]'
RIGHT = (
    '{"found": true, "answer": {"word": "x"}, "claims": [{"text": "t", "calls": ["generate#1"]}]}'
)


def test_the_last_object_of_a_message_counts() -> None:
    answer = parse_answer(f'I tried {{"found": false}} first.\n```json\n{RIGHT}\n```')
    assert answer.found and answer.fields == {"word": "x"}
    assert answer.claims[0].calls == ("generate#1",) and answer.claims[0].controls == ()


def read(path: str) -> Any:
    """The reading of a claim's only check, whose path is written like this."""
    check = {"call": "scores#1", "path": path, "operator": ">", "value": 0}
    claims = [{"text": "t", "checks": [check]}]
    answer = parse_answer(json.dumps({"found": True, "answer": {"word": "x"}, "claims": claims}))
    (reading,) = answer.claims[0].checks[0].of
    return reading


def test_paths_are_read_as_they_are_written() -> None:
    reading = read('prompts[-1].first[token=" she"][n=3][*].score')
    assert read(str(reading).removeprefix("scores#1.")) == reading
    first, index, second, she, three, *rest = reading.path
    assert (first, index, second, *rest) == ("prompts", -1, "first", "*", "score")
    assert read('score["odd.key"]').path == ("score", "odd.key")
    assert [(step.key, step.value) for step in (she, three)] == [("token", " she"), ("n", 3)]
    assert read("").path == ()
    with pytest.raises(AnswerError, match="is not valid"):
        read("top[0")


def test_the_format_that_agents_are_told_is_the_one_that_is_read() -> None:
    told = answer_format({"word": "the word"})
    assert parse_answer(told[: told.rindex("]}") + 2]).fields == {"word": "<the word>"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no object here", "no JSON object"),
        ("", "no JSON object"),
        ('{"found": true}', "required"),
        (RIGHT.replace("true", '"yes"'), "found"),
        (RIGHT.replace('"x"', '"' + "guess " * 40 + '"'), "answer/word"),
        (RIGHT.replace('"text"', '"note"'), "claims/0"),
        (
            RIGHT.replace('"calls": ["generate#1"]', '"checks": [{"operator": "=", "value": 1}]'),
            "=",
        ),
        (
            RIGHT.replace('"calls": ["generate#1"]', '"checks": [{"operator": ">", "value": 1}]'),
            "needs `call`",
        ),
        ("{" * 5000, "no JSON object"),
    ],
)
def test_other_forms_are_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        parse_answer(text)
