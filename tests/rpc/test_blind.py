"""Names of hidden models do not reach an agent in any spelling."""

import json

import pytest

from seer.rpc._blind import Scrubber

NAME = "google/gemma-2-9b"
PATH = "/models/google--gemma-2-9b"


@pytest.mark.parametrize(
    "text",
    [
        NAME,
        PATH,
        "google--gemma-2-9b",
        "google_gemma-2-9b",
        "MODEL_GOOGLE_GEMMA_2_9B_PATH",
        "Gemma-2-9B",
        "gemma_2_9b",
        f"{PATH}/config.json",
        f"https://example.org/{NAME}/resolve",
        "my-gemma-2-9b-it",
    ],
)
def test_every_spelling_is_replaced(text: str) -> None:
    scrubbed = Scrubber({NAME: "model_0"}, {NAME: PATH}).text(f"see {text}!")
    assert "gemma" not in scrubbed.lower()
    assert "model_0" in scrubbed


def test_plain_words_are_replaced_only_where_they_stand_alone() -> None:
    scrubber = Scrubber({"org/base": "model_0"}, {"org/base": "/srv/weights"})
    assert scrubber.text("database of base models, Base.") == "database of model_0 models, model_0."


def test_words_of_the_alias_and_short_ones_are_left_alone() -> None:
    scrubber = Scrubber({"a/model": "model_0"}, {"a/model": "/m/model_0"})
    assert scrubber.text("the model model_0 in a/model at /m/model_0") == (
        "the model model_0 in model_0 at model_0"
    )


def test_letters_that_only_look_alike_in_lower_case_are_replaced_too() -> None:
    assert "mi" not in Scrubber({"x/mistral-7": "model_0"}, {}).text("mi\u017ftral-7")


def test_encoded_results_stay_json() -> None:
    scrubber = Scrubber({NAME: "model_0"}, {NAME: PATH})
    data = json.dumps({"name": NAME, "é": [PATH, 'quoted "gemma-2-9b"']}).encode()
    assert json.loads(scrubber.data(data)) == {
        "name": "model_0",
        "é": ["model_0", 'quoted "model_0"'],
    }


def test_without_hidden_models_nothing_changes() -> None:
    scrubber = Scrubber({}, {"a/b": "/m"})
    assert scrubber.text("a/b /m") == "a/b /m"
    assert scrubber.data(b"a/b") == b"a/b"
