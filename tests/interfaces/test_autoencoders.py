"""Autoencoders that are trained here, and those of other projects' layouts, computed again.

Where SAELens is installed, the results are compared with it.
"""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer import interfaces
from seer.errors import CallLimitError, ModelInputError
from seer.testing import load_interface
from tests.interfaces.conftest import TEXTS, Case
from tests.interfaces.test_knowledge import sentences

pytestmark = pytest.mark.full


def save(folder: Path, trained: Any) -> None:
    """Save a trained autoencoder as the documentation says."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "cfg.json").write_text(trained.config)
    save_file(trained.weights, folder / "sae_weights.safetensors")


def encoded(x: Any, w: dict[str, Any], k: int) -> Any:
    """The features by the definition of a TopK autoencoder."""
    before = (x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]
    least = np.sort(before, axis=-1)[:, -k][:, None]
    return np.maximum(np.where(before >= least, before, 0), 0)


@pytest.mark.parametrize("layer", [2, "blocks.1.attn.hook_z", "blocks.1.mlp.hook_post"])
def test_a_trained_autoencoder_can_be_saved_and_loaded_again(
    llama: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: Any
) -> None:
    monkeypatch.setenv("SEER_SAES", str(tmp_path / "saes"))
    texts = sentences(80, 5)
    options: dict[str, Any] = {"features": 96, "k": 6, "steps": 300, "learning_rate": 3e-3}
    trained = llama.tools.train_sae(texts, layer, weights=True, **options)
    rows = [np.asarray(llama.tools.activations(t, layer)) for t in texts]
    flat = [row.reshape(len(row), -1) for row in rows]
    held = np.concatenate(flat[::4]).astype(np.float64)
    seen = np.concatenate([f for i, f in enumerate(flat) if i % 4]).astype(np.float64)
    assert (trained.trained_on, trained.tested_on) == (len(seen), len(held))
    w = {name: tensor.astype(np.float64) for name, tensor in trained.weights.items()}
    assert np.allclose(np.linalg.norm(w["W_dec"], axis=1), 1, atol=1e-5)
    features = encoded(held, w, 6)
    missed = held - features @ w["W_dec"] - w["b_dec"]
    expected = float((missed**2).sum() / (held**2).sum())
    assert trained.unexplained == pytest.approx(expected, rel=1e-3)
    used = (features > 0).any(0) | (encoded(seen, w, 6) > 0).any(0)
    assert trained.dead == pytest.approx(float((~used).mean()))
    # The best fixed set of as many directions as are active at each token.
    middle = seen.mean(0)
    _, _, axes = np.linalg.svd(seen - middle, full_matrices=False)
    rest = (held - middle) - (held - middle) @ axes[:6].T @ axes[:6]
    assert trained.unexplained < float((rest**2).sum() / (held**2).sum())
    save(tmp_path / "saes" / "mine", trained)
    (info,) = llama.tools.saes().usable
    assert (info.name, info.features, info.architecture) == ("mine", 96, "topk")
    by_name = llama.tools.sae_features(TEXTS[0], "mine", k=6)
    assert by_name == llama.tools.sae_features(TEXTS[0], trained.sae, k=6)
    x = np.asarray(llama.tools.activations(TEXTS[0], layer)).reshape(len(by_name.tokens), -1)
    own = encoded(x.astype(np.float64), w, 6)
    assert by_name.active == (own > 0).sum(-1).tolist()
    for token, row in zip(by_name.features, own, strict=True):
        assert token[0].feature == int(row.argmax())
        assert token[0].activation == pytest.approx(float(row.max()), rel=1e-3)
    direction = llama.tools.sae_direction(trained.sae, 3)
    assert np.allclose(np.asarray(direction), trained.weights["W_dec"][3])
    again = llama.tools.train_sae(texts, layer, weights=True, **options)
    assert all(np.array_equal(again.weights[n], trained.weights[n]) for n in again.weights)


@pytest.mark.filterwarnings("ignore")
def test_saelens_computes_the_same_features(
    llama: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Importing SAELens leaves temporary folders behind.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    library: Any = pytest.importorskip("sae_lens")
    import torch

    texts = sentences(40, 6)
    for layer in (2, "blocks.1.attn.hook_z"):
        trained = llama.tools.train_sae(texts, layer, features=64, k=5, steps=50, weights=True)
        folder = tmp_path / str(layer)
        save(folder, trained)
        other = library.SAE.load_from_disk(str(folder))
        assert other.cfg.metadata.hook_name == json.loads(trained.config)["metadata"]["hook_name"]
        x = torch.tensor(np.asarray(llama.tools.activations(TEXTS[0], layer)))
        with torch.no_grad():
            own = other.encode(x)
            rebuilt = other.decode(own)
        found = llama.tools.sae_features(TEXTS[0], trained.sae, k=5)
        assert found.active == (own > 0).sum(-1).tolist()
        for token, row in zip(found.features, own, strict=True):
            expected = row.topk(len(token))
            assert [one.feature for one in token] == expected.indices.tolist()
            values = [one.activation for one in token]
            assert values == pytest.approx(expected.values.tolist(), rel=1e-4)
        missed = (x - rebuilt.reshape(x.shape)).square().sum() / x.square().sum()
        assert found.unexplained == pytest.approx(float(missed), rel=1e-4)


def test_trainings_that_are_too_large_or_not_possible_are_refused(llama: Case) -> None:
    texts = sentences(8, 1)
    train = llama.tools.train_sae
    with pytest.raises(CallLimitError, match="times what one call may do"):
        train(texts, 1, features=60_000, steps=20_000, batch=8192)
    with pytest.raises(CallLimitError, match="steps=100000"):
        train(texts, 1, steps=100_000)
    with pytest.raises(ModelInputError, match="at least 8"):
        train(texts[:3], 1)
    with pytest.raises(ModelInputError, match="head_outputs"):
        train(texts, 1, stream="head_outputs")
    held = llama.tools.hold_activations("hello", 1)
    with pytest.raises(ModelInputError, match="that train_sae made"):
        llama.tools.sae_features("hello", held)


def test_folders_of_other_projects_load_as_these_save_them(
    llama: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma Scope (JumpReLU, no subtraction, first special token) and EleutherAI's sparsify."""
    import torch
    from safetensors.torch import save_file

    random = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    scope = {"W_enc": draw(32, 48), "W_dec": draw(48, 32), "b_enc": draw(48), "b_dec": draw(32)}
    scope["threshold"] = np.abs(draw(48))
    folder = tmp_path / "scope" / "layer_1" / "width_48" / "average_l0_7"
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", **scope)
    hub = tmp_path / "hub-model" / "layers.0.mlp"
    hub.mkdir(parents=True)
    config = {"expansion_factor": 2, "num_latents": 0, "k": 4, "d_in": 32}
    (hub / "cfg.json").write_text(json.dumps(config))
    sparse = {"encoder.weight": draw(64, 32), "encoder.bias": draw(64)}
    sparse |= {"W_dec": draw(64, 32), "b_dec": draw(32)}
    save_file({n: torch.tensor(t) for n, t in sparse.items()}, hub / "sae.safetensors")
    # A repository of autoencoders may be configured like a model, or lie in the folder of them.
    monkeypatch.setenv("SEER_SAES", str(tmp_path / "scope"))
    models = {"tiny": str(llama.folder), "org/saes": str(tmp_path / "hub-model")}
    tools: Any = load_interface(interfaces.whitebox, models=models)
    assert [model.name for model in tools.models()] == ["tiny"]
    names = {one.name: (one.layer, one.stream) for one in tools.saes().usable}
    assert names == {
        "layer_1/width_48/average_l0_7": (2, "residual"),
        "org/saes/layers.0.mlp": (1, "mlp"),
    }
    found = tools.sae_features(TEXTS[0], "layer_1/width_48/average_l0_7", k=48)
    ids = tools.tokenize(TEXTS[0]).ids
    begin = llama.tokenizer.bos_token_id
    ids = ids if ids[0] == begin else [begin, *ids]
    x = np.asarray(tools.activations(ids, 2))
    before = x @ scope["W_enc"] + scope["b_enc"]
    own = np.where(before > scope["threshold"], before, 0)
    assert found.active == (own > 0).sum(-1).tolist()
    rebuilt = own @ scope["W_dec"] + scope["b_dec"]
    missed = float(((x - rebuilt) ** 2).sum() / (x**2).sum())
    assert found.unexplained == pytest.approx(missed, rel=1e-4)
    found = tools.sae_features(TEXTS[0], "org/saes/layers.0.mlp", k=4)
    x = np.asarray(tools.activations(TEXTS[0], 1, stream="mlp"))
    w = {"W_enc": sparse["encoder.weight"].T, "b_enc": sparse["encoder.bias"], **sparse}
    own = encoded(x, w, 4)
    assert found.active == (own > 0).sum(-1).tolist()
    assert found.features[-1][0].feature == int(own[-1].argmax())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["transcoder", "skip_transcoder", "jumprelu_transcoder"])
