"""The tokens and neurons that are nearest to a direction."""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

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
"""Rows of a matrix that are widened to float32 at once."""


def nearest_tokens(
    vector: Array,
    *,
    k: int = 10,
    space: Literal["output", "input"] = "output",
    model: str | None = None,
) -> list[TokenScore]:
    """The tokens whose (un)embedding points most along a direction, by cosine similarity.

    Args:
        vector: A direction in the residual stream.
        k: How many.
        space: `output`: tokens that the direction speaks for; `input`: tokens that it looks like.
        model: Which model.
    """
    chosen = find(model)
    check_count("k", k, min(MAX_TOP, chosen.vocabulary))
    table: Any = chosen.head if space == "output" else chosen.net.get_input_embeddings()
    scores = _cosines(table.weight, _unit(chosen, vector))
    return top_scores(chosen, scores, k)


def nearest_neurons(vector: Array, *, k: int = 10, model: str | None = None) -> list[NeuronScore]:
    """The MLP neurons whose output weights point most along a direction, by cosine similarity.

    Args:
        vector: A direction in the residual stream.
        k: How many.
        model: Which model.
    """
    chosen = find(model)
    check_count("k", k, MAX_TOP)
    unit = _unit(chosen, vector)
    found: list[NeuronScore] = []
    for layer, block in enumerate(chosen.blocks, 1):
        scores = _cosines(_output_weights(chosen, block), unit)
        values, places = scores.topk(min(k, len(scores)))
        pairs = zip(places.tolist(), values.tolist(), strict=True)
        found += [NeuronScore(layer, place, value) for place, value in pairs]
    return sorted(found, key=lambda one: -one.score)[:k]


def _unit(model: Model, vector: Array) -> Tensor:
    found = model.check_vector("vector", vector)
    if not bool(found.any()):
        raise ModelInputError("a vector of zeros has no direction")
    return torch.nn.functional.normalize(found, dim=0)


def _cosines(weights: Tensor, unit: Tensor) -> Tensor:
    """The cosine of each row with a direction."""
    parts = [
        torch.nn.functional.normalize(rows.float(), dim=-1) @ unit.to(rows.device)
        for rows in weights.split(_ROWS)
    ]
    return torch.cat(parts)


def _output_weights(model: Model, block: Any) -> Tensor:
    """What each neuron of a block's MLP writes: neurons by width, with an adapter's share."""
    mlp: Any = block.mlp
    module: Any = getattr(mlp, "down_proj", None) or getattr(mlp, "c_proj", None)
    if module is None:
        raise ModelInputError(f"the MLP of {type(block).__name__} has no output matrix known here")
    weight: Tensor = module.weight
    if hasattr(module, "get_delta_weight"):
        for name in module.active_adapters:
            if name in module.lora_A:
                weight = weight + module.get_delta_weight(name)
    # GPT-2 keeps its matrices the other way round.
    transposed = type(getattr(module, "base_layer", module)).__name__ == "Conv1D"
    return weight if transposed else weight.T
