"""Heads and neurons, read and changed, compared with hooks of plain PyTorch and TransformerLens.

The tests name the output matrices of each architecture themselves, so they do not depend on how
the tools find them.
"""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
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

INTO_HEADS: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(READABLE, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "falcon": ("self_attention.query_key_value",),
    "gpt_neox": ("attention.query_key_value",),
    "persimmon": ("self_attn.query_key_value",),
    "gpt2": ("attn.c_attn",),
    "gpt_bigcode": ("attn.c_attn",),
    "phi3": ("self_attn.qkv_proj",),
    "gptj": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    "gpt_neo": ("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    # Its keys and values are compressed.
    "deepseek_v3": None,
}
INTO_NEURONS: dict[str, str] = {
    **dict.fromkeys(READABLE, "mlp.gate_proj"),
    **dict.fromkeys(("apertus", "arcee", "nemotron"), "mlp.up_proj"),
    **dict.fromkeys(("glm", "glm4", "phi3"), "mlp.gate_up_proj"),
    **dict.fromkeys(("falcon", "gpt_neox", "persimmon"), "mlp.dense_h_to_4h"),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "starcoder2"), "mlp.c_fc"),
    **dict.fromkeys(("opt", "biogpt"), "fc1"),
    "phi": "mlp.fc1",
    "gptj": "mlp.fc_in",
}
READS_MIDDLE: dict[str, str | None] = {
    **dict.fromkeys(READABLE, "post_attention_layernorm"),
    **dict.fromkeys(("gemma2", "gemma3_text"), "pre_feedforward_layernorm"),
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), "mlp"),
    **dict.fromkeys(("opt", "biogpt"), "final_layer_norm"),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo"), "ln_2"),
    "apertus": "feedforward_layernorm",
    # Attention and MLP read the same stream.
    **dict.fromkeys(("cohere", "cohere2", "falcon", "gpt_neox", "phi", "gptj"), None),
}
"""What in a block reads the residual stream behind attention."""
POSITIONS = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo"), "wpe"),
    **dict.fromkeys(("opt", "biogpt"), "embed_positions"),
}
HOOKS = (
    *("hook_embed", "hook_pos_embed", "blocks.1.attn.hook_q", "blocks.1.attn.hook_k"),
    *("blocks.1.attn.hook_v", "blocks.1.hook_resid_mid", "blocks.1.mlp.hook_in"),
    "blocks.1.mlp.hook_pre",
)


def split_heads(name: str, fused: Any) -> list[Any]:
    """Split a token's numbers into queries, keys and values, by the architecture's definition."""
    width = 8
    if name == "falcon":
        groups = fused.unflatten(-1, (2, 4, width))
        return [groups[..., :2, :].flatten(-3), groups[..., 2, :].flatten(-2),
                groups[..., 3, :].flatten(-2)]  # fmt: skip
    if name in ("gpt_neox", "persimmon"):
        return [fused.unflatten(-1, (4, 3, width))[..., i, :].flatten(-2) for i in range(3)]
    sizes = {"gpt2": (32, 32, 32), "gpt_bigcode": (32, 8, 8), "phi3": (32, 16, 16)}[name]
    return list(fused.split(sizes, -1))


class Spot:
    """A site, by module: where it is read, and which of the module's numbers belong to it."""

    def __init__(self, module: Any, *, at_input: bool = False, places: Any = None) -> None:
        self.module, self.at_input, self.places = module, at_input, places

    def read(self, run: Callable[[], Any]) -> Any:
        found = flat(seen_by(self.module, run)[0 if self.at_input else 1])
        return found if self.places is None else found[:, self.places]

    @contextmanager
    def adding(self, push: Any, where: slice) -> Generator[None]:
        """While the context lasts, add to it at some tokens."""

        def change(x: Any) -> Any:
            x = x.clone()
            added = x.new_zeros(x.shape[-1])
            added[slice(None) if self.places is None else self.places] = push
            flat(x)[where] += added
            return x

        if self.at_input:
            hook = self.module.register_forward_pre_hook(
                lambda _m, args, kwargs: (
                    ((change(args[0]), *args[1:]), kwargs)
                    if args
                    else (args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])})
                ),
                with_kwargs=True,
            )
        else:
            hook = self.module.register_forward_hook(
                lambda _m, _args, out: (
                    (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)
                )
            )
        try:
            yield
        finally:
            hook.remove()


