"""Two checkpoints side by side. `_weights` compares their matrices."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from seer.errors import ModelInputError

from ._batches import check_total, split
from ._limits import MAX_TOP, check_count, check_texts
from ._model import Model
from ._neighbours import cosines
from ._reading import residual_states
from ._records import Array, Comparison, LayerDifference, PromptDifference
from ._registry import find
from ._tokens import top_scores


def compare(
    prompts: list[str],
    first: str | None = None,
    second: str | None = None,
    *,
    k: int = 5,
    details: bool = False,
) -> Comparison:
    """Compare two models on prompts: next-token distributions, and residual streams by layer.

    Args:
        prompts: Texts.
        first: A model; the first by default.
        second: Another model with the same tokens; by default the first one's base (the first must
            have an adapter).
        k: How many tokens to give of each distribution.
        details: Also give the differences of activations by layer and token, and their mean at
            each layer, as tokens. The models must have the same number of layers and width.
    """
    one = find(first)
    other = one if second is None else find(second)
    if second is None and one.adapter is None:
        raise ModelInputError(f"{one.name!r} has no adapter; give the second model by name")
    check_texts("prompts", prompts)
    check_count("k", k, min(MAX_TOP, one.vocabulary))
    rows = [one.encode(prompt) for prompt in prompts]
    check_total(rows)
    if [other.encode(prompt) for prompt in prompts] != rows or one.vocabulary != other.vocabulary:
        raise ModelInputError(
            f"{one.name!r} and {other.name!r} have different tokens, so they cannot be compared"
        )
    same = (one.width, one.layers) == (other.width, other.layers)
    prompts_found: list[PromptDifference] = []
    if details and not same:
        raise ModelInputError(
            f"{one.name!r} and {other.name!r} have different shapes; use details=False"
        )
    totals = torch.zeros(one.layers + 1, 2, dtype=torch.float64)
    sums = torch.zeros(one.layers + 1, one.width, dtype=torch.float64)
    for group in split(list(zip(prompts, rows, strict=True)), lambda pair: len(pair[1])):
        own = [row for _, row in group]
        first_states, first_normed = residual_states(one, own)
        with other.without_adapter() if second is None else nullcontext():
            second_states, second_normed = residual_states(other, own)
        if same:
            totals += _layer_sums(first_states, second_states, own)
        if details:
            sums += _difference_sums(first_states, second_states, own)
        logits = one.logits_of(first_normed[:, -1]), other.logits_of(second_normed[:, -1])
        for i, (prompt, row) in enumerate(group):
            found = _difference(one, prompt, logits[0][i], logits[1][i], k)
            if details:
                found.tokens = one.texts(row)
                found.distances = _distances(first_states, second_states, i, len(row))
            prompts_found.append(found)
    count = sum(map(len, rows))
    layers = [
        LayerDifference(layer, float(totals[layer, 0]) / count, float(totals[layer, 1]) / count)
        for layer in range(one.layers + 1 if same else 0)
    ]
    if details:
        for layer, total in zip(layers, sums / count, strict=True):
            layer.direction = total.float().numpy()
            unit = torch.nn.functional.normalize(total.float(), dim=0)
            layer.nearest = top_scores(one, cosines(one.head.weight, unit), k)
    prompts_found.sort(key=lambda found: -found.divergence)
    return Comparison(prompts=prompts_found, layers=layers)


def _layer_sums(
    first: dict[int, Tensor], second: dict[int, Tensor], rows: Sequence[Sequence[int]]
) -> Tensor:
    """Per layer, sums over tokens: cosine, and relative distance."""
    found: list[Tensor] = []
    for layer in sorted(first):
        a, b = first[layer], second[layer]
        left = torch.cat([a[i, -len(row) :] for i, row in enumerate(rows)]).double()
        right = torch.cat([b[i, -len(row) :] for i, row in enumerate(rows)]).double()
        cosine = torch.nn.functional.cosine_similarity(left, right, dim=-1)
        lengths = torch.linalg.vector_norm(right, dim=-1).clamp(min=1e-12)
        distance = torch.linalg.vector_norm(left - right, dim=-1) / lengths
        found.append(torch.stack([cosine.sum(), distance.sum()]).cpu())
    return torch.stack(found)


def _own(states: dict[int, Tensor], layer: int, row: int, count: int) -> Tensor:
    return states[layer][row, -count:].double()


def _difference_sums(
    first: dict[int, Tensor], second: dict[int, Tensor], rows: Sequence[Sequence[int]]
) -> Tensor:
    """Per layer, the sum over all tokens of the first model's activation minus the second's."""
    found: list[Tensor] = []
    for layer in sorted(first):
        parts = [
            (_own(first, layer, i, len(row)) - _own(second, layer, i, len(row))).sum(0)
            for i, row in enumerate(rows)
        ]
        found.append(torch.stack(parts).sum(0).cpu())
    return torch.stack(found)


def _distances(first: dict[int, Tensor], second: dict[int, Tensor], row: int, count: int) -> Array:
    """Layers by tokens: the relative length of the difference."""
    found: list[Tensor] = []
    for layer in sorted(first):
        a, b = _own(first, layer, row, count), _own(second, layer, row, count)
        lengths = torch.linalg.vector_norm(b, dim=-1).clamp(min=1e-12)
        found.append((torch.linalg.vector_norm(a - b, dim=-1) / lengths).float().cpu())
    return torch.stack(found).numpy()


def _difference(model: Model, prompt: str, a: Tensor, b: Tensor, k: int) -> PromptDifference:
    first, second = a.log_softmax(-1), b.log_softmax(-1)
    return PromptDifference(
        prompt=prompt,
        divergence=max(0.0, float((first.exp() * (first - second)).sum())),
        first=top_scores(model, first.exp(), k),
        second=top_scores(model, second.exp(), k),
    )
