"""Probes, neighbours and sparse autoencoders, compared with independent computations."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer import interfaces
from seer.errors import CallLimitError, ModelInputError
from seer.testing import load_interface
from tests.interfaces.conftest import TEXTS, Case

pytestmark = pytest.mark.full

WORDS = " ".join(TEXTS).split()


def sentences(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, 6)) for _ in range(count)]


def test_a_probe_finds_what_is_there_and_only_that(case: Case) -> None:
    texts = [f"{'hello' if i % 2 else 'thank'} {text}" for i, text in enumerate(sentences(80))]
    labels = ["greeting" if i % 2 else "thanks" for i in range(80)]
    found = case.tools.train_probe(texts, labels, 1, position=0)
    assert found.accuracy == 1.0
    assert found.interval[0] > found.majority
    assert (found.trained_on, found.tested_on) == (60, 20)
    assert found.classes == ["greeting", "thanks"]
    readings = case.tools.apply_probe(found.probe, ["hello you", "thank you"])
    assert [one.label for one in readings] == ["greeting", "thanks"]
    values = [np.asarray(case.tools.activations(t, 1, position=0)) @ found.direction for t in texts]
    assert max(values[1::2]) < min(values[::2])
    shuffled = list(np.random.default_rng(1).permutation(labels))
    chance = case.tools.train_probe(sentences(80, 3), shuffled, 1, position=None)
    assert chance.interval[0] < 0.6
    assert found.p_value < 0.05 < chance.p_value
    assert 0.3 < found.permuted < 0.7 and 0.3 < chance.permuted < 0.7


def test_a_probe_learns_nothing_from_random_labels_of_texts_that_repeat(llama: Case) -> None:
    random = np.random.default_rng(5)
    kinds = random.choice(["left", "right"], 20).tolist()
    # Each text eight times, in other spellings, with the same random label every time.
    long = [f"{text} {text} again" for text in sentences(20, 7)]
    texts = [text.upper() if i % 2 else f"  {text}" for text in long for i in range(8)]
    labels = [kind for kind in kinds for _ in range(8)]
    found = llama.tools.train_probe(texts, labels, 2, position=None)
    assert found.groups == 20
    assert found.p_value > 0.05 and found.accuracy < 0.9
    named = llama.tools.train_probe(
        sentences(80, 10), ["a", "b"] * 40, 1, groups=[str(i // 4) for i in range(80)]
    )
    assert named.groups == 20
    with pytest.raises(ModelInputError, match="80 texts and 1 groups"):
        llama.tools.train_probe(sentences(80, 9), ["a", "b"] * 40, 1, groups=["x"])
    with pytest.raises(ModelInputError, match="in 1 groups are too few"):
        llama.tools.train_probe(["one text"] * 8, ["a", "b"] * 4, 1)


SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
COPIES: dict[str, Callable[[str], list[str]]] = {
    "repeats": lambda text: [text] * 4,
    "cases": lambda text: [text, text.upper(), text.title(), text.capitalize()],
    "marks": lambda text: [text, f"{text}.", f"{text}!", f'"{text}"'],
    "prefixes": lambda text: [text, f"Please note: {text}", f"He said: {text}", f"7. {text}"],
    "suffixes": lambda text: [text, f"{text} That is all.", f"{text}. Any thoughts?", f"{text} 2"],
}


def copies(kind: str, random: np.random.Generator) -> tuple[list[str], list[str], list[str]]:
    """15 texts in four forms each, a random label for each text, and which text each form is of."""
    words = ["".join(random.choice(SYLLABLES, 3)) for _ in range(400)]
    texts = [one for _ in range(15) for one in COPIES[kind](" ".join(random.choice(words, 6)))]
    drawn = random.permutation(["a"] * 8 + ["b"] * 7)
    return texts, np.repeat(drawn, 4).tolist(), [str(i // 4) for i in range(60)]


@pytest.mark.parametrize("kind", COPIES)
def test_forms_of_one_text_are_held_out_together(llama: Case, kind: str) -> None:
    texts, labels, groups = copies(kind, np.random.default_rng(1))
    found = llama.tools.train_probe(texts, labels, 2, position=None)
    assert found.groups == 15
    named = llama.tools.train_probe(texts, labels, 2, position=None, groups=groups)
    assert (found.accuracy, found.p_value) == (named.accuracy, named.p_value)


def test_texts_that_share_a_template_are_not_one_group(llama: Case) -> None:
    things, places, moods = ("film", "book", "song"), ("Rome", "Oslo", "Lima"), ("good", "bad")
    texts = [
        f"The {thing} that I found on my way home in {place} yesterday was very {mood}."
        for thing in things
        for place in places
        for mood in moods
    ]
    found = llama.tools.train_probe(texts, ["up", "down"] * 9, 1)
    # Two texts that differ only in their last word are nearly equal.
    assert found.groups == 9
    labels = ["a" if i < 9 else "b" for i in range(18)]
    assert llama.tools.train_probe(sentences(18, 4), labels, 1).groups == 18


def test_random_labels_give_chance_and_uniform_p_values(llama: Case) -> None:
    """Over many draws, the result is that of scikit-learn with the true groups."""
    from scipy import stats
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    own: list[tuple[float, float]] = []
    judged: list[tuple[float, float]] = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        texts, labels, groups = copies([*COPIES][seed % 5], random)
        if seed % 3 == 0:
            # Some forms have another label, as when people label each form anew.
            for i in random.choice(60, 6, replace=False):
                labels[i] = "a" if labels[i] == "b" else "b"
        found = llama.tools.train_probe(texts, labels, 2, position=None, seed=seed, folds=3)
        own.append((found.accuracy, found.p_value))
        values = np.stack([np.asarray(llama.tools.activations(t, 2)).mean(0) for t in texts])
        pipeline: Any = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))

        def accuracy(y: Any, x: Any = values, fit: Any = pipeline, of: Any = groups) -> float:
            return float((cross_val_predict(fit, x, y, groups=of, cv=GroupKFold(3)) == y).mean())

        blocks = np.array(labels).reshape(15, 4)
        first = accuracy(blocks.ravel())
        chance = [accuracy(random.permutation(blocks).ravel()) for _ in range(19)]
        judged.append((first, (1 + sum(one >= first for one in chance)) / 20))
    for some in (own, judged):
        accuracies, chances = np.array(some).T
        assert abs(accuracies.mean() - 0.5) < 3 * accuracies.std() / len(some) ** 0.5
        assert stats.binomtest(int((chances <= 0.05).sum()), len(some), 0.05).pvalue > 0.01
        assert stats.kstest(chances, "uniform").pvalue > 0.01
    alike: Any = stats.ks_2samp([p for _, p in own], [p for _, p in judged])
    assert alike.pvalue > 0.05


def test_a_probe_is_scikit_learns_on_held_out_activations(llama: Case) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    texts = sentences(60)
    labels = ["long" if len(text) > 30 else "short" for text in texts]
    found = llama.tools.train_probe(texts, labels, 2, position=None, seed=3)
    values = np.stack([np.asarray(llama.tools.activations(t, 2)).mean(0) for t in texts])
    split: Any = train_test_split(values, labels, test_size=15, random_state=3, stratify=labels)
    scaler: Any = StandardScaler().fit(split[0])
    own: Any = LogisticRegression(max_iter=2000).fit(scaler.transform(split[0]), split[2])
    assert found.accuracy == pytest.approx(own.score(scaler.transform(split[1]), split[3]))


def test_nested_and_grouped_cross_validation_is_scikit_learns(llama: Case) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    texts = sentences(90, 11)
    labels = np.array(["long" if len(text) > 30 else "short" for text in texts])
    numbers = np.arange(90) // 3
    groups = [str(n) for n in numbers]
    strengths = [1e-4, 1e-2, 1.0, 100.0]
    options: dict[str, Any] = {"groups": groups, "folds": 5, "strengths": strengths, "seed": 3}
    found = llama.tools.train_probe(texts, labels.tolist(), 2, position=None, **options)
    values = np.stack([np.asarray(llama.tools.activations(t, 2)).mean(0) for t in texts])

    def search() -> Any:
        pipeline: Any = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        inner: Any = StratifiedGroupKFold(3, shuffle=True, random_state=3)
        return GridSearchCV(pipeline, {"logisticregression__C": strengths}, cv=inner)

    outer: Any = StratifiedGroupKFold(5, shuffle=True, random_state=3)
    # No two of these texts are nearly equal, so the groups are the given ones.
    assert found.groups == 30
    expected: list[float] = []
    for train, test in outer.split(values, labels, numbers):
        fitted = search().fit(values[train], labels[train], groups=numbers[train])
        expected.append(float(fitted.score(values[test], labels[test])))
    assert found.folds == pytest.approx(expected)
    sizes = [len(test) for _, test in outer.split(values, labels, numbers)]
    assert found.accuracy == pytest.approx(float(np.average(expected, weights=sizes)))
    whole = search().fit(values, labels, groups=numbers)
    assert found.strength == whole.best_params_["logisticregression__C"]
    assert (found.trained_on, found.tested_on) == (90, 90)
    own = whole.best_estimator_
    direction = own[1].coef_[0] / own[0].scale_
    np.testing.assert_allclose(found.direction, direction, rtol=1e-3, atol=1e-5)
    assert 0.2 < found.permuted < 0.8


def test_choosing_a_regularisation_does_not_make_random_labels_readable(llama: Case) -> None:
    """Over many draws, the nested accuracy is chance, and p-values are not too small."""
    draws = [
        llama.tools.train_probe(
            sentences(40, seed),
            np.random.default_rng(seed).permutation(["a", "b"] * 20).tolist(),
            1,
            position=None,
            folds=2,
            strengths=[1e-3, 1.0],
            seed=seed,
        )
        for seed in range(4)
    ]
    assert np.mean([one.accuracy for one in draws]) == pytest.approx(0.5, abs=0.15)
    assert np.mean([one.permuted for one in draws]) == pytest.approx(0.5, abs=0.05)
    assert sum(one.p_value < 0.1 for one in draws) <= 2


def test_probes_that_would_take_too_long_or_cannot_be_folded_are_refused(llama: Case) -> None:
    texts, labels = sentences(40, 1), ["a", "b"] * 20
    train = llama.tools.train_probe
    with pytest.raises(ModelInputError, match="folds=1: give 0"):
        train(texts, labels, 1, folds=1)
    with pytest.raises(ModelInputError, match="in 2 groups are too few for folds=5"):
        train(texts, labels, 1, folds=5, groups=[str(i // 20) for i in range(40)])
    with pytest.raises(CallLimitError, match="times what one call may do"):
        train(
            sentences(1000, 2),
            ["a", "b"] * 500,
            1,
            stream="neurons",
            folds=20,
            strengths=[2.0**-n for n in range(16)],
        )


def test_the_nearest_token_of_its_own_embedding_is_the_token(case: Case) -> None:
    for space, table in (
        ("output", case.net.get_output_embeddings()),
        ("input", case.net.get_input_embeddings()),
    ):
        weights = table.weight.detach().numpy()
        found = case.tools.nearest_tokens(weights[123] * 3, k=3, space=space)
        assert found[0].id == 123
        assert found[0].score == pytest.approx(1, abs=1e-5)
        unit = weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-12)
        assert [one.id for one in found] == np.argsort(-(unit @ unit[123]))[:3].tolist()


def test_the_nearest_neuron_of_what_it_writes_is_the_neuron(case: Case) -> None:
    mlp = case.blocks[1].mlp
    vector = mlp.c_proj.weight[5] if case.architecture == "gpt2" else mlp.down_proj.weight[:, 5]
    found = case.tools.nearest_neurons(vector.detach().numpy(), k=4)
    assert (found[0].layer, found[0].neuron) == (2, 5)
    assert found[0].score == pytest.approx(1, abs=1e-5)
    assert [one.score for one in found] == sorted([one.score for one in found], reverse=True)


def save_sae(folder: Path, tensors: dict[str, Any], **config: Any) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    plain = {"d_in": 32, "d_sae": 64, "dtype": "float32", "apply_b_dec_to_input": True}
    (folder / "cfg.json").write_text(json.dumps({**plain, **config}))
    save_file(tensors, folder / "sae_weights.safetensors")


def train_sae(activations: Any, *, steps: int = 400) -> dict[str, Any]:
    """A small autoencoder with an L1 penalty, trained here."""
    import torch

    generator = torch.Generator().manual_seed(0)
    up = torch.randn(64, 32, generator=generator)
    weights = {
        "W_enc": (up / up.norm(dim=1, keepdim=True)).T.clone(),
        "b_enc": torch.zeros(64),
        "W_dec": up / up.norm(dim=1, keepdim=True),
        "b_dec": activations.mean(0),
    }
    for tensor in weights.values():
        tensor.requires_grad_(True)
    optimizer = torch.optim.Adam(weights.values(), lr=1e-2)
    for _ in range(steps):
        hidden = ((activations - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]).relu()
        rebuilt = hidden @ weights["W_dec"] + weights["b_dec"]
        loss = (rebuilt - activations).square().sum(-1).mean() + 0.01 * hidden.sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: tensor.detach().contiguous() for name, tensor in weights.items()}


@pytest.fixture
def sae_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEER_SAES", str(tmp_path / "saes"))
    return tmp_path / "saes"


def test_a_trained_autoencoder_explains_the_activations(case: Case, sae_folder: Path) -> None:
    import torch

    rows = [np.asarray(case.tools.activations(t, 2)) for t in (*sentences(40), *TEXTS)]
    weights = train_sae(torch.tensor(np.concatenate(rows)))
    name = f"{case.architecture}/layer2"
    save_sae(
        sae_folder / name,
        weights,
        architecture="standard",
        metadata={"hook_name": "blocks.1.hook_resid_post"},
    )
    (info,) = case.tools.saes().usable
    assert (info.name, info.layer, info.stream, info.features) == (name, 2, "residual", 64)
    found = case.tools.sae_features(TEXTS[0], name, k=64)
    x = torch.tensor(np.asarray(case.tools.activations(TEXTS[0], 2)))
    hidden = ((x - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]).relu()
    missed = x - hidden @ weights["W_dec"] - weights["b_dec"]
    assert found.unexplained == pytest.approx(
        float(missed.square().sum() / x.square().sum()), abs=1e-5
    )
    assert found.unexplained < 0.3
    assert found.active == (hidden > 0).sum(-1).tolist()
    for token, own in zip(found.features, hidden, strict=True):
        assert token[0].feature == int(own.argmax())
        assert token[0].activation == pytest.approx(float(own.max()), abs=1e-3)
        assert len(token) == int((own > 0).sum())
    direction = case.tools.sae_direction(name, 7)
    assert np.allclose(np.asarray(direction), weights["W_dec"][7].numpy())
    calls = [{"prompt": t, "sae": name} for t in TEXTS]
    case.tools.check_batch("sae_features", calls, rtol=1e-3, atol=1e-3)


def _gated(x: Any, w: dict[str, Any]) -> Any:
    inside = x - w["b_dec"]
    gate = (inside @ w["W_enc"] + w["b_gate"] > 0).float()
    return gate * (inside @ (w["W_enc"] * w["r_mag"].exp()) + w["b_mag"]).relu()


def _jump(x: Any, w: dict[str, Any]) -> Any:
    before = (x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]
    return before.where(before > w["threshold"], 0 * before)


def _topk(x: Any, w: dict[str, Any]) -> Any:
    before = (x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]
    least = before.sort(dim=-1, descending=True).values[..., 7:8]
    return before.where(before >= least, 0 * before).relu()


@pytest.mark.parametrize(
    ("architecture", "own", "extra", "config"),
    [
        ("gated", _gated, ("b_gate", "b_mag", "r_mag"), {}),
        ("jumprelu", _jump, ("b_enc", "threshold"), {}),
        ("topk", _topk, ("b_enc",), {"k": 8}),
    ],
)
def test_every_known_kind_of_autoencoder_encodes_as_written(
    llama: Case,
    sae_folder: Path,
    architecture: str,
    own: Callable[[Any, dict[str, Any]], Any],
    extra: tuple[str, ...],
    config: dict[str, Any],
) -> None:
    import torch

    generator = torch.Generator().manual_seed(1)
    weights = {
        "W_enc": torch.randn(32, 64, generator=generator),
        "W_dec": torch.randn(64, 32, generator=generator),
        "b_dec": torch.randn(32, generator=generator),
        **{name: torch.rand(64, generator=generator) for name in extra},
    }
    name = f"kind-{architecture}"
    hook = {"hook_name": "blocks.2.hook_mlp_out"}
    save_sae(sae_folder / name, weights, architecture=architecture, **hook, **config)
    found = llama.tools.sae_features(TEXTS[0], name, k=64)
    x = torch.tensor(np.asarray(llama.tools.activations(TEXTS[0], 3, stream="mlp")))
    hidden = own(x, weights)
    assert found.active == (hidden > 0).sum(-1).tolist()
    for token, expected in zip(found.features, hidden, strict=True):
        assert token[0].feature == int(expected.argmax())
        assert token[0].activation == pytest.approx(float(expected.max()), rel=1e-4)


def test_autoencoders_that_cannot_be_read_say_why(llama: Case, sae_folder: Path) -> None:
    import torch

    with pytest.raises(ModelInputError, match="there are none"):
        llama.tools.sae_features(TEXTS[0], "absent")
    weights = {"W_dec": torch.zeros(64, 32)}
    save_sae(sae_folder / "odd", weights, architecture="crosscoder", hook_name="blocks.0.hook_z")
    with pytest.raises(ModelInputError, match="'crosscoder' is not supported; known are standard"):
        llama.tools.sae_features(TEXTS[0], "odd")
    save_sae(
        sae_folder / "z",
        weights,
        architecture="standard",
        hook_name="blocks.0.attn.hook_attn_scores",
    )
    with pytest.raises(
        ModelInputError, match="'blocks.0.attn.hook_attn_scores' is not a supported hook name"
    ):
        llama.tools.sae_features(TEXTS[0], "z")
    good = {"architecture": "standard", "hook_name": "blocks.0.hook_resid_pre"}
    save_sae(sae_folder / "less", weights, **good)
    with pytest.raises(ModelInputError, match=r"do not fit its cfg\.json"):
        llama.tools.sae_features(TEXTS[0], "less")
    with pytest.raises(ModelInputError, match=r"there are 'less', 'odd', 'z'"):
        llama.tools.sae_features(TEXTS[0], "../less")


@pytest.mark.parametrize(
    ("option", "hook"),
    [
        ("fold_ln", "mlp.hook_in"),
        ("fold_value_biases", "attn.hook_z"),
        ("refactor_factored_attn_matrices", "attn.hook_q"),
    ],
)
def test_an_autoencoder_of_changed_activations_is_refused(
    cases: Callable[[str], Case], sae_folder: Path, option: str, hook: str
) -> None:
    import torch

    case = cases("gpt2")
    weights = {"W_enc": torch.ones(32, 64), "b_enc": torch.zeros(64)}
    weights |= {"W_dec": torch.ones(64, 32), "b_dec": torch.zeros(32)}
    folded = {"model_from_pretrained_kwargs": {option: True}}
    save_sae(sae_folder / "folded", weights, hook_name=f"blocks.1.{hook}", metadata=folded)
    with pytest.raises(ModelInputError, match=f"{option}=True, which changes"):
        case.tools.sae_features(TEXTS[0], "folded")
    # Sites that these options do not change are read as they are.
    save_sae(sae_folder / "same", weights, hook_name="blocks.1.hook_resid_post", metadata=folded)
    assert case.tools.sae_features(TEXTS[0], "same").tokens


def test_an_autoencoder_that_is_saved_again_is_read_again(llama: Case, sae_folder: Path) -> None:
    import torch

    hook = {"architecture": "standard", "hook_name": "blocks.1.hook_resid_post"}
    state = torch.tensor(np.asarray(llama.tools.activations(TEXTS[0], 2)))[-1]
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        weights = {
            "W_enc": torch.randn(32, 64, generator=generator),
            "b_enc": torch.zeros(64),
            "W_dec": torch.randn(64, 32, generator=generator),
            "b_dec": torch.zeros(32),
        }
        save_sae(sae_folder / "again", weights, **hook)
        found = llama.tools.sae_features(TEXTS[0], "again", k=1).features[-1][0]
        assert found.feature == int((state @ weights["W_enc"]).argmax())


def test_without_a_first_token_prompts_begin_with_the_end_token(
    llama: Case, sae_folder: Path, tmp_path: Path
) -> None:
    """As in TransformerLens, which SAELens trains with."""
    import torch

    folder = tmp_path / "without"
    shutil.copytree(llama.folder, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["bos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tools: Any = load_interface(interfaces.whitebox, models={"tiny": str(folder)})
    generator = torch.Generator().manual_seed(2)
    weights = {
        "W_enc": torch.randn(32, 64, generator=generator),
        "b_enc": torch.zeros(64),
        "W_dec": torch.randn(64, 32, generator=generator),
        "b_dec": torch.zeros(32),
    }
    hook = {"architecture": "standard", "hook_name": "blocks.1.hook_resid_post"}
    save_sae(sae_folder / "begins", weights, **hook, prepend_bos=True)
    row = [llama.tokenizer.eos_token_id, *llama.ids(TEXTS[0])[0].tolist()]
    with torch.no_grad():
        states = llama.net(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states
    hidden = (states[2][0] @ weights["W_enc"]).relu()
    found = tools.sae_features(TEXTS[0], "begins", k=64)
    assert found.active == (hidden > 0).sum(-1).tolist()


def test_an_autoencoder_reads_as_it_was_trained(
    cases: Callable[[str], Case], sae_folder: Path
) -> None:
    """`prepend_bos` and `center_writing_weights`, as SAELens saves them, change what is read."""
    import torch

    case = cases("gpt2")
    generator = torch.Generator().manual_seed(2)
    weights = {
        "W_enc": torch.randn(32, 64, generator=generator),
        "b_enc": torch.zeros(64),
        "W_dec": torch.randn(64, 32, generator=generator),
        "b_dec": torch.zeros(32),
    }
    hook = {"architecture": "standard", "hook_name": "blocks.1.hook_resid_post"}
    centering = {"model_from_pretrained_kwargs": {"center_writing_weights": True}}
    save_sae(sae_folder / "plain", weights, **hook)
    save_sae(sae_folder / "begun", weights, **hook, prepend_bos=True)
    save_sae(sae_folder / "bare", weights, **hook, metadata={"prepend_bos": False})
    save_sae(sae_folder / "centered", weights, **hook, metadata=centering)
    ids = case.ids(TEXTS[0])[0].tolist()
    begin = case.tokenizer.bos_token_id
    assert ids[0] != begin
    for name, row in (("plain", ids), ("begun", [begin, *ids]), ("bare", ids), ("centered", ids)):
        for prompt in (ids, [begin, *ids]):
            own = prompt if name in ("plain", "centered") else row
            with torch.no_grad():
                output = case.net(input_ids=torch.tensor([own]), output_hidden_states=True)
            x = output.hidden_states[2][0]
            if name == "centered":
                x = x - x.mean(-1, keepdim=True)
            hidden = (x @ weights["W_enc"]).relu()
            found = case.tools.sae_features(prompt, name, k=64)
            assert len(found.tokens) == len(own)
            assert found.active == (hidden > 0).sum(-1).tolist()
            assert found.features[-1][0].feature == int(hidden[-1].argmax())
    # Centring the weights that write to the residual stream does not change the heads' outputs.
    heads = {**hook, "hook_name": "blocks.1.attn.hook_z"}
    save_sae(sae_folder / "heads", weights, **heads, metadata=centering)
    seen: list[Any] = []
    matrix = case.blocks[1].attn.c_proj
    watched = matrix.register_forward_pre_hook(lambda _m, args: seen.append(args[0][0]))
    case.run(TEXTS[0])
    watched.remove()
    hidden = (seen[0] @ weights["W_enc"]).relu()
    assert case.tools.sae_features(ids, "heads").active == (hidden > 0).sum(-1).tolist()