def spots_of(case: Opened, name: str) -> dict[str, list[Spot] | None]:
    """By hook name, where to change a site (the first is where to read it); None if it has none."""
    import torch

    block, decoder = case.blocks[1], case.net.get_decoder()
    found: dict[str, list[Spot] | None] = dict.fromkeys(HOOKS)
    found["hook_embed"] = [Spot(case.blocks[0], at_input=True)]
    if name in POSITIONS:
        found["hook_embed"] = [Spot(case.net.get_input_embeddings())]
        found["hook_pos_embed"] = [Spot(getattr(decoder, POSITIONS[name]))]
    names = [f"blocks.1.attn.hook_{one}" for one in "qkv"]
    paths = INTO_HEADS[name]
    if paths is not None and len(paths) == 3:
        for hook, path in zip(names, paths, strict=True):
            found[hook] = [Spot(attrgetter(path)(block))]
    elif paths is not None:
        fused = attrgetter(paths[0])(block)
        size = seen_by(fused, case.run)[1].shape[-1]
        for hook, places in zip(names, split_heads(name, torch.arange(size)), strict=True):
            found[hook] = [Spot(fused, places=places)]
    reader = READS_MIDDLE[name]
    if reader is not None:
        # The stream continues to the end of the block, parallel to the parts that read it.
        module = attrgetter(reader)(block)
        found["blocks.1.hook_resid_mid"] = [Spot(module, at_input=True), Spot(block)]
    if MATRICES[name][1] is not None:
        matrix = attrgetter(INTO_NEURONS[name])(block)
        half = slice(0, 64) if "gate_up" in INTO_NEURONS[name] else None
        found["blocks.1.mlp.hook_pre"] = [Spot(matrix, places=half)]
        whole = matrix if "." not in INTO_NEURONS[name] else block.mlp
        found["blocks.1.mlp.hook_in"] = [Spot(whole, at_input=True)]
    return found


def weights(matrix: Any) -> Any:
    """The matrix as inputs by outputs, and its bias."""
    weight = matrix.weight.detach()
    return weight if type(matrix).__name__ == "Conv1D" else weight.T


