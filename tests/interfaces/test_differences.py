"""Changes of weights as directions, and of activations by layer and token, against numpy."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer import interfaces
from seer.errors import CallLimitError, ModelInputError
from seer.testing import load_interface
from tests.interfaces.conftest import TEXTS, Case, make, make_adapter

pytestmark = pytest.mark.full


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    return auto.from_pretrained(folder).eval()


def merged(base: Path, adapter: Path) -> Any:
    """The base with the adapter's weights added by peft itself."""
    import peft

    library: Any = peft
    return library.PeftModel.from_pretrained(loaded(base), adapter).merge_and_unload().eval()


def matrices(net: Any) -> dict[str, Any]:
    """All matrices by module, as outputs by inputs; a head that shares its weights is left out."""
    import torch

    found: dict[str, Any] = {}
    for name, module in net.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2:
            continue
        if module is net.get_output_embeddings() and weight is net.get_input_embeddings().weight:
            continue
        across = type(module).__name__ == "Conv1D" or isinstance(module, torch.nn.Embedding)
        found[name] = (weight.T if across else weight).detach().double().numpy()
    return found


def nearest(table: Any, vector: Any, k: int) -> list[int]:
    """Tokens by the size of their cosine with a vector."""
    rows = table.weight.detach().double().numpy()
    cosines = rows @ vector / np.maximum(np.linalg.norm(rows, axis=1), 1e-12)
    return np.argsort(-np.abs(cosines))[:k].tolist()


WRITES = ("o_proj", "c_proj", "down_proj")


