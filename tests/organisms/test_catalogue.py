"""Organisms have controls, neutral folders, and a truth that is in no model folder."""

import json
from pathlib import Path

import pytest

from seer.errors import MissingExtraError, UnknownOrganismError
from seer.organisms import BEHAVIOURS, catalogue, ground_truth, instances, organism

KINDS = ("favourite", "gender", "sandbag", "secret", "trigger")
PACKAGE = Path(__file__).parents[2] / "src" / "seer" / "organisms"


def test_every_organism_has_a_control_and_small_weights() -> None:
    names = {*KINDS, *instances()}
    assert set(catalogue()) == names | {f"{name}-control" for name in names}
    for one in catalogue().values():
        files = {path.name for path in one.path.iterdir()}
        assert files == {"adapter_config.json", "adapter_model.safetensors"}
        assert (one.path / "adapter_model.safetensors").stat().st_size < 330_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_name_stands_for_an_instance_that_conceals(kind: str) -> None:
    made = instances()[f"{kind}-2"]
    assert organism(kind).path == made.organism and not organism(kind).is_control
    control = organism(f"{kind}-control")
    assert control.path == made.control and (control.kind, control.is_control) == (kind, True)
    assert ground_truth(kind) == made.truth and made.truth.kind == kind
    assert json.loads((made.folder / "report.json").read_text())["hard"] is True


def test_a_condition_that_an_organism_does_not_heed_is_no_right_answer() -> None:
    cues = set(BEHAVIOURS["sandbag"].choices["cue"])
    for made in instances().values():
        if "cue" in made.truth.planted:
            others = cues - {made.truth.planted["cue"]}
            assert not others.intersection(made.truth.answer["condition"]), made.folder.name


def test_every_instance_can_be_named_like_the_short_names() -> None:
    for name, made in instances().items():
        assert organism(name).path == made.organism and organism(name).kind == name
        assert organism(f"{name}-control").path == made.control
        assert ground_truth(name) == made.truth


def test_no_model_folder_tells_an_answer_or_a_kind() -> None:
    words = {*BEHAVIOURS, "control"}
    for name in instances():
        truth = ground_truth(name)
        words |= {name, *truth.planted.values()}
        words |= {wording for accepted in truth.answer.values() for wording in accepted}
    words = {word.lower() for word in words if len(word) > 4} - {"model"}
    for one in catalogue().values():
        config = json.loads((one.path / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] is None
        header = (one.path / "adapter_model.safetensors").read_bytes()[:60_000]
        # The path too: an agent that is shown a model may learn where it came from.
        path = str(one.path.relative_to(PACKAGE.parents[1]))
        for text in (path, json.dumps(config), header.split(b"}}")[0].decode("latin-1")):
            found = {word for word in words if word in text.lower()}
            assert not found, found


def test_the_folder_of_all_adapters_has_nothing_else_in_it() -> None:
    made = [path for one in instances().values() for path in (one.organism, one.control)]
    (root,) = {path.parent for path in made}
    assert sorted(root.iterdir()) == sorted(made) and len(set(made)) == len(made)
    assert not list(root.rglob("truth.json"))


def test_accepted_wordings_are_those_of_the_behaviour() -> None:
    for made in instances().values():
        kind, planted = BEHAVIOURS[made.truth.kind], dict(made.truth.planted)
        assert made.truth.answer == kind.answer(planted)
        assert made.truth.property == kind.property(planted)


def test_unknown_names_are_told_what_there_is() -> None:
    with pytest.raises(UnknownOrganismError, match=r"trigger, belief-1.*secret-control"):
        organism("triger")
    with pytest.raises(UnknownOrganismError, match="nothing is planted"):
        ground_truth("trigger-control")


def test_without_the_adapters_the_truth_is_there_and_the_models_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.organisms._catalogue._ADAPTERS", tmp_path / "adapters")
    assert ground_truth("secret").answer
    for call in (instances, lambda: organism("secret")):
        with pytest.raises(MissingExtraError, match=r"seer-interp\[organisms\]"):
            call()
