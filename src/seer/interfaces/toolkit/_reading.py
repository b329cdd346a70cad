"""Activations of many prompts, by the cheapest way that gives them.

The residual stream before the last block's end comes from transformers' own hidden states; all else
from `_inside`.
"""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence

import torch
from torch import Tensor

from ._batches import split
from ._inside import Site, read
from ._model import Model


def read_batch(model: Model, rows: Sequence[Sequence[int]], sites: set[Site]) -> dict[Site, Tensor]:
    """Activations (rows, longest, width) at some sites; rows are padded at the left."""
    batch = model.pad_rows(rows)
    # transformers gives the last layer's hidden state behind the final norm only.
    if any(site.stream != "residual" or site.layer == model.layers for site in sites):
        return read(model, batch, sites)
    with torch.no_grad():
        states = model.decoder(**batch, output_hidden_states=True, use_cache=False).hidden_states
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