def seen_by(matrix: Any, run: Callable[[], Any]) -> tuple[Any, Any]:
    """The inputs and outputs of a matrix while the model ran."""
    seen: list[Any] = []
    hook = matrix.register_forward_hook(
        lambda _m, args, kwargs, out: seen.append(
            tuple(
                (one[0] if isinstance(one, tuple) else one).detach().clone()
                for one in (args or kwargs["hidden_states"], out)
            )
        ),
        with_kwargs=True,
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

    def test_hook_names_read_what_hooks_see(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        case = opened(name)
        there: list[str] = []
        for hook, spots in spots_of(case, name).items():
            if spots is None:
                kind = type(case.net).__name__
                with pytest.raises(ModelInputError, match=f"{kind} has no .* can read"):
                    case.tools.activations(TEXTS[0], hook)
                continue
            there.append(hook)
            expected = spots[0].read(case.run).numpy()
            found = case.tools.activations(TEXTS[0], hook)
            if ".attn." in hook:
                assert found.shape[1:] == (expected.shape[1] // 8, 8)
            found = found.reshape(len(found), -1)
            np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-4, err_msg=hook)
            assert np.abs(found).max() > 1e-3
        # Also in one run, in the order in which the model reaches them.
        layers = [*reversed(there), "blocks.1.attn.hook_z", "blocks.1.hook_attn_out"]
        calls = [{"prompt": TEXTS[0], "layer": layer} for layer in layers]
        case.tools.check_batch("activations", calls, rtol=1e-4, atol=2e-5)

    def test_changes_at_hook_names_are_those_of_hooks(
        self, name: str, opened: Callable[[str], Opened]
    ) -> None:
        import torch

        case = opened(name)
        random = np.random.default_rng(0)
        plain = case.run()[0][-1].softmax(-1)
        together: list[dict[str, Any]] = []
        pushes: list[tuple[Spot, Any, slice]] = []

        def check(steering: list[dict[str, Any]], given: list[tuple[Spot, Any, slice]]) -> None:
            with ExitStack() as changes:
                for spot, push, where in given:
                    changes.enter_context(spot.adding(torch.tensor(push), where))
                expected = case.run()[0][-1].softmax(-1)
            effect = float((expected - plain).abs().max())
            assert effect > 2e-6, steering
            found = case.tools.next_tokens(TEXTS[0], steering=steering, k=5)
            for one in found.top:
                error = abs(one.score - float(expected[one.id]))
                assert error < 1e-6 + 0.01 * effect, steering

        for hook, spots in spots_of(case, name).items():
            if spots is None:
                continue
            unit = 0 if ".attn." in hook else 5 if hook.endswith("hook_pre") else None
            push = 3 * random.normal(size=spots[0].read(case.run).shape[-1]).astype(np.float32)
            direction = push
            if unit is not None:
                size = 8 if ".attn." in hook else 1
                push[: unit * size] = 0
                push[(unit + 1) * size :] = 0
                direction = push[unit * size : (unit + 1) * size]
            # The same change of all keys would change no pattern.
            last = hook.endswith("hook_k")
            where = slice(-1, None) if last else slice(None)
            step = {"layer": hook, "direction": direction, "unit": unit}
            together.append({**step, "position": -1 if last else None})
            own = [(spot, push, where) for spot in spots]
            pushes += own
            check(together[-1:], own)
        check(together[::-1], pushes)


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
        ("blocks.1.hook_resid_mid", 2, "middle"),
        ("blocks.1.attn.hook_q", 2, "queries"),
        ("blocks.1.attn.hook_k", 2, "keys"),
        ("blocks.1.attn.hook_v", 2, "values"),
        ("blocks.1.mlp.hook_in", 2, "mlp_inputs"),
        ("blocks.1.mlp.hook_pre", 2, "preactivations"),
        ("hook_embed", 0, "embeddings"),
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
        ("blocks.0.attn.hook_rot_q", {}, "'blocks.0.attn.hook_rot_q' is not a supported hook"),
        (f"blocks.{'9' * 5000}.hook_mlp_out", {}, "is not a supported hook name"),
        ("hook_tokens", {}, "not a supported hook name; supported are blocks.N.hook_resid_pre"),
        ("hook_pos_embed", {}, "LlamaForCausalLM has no position_embeddings .* rotate"),
        (1, {"stream": "embeddings"}, "layer=1: stream='embeddings' is at layer 0 only"),
        (2, {"unit": 2, "stream": "values"}, "layer 2 has values of heads 0 to 1"),
        ("blocks.3.hook_resid_post", {}, "the model has blocks 0 to 2"),
        ("blocks.3.hook_resid_pre", {}, "the model has blocks 0 to 2"),
        ("blocks.02.hook_resid_pre", {}, "not a supported hook name"),
        ("blocks.\u0662.hook_resid_pre", {}, "not a supported hook name"),
        ("blocks.0.hook_mlp_out", {"stream": "heads"}, "is 'mlp', but stream='heads'"),
        (2, {"unit": 0}, "stream='residual' has no units"),
        (2, {"unit": 4, "stream": "heads"}, "layer 2 has heads 0 to 3"),
        (2, {"unit": -1, "stream": "neurons"}, "layer 2 has neurons 0 to"),
    ):
        with pytest.raises(ModelInputError, match=message):
            read(TEXTS[0], layer, **options)
    with pytest.raises(ModelInputError, match="head_outputs can only be read"):
        scores(llama, layer=2, stream="head_outputs", mode="ablate", unit=0)
    with pytest.raises(ModelInputError, match="has 32 numbers; it needs 8"):
        scores(llama, layer=2, stream="heads", unit=0, direction=np.ones(32, np.float32))


def test_concurrent_calls_read_and_change_their_own_units(case: Case) -> None:
    units = (None, 0, 3, 1)
    calls = [{"prompt": t, "layer": 2, "unit": u} for t, u in zip(TEXTS, units, strict=True)]
    for stream in ("heads", "head_outputs", "neurons", "queries", "preactivations"):
        asked = [{**call, "stream": stream} for call in calls]
        case.tools.check_batch("activations", asked, rtol=1e-4, atol=2e-5)
    ablate = {"mode": "ablate", "layer": 2}
    steering = [
        [{**ablate, "stream": "heads", "unit": 1}],
        [{**ablate, "stream": "heads"}, {"layer": 1, "stream": "neurons", "unit": 5, "scale": 9.0}],
        [{**ablate, "stream": "middle", "position": 2}, {**ablate, "stream": "values", "unit": 0}],
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
    lens: Any = pytest.importorskip("transformer_lens.model_bridge")
    import torch

    bridge = lens.TransformerBridge.boot_transformers(
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
        *HOOKS,
    ):
        if hook == "hook_pos_embed" and case.architecture != "gpt2":
            continue
        read = case.tools.attention if "pattern" in hook else case.tools.activations
        found, expected = read(TEXTS[0], hook), cache[hook][0].numpy()
        np.testing.assert_allclose(
            found.reshape(expected.shape), expected, atol=2e-4, rtol=1e-3, err_msg=hook
        )
