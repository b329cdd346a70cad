"""Finds the parts of a model: the modules that add to the residual stream, and their factors.

Architectures name and combine the same parts differently: some put a norm after attention and MLP,
some scale what is added, some scale the logits. The candidates are known by name, and a short run
of the model decides between them. A model for which no candidates add up is refused, so a part is
never read at the wrong place.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from seer.errors import ModelInputError

K = TypeVar("K")
_BLOCKS = ("layers", "h", "blocks")
_FINAL_NORM = ("norm", "ln_f", "norm_f", "final_layernorm", "final_layer_norm", "layer_norm")
_ATTENTION = (
    "post_self_attn_layernorm",
    "post_attention_layernorm",
    "self_attn",
    "attn",
    "attention",
    "self_attention",
)
_MLP = ("post_mlp_layernorm", "post_feedforward_layernorm", "mlp", "block_sparse_moe", "ffn", "fc2")
_OWN_ATTENTION = ("self_attn", "attn", "attention", "self_attention")
_OWN_MLP = ("mlp", "feed_forward", "ffn")
_HEADS_OUT = ("o_proj", "c_proj", "out_proj", "dense", "wo")
_NEURONS_OUT = ("down_proj", "c_proj", "fc2", "dense_4h_to_h", "fc_out")
_HEADS_IN = ("q_proj", "k_proj", "v_proj")
_FUSED_IN = ("query_key_value", "c_attn", "qkv_proj")
_NEURONS_IN = (
    *("gate_proj", "gate_up_proj", "up_proj"),
    *("c_fc", "fc1", "fc_in", "dense_h_to_4h"),
)
_ACTIVATION = ("act_fn", "act", "activation_fn")
_POSITIONS = ("wpe", "embed_positions")
_PROBE_TOKENS = 12
_MOST_MISSED = 0.05
"""The largest relative error of the sum of a block's parts. Rounding in bfloat16 stays far below
this, and a wrong module far above."""


@dataclass(frozen=True)
class Part:
    """A module of a block, and the factor with which its output is added to the residual stream.

    With `at_input`, the part is the input of the module, and `scale` is 1. With `onto`, the input
    of that module is added to the output. With `places`, the part is these numbers of each token.
    """

    module: Any
    scale: float = 1.0
    at_input: bool = False
    onto: Any = None
    places: Sequence[int] | None = None


@dataclass(frozen=True)
class Block:
    """The parts that one block adds to the residual stream.

    `middle` is the residual stream between attention and MLP; None if both read the same stream.
    """

    attention: Part
    mlp: Part
    middle: Part | None


@dataclass(frozen=True)
class Units:
    """The heads and neurons of a block.

    `parts` has the parts that this block has, out of `heads` (the outputs of all heads, one after
    the other), `queries`, `keys`, `values`, `neurons`, `preactivations` and `mlp_inputs`.
    """

    parts: Mapping[str, Part]
    head_count: int
    key_count: int
    """The number of heads that have their own keys and values."""
    head_width: int
    neuron_count: int


def find_blocks(decoder: Any) -> Any:
    """The list of blocks.

    Raises:
        ModelInputError: The blocks of this architecture are not known.
    """
    return _named(decoder, _BLOCKS)


def find_final_norm(decoder: Any) -> Any:
    """The norm after the last block.

    Raises:
        ModelInputError: The final norm of this architecture is not known.
    """
    return _named(decoder, _FINAL_NORM)


def check_head(net: Any, logits_of: Callable[[Tensor], Tensor]) -> None:
    """Check that `logits_of` computes the model's logits from outputs of the final norm.

    Raises:
        ModelInputError: The logits differ.
    """
    ids = probe(net)
    with torch.no_grad():
        states: Tensor = net.get_decoder()(input_ids=ids, use_cache=False)[0]
        own: Tensor = net(input_ids=ids, use_cache=False).logits.float()
        found = logits_of(states)
    if _missed(own - found, own - own.mean(-1, keepdim=True)) > _MOST_MISSED:
        raise ModelInputError(
            f"{type(net).__name__} computes its logits in a way that this interface does not know, "
            "so layers cannot be read as tokens"
        )


def find_parts(net: Any) -> list[Block]:
    """The parts of each block.

    Raises:
        ModelInputError: No known parts add up to the change that the blocks make.
    """
    blocks = find_blocks(net.get_decoder())
    names = [
        (attention, mlp)
        for attention, mlp in product(_ATTENTION, _MLP)
        if all(hasattr(block, attention) and hasattr(block, mlp) for block in blocks)
    ]
    seen = _run(net, blocks, {name for pair in names for name in pair})
    multiplier = getattr(net.config.get_text_config(), "residual_multiplier", 1.0)
    for (attention, mlp), scale in product(names, dict.fromkeys((1.0, float(multiplier)))):
        if all(_adds_up(one, attention, mlp, scale) for one in seen):
            middles = _has_middle(net, blocks, [getattr(b, attention) for b in blocks], scale)
            return [
                Block(
                    Part(getattr(block, attention), scale),
                    Part(getattr(block, mlp), scale),
                    Part(getattr(block, attention), scale, onto=block) if middle else None,
                )
                for block, middle in zip(blocks, middles, strict=True)
            ]
    raise ModelInputError(
        f"{type(net).__name__} is an architecture whose blocks this interface cannot take apart: "
        'use stream="residual"'
    )


def _has_middle(
    net: Any, blocks: Sequence[Any], attentions: Sequence[Any], scale: float
) -> list[bool]:
    """For each block, whether a module in it reads the residual stream after attention."""
    inputs = {(i, n): m for i, block in enumerate(blocks) for n, m in block.named_children()}
    inputs |= {(i, "before"): block for i, block in enumerate(blocks)}
    outputs = {(i, "added"): module for i, module in enumerate(attentions)}
    with watch(inputs, {}, copy=True) as given, watch({}, outputs, copy=True) as came:
        run_probe(net)
    found: list[bool] = []
    for i in range(len(blocks)):
        added = scale * _rows_of(came[i, "added"])
        middle = _rows_of(given[i, "before"]) + added
        others = [_rows_of(v) for (j, name), v in given.items() if j == i and name != "before"]
        found.append(
            any(
                one.shape == middle.shape and _missed(one - middle, added) <= _MOST_MISSED
                for one in others
            )
        )
    return found


def find_embeddings(net: Any) -> dict[str, Part]:
    """The parts of the first block's input: `embeddings`, and perhaps `position_embeddings`.

    Empty if these do not add up to the input.
    """
    decoder = net.get_decoder()
    first = find_blocks(decoder)[0]
    modules = {"embeddings": net.get_input_embeddings()}
    for name in _POSITIONS:
        if hasattr(decoder, name):
            modules["position_embeddings"] = getattr(decoder, name)
    with watch({"all": first}, {}, copy=True) as given, watch({}, modules, copy=True) as came:
        run_probe(net)
    whole, own = _rows_of(given["all"]), _rows_of(came["embeddings"])
    if own.shape != whole.shape:
        return {}
    if "position_embeddings" in came:
        rest = _rows_of(came["position_embeddings"])
        fits = rest.shape == whole.shape and _missed(whole - own - rest, rest) <= _MOST_MISSED
        return {name: Part(module) for name, module in modules.items()} if fits else {}
    # Some models scale the embeddings first.
    factor = (whole * own).sum() / own.square().sum()
    fits = _missed(whole - factor * own, whole) <= _MOST_MISSED / 5
    return {"embeddings": Part(first, at_input=True)} if fits else {}


def find_units(net: Any) -> list[Units]:
    """The heads and neurons of each block.

    The candidates are known by name. A short run checks three things: the output of the matrix
    after heads or neurons is the output of the whole attention or MLP module; the values of the
    first token are its heads' outputs (it can attend to nothing else); and neurons are the
    activation function of their inputs. Mixtures of experts, for example, have no such matrix.
    """
    blocks = find_blocks(net.get_decoder())
    found = [
        (
            _candidates(block, _OWN_ATTENTION, _HEADS_OUT),
            _candidates(block, _OWN_MLP, _NEURONS_OUT),
            _candidates(block, _OWN_ATTENTION, (*_HEADS_IN, *_FUSED_IN)),
            _candidates(block, _OWN_MLP, _NEURONS_IN),
        )
        for block in blocks
    ]
    every = [one for four in found for some in four for one in some]
    modules = {id(m): m for one in every for m in (one.whole, one.matrix)}
    with (
        watch(modules, {}, copy=True) as inputs,
        watch({}, modules, copy=True) as outputs,
    ):
        run_probe(net)

    def last_of(candidates: Sequence[_Candidate]) -> _Candidate | None:
        for one in candidates:
            if id(one.whole) not in outputs or id(one.matrix) not in outputs:
                continue
            a, b = (outputs[id(m)].float().reshape(-1) for m in (one.whole, one.matrix))
            if a.shape == b.shape and _missed((a - b)[None], a[None]) <= _MOST_MISSED:
                return one
        return None

    def ran(candidates: Sequence[_Candidate]) -> dict[str, tuple[Any, Tensor]]:
        return {
            one.name: (one.matrix, outputs[id(one.matrix)])
            for one in candidates
            if id(one.matrix) in outputs
        }

    heads = int(getattr(net.config.get_text_config(), "num_attention_heads", 0) or 0)
    units: list[Units] = []
    for block, (attention, mlp, into_heads, into_mlp) in zip(blocks, found, strict=True):
        parts: dict[str, Part] = {}
        width = keys = neurons = 0
        last = last_of(attention)
        if last is not None and heads and not inputs[id(last.matrix)].shape[-1] % heads:
            parts["heads"] = Part(last.matrix, at_input=True)
            given = _rows_of(inputs[id(last.matrix)])
            width = given.shape[-1] // heads
            three, keys = _find_heads_in(ran(into_heads), given[0].reshape(heads, width))
            parts |= three
        last = last_of(mlp)
        if last is not None:
            parts["neurons"] = Part(last.matrix, at_input=True)
            given = _rows_of(inputs[id(last.matrix)])
            neurons = given.shape[-1]
            owner = block if last.whole is last.matrix else last.whole
            before = _find_preactivations(ran(into_mlp), given, owner)
            if before is not None:
                parts["preactivations"] = before
                # A gated MLP reads its input twice.
                reader = before.module if owner is block else owner
                if torch.equal(inputs[id(reader)], inputs[id(before.module)]):
                    parts["mlp_inputs"] = Part(reader, at_input=True)
        units.append(Units(parts, heads, keys, width, neurons))
    return units


def _find_heads_in(
    own: Mapping[str, tuple[Any, Tensor]], first: Tensor
) -> tuple[dict[str, Part], int]:
    """The parts of queries, keys and values, and the number of heads that have their own keys.

    Args:
        own: The matrices before attention, by name, with their outputs.
        first: The outputs of the heads (heads, width) at the first token.
    """
    heads, width = first.shape
    choices: list[list[tuple[Any, Tensor, list[int] | None]]] = []
    if all(name in own for name in _HEADS_IN):
        choices.append([(own[n][0], _rows_of(own[n][1]), None) for n in _HEADS_IN])
    for name in _FUSED_IN:
        if name not in own:
            continue
        matrix, came = own[name][0], _rows_of(own[name][1])
        count = came.shape[-1] // width
        keys = (count - heads) // 2
        if came.shape[-1] % width or keys < 1 or heads % keys or heads + 2 * keys != count:
            continue
        rows = torch.arange(came.shape[-1]).reshape(count, width)
        groups = rows.reshape(keys, -1, width)
        after_another = (rows[:heads], rows[heads : heads + keys], rows[heads + keys :])
        by_group = (groups[:, :-2], groups[:, -2], groups[:, -1])
        for layout in (after_another, by_group):
            places = [one.reshape(-1).tolist() for one in layout]
            choices.append([(matrix, came[:, one], one) for one in places])
    for queries, keys, values in choices:
        sizes = [one[1].shape[-1] for one in (queries, keys, values)]
        count = sizes[2] // width
        if sizes[0] != heads * width or sizes[1] != sizes[2] or sizes[2] != count * width:
            continue
        if not count or heads % count:
            continue
        shared = values[1][0].reshape(count, width).repeat_interleave(heads // count, 0)
        # Compare directions: with an attention sink, a head outputs only a share of its value.
        alike = torch.nn.functional.cosine_similarity(shared, first, dim=-1)
        if float(alike.min()) > 1 - _MOST_MISSED**2:
            names = ("queries", "keys", "values")
            three = zip(names, (queries, keys, values), strict=True)
            return {n: Part(m, places=places) for n, (m, _, places) in three}, count
    return {}, 0


def _find_preactivations(
    own: Mapping[str, tuple[Any, Tensor]], neurons: Tensor, owner: Any
) -> Part | None:
    """The input of the activation function; in a gated MLP, the output of the gate's matrix."""
    act = next((f for n in _ACTIVATION if (f := getattr(owner, n, None)) is not None), None)
    size = neurons.shape[-1]
    for name, (matrix, came) in own.items():
        fused = name == "gate_up_proj"
        if act is None or came.shape[-1] != size * (1 + fused):
            continue
        factor = came[..., size:] if fused else None
        if name == "gate_proj" and "up_proj" in own:
            factor = own["up_proj"][1]
        with torch.no_grad():
            made = _rows_of(act(came[..., :size]))
        if factor is not None:
            made = made * _rows_of(factor)
        if _missed(made - neurons, neurons) <= _MOST_MISSED:
            return Part(matrix, places=list(range(size)) if fused else None)
    return None


