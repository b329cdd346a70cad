"""The tokens and neurons that are nearest to a direction."""

from typing import Any, Literal

import torch
from torch import Tensor

from seer.errors import ModelInputError

from ._limits import MAX_TOP, check_count
from ._model import Model
from ._records import Array, NeuronScore, TokenScore
from ._registry import find
from ._tokens import top_scores

_ROWS = 16_384
"""Rows of a matrix that are converted to float32 at once."""
_NEURONS = 1024
"""Neurons whose weights are computed at once."""


def nearest_tokens(
    vector: Array,
    *,
    k: int = 10,
    space: Literal["output", "input"] = "output",
    model: str | None = None,
) -> list[TokenScore]:
    """Find the tokens whose embeddings are nearest to a direction, by cosine similarity.

    Args:
        vector: A direction in the residual stream.
        k: How many tokens to give.
        space: `output` compares with the unembedding (tokens that the direction makes likelier),
            `input` with the input embedding (tokens that look like the direction).
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_count("k", k, min(MAX_TOP, chosen.vocabulary))
    table: Any = chosen.head if space == "output" else chosen.net.get_input_embeddings()
    scores = cosines(table.weight, _unit(chosen, vector))
    return top_scores(chosen, scores, k)


def nearest_neurons(vector: Array, *, k: int = 10, model: str | None = None) -> list[NeuronScore]:
    """Find the MLP neurons whose output weights are nearest to a direction, by cosine similarity.

    Args:
        vector: A direction in the residual stream.
        k: How many neurons to give.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_count("k", k, MAX_TOP)
    unit = _unit(chosen, vector)
    found: list[NeuronScore] = []
    for layer in range(1, chosen.layers + 1):
        scores = cosines(_output_weights(chosen, layer), unit)
        values, places = scores.topk(min(k, len(scores)))
        pairs = zip(places.tolist(), values.tolist(), strict=True)
        found += [NeuronScore(layer, place, value) for place, value in pairs]
    return sorted(found, key=lambda one: -one.score)[:k]


def _unit(model: Model, vector: Array) -> Tensor:
    found = model.check_vector("vector", vector)
    if not bool(found.any()):
        raise ModelInputError("a vector of zeros has no direction; give another vector")
    return torch.nn.functional.normalize(found, dim=0)


def cosines(weights: Tensor, unit: Tensor) -> Tensor:
    """The cosine of each row with a unit vector."""
    parts = [
        torch.nn.functional.normalize(rows.float(), dim=-1) @ unit.to(rows.device)
        for rows in weights.split(_ROWS)
    ]
    return torch.cat(parts)


def _output_weights(model: Model, layer: int) -> Tensor:
    """The output weights of each neuron of a block's MLP: neurons by width."""
    module = model.site(layer, "neurons").module
    count = model.units[layer - 1].neuron_count
    found: list[Tensor] = []
    # Apply the matrix itself to one neuron at a time, so adapters and quantised weights count.
    with model.turn, torch.no_grad():
        nothing = module(torch.zeros(1, count, dtype=model.net.dtype, device=model.device))
        for part in torch.arange(count, device=model.device).split(_NEURONS):
            one = torch.nn.functional.one_hot(part, count).to(model.net.dtype)
            found.append(module(one) - nothing)
    return torch.cat(found)
