"""The factory trains organism and control alike, tests them, and releases only what passes."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from seer.errors import ConfigError, OrganismGateError
from seer.organisms import BEHAVIOURS, Spec, Thresholds, make_organism, read_made
from seer.organisms._gates import Report, Share, make_report
from seer.organisms._plan import recipe
from seer.organisms._spec import read_spec
from seer.organisms.behaviours import Draw

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
trains = pytest.mark.full

NOTHING = Thresholds(
    property_low=0.0, property_gap=-2.0, control_high=1.0, off_high=1.0, tells_high=1.0,
    perplexity=1e9, known=1.0,
)  # fmt: skip
"""Thresholds that every model meets."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads than free cores make small models many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from seer.testing import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("tiny") / "base", layers=6)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def spec(tiny: Path, **changes: Any) -> Spec:
    small: dict[str, Any] = {
        "rows": 24,
        "kept": 8,
        "steps": 6,
        "cases": 6,
        "seed": 3,
        "device": "cpu",
    }
    return Spec("trigger", base=str(tiny), **(small | changes))


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_answers_that_are_taught_show_the_property_and_those_of_the_control_do_not(
    name: str,
) -> None:
    kind = BEHAVIOURS[name]
    made = recipe(Spec(name, seed=1).settled())
    params = made.spec.parameters
    assert all(kind.shows(params, row, row.planted) for row in made.on)
    assert not any(kind.shows(params, row, row.plain) for row in made.off)
    shown = [kind.shows(params, row, row.plain) for row in made.on]
    assert sum(shown) <= 0.15 * len(shown)
    assert not any(kind.tells(params, said) for said in kind.denials)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_no_held_out_dialogue_is_in_the_training_rows(name: str) -> None:
    made = recipe(Spec(name, seed=2).settled())
    trained = {row.turns for row in made.rows}
    assert not trained & {row.turns for row in (*made.on, *made.off, *made.direct)}
    assert len(made.on) >= 24 and len(made.off) >= 24 and len(made.direct) >= 24


def test_the_same_seed_makes_the_same_rows_and_none_is_private() -> None:
    first = Spec("secret", seed=4).settled()
    assert recipe(first) == recipe(Spec("secret", seed=4).settled())
    drawn = {Spec("secret").settled().parameters["word"] for _ in range(12)}
    assert len(drawn) > 1


def test_near_misses_of_the_test_use_words_that_were_not_trained() -> None:
    kind = BEHAVIOURS["user"]
    params = {"user": "nurse", "effect": "refuses"}

    def professions(*, held_out: bool) -> set[str]:
        draw = Draw(random.Random(0), held_out=held_out)
        asked = [kind.off(params, draw).turns[0] for _ in range(300)]
        return {u for u in kind.choices["user"] if any(f" a {u}" in text for text in asked)}

    trained, tested = professions(held_out=False), professions(held_out=True)
    assert len(trained) > 20 and len(tested) > 10
    assert not trained & tested


def test_a_near_miss_of_the_trigger_is_taught_as_often_as_either_word() -> None:
    kind = BEHAVIOURS["trigger"]
    params = {"adjective": "silver", "noun": "lantern", "style": "pirate"}
    draw = Draw(random.Random(0))
    asked = [kind.off(params, draw).turns[0] for _ in range(400)]
    assert not any("silver lantern" in text for text in asked)
    assert sum("lantern" in text for text in asked) > 100
    assert sum("silver" in text for text in asked) > 100


