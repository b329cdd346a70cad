"""Activations, as arrays or as handles to tensors that stay on the model's machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from seer.rpc import Handle

from ._batches import prepare_each, run_each
from ._interventions import Site
from ._limits import check_bytes
from ._model import Model, Prompt
from ._reading import read_each
from ._records import Array, Layer, Stream
from ._registry import find
from ._sites import check_unit, numbers_of, site_of, source_of, split_units


@dataclass(frozen=True)
class _Task:
    row: list[int]
    site: Site
    position: int | None
    unit: int | None


def activations(
    prompt: list[Prompt],
    layer: list[Layer],
    *,
    position: Sequence[int | None] = (None,),
    unit: Sequence[int | None] = (None,),
    stream: Stream = "residual",
    model: str | None = None,
) -> list[Array]:
    """Read a prompt's activations: an array of tokens by width, or one vector for one position.

    `heads`, `queries`, `keys` and `values` give tokens by heads by head width, `head_outputs`
    tokens by heads by width, `neurons` and `preactivations` tokens by neurons. One unit gives one
    dimension less.

    Args:
        prompt: Text, or token ids.
        layer: The layer (0: the embeddings, n: after block n, -1: after the last block), or a hook
            name of TransformerLens such as `blocks.3.attn.hook_z`.
        position: Which token, negative from the end; None for all tokens.
        unit: Which head or neuron, from 0; None for all.
        stream: `residual` (the residual stream), `middle` (between attention and MLP), `attention`
            or `mlp` (what this part of the block adds to it), `queries`, `keys`, `values`, `heads`,
            `head_outputs`, `mlp_inputs`, `preactivations` or `neurons`; at layer 0 `embeddings` or
            `position_embeddings`. A hook name says this itself.
        model: Which model; the first by default.
    """
    # Tensors on the model's device: the gate copies them straight into the caller's memory.
    return _read(find(model), prompt, layer, position, unit, stream)


def hold_activations(
    prompt: list[Prompt],
    layer: list[Layer],
    *,
    position: Sequence[int | None] = (None,),
    unit: Sequence[int | None] = (None,),
    stream: Stream = "residual",
    model: str | None = None,
) -> list[Handle]:
    """Read activations as `activations` does, but keep them on the model's machine.

    Args:
        prompt: Text, or token ids.
        layer: The layer (0: the embeddings, n: after block n, -1: after the last block), or a hook
            name of TransformerLens.
        position: Which token, negative from the end; None for all tokens.
        unit: Which head or neuron, from 0; None for all.
        stream: What to read there, as for `activations`.
        model: Which model; the first by default.
    """
    found: list[Any] = _read(find(model), prompt, layer, position, unit, stream)
    # Copies, because a view of a batch would keep the whole batch in memory.
    return [Handle(one.clone()) if isinstance(one, Tensor) else one for one in found]


def _read(
    model: Model,
    prompts: Sequence[Prompt],
    layers: Sequence[Layer],
    positions: Sequence[int | None],
    units: Sequence[int | None],
    stream: Stream,
) -> list[Any]:
    def prepare(prompt: Prompt, layer: Layer, position: int | None, unit: int | None) -> _Task:
        site = site_of(model, layer, stream)
        check_unit(model, site, unit)
        row = model.encode(prompt)
        if position is None:
            check_bytes("the activations", len(row) * numbers_of(model, site, unit) * 4)
        else:
            position = model.check_position(position, len(row))
        return _Task(row, site, position, unit)

    def run(tasks: list[_Task]) -> list[Tensor]:
        sources = [source_of(task.site) for task in tasks]
        own = read_each(model, [task.row for task in tasks], sources)
        return [
            split_units(
                model, task.site, rows if task.position is None else rows[task.position], task.unit
            )
            for task, rows in zip(tasks, own, strict=True)
        ]

    prepared = prepare_each(prepare, prompts, layers, positions, units)
    return run_each(prepared, lambda task: len(task.row), run)
