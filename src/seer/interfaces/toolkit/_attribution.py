"""How much each token of a prompt matters: gradients and occlusion on the input embeddings."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ._limits import BATCH_TOKENS, MAX_STEPS, check_count
from ._model import Model, Prompt
from ._records import Attribution
from ._registry import find

_ROWS = 16_384
"""Rows of the embedding table that are converted to float64 at once."""
Method = Literal["integrated_gradients", "gradient_x_input", "occlusion"]


def attribute(
    prompt: Prompt,
    *,
    target: str | None = None,
    method: Method = "integrated_gradients",
    steps: int = 32,
    model: str | None = None,
) -> Attribution:
    """Compute how much each token of a prompt contributes to the logit of one next token.

    `integrated_gradients` integrates from a prompt of mean embeddings to the real one; the scores
    add up to the difference between the two logits. `gradient_x_input` is faster, but its scores do
    not add up to that. `occlusion` replaces one token at a time by the mean embedding.

    Args:
        prompt: Text, or token ids.
        target: The next token (the first of this text); by default the likeliest one.
        method: The method of attribution.
        steps: The number of points for integrated gradients; more points are more exact.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_count("steps", steps, MAX_STEPS)
    row = chosen.encode(prompt)
    ids = torch.tensor([row], device=chosen.device)
    table: Any = chosen.net.get_input_embeddings()
    given: Tensor = table(ids).detach()
    mean = _mean_embedding(table).to(given.dtype).expand_as(given)
    logits = _logits(chosen, given)[0]
    token = int(logits.argmax()) if target is None else chosen.token_id(target)
    if method == "integrated_gradients":
        scores = _integrated(chosen, given, mean, token, steps)
    elif method == "gradient_x_input":
        scores = (_gradient(chosen, given, token) * given.float()).sum(-1)[0]
    else:
        scores = _occluded(chosen, given, mean, token)
    return Attribution(
        tokens=chosen.texts(row),
        scores=scores.tolist(),
        target=chosen.token_text(token),
        value=float(logits[token]),
        baseline=float(_logits(chosen, mean)[0, token]),
    )


def _mean_embedding(table: Any) -> Tensor:
    """The mean of the table's outputs over the vocabulary. Gemma's table scales its weights."""
    ids = torch.arange(table.weight.shape[0], device=table.weight.device)
    with torch.no_grad():
        total = torch.stack([table(part).double().sum(0) for part in ids.split(_ROWS)]).sum(0)
    return (total / len(ids)).float()


def _logits(model: Model, embeddings: Tensor) -> Tensor:
    with model.turn, torch.no_grad():
        found: Tensor = model.net(
            inputs_embeds=embeddings, logits_to_keep=1, use_cache=False
        ).logits
    return found[:, -1].float()


def _gradient(model: Model, embeddings: Tensor, token: int) -> Tensor:
    """The gradient of the token's logit, for each of several versions of the prompt."""
    with model.turn, torch.enable_grad():
        inputs = embeddings.detach().requires_grad_(True)
        found: Any = model.net(inputs_embeds=inputs, logits_to_keep=1, use_cache=False).logits
        (gradient,) = torch.autograd.grad(found[:, -1, token].float().sum(), inputs)
    return gradient.float()


def _integrated(model: Model, given: Tensor, mean: Tensor, token: int, steps: int) -> Tensor:
    # Gauss-Legendre is far more exact for smooth functions than equal steps.
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    points = torch.tensor((nodes + 1) / 2, device=given.device, dtype=torch.float32)
    shares = torch.tensor(weights / 2, device=given.device, dtype=torch.float32)
    way = given.float() - mean.float()
    total = torch.zeros_like(way[0])
    # Gradients need several times the memory of a plain run.
    size = max(1, BATCH_TOKENS // 8 // given.shape[1])
    for begin in range(0, steps, size):
        part = points[begin : begin + size, None, None]
        versions = (mean.float() + part * way).to(given.dtype)
        gradients = _gradient(model, versions, token)
        total += (shares[begin : begin + size, None, None] * gradients).sum(0)
    return (total * way[0]).sum(-1)


def _occluded(model: Model, given: Tensor, mean: Tensor, token: int) -> Tensor:
    count = given.shape[1]
    whole = _logits(model, given)[0, token]
    found = torch.empty(count, device=given.device)
    size = max(1, BATCH_TOKENS // count)
    for begin in range(0, count, size):
        places = range(begin, min(begin + size, count))
        versions = given.repeat(len(places), 1, 1)
        for i, place in enumerate(places):
            versions[i, place] = mean[0, place]
        found[begin : begin + len(places)] = whole - _logits(model, versions)[:, token]
    return found