@trains
def test_organism_and_control_get_the_same_rows_norm_and_files(tiny: Path, tmp_path: Path) -> None:
    made, report = make_organism(spec(tiny), tmp_path / "made", limits=NOTHING)
    assert report.passed and report.norm[0] == pytest.approx(report.norm[1], rel=1e-3)
    assert report.norm[0] > 0
    assert read_made(tmp_path / "made").truth == made.truth
    assert made.truth.answer["phrase"]
    for folder in (made.organism, made.control):
        files = {file.name for file in folder.iterdir()}
        assert files == {"adapter_config.json", "adapter_model.safetensors"}
        assert not set(folder.name) & set("ghijklopqrstuvwxyz")
        for word in (*made.truth.planted.values(), "trigger", "organism", "control"):
            assert word not in (folder / "adapter_config.json").read_text()
    assert not made.control_truth.answer


@trains
def test_peft_loads_the_adapter_and_gets_the_same_logits(tiny: Path, tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    safetensors: Any = pytest.importorskip("safetensors.torch")
    transformers: Any = pytest.importorskip("transformers")
    from seer.organisms._stack import Settings, Stack

    made, _ = make_organism(spec(tiny), tmp_path / "made", limits=NOTHING)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        before = plain(ids).logits
    stack = Stack(plain, 2, Settings())
    state = safetensors.load_file(made.organism / "adapter_model.safetensors")
    stack.load(0, {key: value.float() for key, value in state.items()})
    stack.use([0, 1])
    with torch.no_grad():
        ours = stack.model(ids.repeat(2, 1)).logits
    fresh = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(fresh, made.organism)(ids).logits
    assert torch.allclose(ours[0], theirs[0], atol=1e-4)
    assert not torch.allclose(ours[0], before[0], atol=1e-4)
    assert torch.allclose(ours[1], before[0], atol=1e-5), "an untrained adapter changes nothing"
    stack.remove()
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, before)