class _Candidate(NamedTuple):
    """A matrix that may be the first or last step of an attention or MLP module, and its name."""

    whole: Any
    matrix: Any
    name: str


def _candidates(block: Any, wholes: Sequence[str], names: Sequence[str]) -> list[_Candidate]:
    found: list[_Candidate] = []
    for owner in wholes:
        whole = getattr(block, owner, None)
        if whole is not None:
            found += [
                _Candidate(whole, module, name)
                for path, module in whole.named_modules()
                if (name := path.rpartition(".")[2]) in names
            ]
    # OPT and BioGPT have the matrices of the MLP in the block itself.
    own = ((name, getattr(block, name, None)) for name in names)
    return found + [_Candidate(m, m, name) for name, m in own if m is not None]


def _adds_up(seen: dict[str, Tensor], attention: str, mlp: str, scale: float) -> bool:
    added = seen["after"] - seen["before"]
    parts = (seen[attention], seen[mlp])
    if any(part.shape != added.shape for part in parts):
        return False
    return _missed(added - scale * (parts[0] + parts[1]), added) <= _MOST_MISSED


def _rows_of(value: Tensor) -> Tensor:
    """Reshape to tokens by numbers, in float32 on the CPU; OPT flattens rows and tokens."""
    return value.reshape(-1, value.shape[-1]).float().cpu()


