"""Finds the parts of a model: the modules that add to the residual stream, and their factors.

Architectures name and combine the same parts differently: some put a norm behind attention and MLP,
some scale what is added, some scale the logits. The candidates are known by name, and a short run
of the model itself decides between them. A model for which none of them adds up is refused, so a
part is never read at the wrong place.
"""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

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
_PROBE_TOKENS = 12
_MOST_MISSED = 0.05
"""Share of what a block adds that its parts may miss. Rounding in bfloat16 stays far below this,
and a wrong module far above it."""


@dataclass(frozen=True)
class Part:
    """A module of a block, and the factor with which its output is added to the residual stream.

    With `at_input`, the part is what goes into the module, and `scale` is 1.
    """

    module: Any
    scale: float
    at_input: bool = False


@dataclass(frozen=True)
class Block:
    """What one block adds to the residual stream."""

    attention: Part
    mlp: Part


@dataclass(frozen=True)
class Units:
    """The matrices of a block that read its heads and its neurons; None where there is no such one.

    The input of `heads` is the outputs of all attention heads, one after the other. The input of
    `neurons` is the activations of the MLP's neurons.
    """

    heads: Any
    neurons: Any
    head_count: int
    head_width: int
    neuron_count: int


def find_blocks(decoder: Any) -> Any:
    """The list of blocks.

    Raises:
        ModelInputError: The architecture has none that is known.
    """
    return _named(decoder, _BLOCKS)


def find_final_norm(decoder: Any) -> Any:
    """The norm behind the last block.

    Raises:
        ModelInputError: The architecture has none that is known.
    """
    return _named(decoder, _FINAL_NORM)


def check_head(net: Any, logits_of: Callable[[Tensor], Tensor]) -> None:
    """Check that `logits_of` makes the model's own logits of what the final norm puts out.

    Raises:
        ModelInputError: It does not.
    """
    ids = probe(net)
    with torch.no_grad():
        states: Tensor = net.get_decoder()(input_ids=ids, use_cache=False)[0]
        own: Tensor = net(input_ids=ids, use_cache=False).logits.float()
        found = logits_of(states)
    if _missed(own - found, own - own.mean(-1, keepdim=True)) > _MOST_MISSED:
        raise ModelInputError(
            f"{type(net).__name__} makes its logits in a way that this interface does not know, so "
            "layers cannot be read as tokens"
        )


