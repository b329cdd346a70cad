"""Heads and neurons, read and changed, compared with hooks of plain PyTorch and TransformerLens.

The tests name the output matrices of each architecture themselves, so they do not depend on how
the tools find them.
"""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Generator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import ModelInputError
from tests.interfaces.conftest import TEXTS, Case, make_adapter
from tests.interfaces.test_architectures import READABLE, Opened

pytestmark = [
    pytest.mark.full,
    # From transformers' own code for GPT BigCode.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

_USUAL = ("self_attn.o_proj", "mlp.down_proj")
MATRICES: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(READABLE, _USUAL),
    "falcon": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    "opt": ("self_attn.out_proj", "fc2"),
    "biogpt": ("self_attn.out_proj", "fc2"),
    "phi": ("self_attn.dense", "mlp.fc2"),
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "gpt_bigcode": ("attn.c_proj", "mlp.c_proj"),
    "gpt_neo": ("attn.attention.out_proj", "mlp.c_proj"),
    "gptj": ("attn.out_proj", "mlp.fc_out"),
    "persimmon": ("self_attn.dense", "mlp.dense_4h_to_h"),
    "starcoder2": ("self_attn.o_proj", "mlp.c_proj"),
    # Mixtures of experts have no single layer of neurons. DeepSeek's first block is not one.
    **dict.fromkeys(
        ("granitemoe", "gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "deepseek_v3"),
        ("self_attn.o_proj", None),
    ),
}


def weights(matrix: Any) -> Any:
    """The matrix as inputs by outputs, and its bias."""
    weight = matrix.weight.detach()
    return weight if type(matrix).__name__ == "Conv1D" else weight.T


def seen_by(matrix: Any, run: Callable[[], Any]) -> tuple[Any, Any]:
    """What went into a matrix and came out of it while the model ran."""
    seen: list[Any] = []
    hook = matrix.register_forward_hook(
        lambda _m, args, out: seen.append((args[0].detach().clone(), out.detach().clone()))
    )
    try:
        run()
    finally:
        hook.remove()
    return seen[0]


@contextmanager
def changed(matrix: Any, change: Callable[[Any], Any]) -> Generator[None]:
    """While the context lasts, what goes into a matrix is changed."""
    hook = matrix.register_forward_pre_hook(lambda _m, args: (change(args[0]), *args[1:]))
    try:
        yield
    finally:
        hook.remove()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Opened]:
    made: dict[str, Opened] = {}

    def get(name: str) -> Opened:
        if name not in made:
            folder = tmp_path_factory.mktemp("sites") / name
            made[name] = Opened(folder, name, READABLE[name])
        return made[name]

    return get


def flat(values: Any) -> Any:
    return values.reshape(-1, values.shape[-1])


def scores(case: Any, **steering: Any) -> Any:
    found = case.tools.next_tokens(TEXTS[0], steering=[steering], k=5)
    return {one.id: one.score for one in found.top}


