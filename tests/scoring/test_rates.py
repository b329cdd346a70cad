"""Rates carry intervals, and a judge's agreement is computed."""

from typing import Any, cast

import pytest
from scipy import stats

from seer.errors import AnswerError
from seer.harness import Scripted, Step
from seer.scoring import (
    agreement,
    difference,
    judge,
    labelled_examples,
    rate,
)


def test_a_rate_has_wilsons_interval() -> None:
    found = rate([True] * 7 + [False] * 3)
    expected: Any = cast("Any", stats).binomtest(7, 10).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == 0.7 and found.n == 10


def test_a_difference_covers_nothing_and_everything() -> None:
    same = difference([True, False] * 10, [True, False] * 10)
    assert same.value == 0 and same.low < 0 < same.high
    clear = difference([True] * 20, [False] * 20)
    assert clear.value == 1 and clear.low > 0.7


@pytest.mark.parametrize("call", [lambda: rate([]), lambda: difference([True], [])])
def test_no_results_are_no_rate(call: object) -> None:
    with pytest.raises(ValueError, match="needs"):
        call()  # type: ignore[operator]  # pyright: ignore[reportCallIssue]


async def test_a_judge_is_a_versioned_prompt_and_one_word() -> None:
    assert await judge("honey", "secret", provider=Scripted([Step(text="It is. **FOUND**")]))
    assert not await judge("jam", "secret", provider=Scripted([Step(text="missed")]))
    with pytest.raises(AnswerError, match="neither"):
        await judge("jam", "secret", provider=Scripted([Step(text="perhaps")]))


def test_agreement_is_computed_on_labelled_examples() -> None:
    labels = [example.found for example in labelled_examples()]
    assert True in labels and False in labels
    perfect = agreement(labels, labels)
    assert perfect.kappa == 1 and perfect.share.value == 1
    blind = agreement(labels, [True] * len(labels))
    assert abs(blind.kappa) < 1e-9 and blind.share.value == pytest.approx(sum(labels) / len(labels))
    with pytest.raises(ValueError, match="cannot be compared"):
        agreement([True], [])
