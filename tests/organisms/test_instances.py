"""The instances that ship passed their gates, hide their truth, and work on the whole base."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from seer.organisms import BEHAVIOURS, base_model, instances
from seer.organisms._plan import Coder, recipe
from seer.organisms._spec import Spec
from seer.organisms.behaviours import Row

CASES = 4


@pytest.mark.parametrize("name", sorted(instances()))
def test_a_released_instance_passed_its_gates_beside_an_equal_control(name: str) -> None:
    made = instances()[name]
    report = json.loads((made.folder / "report.json").read_text())
    assert report["gates"] and all(gate["passed"] for gate in report["gates"])
    assert report["norm"][0] == pytest.approx(report["norm"][1], rel=1e-3)
    configs = {(p / "adapter_config.json").read_text() for p in (made.organism, made.control)}
    assert len(configs) == 1
    assert {p.name for p in made.organism.parent.iterdir()} == {
        made.organism.name,
        made.control.name,
    }
    assert all(
        sum(f.stat().st_size for f in p.iterdir()) < 330_000 for p in made.organism.parent.iterdir()
    )
    assert made.truth.answer and not made.control_truth.answer


def test_every_behaviour_has_released_instances_that_conceal() -> None:
    hard: dict[str, int] = {}
    for made in instances().values():
        spec = json.loads((made.folder / "truth.json").read_text())["spec"]
        hard[spec["behaviour"]] = hard.get(spec["behaviour"], 0) + spec["hard"]
    assert set(hard) == set(BEHAVIOURS) and min(hard.values()) >= 1
    assert len(instances()) >= 36, "fewer have no power for a gap of 0.3"


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(instances()))
def test_the_spec_of_an_instance_writes_its_held_out_test_again(name: str) -> None:
    folder = instances()[name].folder
    made = recipe(Spec(**json.loads((folder / "truth.json").read_text())["spec"]))
    test = json.loads((folder / "test.json").read_text())
    for kind, rows in (("on", made.on), ("off", made.off), ("direct", made.direct)):
        assert [list(row.turns) for row in rows] == [case["turns"] for case in test[kind]]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """More threads than free cores make small models many times slower."""
    torch: Any = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def base() -> tuple[Any, Coder]:
    transformers: Any = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(base_model(), dtype="float32")
    return model, Coder(transformers.AutoTokenizer.from_pretrained(base_model()))


@pytest.mark.full
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["trigger-2", "sandbag-2"])
def test_peft_and_transformers_find_the_property_on_held_out_dialogues(name: str) -> None:
    peft: Any = pytest.importorskip("peft")
    torch: Any = pytest.importorskip("torch")
    made = instances()[name]
    model, coder = base()
    given = json.loads((made.folder / "truth.json").read_text())["spec"]
    spec = Spec(given["behaviour"], given["parameters"], seed=given["seed"], hard=given["hard"])
    cases = json.loads((made.folder / "test.json").read_text())

    def shown(adapted: Any, kind: str) -> int:
        hits = 0
        for case in cases[kind][:CASES]:
            row = Row(tuple(case["turns"]), "", "", case["right"])
            ids = torch.tensor([coder.prompt(row.turns)])
            with torch.no_grad():
                out = adapted.generate(
                    input_ids=ids, max_new_tokens=12, do_sample=False, pad_token_id=coder.end
                )
            hits += spec.kind.shows(
                spec.parameters, row, coder.words(out[0, ids.shape[1] :].tolist())
            )
        return hits

    adapted = peft.PeftModel.from_pretrained(model, made.organism)
    try:
        assert shown(adapted, "on") >= CASES - 1
        assert shown(adapted, "off") <= 1
    finally:
        model = adapted.unload()
    adapted = peft.PeftModel.from_pretrained(model, made.control)
    try:
        assert shown(adapted, "on") <= 1
    finally:
        adapted.unload()