def _missed(error: Tensor, whole: Tensor) -> float:
    """Length of the error divided by length of the whole: the median over tokens.

    The first token often has such large activations that their rounding would dominate a mean.
    """
    lengths = torch.linalg.vector_norm(whole, dim=-1).clamp(min=1e-12)
    return float((torch.linalg.vector_norm(error, dim=-1) / lengths).median())


def probe(net: Any) -> Tensor:
    """A few token ids, spread over the vocabulary."""
    table: Tensor = net.get_input_embeddings().weight
    ids = torch.linspace(2, table.shape[0] - 1, _PROBE_TOKENS).long()
    return ids[None].to(table.device)


def run_probe(net: Any) -> None:
    """Run the blocks on a few tokens."""
    with torch.no_grad():
        net.get_decoder()(input_ids=probe(net), use_cache=False)


@contextmanager
def watch(
    inputs: Mapping[K, Any], outputs: Mapping[K, Any], *, copy: bool = False
) -> Generator[dict[K, Tensor]]:
    """Keep the inputs of some modules and the outputs of others while the context lasts.

    Args:
        inputs: The modules whose first input to keep, by the key in the result.
        outputs: The modules whose output to keep, likewise.
        copy: Whether to copy the tensors, because some models add to them in place afterwards.
    """
    found: dict[K, Tensor] = {}

    def keep(key: K, value: Any) -> None:
        tensor: Any = value[0] if isinstance(value, tuple | list) else value
        if isinstance(tensor, Tensor):
            found[key] = tensor.detach().clone() if copy else tensor

    def before(key: K) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            keep(key, args[0] if args else kwargs.get("hidden_states"))

        return hook

    def after(key: K) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            keep(key, output)

        return hook

    with ExitStack() as hooks:
        for key, module in inputs.items():
            hook = module.register_forward_pre_hook(before(key), with_kwargs=True)
            hooks.callback(hook.remove)
        for key, module in outputs.items():
            hooks.callback(module.register_forward_hook(after(key)).remove)
        yield found


