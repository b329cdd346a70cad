"""Activations, as arrays or as handles that stay where the model is."""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from seer.rpc import Handle

from ._batches import prepare_each, run_each
from ._inside import Site
from ._limits import check_bytes
from ._model import Model, Prompt
from ._reading import read_each
from ._records import Array, Stream
from ._registry import find


@dataclass(frozen=True)
class _Task:
    row: list[int]
    site: Site
    position: int | None


def activations(
    prompt: list[Prompt],
    layer: list[int],
    *,
    position: Sequence[int | None] = (None,),
    stream: Stream = "residual",
    model: str | None = None,
) -> list[Array]:
    """Read a prompt's activations: tokens by width, or one vector for one position.

    Args:
        prompt: Text, or token ids.
        layer: After which block (0: the embeddings, -1: after the last).
        position: Which token, negative from the end; None for all.
        stream: The residual stream after the block, or what its attention or MLP adds to it.
        model: Which model.
    """
    # Tensors of the model's device: the gate copies them straight to where the caller reads them.
    return _read(find(model), prompt, layer, position, stream)


def hold_activations(
    prompt: list[Prompt],
    layer: list[int],
    *,
    position: Sequence[int | None] = (None,),
    stream: Stream = "residual",
    model: str | None = None,
) -> list[Handle]:
    """Read activations as `activations` does, and keep them where the model is.

    Args:
        prompt: Text, or token ids.
        layer: After which block (0: the embeddings, -1: after the last).
        position: Which token, negative from the end; None for all.
        stream: The residual stream after the block, or what its attention or MLP adds to it.
        model: Which model.
    """
    found: list[Any] = _read(find(model), prompt, layer, position, stream)
    # Copies: a part of a batch would hold on to all of it.
    return [Handle(one.clone()) if isinstance(one, Tensor) else one for one in found]


def _read(
    model: Model,
    prompts: Sequence[Prompt],
    layers: Sequence[int],
    positions: Sequence[int | None],
    stream: Stream,
) -> list[Any]:
    def prepare(prompt: Prompt, layer: int, position: int | None) -> _Task:
        site = Site(model.check_layer(layer, least=0 if stream == "residual" else 1), stream)
        row = model.encode(prompt)
        if position is None:
            check_bytes("the activations", len(row) * model.width * 4)
        else:
            position = model.check_position(position, len(row))
        return _Task(row, site, position)

    def run(tasks: list[_Task]) -> list[Tensor]:
        own = read_each(model, [task.row for task in tasks], [task.site for task in tasks])
        return [
            rows if task.position is None else rows[task.position]
            for task, rows in zip(tasks, own, strict=True)
        ]

    prepared = prepare_each(prepare, prompts, layers, positions)
    return run_each(prepared, lambda task: len(task.row), run)
