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
"""Bytes of patterns, of all layers and heads, that are made at once."""

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

    Row i of a pattern is the attention of token i to all tokens. It sums to one.

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
                f"the prompt has {len(row)} tokens, whose patterns in all layers would take "
                f"{_bytes(chosen, len(row)) / 1e9:.0f} GB; give a shorter one"
            )
        return _Task(row, _block(chosen, at), which)

    def run(tasks: list[_Task]) -> list[Tensor]:
        batch = chosen.pad_rows([task.row for task in tasks])
        with chosen.turn, torch.no_grad(), _eager(chosen):
            output = chosen.decoder(**batch, output_attentions=True, use_cache=False)
        found: Any = getattr(output, "attentions", None)
        layers = [found[task.layer - 1] for task in tasks] if found else [None]
        if any(one is None or one.ndim != 4 for one in layers):
            raise ModelInputError(_UNREADABLE.format(type(chosen.net).__name__))
        return [_own(chosen, found[task.layer - 1][i], task) for i, task in enumerate(tasks)]

    prepared = prepare_each(prepare, prompt, layer, head)
    # The size of a batch is counted in bytes of patterns here.
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


def _own(model: Model, patterns: Tensor, task: _Task) -> Tensor:
    count = len(task.row)
    own = patterns[:, -count:, -count:].float()
    # Where the mask did not apply, these are not the patterns that the model computes with.
    if bool(own.triu(1).any()):
        raise ModelInputError(_UNREADABLE.format(type(model.net).__name__))
    return own if task.head is None else own[task.head]


@contextmanager
def _eager(model: Model) -> Generator[None]:
    """Use an attention implementation that computes patterns; the fast ones do not."""
    net: Any = model.net
    usual = net.config._attn_implementation
    net.set_attn_implementation("eager")
    # Falcon decides at each call by this setting, and has no switch for it.
    net.config._attn_implementation = "eager"
    try:
        yield
    finally:
        net.set_attn_implementation(usual)
        net.config._attn_implementation = usual