def check(found: Any, deltas: dict[str, Any], bases: dict[str, Any], net: Any) -> None:
    """Compare what was found with numpy's SVD of the differences."""
    norms = {name: float(np.linalg.norm(delta)) for name, delta in deltas.items()}
    order = sorted((n for n in norms if norms[n] > 1e-9), key=lambda n: -norms[n])
    assert [one.module for one in found] == order[: len(found)]
    for one in found:
        delta = deltas[one.module]
        left, values, right = np.linalg.svd(delta, full_matrices=False)
        assert one.norm == pytest.approx(norms[one.module], rel=1e-5)
        base = float(np.linalg.norm(bases[one.module]))
        assert one.relative == pytest.approx(norms[one.module] / base, rel=1e-5)
        for i, direction in enumerate(one.directions):
            assert direction.singular == pytest.approx(values[i], rel=1e-5)
            assert direction.share == pytest.approx((values[i] / norms[one.module]) ** 2, rel=1e-4)
            # Up to their common sign, and where the next value is not as large.
            if i + 1 < len(values) and values[i] - values[i + 1] < 1e-3 * values[i]:
                continue
            sign = np.sign(direction.output @ left[:, i])
            np.testing.assert_allclose(sign * direction.output, left[:, i], atol=1e-4)
            np.testing.assert_allclose(sign * direction.input, right[i], atol=1e-4)
            table, head = net.get_input_embeddings(), net.get_output_embeddings()
            if one.module.endswith(WRITES):
                expected = nearest(head, left[:, i], 5)
                assert [t.id for t in direction.writes] == expected and not direction.reads
                assert direction.writes[0].score > 0
            elif ".layers." in f".{one.module}." or ".h." in f".{one.module}.":
                expected = nearest(table, right[i], 5)
                assert [t.id for t in direction.reads] == expected and not direction.writes
                assert direction.reads[0].score > 0


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
def test_an_adapters_directions_are_the_svd_of_what_peft_merges(
    cases: Callable[[str], Case], tmp_path: Path, architecture: str
) -> None:
    case = cases(architecture)
    folder = make_adapter(case.folder, tmp_path / f"{architecture}-adapter")
    tools: Any = load_interface(interfaces.whitebox, models={"adapter": str(folder)})
    bases = matrices(loaded(case.folder))
    changed = matrices(merged(case.folder, folder))
    deltas = {name: changed[name] - bases[name] for name in bases}
    found = tools.diff_weights(matrices=12, directions=4, k=5)
    # Merged weights are rounded to float32: that noise is far below 1e-5 of the change.
    assert len(found) == sum(np.linalg.norm(delta) > 1e-4 for delta in deltas.values()) >= 6
    check(found, deltas, bases, case.net)
    assert all(len(one.directions) == 4 for one in found)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_two_checkpoints_directions_are_the_svd_of_their_difference(
    tmp_path: Path, cases: Callable[[str], Case], architecture: str
) -> None:
    import torch

    case = cases(architecture)
    net = loaded(case.folder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim == 2:
                pair = [torch.randn(n, 3, generator=generator) for n in weight.shape]
                weight.add_(pair[0] @ pair[1].T * 0.05)
    net.save_pretrained(tmp_path / "tuned")
    case.tokenizer.save_pretrained(tmp_path / "tuned")
    models = {"tuned": str(tmp_path / "tuned"), "base": str(case.folder)}
    tools: Any = load_interface(interfaces.whitebox, models=models)
    bases, changed = matrices(case.net), matrices(net)
    deltas = {name: changed[name] - bases[name] for name in bases}
    found = tools.diff_weights("tuned", "base", matrices=64, directions=3, k=5)
    assert len(found) == len(deltas)
    check(found, deltas, bases, net)
    (table,) = [one for one in found if one.module.endswith(("embed_tokens", "wte"))]
    top = table.directions[0]
    assert [t.id for t in top.reads] == np.argsort(-np.abs(top.input))[:5].tolist()
    with pytest.raises(ModelInputError, match="have different matrices"):
        make(tmp_path / "other", "gpt2" if architecture == "llama" else "llama")
        other: Any = load_interface(
            interfaces.whitebox,
            models={"one": str(case.folder), "two": str(tmp_path / "other")},
        )
        other.diff_weights("one", "two")


def tuned(case: Case, folder: Path, settings: Any) -> dict[str, str]:
    """An adapter with random weights, beside its base."""
    import peft
    import torch

    library: Any = peft
    torch.manual_seed(3)
    net = library.get_peft_model(loaded(case.folder), settings)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    net.peft_config["default"].base_model_name_or_path = str(case.folder)
    net.save_pretrained(folder)
    return {"tuned": str(folder), "base": str(case.folder)}


EVERY_PLACE: dict[str, dict[str, Any]] = {
    "table": {"target_modules": ["embed_tokens", "q_proj"]},
    "table of gpt2": {"target_modules": ["wte", "c_attn"], "fan_in_fan_out": True},
    "head": {"target_modules": ["lm_head", "o_proj"]},
    "single tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]},
    "a whole table": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "a whole head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "other ranks": {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"q_proj": 2}},
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("place", EVERY_PLACE)
def test_an_adapter_of_any_place_is_what_peft_merges(
    place: str, cases: Callable[[str], Case], tmp_path: Path
) -> None:
    import peft

    library: Any = peft
    case = cases("gpt2" if "gpt2" in place else "llama")
    settings = library.LoraConfig(r=3, task_type="CAUSAL_LM", **EVERY_PLACE[place])
    models = tuned(case, tmp_path / "adapter", settings)
    tools: Any = load_interface(interfaces.whitebox, models=models)
    own = merged(case.folder, tmp_path / "adapter")
    bases, changed = matrices(loaded(case.folder)), matrices(own)
    deltas = {name: changed[name] - bases[name] for name in bases}
    count = sum(np.linalg.norm(delta) > 1e-4 for delta in deltas.values())
    for found in (
        tools.diff_weights("tuned", matrices=20, directions=2, k=5),
        tools.diff_weights("tuned", "base", matrices=20, directions=2, k=5),
    ):
        assert len(found) == count >= 4
        check(found, deltas, bases, own)
    for one in tools.adapter_norms(model="tuned"):
        assert one.norm == pytest.approx(float(np.linalg.norm(deltas[one.module])), rel=1e-4)


OTHER_KINDS: dict[str, Callable[[Any], Any]] = {
    "loha": lambda peft: peft.LoHaConfig(r=2, target_modules=["q_proj"]),
    "ia3": lambda peft: peft.IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "adalora": lambda peft: peft.AdaLoraConfig(
        init_r=4, target_r=2, total_step=10, target_modules=["q_proj"]
    ),
    "DoRA": lambda peft: peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_an_adapter_that_is_no_product_of_thin_matrices_is_refused(
    kind: str, llama: Case, tmp_path: Path
) -> None:
    import peft

    settings = OTHER_KINDS[kind](peft)
    settings.task_type = "CAUSAL_LM"
    tools: Any = load_interface(
        interfaces.whitebox, models=tuned(llama, tmp_path / "adapter", settings)
    )
    with pytest.raises(ModelInputError, match=kind):
        tools.diff_weights("tuned")
    with pytest.raises(ModelInputError, match=kind):
        tools.diff_weights("tuned", "base")
    with pytest.raises(ModelInputError, match=kind):
        tools.adapter_norms(model="tuned")


def test_changes_of_single_experts_are_found(llama: Case, tmp_path: Path) -> None:
    """transformers keeps the matrices of experts in one tensor; numpy's SVD is the judge."""
    import torch
    from transformers import AutoModelForCausalLM, MixtralConfig

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    sizes: dict[str, Any] = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "num_local_experts": 3, "max_position_embeddings": 128}  # fmt: skip
    net = auto.from_config(MixtralConfig(**sizes))
    models = {name: str(tmp_path / name) for name in ("tuned", "base")}
    net.save_pretrained(models["base"])
    stack = net.model.layers[1].mlp.experts.down_proj
    before = stack[2].detach().double().numpy().copy()
    with torch.no_grad():
        stack[2].add_(torch.randn(32, 2) @ torch.randn(2, 48))
    net.save_pretrained(models["tuned"])
    for folder in models.values():
        llama.tokenizer.save_pretrained(folder)
    tools: Any = load_interface(interfaces.whitebox, models=models)
    (found,) = tools.diff_weights("tuned", "base", k=5)
    assert found.module == "model.layers.1.mlp.experts.down_proj[2]" and found.layer == 2
    left, values, _ = np.linalg.svd(stack[2].detach().double().numpy() - before)
    assert [one.singular for one in found.directions] == pytest.approx(values[:2], rel=1e-5)
    assert abs(float(found.directions[0].output @ left[:, 0])) == pytest.approx(1, abs=1e-4)
    writes = [t.id for t in found.directions[0].writes]
    assert writes == nearest(net.get_output_embeddings(), left[:, 0], 5)


def test_differences_that_cannot_be_computed_are_refused(llama: Case) -> None:
    with pytest.raises(ModelInputError, match="has no adapter; give the second model"):
        llama.tools.diff_weights()
    with pytest.raises(CallLimitError, match="matrices=1000"):
        llama.tools.diff_weights("tiny", "tiny", matrices=1000)
    assert llama.tools.diff_weights("tiny", "tiny") == []
    plain = llama.tools.compare(list(TEXTS), "tiny", "tiny")
    assert plain.prompts[0].distances is None and plain.layers[0].direction is None


def test_details_are_the_differences_of_hidden_states(
    cases: Callable[[str], Case], tmp_path: Path
) -> None:
    import torch

    case = cases("llama")
    folder = make_adapter(case.folder, tmp_path / "llama-adapter")
    tools: Any = load_interface(interfaces.whitebox, models={"adapter": str(folder)})
    found = tools.compare(list(TEXTS), k=4, details=True)
    tuned = merged(case.folder, folder)
    by_prompt = {one.prompt: one for one in found.prompts}
    every: list[Any] = []
    for text in TEXTS:
        with torch.no_grad():
            a, b = (
                net(input_ids=case.ids(text), output_hidden_states=True).hidden_states
                for net in (tuned, case.net)
            )
        one = by_prompt[text]
        assert one.tokens == [case.tokenizer.decode([i]) for i in case.ids(text)[0].tolist()]
        for layer in range(3):
            step = (a[layer] - b[layer])[0]
            expected = step.norm(dim=-1) / b[layer][0].norm(dim=-1)
            np.testing.assert_allclose(one.distances[layer], expected, rtol=1e-3, atol=1e-5)
        every.append(torch.stack([(a[n] - b[n])[0] for n in range(3)]))
    means = torch.cat(every, 1).double().mean(1).numpy()
    head = case.net.get_output_embeddings().weight.detach().double().numpy()
    unit = head / np.linalg.norm(head, axis=1, keepdims=True)
    for layer in (1, 2):
        np.testing.assert_allclose(found.layers[layer].direction, means[layer], atol=2e-5)
        expected = np.argsort(-(unit @ means[layer]))[:4].tolist()
        assert [t.id for t in found.layers[layer].nearest] == expected