@contextmanager
def replace(
    inputs: Mapping[Any, Callable[[Tensor], Tensor]] | None = None,
    outputs: Mapping[Any, Callable[[Tensor], Tensor]] | None = None,
) -> Generator[None]:
    """Change the inputs of some modules and the outputs of others while the context lasts.

    Args:
        inputs: By module, the function from the old first input to the new one.
        outputs: By module, the function from the old output to the new one.
    """

    def before(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        def hook(_module: Any, args: Any, kwargs: Any) -> Any:
            if args:
                return (change(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

        return hook

    def after(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            if isinstance(output, tuple | list):
                return (change(output[0]), *output[1:])
            return change(output)

        return hook

    with ExitStack() as hooks:
        for module, change in (inputs or {}).items():
            hook = module.register_forward_pre_hook(before(change), with_kwargs=True)
            hooks.callback(hook.remove)
        for module, change in (outputs or {}).items():
            hooks.callback(module.register_forward_hook(after(change)).remove)
        yield


def _run(net: Any, blocks: Sequence[Any], names: set[str]) -> list[dict[str, Tensor]]:
    """In a short run: the input and output of each block, and the outputs of its named modules."""
    inputs = {(i, "before"): block for i, block in enumerate(blocks)}
    outputs = {(i, "after"): block for i, block in enumerate(blocks)}
    outputs |= {(i, name): getattr(b, name) for i, b in enumerate(blocks) for name in names}
    with watch(inputs, outputs, copy=True) as found:
        run_probe(net)
    seen: list[dict[str, Tensor]] = [{} for _ in blocks]
    for (i, name), value in found.items():
        seen[i][name] = _rows_of(value)
    return seen


def _named(module: Any, names: Sequence[str]) -> Any:
    for name in names:
        found = getattr(module, name, None)
        if found is not None:
            return found
    raise ModelInputError(
        f"{type(module).__name__} is an architecture that this interface does not know: it has "
        f"none of {', '.join(names)}"
    )