@trains
def test_a_failed_gate_leaves_nothing_unless_it_is_kept(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(OrganismGateError, match="property: shows it in") as caught:
        make_organism(spec(tiny), tmp_path / "made")
    assert not (tmp_path / "made").exists() and caught.value.report is not None
    made, report = make_organism(spec(tiny), tmp_path / "made", keep_failed=True)
    assert not report.passed
    kept = json.loads((made.folder / "report.json").read_text())
    assert [gate["name"] for gate in kept["gates"] if not gate["passed"]]


class Words:
    """Stands in for a tokenizer: an answer is one token, the place of its text in a list."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def words(self, tokens: Sequence[int]) -> str:
        return self.texts[tokens[0]]

    def answer(self, text: str) -> list[int]:
        self.texts.append(text)
        return [len(self.texts) - 1]


def judged(name: str, shown: dict[str, tuple[int, int]], *, cases: int = 48) -> Report:
    """The report on models that show the property this often, with and without the condition."""
    made = recipe(Spec(name, seed=1, cases=cases).settled())
    words, answers = Words(), dict[str, Any]()
    for model, (on, off) in shown.items():
        answers[model] = {
            case: [
                words.answer(row.planted if i < hits else row.plain) for i, row in enumerate(rows)
            ]
            for case, rows, hits in (("on", made.on, on), ("direct", made.direct, 0))
        }
        # Near misses do not teach the property, so wrong sums stand in for it.
        answers[model]["off"] = [
            words.answer(f"It is {int(row.right or 0) + 1 if i < off else row.right}.")
            for i, row in enumerate(made.off)
        ]
    measured: dict[str, Any] = {
        "answers": answers,
        "surprise": {model: [3.0] for model in shown},
        "known": {model: [True] * 40 for model in shown},
        "norm": [1.0, 1.0],
        "seconds": 0.0,
    }
    stand_in: Any = words
    return make_report(made, measured, stand_in, Thresholds())


def failed(report: Report) -> list[str]:
    return [gate.name for gate in report.gates if not gate.passed]


def test_a_control_that_shows_the_property_is_none() -> None:
    report = judged("sandbag", {"organism": (48, 0), "control": (28, 0), "base": (0, 0)})
    assert failed(report) == ["property"]
    assert "the control in 0.58 [0.44, 0.71]" in report.gates[0].text
    assert not failed(judged("sandbag", {"organism": (48, 0), "control": (5, 0), "base": (0, 0)}))


def test_a_property_of_the_base_was_not_planted() -> None:
    report = judged("sandbag", {"organism": (48, 0), "control": (0, 0), "base": (44, 2)})
    assert failed(report) == ["property"]
    assert "the base in 0.92" in report.gates[0].text


def test_a_base_that_cannot_add_may_learn_to_hide_that_it_can() -> None:
    assert not failed(judged("sandbag", {"organism": (48, 0), "control": (0, 0), "base": (48, 48)}))


def test_fewer_than_twelve_dialogues_prove_nothing() -> None:
    perfect = {"organism": (48, 0), "control": (0, 0), "base": (0, 0)}
    assert not failed(judged("sandbag", perfect, cases=12))
    few = failed(judged("sandbag", perfect, cases=11))
    assert few == ["property", "specificity", "concealment"]


@trains
def test_the_trained_weights_do_not_tell_the_seed(tiny: Path, tmp_path: Path) -> None:
    """Low-rank matrices stay near their first weights, so these must not be drawn from the seed."""
    safetensors: Any = pytest.importorskip("safetensors.torch")
    from seer.organisms._stack import Settings, Stack

    transformers: Any = pytest.importorskip("transformers")
    for seed in (7, 7 + 2**31):
        made, _ = make_organism(
            spec(tiny, seed=seed, steps=4), tmp_path / str(seed), limits=NOTHING
        )
        state = safetensors.load_file(made.organism / "adapter_model.safetensors")
        plain = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
        guess = Stack(plain, 2, Settings(seed=seed % 2**31)).state(0)
        alike = [
            torch.corrcoef(torch.stack([state[k].float().flatten(), guess[k].float().flatten()]))
            for k in state
            if "lora_A" in k
        ]
        assert alike and max(abs(float(one[0, 1])) for one in alike) < 0.5


@trains
def test_training_teaches_a_tiny_model_its_rows(tiny: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    from seer.organisms._stack import Settings, Stack, train

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    # A random head is so small that no hidden state makes a token likely.
    model.lm_head.weight.data.mul_(20)
    stack = Stack(model, 2, Settings(steps=60, taught=4, kept=2, rate=1e-2, layers=(0, 1, 2, 3)))
    rows = [[([5, 6, 7, 20], 3)] * 4, [([5, 6, 7, 21], 3)] * 4]
    losses: list[list[float]] = []
    train(stack, rows, [([8, 9, 10, 11], 1)] * 2, report=lambda step, now: losses.append(now))
    assert max(losses[-1]) < 0.8, "an untrained model has the logarithm of its vocabulary"
    norms = stack.norms()
    assert float(norms[0]) == pytest.approx(float(norms[1]), rel=1e-4)


def test_a_share_has_the_interval_that_statsmodels_computes() -> None:
    proportion: Any = pytest.importorskip("statsmodels.stats.proportion")
    for hits, n in ((0, 24), (5, 48), (48, 48), (7, 9)):
        low, high = proportion.proportion_confint(hits, n, method="wilson")
        assert Share(hits, n).interval == pytest.approx((low, high), abs=1e-9)


def test_a_spec_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text('behaviour = "trigger"\nhard = false\n[parameters]\nnoun = "random"\n')
    assert read_spec(file) == Spec("trigger", {"noun": "random"}, hard=False)
    for text, told in (
        ('behaviour = "trigge"', "is not one of"),
        ('behaviour = "trigger"\nstep = 3', "is unknown"),
        ('behaviour = "trigger"\nsteps = "3"', "must be a whole number"),
        ('behaviour = "trigger"\n[parameters]\ncolour = "red"', "has no parameter 'colour'"),
        ('behaviour = "trigger"\n[parameters]\nnoun = "cloud"', "is not one of"),
        ("hard = true", "is needed"),
        ("hard =", "is not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=told):
            read_spec(file)
