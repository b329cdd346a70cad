"""Attention patterns, as transformers returns them."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from seer.errors import CallLimitError, ModelInputError

from ._batches import prepare_each, run_each
from ._model import Model, Prompt
from ._records import Array, Layer
from ._registry import find

_MEMORY = 4 << 30
"""Bytes of the patterns, of all layers and heads, of one batch."""

_UNREADABLE = "{} is an architecture whose attention patterns this interface cannot read"


@dataclass(frozen=True)
class _Task:
    row: list[int]
    layer: int
    head: int | None


def attention(
    prompt: list[Prompt],
    layer: list[Layer],
    *,
    head: Sequence[int | None] = (None,),
    model: str | None = None,
) -> list[Array]:
    """Read how much each token of a prompt attends to each other: heads by tokens by tokens.

    Row i of a pattern is the attention of token i to all tokens. It sums to 1, or to less in models
    with attention sinks, which take a part of the attention.

    Args:
        prompt: Text, or token ids.
        layer: Which block, from 1; or `blocks.N.attn.hook_pattern`, with N from 0.
        head: Which head, from 0; None for all.
        model: Which model; the first by default.
    """
    chosen = find(model)

    def prepare(one: Prompt, at: Layer, which: int | None) -> _Task:
        row = chosen.encode(one)
        if which is not None and not 0 <= which < chosen.heads:
            raise ModelInputError(f"head={which!r}: this model has heads 0 to {chosen.heads - 1}")
        if _bytes(chosen, len(row)) > _MEMORY:
            raise CallLimitError(
                f"the prompt has {len(row)} tokens; their patterns in all layers would take "
                f"{_bytes(chosen, len(row)) / 1e9:.0f} GB; give a shorter one"
            )
        return _Task(row, _block(chosen, at), which)

    def run(tasks: list[_Task]) -> list[Tensor | ModelInputError]:
        batch = chosen.pad_rows([task.row for task in tasks])
        with chosen.turn, torch.no_grad(), _eager(chosen), _made_by_block(chosen) as made:
            output = chosen.decoder(**batch, output_attentions=True, use_cache=False)
        found: Any = getattr(output, "attentions", None)
        if not found or not any(one is not None and one.ndim == 4 for one in found):
            raise ModelInputError(_UNREADABLE.format(type(chosen.net).__name__))
        patterns = _by_block(chosen, found, made)
        return [_own(chosen, patterns, i, task) for i, task in enumerate(tasks)]

    prepared = prepare_each(prepare, prompt, layer, head)
    # Here the size of a batch is the bytes of its patterns.
    found = run_each(prepared, lambda task: _bytes(chosen, len(task.row)), run, most=_MEMORY)
    return cast("list[Array]", found)


def _block(model: Model, layer: Layer) -> int:
    if isinstance(layer, int):
        return model.check_layer(layer, least=1)
    found = re.fullmatch(r"blocks\.(\d+)\.attn\.hook_pattern", layer)
    if found is None:
        raise ModelInputError(f"layer={layer!r}: give a number, or 'blocks.N.attn.hook_pattern'")
    return model.check_layer(int(found[1]) + 1, least=1)


def _bytes(model: Model, tokens: int) -> int:
    return model.layers * model.heads * tokens * tokens * 4


def _own(
    model: Model, patterns: dict[int, Tensor], place: int, task: _Task
) -> Tensor | ModelInputError:
    """The patterns for one call, or an error that says why there are none."""
    count = len(task.row)
    if task.layer in patterns:
        own = patterns[task.layer][place, :, -count:, -count:].float()
        # If the causal mask does not apply, the model does not compute with these patterns.
        if not bool(own.triu(1).any()):
            return own if task.head is None else own[task.head]
    kind = type(model.net).__name__
    return ModelInputError(f"block {task.layer} of {kind} has no attention patterns to read")


def _by_block(
    model: Model, found: Sequence[Tensor | None], made: dict[int, list[Tensor]]
) -> dict[int, Tensor]:
    """The patterns of each block that has some.

    If only some blocks have attention, transformers returns their patterns without gaps, so the
    index in its list is not the number of the block. Then `made` says which block made a tensor.
    """
    if len(found) == model.layers:
        pairs = enumerate(found, 1)
    else:
        makers = {id(one): block for block, tensors in made.items() for one in tensors}
        pairs = ((makers.get(id(one), 0), one) for one in found)
    return {block: one for block, one in pairs if block and one is not None and one.ndim == 4}


@contextmanager
def _made_by_block(model: Model) -> Generator[dict[int, list[Tensor]]]:
    """Collect tensors that may be patterns, by the block whose modules return them."""
    made: dict[int, list[Tensor]] = {}
    running = 0

    def enter(block: int) -> Any:
        def note(*_: Any) -> None:
            nonlocal running
            running = block

        return note

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, tuple):
            parts = cast("tuple[Any, ...]", output)
            made.setdefault(running, []).extend(
                one for one in parts if isinstance(one, Tensor) and one.ndim == 4
            )

    hooks: list[Any] = []
    try:
        for number, block in enumerate(model.blocks, 1):
            hooks.append(block.register_forward_pre_hook(enter(number)))
            hooks += [module.register_forward_hook(keep) for module in block.modules()]
        yield made
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _eager(model: Model) -> Generator[None]:
    """Use an attention implementation that computes patterns; the fast ones do not."""
    net: Any = model.net
    usual = net.config._attn_implementation
    net.set_attn_implementation("eager")
    # Falcon reads this setting at each call, and `set_attn_implementation` does not change it.
    net.config._attn_implementation = "eager"
    try:
        yield
    finally:
        net.set_attn_implementation(usual)
        net.config._attn_implementation = usual
