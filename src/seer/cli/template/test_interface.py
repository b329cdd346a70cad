"""The interface, tested in this process with a tiny random model: pytest test_interface.py"""

from pathlib import Path

import pytest

from seer.testing import LoadedInterface, load_interface, make_tiny_model

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> LoadedInterface:
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    return load_interface(HERE / "interface.py", models={"tiny": str(model)})


def test_next_words_gives_as_many_as_asked_for_most_likely_first(tools: LoadedInterface) -> None:
    found = list(tools.next_words("The nurse said that", k=3).values())
    assert 1 <= len(found) <= 3
    assert found == sorted(found, reverse=True)


def test_compare_gives_a_probability_for_each_word(tools: LoadedInterface) -> None:
    found = tools.compare("The nurse said that", ["he", "she"])
    assert set(found) == {"he", "she"}
    assert all(0 <= value <= 1 for value in found.values())
