"""Properties of every supported architecture, compared with plain PyTorch hooks.

Parts add up to the residual stream, changes reach it, the last row of the lens is the model's own
distribution, and attention looks back only. What cannot be read is refused by name.
"""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import ModelInputError, ServeError
from tests.interfaces.conftest import TEXTS

pytestmark = [
    pytest.mark.full,
    # Of transformers' own code for GPT BigCode.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

_SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
_OLD = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
_PLAIN = {**_SIZE, "max_position_embeddings": 64, "intermediate_size": 64}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "head_dim": 8}
_SMALL_PADS = {**_GROUPED, "pad_token_id": 0}
_EXPERTS = {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL_EXPERTS = {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
_SCALED = {"residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 8.0}
_DEEPSEEK = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "head_dim": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_ROUTED = {
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_NEO = {"num_layers": 3, "num_heads": 4, "attention_types": [[["global"], 3]]}

READABLE: dict[str, dict[str, Any]] = {
    "cohere": {**_GROUPED, "logit_scale": 0.0625},
    "falcon": {**_SIZE, "num_kv_heads": 2, "new_decoder_architecture": True},
    "gemma2": {**_GROUPED, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_GROUPED, "query_pre_attn_scalar": 8},
    "glm4": _SMALL_PADS,
    "gpt_neox": _PLAIN,
    "granite": {**_GROUPED, **_SCALED},
    "granitemoe": {**_LOCAL_EXPERTS, **_SCALED},
    "gpt_oss": _LOCAL_EXPERTS,
    "olmo2": _GROUPED,
    "olmo3": _GROUPED,
    "opt": {**_SIZE, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "phi": _PLAIN,
    "apertus": _GROUPED,
    "arcee": _GROUPED,
    "biogpt": _PLAIN,
    "cohere2": {**_GROUPED, "logit_scale": 0.0625},
    "deepseek_v3": _DEEPSEEK,
    "ernie4_5": _GROUPED,
    "exaone4": _GROUPED,
    "gemma": _GROUPED,
    "glm": _SMALL_PADS,
    "gpt2": _OLD,
    "gpt_bigcode": _OLD,
    "gpt_neo": {**_PLAIN, **_NEO},
    "gptj": {**_OLD, "rotary_dim": 4},
    "helium": _GROUPED,
    "llama": _GROUPED,
    "mistral": _GROUPED,
    "mixtral": _LOCAL_EXPERTS,
    "nemotron": _GROUPED,
    "olmo": _GROUPED,
    "olmoe": _EXPERTS,
    "persimmon": _PLAIN,
    "phi3": _SMALL_PADS,
    "qwen2": _GROUPED,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": _GROUPED,
    "qwen3_moe": _EXPERTS,
    "seed_oss": _GROUPED,
    "smollm3": _SMALL_PADS,
    "stablelm": _GROUPED,
    "starcoder2": _GROUPED,
}

OTHERS: dict[str, dict[str, Any]] = {
    "afmoe": {**_EXPERTS, "num_dense_layers": 1, "global_attn_every_n_layers": 2},
    "bitnet": _SMALL_PADS,
    "codegen": {**_OLD, "rotary_dim": 4},
    "deepseek_v2": _DEEPSEEK,
    "flint": _SMALL_PADS,
    "glm4_moe": {**_ROUTED, "pad_token_id": 0},
    "granite_swa": {**_GROUPED, **_SCALED},
    "hunyuan_v1_dense": _SMALL_PADS,
    "minimax_m2": _LOCAL_EXPERTS,
    "mimo_v2_flash": _EXPERTS,
    "nanochat": _SMALL_PADS,
    "phimoe": _LOCAL_EXPERTS,
    "vaultgemma": {**_SMALL_PADS, "query_pre_attn_scalar": 8},
    "xglm": {"d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 64},
}
"""More of them; `test_sites.py` does not know where their heads and neurons are."""


def make(folder: Path, architecture: str, settings: dict[str, Any]) -> Any:
    """A tiny random model, saved with the tokenizer of the other tiny models; gives the model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from seer.testing import make_tiny_model

    make_tiny_model(folder, architecture="llama", layers=1, width=32)
    tokenizers: Any = AutoTokenizer
    vocabulary = len(tokenizers.from_pretrained(folder))
    (folder / "model.safetensors").unlink()
    kinds: Any = AutoConfig
    config = kinds.for_model(architecture, **settings, vocab_size=vocabulary)
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    net = auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            # Large enough for every part to matter.
            if weight.ndim >= 2 and "embed" not in name and "wte" not in name:
                weight.mul_(4.0)
            elif weight.ndim == 1 and "norm" in name and "bias" not in name:
                weight.add_(torch.rand_like(weight))
    net.save_pretrained(folder)
    return net


REFUSED: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 4},
    "qwen3_next": _EXPERTS,
}
"""Whose blocks are no attention and MLP that add to the residual stream one after the other."""

_MIXED = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
HYBRID: dict[str, dict[str, Any]] = {
    "jamba": {
        **_SMALL_PADS,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "lfm2": {**_SMALL_PADS, **_MIXED, "layer_types": ["conv", "full_attention"] * 2},
    "minimax": {**_LOCAL_EXPERTS, "num_hidden_layers": 4},
    "nemotron_h": _SMALL_PADS,
    "olmo_hybrid": {**_SMALL_PADS, **_MIXED},
    "qwen3_5_text": {**_SMALL_PADS, **_MIXED},
    "recurrent_gemma": {**_SMALL_PADS, "lru_width": 32, "attention_window_size": 64},
}
"""Of whose blocks only some have attention patterns."""
SINKS = ("flint", "gpt_oss", "mimo_v2_flash")
"""Whose heads may attend to nothing in part."""


class Opened:
    """One architecture: the tools over it, and the same model with hooks of plain PyTorch."""

    def __init__(self, folder: Path, architecture: str, settings: dict[str, Any]) -> None:
        import torch

        from seer import interfaces
        from seer.testing import load_interface

        self.net = make(folder, architecture, settings)
        self.tools: Any = load_interface(interfaces.whitebox, models={"tiny": str(folder)})
        decoder: Any = self.net.get_decoder()
        lists = [m for m in decoder.children() if isinstance(m, torch.nn.ModuleList)]
        self.blocks: Any = max(lists, key=len)
        self.ids = torch.tensor([self.tools.tokenize(TEXTS[0]).ids])

    def run(self) -> tuple[Any, list[Any]]:
        """The logits, and the residual stream before and after each block."""
        import torch

        seen: list[Any] = []

        def before(_module: Any, args: Any, kwargs: Any) -> None:
            seen.append((args[0] if args else kwargs["hidden_states"]).detach().clone()[0])

        def after(_module: Any, _args: Any, output: Any) -> None:
            seen.append((output[0] if isinstance(output, tuple) else output).detach().clone()[0])

        hooks = [self.blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
        hooks += [block.register_forward_hook(after) for block in self.blocks]
        try:
            with torch.no_grad():
                logits = self.net(input_ids=self.ids, use_cache=False).logits[0].float()
        finally:
            for hook in hooks:
                hook.remove()
        return logits, seen

    def skip_blocks(self) -> Any:
        """The logits if every block passes on its input unchanged."""
        import torch

        def skip(_module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            given = args[0] if args else kwargs["hidden_states"]
            return (given, *output[1:]) if isinstance(output, tuple) else given

        hooks = [block.register_forward_hook(skip, with_kwargs=True) for block in self.blocks]
        try:
            with torch.no_grad():
                return self.net(input_ids=self.ids, use_cache=False).logits[0].float()
        finally:
            for hook in hooks:
                hook.remove()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Opened]:
    """Gives an architecture, made on first use."""
    made: dict[str, Opened] = {}

    def get(architecture: str) -> Opened:
        if architecture not in made:
            folder = tmp_path_factory.mktemp("architectures") / architecture
            settings = {**HYBRID, **READABLE, **OTHERS, **REFUSED}[architecture]
            made[architecture] = Opened(folder, architecture, settings)
        return made[architecture]

    return get


@pytest.mark.parametrize("name", {**READABLE, **OTHERS})
class TestReadable:
    def test_parts_add_up_to_the_residual_stream(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        _, states = case.run()
        for layer, state in enumerate(states):
            found = case.tools.activations(TEXTS[0], layer)
            np.testing.assert_allclose(found, state.numpy(), atol=2e-4, rtol=1e-3)
        for layer in range(1, len(states)):
            parts = [
                case.tools.activations(TEXTS[0], layer, stream=stream)
                for stream in ("attention", "mlp")
            ]
            added = (states[layer] - states[layer - 1]).numpy()
            assert np.abs(added).max() > 1e-3
            np.testing.assert_allclose(parts[0] + parts[1], added, atol=2e-4, rtol=1e-3)
            assert np.abs(parts[0]).max() > 1e-4 and np.abs(parts[1]).max() > 1e-4

    def test_changes_of_the_parts_reach_the_residual_stream(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        ablated = [{"mode": "ablate", "stream": stream} for stream in ("attention", "mlp")]
        found = case.tools.next_tokens(TEXTS[0], steering=ablated, k=5)
        expected = case.skip_blocks()[-1].softmax(-1)
        for one in found.top:
            assert one.score == pytest.approx(float(expected[one.id]), abs=1e-4)

    def test_the_lens_ends_in_the_models_own_distribution(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        logits, _ = case.run()
        own = logits[-1].softmax(-1)
        rows = case.tools.logit_lens(TEXTS[0], k=5)
        after = case.tools.next_tokens(TEXTS[0], k=5)
        for top in (rows[-1].top, after.top):
            for one in top:
                assert one.score == pytest.approx(float(own[one.id]), abs=1e-4)
        early = case.skip_blocks()[-1].softmax(-1)
        for one in rows[0].top:
            assert one.score == pytest.approx(float(early[one.id]), abs=1e-4)

    def test_attention_looks_back_only_and_adds_up_to_one(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        for layer in (1, len(case.blocks)):
            found = case.tools.attention(TEXTS[0], layer)
            assert np.allclose(np.triu(found, 1), 0)
            total = found.sum(-1)
            assert np.all(total <= 1 + 1e-4) if name in SINKS else np.allclose(total, 1, atol=1e-4)


@pytest.mark.parametrize("name", HYBRID)
def test_patterns_are_those_of_the_block_that_is_asked_for(
    name: str, opened: Callable[[str], Opened]
) -> None:
    import torch

    case = opened(name)
    case.net.set_attn_implementation("eager")
    expected: dict[int, Any] = {}

    def see(layer: int) -> Any:
        def keep(_module: Any, _args: Any, output: Any) -> None:
            if isinstance(output, tuple) and getattr(output[1], "ndim", 0) == 4:
                weights = output[1][0].numpy()
                if not np.triu(weights, 1).any():
                    expected[layer] = weights

        return keep

    hooks = [
        module.register_forward_hook(see(layer))
        for layer, block in enumerate(case.blocks, 1)
        for module in block.children()
    ]
    try:
        with torch.no_grad():
            case.net(input_ids=case.ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    assert 0 < len(expected) < len(case.blocks)
    for layer in range(1, len(case.blocks) + 1):
        if layer in expected:
            found = case.tools.attention(TEXTS[0], layer)
            np.testing.assert_allclose(found, expected[layer], atol=1e-5)
        else:
            with pytest.raises(
                ModelInputError, match=f"block {layer} of {type(case.net).__name__} "
            ):
                case.tools.attention(TEXTS[0], layer)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_apart_is_refused_by_name(
    name: str, opened: Callable[[str], Opened]
) -> None:
    case = opened(name)
    _, states = case.run()
    found = case.tools.activations(TEXTS[0], 2)
    np.testing.assert_allclose(found, states[2].numpy(), atol=2e-4, rtol=1e-3)
    kind = type(case.net).__name__
    for stream in ("attention", "mlp"):
        with pytest.raises(ModelInputError, match=f"^{kind} .* cannot take apart"):
            case.tools.activations(TEXTS[0], 1, stream=stream)
    with pytest.raises(ModelInputError, match=f"^{kind} .* cannot take apart"):
        case.tools.next_tokens(TEXTS[0], steering=[{"mode": "ablate", "stream": "mlp"}])
    if name != "bloom":
        with pytest.raises(ModelInputError, match=f"^{kind} .* patterns"):
            case.tools.attention(TEXTS[0], 1)


@pytest.mark.parametrize("name", ["bart", "blenderbot", "marian", "mbart", "pegasus", "trocr"])
def test_the_decoder_of_an_encoder_decoder_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Plain PyTorch shows why: prompts in one padded batch get other answers than alone."""
    import torch

    from seer import interfaces
    from seer.testing import load_interface

    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder")
             for what, n in (("attention_heads", 4), ("ffn_dim", 64))}  # fmt: skip
    sizes |= {"encoder_layers": 2, "decoder_layers": 3, "d_model": 32, "pad_token_id": 0}
    settings = {**sizes, "decoder_start_token_id": 0, "max_position_embeddings": 64}
    net = make(tmp_path / name, name, settings)
    blocks = [m for m in net.get_decoder().children() if isinstance(m, torch.nn.ModuleList)]
    assert len(blocks[0]) == 3
    row = torch.tensor([[5, 6, 7, 8]])
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), row], 1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    with torch.no_grad():
        alone = net(input_ids=row, use_cache=False).logits[0, -1]
        whole = net(input_ids=padded, attention_mask=mask, use_cache=False)
        batched = whole.logits[0, -1]
    assert not torch.allclose(alone, batched, atol=1e-4)
    with pytest.raises(ServeError, match=f"{type(net).__name__} is the decoder of an encoder"):
        load_interface(interfaces.whitebox, models={"tiny": str(tmp_path / name)})


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "granite", "llama"])
def test_occlusion_replaces_a_token_by_the_mean_of_what_tokens_are_embedded_as(
    name: str, opened: Callable[[str], Opened]
) -> None:
    import torch

    case = opened(name)
    table = case.net.get_input_embeddings()
    with torch.no_grad():
        # As the model embeds them, one token after the other.
        mean = torch.cat([table(torch.tensor([i])) for i in range(table.num_embeddings)]).mean(0)
        given = table(case.ids)
        logits = case.net(inputs_embeds=given).logits[0, -1]
        target = int(logits.argmax())
        expected: list[float] = []
        for place in range(given.shape[1]):
            changed = given.clone()
            changed[0, place] = mean
            changed_logits = case.net(inputs_embeds=changed).logits[0, -1]
            expected.append(float(logits[target] - changed_logits[target]))
    found = case.tools.attribute(TEXTS[0], method="occlusion")
    assert found.scores == pytest.approx(expected, abs=2e-4)
    # Integrated gradients begin where every token is occluded.
    with torch.no_grad():
        nothing = case.net(inputs_embeds=mean.expand_as(given)).logits[0, -1]
    assert found.baseline == pytest.approx(float(nothing[target]), abs=2e-4)


def test_the_last_layer_is_compared_before_the_final_norm(
    opened: Callable[[str], Opened], tmp_path: Path
) -> None:
    import torch

    from seer import interfaces
    from seer.testing import load_interface

    first, second = (
        Opened(tmp_path / name, "granite", READABLE["granite"]) for name in ("one", "two")
    )
    with torch.no_grad():
        for weight in second.net.parameters():
            weight.mul_(1.1)
    second.net.save_pretrained(tmp_path / "two")
    models = {name: str(tmp_path / name) for name in ("one", "two")}
    tools: Any = load_interface(interfaces.whitebox, models=models)
    found = tools.compare([TEXTS[0]], "one", "two")
    (logits, states), (other_logits, others) = first.run(), second.run()
    for layer, one in enumerate(found.layers):
        cosine = torch.nn.functional.cosine_similarity(states[layer], others[layer], dim=-1)
        distance = (states[layer] - others[layer]).norm(dim=-1) / others[layer].norm(dim=-1)
        assert one.cosine == pytest.approx(float(cosine.mean()), abs=1e-4)
        assert one.distance == pytest.approx(float(distance.mean()), abs=1e-4)
    own, other = logits[-1].log_softmax(-1), other_logits[-1].log_softmax(-1)
    divergence = float((own.exp() * (own - other)).sum())
    assert found.prompts[0].divergence == pytest.approx(divergence, rel=1e-3, abs=1e-6)
