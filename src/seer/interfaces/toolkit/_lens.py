"""The logit lens reads every layer as a next-token distribution; a tuned lens corrects it.

A tuned lens has one affine map per layer, fitted by ridge regression. The map predicts, from the
layer's residual stream, the difference between the last layer and the plain lens (the final norm).
There is no training loop, and equal texts give equal maps. Strong regularisation leaves the plain
lens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seer.errors import CallLimitError, ModelInputError
from seer.rpc import Handle

from ._batches import check_total, prepare_each, run_each, split
from ._limits import MAX_TOP, check_count, check_number, check_texts
from ._model import Model, Prompt
from ._reading import read_at, residual_states
from ._records import FittedLens, LensRow
from ._registry import find
from ._tokens import entropy, top_scores

_FIT_MEMORY = 16 << 30
_TEST_EVERY = 4
"""Every fourth text is held out."""


@dataclass(frozen=True)
class _Task:
    row: list[int]
    position: int


class Lens:
    """A fitted lens: per layer, a matrix of (width + 1, width); the last row is the offset."""

    def __init__(self, model: str, maps: list[Tensor]) -> None:
        self.model = model
        self.maps = maps


def logit_lens(
    prompt: list[Prompt],
    *,
    position: Sequence[int] = (-1,),
    k: int = 5,
    lens: Handle | None = None,
    model: str | None = None,
) -> list[list[LensRow]]:
    """Read every layer of the residual stream as a next-token distribution.

    The last row is the model's own distribution.

    Args:
        prompt: Text, or token ids.
        position: The token to read at; negative numbers count from the end.
        k: The number of tokens for each layer.
        lens: The `lens` of a `FittedLens`; by default, layers are read through the final norm.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_count("k", k, min(MAX_TOP, chosen.vocabulary))
    fitted = None if lens is None else _check_lens(chosen, lens)

    def prepare(one: Prompt, at: int) -> _Task:
        row = chosen.encode(one)
        return _Task(row, chosen.check_position(at, len(row)))

    def run(tasks: list[_Task]) -> list[list[LensRow]]:
        states = _states_at(chosen, tasks)
        found: list[list[LensRow]] = [[] for _ in tasks]
        for layer, state in enumerate(states):
            logprobs = _read_layer(chosen, state, layer, fitted).log_softmax(-1)
            for own, one in zip(found, logprobs, strict=True):
                own.append(LensRow(layer, top_scores(chosen, one.exp(), k), entropy(one)))
        return found

    return run_each(prepare_each(prepare, prompt, position), lambda task: len(task.row), run)


def fit_lens(texts: list[str], *, ridge: float = 0.01, model: str | None = None) -> FittedLens:
    """Fit a tuned lens: for each layer, the affine map that best predicts the last layer.

    Args:
        texts: At least four texts like those that the lens will read; every fourth is held out.
        ridge: The strength of the regularisation, relative to the size of the activations.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_texts("texts", texts, least=_TEST_EVERY)
    check_number("ridge", ridge, 1e-9, 1e6)
    size = chosen.layers * (chosen.width + 1) ** 2 * 16
    if size > _FIT_MEMORY:
        raise CallLimitError(
            f"fitting a lens to this model would take {size / 1e9:.0f} GB of memory; the limit is "
            f"{_FIT_MEMORY / 1e9:.0f} GB"
        )
    rows = [chosen.encode(text) for text in texts]
    check_total(rows)
    held_out = rows[::_TEST_EVERY]
    maps = _fit(chosen, [r for i, r in enumerate(rows) if i % _TEST_EVERY], ridge)
    lens = Lens(chosen.name, maps)
    return FittedLens(
        lens=Handle(lens),
        plain=_divergence(chosen, held_out, None),
        tuned=_divergence(chosen, held_out, lens),
    )


def _check_lens(model: Model, lens: Handle) -> Lens:
    if not isinstance(lens.value, Lens) or lens.value.model != model.name:
        raise ModelInputError("lens: give the `lens` of a FittedLens that fit_lens made here")
    return lens.value


def _states_at(model: Model, tasks: Sequence[_Task]) -> list[Tensor]:
    """Like `_lens_states`, but only at the token of each task: (tasks, width)."""
    rows = [task.row for task in tasks]
    if (found := read_at(model, rows, [task.position for task in tasks])) is not None:
        return [*found[0], found[1]]
    places = [task.position - len(task.row) for task in tasks]
    every = torch.arange(len(tasks))
    return [state[every, places] for state in _lens_states(model, rows)]


def _lens_states(model: Model, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """The residual stream at all layers but the last, then the output of the final norm."""
    states, normed = residual_states(model, rows, range(model.layers))
    return [*(states[layer] for layer in range(model.layers)), normed]


def _read_layer(model: Model, state: Tensor, layer: int, lens: Lens | None) -> Tensor:
    with torch.no_grad():
        if layer == model.layers:
            return model.logits_of(state)
        if lens is None:
            return model.unembed(state)
        normed = _normed(model, state)
        mapped = normed.float() + _with_one(state) @ lens.maps[layer]
        return model.logits_of(mapped.to(normed.dtype))


def _normed(model: Model, state: Tensor) -> Tensor:
    found: Tensor = model.final_norm(state.to(model.head.weight.dtype))
    return found


def _with_one(state: Tensor) -> Tensor:
    wide = state.float()
    return torch.cat([wide, wide.new_ones(*wide.shape[:-1], 1)], -1)


def _flat(states: Sequence[Tensor], rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Per layer, the activations of all tokens, without the padding."""
    return [torch.cat([s[i, -len(row) :] for i, row in enumerate(rows)]) for s in states]


def _fit(model: Model, rows: Sequence[list[int]], ridge: float) -> list[Tensor]:
    wide = model.width + 1
    squares = [torch.zeros(wide, wide, device=model.device) for _ in range(model.layers)]
    products = [torch.zeros(wide, model.width, device=model.device) for _ in range(model.layers)]
    for group in split(rows, len):
        *layers, last = _flat(_lens_states(model, group), group)
        for layer, state in enumerate(layers):
            inputs = _with_one(state)
            squares[layer] += inputs.T @ inputs
            missed = last.float() - _normed(model, state).float()
            products[layer] += inputs.T @ missed
    return [
        torch.linalg.solve(_ridged(square, ridge), product.double()).float()
        for square, product in zip(squares, products, strict=True)
    ]


def _ridged(square: Tensor, ridge: float) -> Tensor:
    wide = square.double()
    size = wide.diagonal().mean() * ridge
    return wide + size * torch.eye(len(wide), dtype=wide.dtype, device=wide.device)


def _divergence(model: Model, rows: Sequence[list[int]], lens: Lens | None) -> list[float]:
    """Per layer, the mean KL from the model's own distribution, over all tokens."""
    sums = [0.0] * (model.layers + 1)
    for group in split(rows, len, most=4096):
        states = _flat(_lens_states(model, group), group)
        own = model.logits_of(states[-1]).log_softmax(-1)
        for layer, state in enumerate(states):
            other = _read_layer(model, state, layer, lens).log_softmax(-1)
            sums[layer] += float((own.exp() * (own - other)).sum())
    total = sum(map(len, rows))
    return [one / total for one in sums]