def find_parts(net: Any) -> list[Block]:
    """The parts of each block.

    Raises:
        ModelInputError: No known parts add up to what the blocks add.
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
            return [
                Block(
                    Part(getattr(block, attention), scale),
                    Part(getattr(block, mlp), scale),
                )
                for block in blocks
            ]
    raise ModelInputError(
        f"{type(net).__name__} is an architecture whose blocks this interface cannot take apart: "
        'use stream="residual"'
    )


def find_units(net: Any) -> list[Units]:
    """The matrices that read heads and neurons, for each block.

    The candidates are known by name. A short run checks that their output is the output of the
    whole attention or MLP module. Mixtures of experts, for instance, have no such matrix.
    """
    blocks = find_blocks(net.get_decoder())
    found = [
        (
            _candidates(block, _OWN_ATTENTION, _HEADS_OUT),
            _candidates(block, _OWN_MLP, _NEURONS_OUT),
        )
        for block in blocks
    ]
    pairs = [pair for both in found for one in both for pair in one]
    matrices = {id(matrix): matrix for _, matrix in pairs}
    wholes = {id(whole): whole for whole, _ in pairs}
    with (
        watch(matrices, {}, copy=True) as inputs,
        watch({}, {**wholes, **matrices}, copy=True) as outputs,
        torch.no_grad(),
    ):
        net.get_decoder()(input_ids=probe(net), use_cache=False)

    def matching(pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, int]:
        for whole, matrix in pairs:
            if id(whole) not in outputs or id(matrix) not in outputs:
                continue
            a, b = (outputs[id(one)].float().reshape(-1) for one in (whole, matrix))
            if a.shape == b.shape and _missed((a - b)[None], a[None]) <= _MOST_MISSED:
                return matrix, inputs[id(matrix)].shape[-1]
        return None, 0

    heads = int(getattr(net.config.get_text_config(), "num_attention_heads", 0) or 0)
    units: list[Units] = []
    for attention, mlp in found:
        head_matrix, size = matching(attention)
        if not heads or size % heads:
            head_matrix, size = None, 0
        neuron_matrix, neurons = matching(mlp)
        units.append(Units(head_matrix, neuron_matrix, heads, size // max(heads, 1), neurons))
    return units


def _candidates(block: Any, wholes: Sequence[str], names: Sequence[str]) -> list[tuple[Any, Any]]:
    """Pairs of a whole attention or MLP module and a matrix that may be its last step."""
    found: list[tuple[Any, Any]] = []
    for name in wholes:
        whole = getattr(block, name, None)
        if whole is not None:
            found += [
                (whole, module)
                for path, module in whole.named_modules()
                if path.rpartition(".")[2] in names
            ]
    # OPT and BioGPT have the matrices of the MLP in the block itself.
    own = (getattr(block, name, None) for name in names)
    return found + [(matrix, matrix) for matrix in own if matrix is not None]


def _adds_up(seen: dict[str, Tensor], attention: str, mlp: str, scale: float) -> bool:
    added = seen["after"] - seen["before"]
    parts = (seen[attention], seen[mlp])
    if any(part.shape != added.shape for part in parts):
        return False
    return _missed(added - scale * (parts[0] + parts[1]), added) <= _MOST_MISSED


def _missed(error: Tensor, whole: Tensor) -> float:
    """Length of the error over length of the whole: the median over tokens.

    The median, because the first token often has activations so large that rounding them hides all
    else.
    """
    lengths = torch.linalg.vector_norm(whole, dim=-1).clamp(min=1e-12)
    return float((torch.linalg.vector_norm(error, dim=-1) / lengths).median())


def probe(net: Any) -> Tensor:
    """Some token ids, from all over the vocabulary."""
    table: Tensor = net.get_input_embeddings().weight
    ids = torch.linspace(2, table.shape[0] - 1, _PROBE_TOKENS).long()
    return ids[None].to(table.device)


@contextmanager
def watch(
    inputs: Mapping[K, Any], outputs: Mapping[K, Any], *, copy: bool = False
) -> Generator[dict[K, Tensor]]:
    """While the context lasts, keep what goes into some modules and what comes out of others.

    Args:
        inputs: The modules whose first input to keep, by the key to keep it under.
        outputs: The modules whose output to keep.
        copy: Whether to copy; some models add to a tensor in place afterwards.
    """
    found: dict[K, Tensor] = {}

    def keep(key: K, value: Any) -> None:
        tensor: Tensor = value[0] if isinstance(value, tuple | list) else value
        found[key] = tensor.detach().clone() if copy else tensor

    def before(key: K) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            keep(key, args[0] if args else kwargs["hidden_states"])

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
    """While the context lasts, change what goes into some modules and what comes out of others.

    Args:
        inputs: By module, what makes the new first input of the old one.
        outputs: By module, what makes the new output.
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
    """What went into and came out of each block and the named modules in it, for a short run."""
    inputs = {(i, "before"): block for i, block in enumerate(blocks)}
    outputs = {(i, "after"): block for i, block in enumerate(blocks)}
    outputs |= {(i, name): getattr(b, name) for i, b in enumerate(blocks) for name in names}
    with watch(inputs, outputs, copy=True) as found, torch.no_grad():
        net.get_decoder()(input_ids=probe(net), use_cache=False)
    seen: list[dict[str, Tensor]] = [{} for _ in blocks]
    for (i, name), value in found.items():
        seen[i][name] = value.reshape(-1, value.shape[-1]).float().cpu()
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
