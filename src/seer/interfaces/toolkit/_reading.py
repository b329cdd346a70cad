"""Activations of many prompts, by the cheapest way that gives them.

The residual stream comes from hooks on the blocks; all else from `_inside`.
"""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ._batches import split
from ._inside import Site, read
from ._model import Model
from ._parts import watch


def residual_states(
    model: Model, rows: Sequence[Sequence[int]], layers: Iterable[int] | None = None
) -> tuple[dict[int, Tensor], Tensor]:
    """The residual stream (rows, longest, width) by layer, and what the final norm puts out.

    Rows are padded at the left. Taken from the blocks themselves: transformers gives the last layer
    behind the final norm only, and what its other hidden states are differs by architecture.
    """
    wanted = set(range(model.layers + 1) if layers is None else layers)
    inputs = {0: model.blocks[0]} if 0 in wanted else {}
    outputs = {layer: model.blocks[layer - 1] for layer in wanted if layer > 0}
    with watch(inputs, outputs) as found, torch.no_grad():
        output = model.decoder(**model.pad_rows(rows), use_cache=False)
    return found, output.last_hidden_state


def read_batch(model: Model, rows: Sequence[Sequence[int]], sites: set[Site]) -> dict[Site, Tensor]:
    """Activations (rows, longest, width) at some sites; rows are padded at the left."""
    if any(site.stream != "residual" for site in sites):
        return read(model, model.pad_rows(rows), sites)
    states, _ = residual_states(model, rows, {site.layer for site in sites})
    return {site: states[site.layer] for site in sites}


def read_rows(
    model: Model, rows: Sequence[Sequence[int]], site: Site, *, position: int | None
) -> Tensor:
    """One vector per prompt, in float32: at one position, or the mean over all tokens.

    Raises:
        ModelInputError: A prompt has no token at the position.
    """
    places = [None if position is None else model.check_position(position, len(r)) for r in rows]
    found = torch.empty(len(rows), model.width, device=model.device)
    for group in split(list(enumerate(rows)), lambda pair: len(pair[1])):
        read_now = read_batch(model, [row for _, row in group], {site})[site]
        for k, (i, row) in enumerate(group):
            own = read_now[k, -len(row) :].float()
            place = places[i]
            found[i] = own.mean(0) if place is None else own[place]
    return found