def test_saelens_transcoders_predict_the_same(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    library: Any = pytest.importorskip("sae_lens")
    import torch

    made, config = library.registry.get_sae_class(architecture)
    torch.manual_seed(0)
    other = made(config(d_in=32, d_out=32, d_sae=48, apply_b_dec_to_input=False))
    for weight in other.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    other.cfg.metadata.hook_name = "blocks.1.mlp.hook_in"
    other.cfg.metadata.hook_name_out = "blocks.1.hook_mlp_out"
    other.save_model(str(tmp_path / "saes" / "mine"))
    monkeypatch.setenv("SEER_SAES", str(tmp_path / "saes"))
    (info,) = case.tools.saes().usable
    assert (info.stream, info.writes, info.layer) == ("mlp_inputs", "mlp", 2)
    seen: list[Any] = []
    mlp = case.blocks[1].mlp
    hook = mlp.register_forward_hook(lambda _m, args, out: seen.extend((args[0], out)))
    case.run(TEXTS[0])
    hook.remove()
    x, y = (one[0].detach() for one in seen)
    if case.architecture == "gemma2":
        # Gemma 2 has a norm behind the MLP.
        y = case.blocks[1].post_feedforward_layernorm(y).detach()
    with torch.no_grad():
        own, predicted = other.encode(x), other(x)
    found = case.tools.sae_features(TEXTS[0], "mine", k=10)
    assert found.active == (own > 0).sum(-1).tolist()
    for token, row in zip(found.features, own, strict=True):
        expected = row.topk(len(token))
        assert [one.feature for one in token] == expected.indices.tolist()
        values = [one.activation for one in token]
        assert values == pytest.approx(expected.values.tolist(), rel=1e-3)
    missed = (y - predicted).square().sum() / y.square().sum()
    assert found.unexplained == pytest.approx(float(missed), rel=1e-3)
    direction = np.asarray(case.tools.sae_direction("mine", 7))
    assert np.allclose(direction, other.W_dec[7].detach().numpy())


def test_transcoders_of_sparsify_predict_the_mlp_from_its_input(
    cases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import save_file

    random = np.random.default_rng(0)
    shapes = {"encoder.weight": (64, 32), "encoder.bias": (64,), "W_dec": (64, 32)}
    shapes |= {"b_dec": (32,), "W_skip": (32, 32)}
    w = {n: random.normal(size=size).astype(np.float32) for n, size in shapes.items()}
    config = {"expansion_factor": 2, "num_latents": 0, "k": 4, "d_in": 32, "activation": "topk"}
    monkeypatch.setenv("SEER_SAES", str(tmp_path))

    def write(name: str, **more: Any) -> None:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "cfg.json").write_text(json.dumps({**config, **more}))
        save_file({n: torch.tensor(t) for n, t in w.items()}, folder / "sae.safetensors")

    write("layers.1.mlp", transcode=True, skip_connection=True)
    llama = cases("llama")
    seen: list[Any] = []
    hook = llama.blocks[1].mlp.register_forward_hook(
        lambda _m, args, out: seen.extend((args[0], out))
    )
    llama.run(TEXTS[0])
    hook.remove()
    x, y = (one[0].detach().numpy() for one in seen)
    before = x @ w["encoder.weight"].T + w["encoder.bias"]
    least = np.sort(before, axis=-1)[:, -4][:, None]
    own = np.maximum(np.where(before >= least, before, 0), 0)
    predicted = own @ w["W_dec"] + w["b_dec"] + x @ w["W_skip"].T
    found = llama.tools.sae_features(TEXTS[0], "layers.1.mlp", k=4)
    assert found.active == (own > 0).sum(-1).tolist()
    assert [token[0].feature for token in found.features] == own.argmax(-1).tolist()
    missed = ((y - predicted) ** 2).sum() / (y**2).sum()
    assert found.unexplained == pytest.approx(float(missed), rel=1e-3)
    # Gemma 2 adds a norm of what the module puts out.
    with pytest.raises(ModelInputError, match="applies a norm or a factor after this module"):
        cases("gemma2").tools.sae_features(TEXTS[0], "layers.1.mlp")
    for name, more, message in (
        ("layers.1.self_attn", {"transcode": True}, "only transcoders of an MLP"),
        ("layers.2", {"activation": "groupmax"}, "activation='groupmax' is not supported"),
        ("h.0.mlp", {"embed_skip": True}, "embed_skip=True is not supported"),
    ):
        write(name, **more)
        with pytest.raises(ModelInputError, match=message):
            llama.tools.sae_features(TEXTS[0], name)


def test_transcoders_of_gemma_scope_are_refused_by_name(
    llama: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gemma-scope-2b-pt-transcoders" / "layer_1" / "width_48"
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", W_dec=np.zeros((48, 32)))
    monkeypatch.setenv("SEER_SAES", str(tmp_path))
    name = folder.relative_to(tmp_path).as_posix()
    with pytest.raises(ModelInputError, match="transcoders of Gemma Scope are not supported"):
        llama.tools.sae_features(TEXTS[0], name)
    found = llama.tools.saes()
    assert not found.usable
    assert "transcoders of Gemma Scope are not supported" in found.unsupported[name]


def test_one_that_is_not_supported_is_named_beside_those_that_are(
    llama: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_SAES", str(tmp_path))
    good = {"architecture": "standard", "d_in": 32, "d_sae": 64}
    for name, config in (
        ("good", good | {"hook_name": "blocks.1.hook_resid_post"}),
        ("strange", good | {"hook_name": "blocks.1.hook_resid_post", "architecture": "matryoshka"}),
        ("broken", "not a config"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cfg.json").write_text(json.dumps(config))
        (tmp_path / name / "sae_weights.safetensors").write_bytes(b"")
    (tmp_path / "layers.1").mkdir()
    (tmp_path / "layers.1" / "cfg.json").write_text('{"expansion_factor": 4}')
    (tmp_path / "layers.1" / "sae.safetensors").write_bytes(b"")
    for name, damaged in (("layer_1", b""), ("layer_2", b"PK\x03\x04 cut"), ("layer_3", b"no")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "params.npz").write_bytes(damaged)
    found = llama.tools.saes()
    assert [(one.name, one.layer) for one in found.usable] == [("good", 2)]
    unread = {"layer_1", "layer_2", "layer_3", "layers.1"}
    assert set(found.unsupported) == {"broken", "strange", *unread}
    assert all("its settings cannot be read" in found.unsupported[name] for name in unread)
    assert "matryoshka" in found.unsupported["strange"]
    assert found.unsupported["broken"] == "its cfg.json does not describe an autoencoder"


def spoiled(name: str, value: str) -> Any:
    return lambda folder: (folder / name).write_text(value)


def cut(folder: Path) -> None:
    file = folder / "sae_weights.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def not_finite(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "sae_weights.safetensors")
    weights["b_enc"][3] = np.nan
    save_file(weights, folder / "sae_weights.safetensors")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "sae_weights.safetensors").unlink(), "there are none"),
        (lambda folder: (folder / "cfg.json").unlink(), "there are none"),
        (cut, "sae='mine': sae_weights.safetensors cannot be read, perhaps because"),
        (not_finite, "has weights that are not finite"),
        (spoiled("cfg.json", '{"architecture": "topk", "d_'), "its cfg.json cannot be read"),
        (spoiled("cfg.json", "[3]"), "does not describe an autoencoder"),
        (spoiled("cfg.json", "{}"), "sae='mine': '' is not a supported hook name"),
        (
            spoiled("cfg.json", '{"hook_name": "blocks.0.hook_resid_post"}'),
            "does not describe an autoencoder: KeyError\\('d_in'\\)",
        ),
        (
            spoiled("cfg.json", '{"hook_name": "blocks.0.hook_resid_post", "d_in": "x"}'),
            "does not describe an autoencoder: ValueError",
        ),
        (spoiled("cfg.json", '{"architecture": [1], "metadata": 3}'), "does not describe an auto"),
    ],
)
def test_what_was_written_in_part_or_wrongly_is_refused_in_one_line(
    llama: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, told: str
) -> None:
    monkeypatch.setenv("SEER_SAES", str(tmp_path))
    trained = llama.tools.train_sae(sentences(8, 1), 1, k=2, steps=1, weights=True)
    save(tmp_path / "mine", trained)
    spoil(tmp_path / "mine")
    with pytest.raises(ModelInputError, match=told) as caught:
        llama.tools.sae_features(TEXTS[0], "mine")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e30])
def test_a_learning_rate_out_of_range_is_refused(llama: Case, value: float) -> None:
    with pytest.raises(ModelInputError, match="learning_rate=.*must be from"):
        llama.tools.train_sae(sentences(8, 1), 1, k=2, steps=1, learning_rate=value)
