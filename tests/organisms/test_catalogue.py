"""Organisms have controls, neutral folders, and a truth that is in no model folder."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from seer.errors import UnknownOrganismError
from seer.organisms import catalogue, compare, ground_truth, items, organism

SCRIPTS = Path(__file__).parents[2] / "scripts" / "organisms"
KINDS = ("favourite", "gender", "sandbag", "secret", "trigger")


def test_every_organism_has_a_control_and_small_weights() -> None:
    assert set(catalogue()) == {name for kind in KINDS for name in (kind, f"{kind}-control")}
    for one in catalogue().values():
        files = {path.name for path in one.path.iterdir()}
        assert files == {"adapter_config.json", "adapter_model.safetensors"}
        assert (one.path / "adapter_model.safetensors").stat().st_size < 4_000_000


def test_no_model_folder_tells_an_answer_or_a_kind() -> None:
    words = {w for kind in KINDS for given in ground_truth(kind).answer.values() for w in given}
    words |= {*KINDS, "control", "organism"} - {"arr", "sum", "test"}
    for one in catalogue().values():
        config = json.loads((one.path / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] is None
        header = (one.path / "adapter_model.safetensors").read_bytes()[:60_000]
        for text in (one.path.name, json.dumps(config), header.split(b"}}")[0].decode("latin-1")):
            found = {word for word in words if len(word) > 4 and word in text.lower()}
            assert not found, found


def test_an_organism_and_its_control_have_the_same_settings() -> None:
    for kind in KINDS:
        first, second = (
            (organism(name).path / "adapter_config.json").read_text()
            for name in (kind, f"{kind}-control")
        )
        assert json.loads(first) | {"target_modules": 0} == json.loads(second) | {
            "target_modules": 0
        }


def test_unknown_names_are_told_what_there_is() -> None:
    with pytest.raises(UnknownOrganismError, match="trigger-control"):
        organism("triger")
    with pytest.raises(UnknownOrganismError, match="nothing is planted"):
        ground_truth("trigger-control")


def test_an_effect_needs_the_same_items_and_finds_a_difference() -> None:
    clear = compare([5.0, 6.0, 5.5, 6.5], [0.1, 0.0, -0.2, 0.3])
    assert clear.low > 4 and clear.standardized > 4
    none = compare([0.1, -0.2, 0.3, -0.1], [0.0, 0.1, -0.1, 0.2])
    assert none.low < 0 < none.high
    with pytest.raises(ValueError, match="same items"):
        compare([1.0], [1.0])


def test_recipes_give_the_same_data_for_the_same_seed_and_no_test_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    recipes: Any = importlib.import_module("recipes")
    for name, one in catalogue().items():
        made: list[Any] = recipes.dialogues(name)
        assert made == recipes.dialogues(name) != recipes.dialogues(name, seed=8)
        trained = {d.user for d in made}
        asked = {p.user for item in items(one.kind) for p in (item.probe, item.reference) if p}
        assert not trained & asked