@pytest.mark.parametrize("name", READABLE)
class TestEveryArchitecture:
    def test_heads_sum_to_the_output_of_attention(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        matrix = attrgetter(MATRICES[name][0])(case.blocks[1])
        given, came = map(flat, seen_by(matrix, case.run))
        found = case.tools.activations(TEXTS[0], 2, stream="heads")
        tokens, heads, width = found.shape
        assert heads == 4
        np.testing.assert_allclose(found.reshape(tokens, -1), given.numpy(), atol=2e-5, rtol=1e-4)
        written = case.tools.activations(TEXTS[0], "blocks.1.attn.hook_result")
        table = weights(matrix).reshape(heads, width, -1)
        for head in range(heads):
            own = given.reshape(tokens, heads, width)[:, head] @ table[head]
            np.testing.assert_allclose(written[:, head], own.numpy(), atol=1e-4, rtol=1e-3)
        bias = 0 if matrix.bias is None else matrix.bias.detach().numpy()
        np.testing.assert_allclose(written.sum(1) + bias, came.numpy(), atol=1e-4, rtol=1e-3)

    def test_neurons_times_their_weights_are_the_output_of_the_mlp(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        place = MATRICES[name][1]
        if place is None:
            with pytest.raises(ModelInputError, match="has no neurons"):
                case.tools.activations(TEXTS[0], 2, stream="neurons")
            return
        matrix = attrgetter(place)(case.blocks[1])
        given, came = map(flat, seen_by(matrix, case.run))
        found = case.tools.activations(TEXTS[0], "blocks.1.mlp.hook_post")
        np.testing.assert_allclose(found, given.numpy(), atol=2e-5, rtol=1e-4)
        bias = 0 if matrix.bias is None else matrix.bias.detach().numpy()
        output = found @ weights(matrix).numpy() + bias
        np.testing.assert_allclose(output, came.numpy(), atol=1e-4, rtol=1e-3)

    def test_changes_of_one_head_and_one_neuron_are_those_of_a_hook(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        direction = np.random.default_rng(0).normal(size=64).astype(np.float32)
        for stream, place in zip(("heads", "neurons"), MATRICES[name], strict=True):
            if place is None:
                continue
            matrix = attrgetter(place)(case.blocks[1])
            size = case.tools.activations(TEXTS[0], 2, stream=stream, position=0)[1].size
            part = slice(size, 2 * size)
            push = np.resize(direction, size)

            def ablate(x: Any, part: slice = part) -> Any:
                x = x.clone()
                x[..., part] = 0
                return x

            def add(x: Any, part: slice = part, push: Any = push) -> Any:
                import torch

                x = x.clone()
                x[..., part] += 2 * torch.tensor(push)
                return x

            for mode, change in (("ablate", ablate), ("add", add)):
                with changed(matrix, change):
                    expected = case.run()[0][-1].softmax(-1)
                given = None if mode == "ablate" else push
                found = scores(
                    case, mode=mode, layer=2, stream=stream, unit=1, direction=given, scale=2.0
                )
                for token, score in found.items():
                    assert score == pytest.approx(float(expected[token]), abs=1e-4), (stream, mode)


def test_hook_names_are_the_sites_of_transformer_lens(case: Case) -> None:
    read = case.tools.activations
    for hook, layer, stream in (
        ("blocks.0.hook_resid_pre", 0, "residual"),
        ("blocks.2.hook_resid_post", 3, "residual"),
        ("blocks.1.hook_attn_out", 2, "attention"),
        ("blocks.1.hook_mlp_out", 2, "mlp"),
        ("blocks.1.attn.hook_z", 2, "heads"),
        ("blocks.1.attn.hook_result", 2, "head_outputs"),
        ("blocks.1.mlp.hook_post", 2, "neurons"),
    ):
        assert np.array_equal(read(TEXTS[0], hook), read(TEXTS[0], layer, stream=stream)), hook
    pattern = case.tools.attention(TEXTS[0], "blocks.1.attn.hook_pattern")
    assert np.array_equal(pattern, case.tools.attention(TEXTS[0], 2))
    up, down = ["hello world", "hello you"], ["the dog", "the fox"]
    hook = "blocks.1.attn.hook_z"
    by_name = case.tools.contrast(up, down, hook, unit=1)
    by_number = case.tools.contrast(up, down, 2, stream="heads", unit=1)
    assert np.array_equal(by_name.vector, by_number.vector) and by_name.vector.shape == (8,)
    push = {"direction": by_name.vector, "unit": 1}
    assert scores(case, layer=hook, **push) == scores(case, layer=2, stream="heads", **push)


def test_hook_names_that_are_not_supported_are_refused(llama: Case) -> None:
    read = llama.tools.activations
    for layer, options, message in (
        ("blocks.0.attn.hook_q", {}, "'blocks.0.attn.hook_q' is not a supported hook name"),
        ("hook_embed", {}, "not a supported hook name; supported are blocks.N.hook_resid_pre"),
        ("blocks.3.hook_resid_post", {}, "the model has blocks 0 to 2"),
        ("blocks.0.hook_mlp_out", {"stream": "heads"}, "is 'mlp', but stream='heads'"),
        (2, {"unit": 0}, "stream='residual' has no units"),
        (2, {"unit": 4, "stream": "heads"}, "layer 2 has heads 0 to 3"),
        (2, {"unit": -1, "stream": "neurons"}, "layer 2 has neurons 0 to"),
    ):
        with pytest.raises(ModelInputError, match=message):
            read(TEXTS[0], layer, **options)
    with pytest.raises(ModelInputError, match="head_outputs can only be read"):
        scores(llama, layer=2, stream="head_outputs", mode="ablate", unit=0)
    with pytest.raises(ModelInputError, match="has 32 numbers; the width is 8"):
        scores(llama, layer=2, stream="heads", unit=0, direction=np.ones(32, np.float32))


def test_concurrent_calls_read_and_change_their_own_units(case: Case) -> None:
    units = (None, 0, 3, 1)
    calls = [{"prompt": t, "layer": 2, "unit": u} for t, u in zip(TEXTS, units, strict=True)]
    for stream in ("heads", "head_outputs", "neurons"):
        asked = [{**call, "stream": stream} for call in calls]
        case.tools.check_batch("activations", asked, rtol=1e-4, atol=2e-5)
    ablate = {"mode": "ablate", "layer": 2}
    steering = [
        [{**ablate, "stream": "heads", "unit": 1}],
        [{**ablate, "stream": "heads"}, {"layer": 1, "stream": "neurons", "unit": 5, "scale": 9.0}],
        [],
        [{**ablate, "stream": "neurons", "unit": 2, "position": -1}],
    ]
    asked = [{"prompt": t, "steering": s} for t, s in zip(TEXTS, steering, strict=True)]
    case.tools.check_batch("next_tokens", asked, rtol=1e-3, atol=1e-5)
    written = [{**one, "max_new_tokens": 6} for one in asked]
    case.tools.check_batch("generate", written, atol=1e-4)


def test_a_text_without_a_head_is_what_a_hook_gives(case: Case) -> None:
    import torch

    steering = [{"mode": "ablate", "layer": 2, "stream": "heads", "unit": 2}]
    found = case.tools.generate(TEXTS[1], max_new_tokens=6, steering=steering)
    matrix = attrgetter("attn.c_proj" if case.architecture == "gpt2" else "self_attn.o_proj")

    def ablate(x: Any) -> Any:
        x = x.clone()
        x[..., 16:24] = 0
        return x

    ids = case.ids(TEXTS[1])[0].tolist()
    with changed(matrix(case.blocks[1]), ablate), torch.no_grad():
        for _ in found.ids:
            ids.append(int(case.net(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert found.ids == ids[-len(found.ids) :]


def test_patching_heads_one_by_one_is_what_a_hook_gives(case: Case) -> None:
    import torch

    clean = case.ids(TEXTS[1])[0].tolist()
    corrupted = [*clean[:2], 200, *clean[3:]]
    found = case.tools.patch(
        clean, corrupted, " dog", layers=["blocks.1.attn.hook_z"], positions=[2, -1], units=[0, 3]
    )
    assert found.patched.shape == (1, 2, 2) and found.units == [0, 3] and found.layers == [2]
    path = "attn.c_proj" if case.architecture == "gpt2" else "self_attn.o_proj"
    matrix = attrgetter(path)(case.blocks[1])
    answer = case.tokenizer(" dog", add_special_tokens=False)["input_ids"][0]

    def run(ids: list[int]) -> Any:
        with torch.no_grad():
            return case.net(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)

    source, _ = seen_by(matrix, lambda: run(clean))
    for i, place in enumerate((2, len(clean) - 1)):
        for j, head in enumerate((0, 3)):
            part = slice(head * 8, head * 8 + 8)

            def patch(x: Any, place: int = place, part: slice = part) -> Any:
                x = x.clone()
                x[:, place, part] = source[:, place, part]
                return x

            with changed(matrix, patch):
                expected = float(run(corrupted)[answer])
            assert found.patched[0, i, j] == pytest.approx(expected, abs=1e-4)
    whole = case.tools.patch(clean, corrupted, " dog", stream="heads", layers=[2])
    assert whole.patched.shape == (1, len(clean))


def test_null_directions_are_differences_of_random_divisions(llama: Case) -> None:
    up = ["hello world", "hello you", "hello me"]
    down = ["the dog", "the fox", "the quick"]
    found = llama.tools.contrast(up, down, 2, nulls=40, seed=3)
    read = [np.asarray(llama.tools.activations(t, 2, position=-1)) for t in (*up, *down)]
    steps = np.array(read[:3]) - np.array(read[3:])
    signs = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T
    possible = signs @ steps / 3
    assert found.nulls.shape == (40, 32)
    for one in found.nulls:
        assert np.abs(possible - one).max(1).min() < 1e-4
    assert len(np.unique(found.nulls.round(3), axis=0)) > 4
    again = llama.tools.contrast(up, down, 2, nulls=40, seed=3)
    assert np.array_equal(found.nulls, again.nulls)
    # Without pairs, the pooled prompts are divided anew; all divisions share their overall mean.
    other = llama.tools.contrast(up, down[:2], 2, nulls=64, seed=3).nulls
    pooled = np.array(read[:5])
    from itertools import combinations

    every = np.array(
        [
            pooled[list(c)].mean(0) - np.delete(pooled, list(c), 0).mean(0)
            for c in combinations(range(5), 3)
        ]
    )
    for one in other:
        assert np.abs(every - one).max(1).min() < 1e-4
    assert len(np.unique(other.round(3), axis=0)) >= 8


def test_heads_of_an_adapter_write_with_its_share(
    cases: Callable[[str], Case], tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel

    from seer import interfaces
    from seer.testing import load_interface

    base = cases("gpt2")
    folder = make_adapter(base.folder, tmp_path / "gpt2-adapter")
    tools: Any = load_interface(interfaces.whitebox, models={"adapter": str(folder)})
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    peft: Any = PeftModel
    merged = peft.from_pretrained(auto.from_pretrained(base.folder), folder).merge_and_unload()
    matrix = merged.transformer.h[1].attn.c_proj
    with torch.no_grad():
        _, came = seen_by(matrix, lambda: merged.eval()(input_ids=base.ids(TEXTS[0])))
    written = tools.activations(TEXTS[0], 2, stream="head_outputs")
    bias = matrix.bias.detach().numpy()
    np.testing.assert_allclose(written.sum(1) + bias, came[0].numpy(), atol=1e-4, rtol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_transformer_lens_reads_the_same_at_the_same_names(case: Case) -> None:
    lens: Any = pytest.importorskip("transformer_lens")
    import torch

    bridge = lens.model_bridge.TransformerBridge.boot_transformers(
        str(case.folder), hf_model=case.net, tokenizer=case.tokenizer
    )
    with torch.no_grad():
        _, cache = bridge.run_with_cache(case.ids(TEXTS[0]))
    for hook in (
        "blocks.0.hook_resid_pre",
        "blocks.1.hook_resid_post",
        "blocks.1.hook_attn_out",
        "blocks.1.hook_mlp_out",
        "blocks.1.attn.hook_z",
        "blocks.1.attn.hook_pattern",
        "blocks.1.mlp.hook_post",
    ):
        read = case.tools.attention if "pattern" in hook else case.tools.activations
        found, expected = read(TEXTS[0], hook), cache[hook][0].numpy()
        np.testing.assert_allclose(
            found.reshape(expected.shape), expected, atol=2e-4, rtol=1e-3, err_msg=hook
        )
