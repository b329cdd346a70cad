"""Steering: turns the changes that callers ask for into changes of a batch's activations.

Every row of a batch has its own list of changes, and all rows run together: at each site, the first
change of every row is applied at once, then the second change of every row, and so on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from seer.errors import ModelInputError

from ._batches import check_total
from ._graphs import on_device
from ._interventions import Change, Site
from ._limits import MAX_NULLS, MAX_STEERING, check_count, check_number, check_texts
from ._model import Model, Prompt
from ._reading import read_rows
from ._records import Direction, Layer, Steering, Stream
from ._registry import find
from ._sites import check_unit, numbers_of, places_of, site_of, width_of
from ._slots import Bend


@dataclass(frozen=True)
class SteeringStep:
    """One checked change of one row: at a site, along a direction, at one position or all."""

    site: Site
    mode: str
    vector: Tensor | None
    position: int | None


def contrast(
    positive: list[Prompt],
    negative: list[Prompt],
    layer: Layer,
    *,
    position: int = -1,
    stream: Stream = "residual",
    unit: int | None = None,
    nulls: int = 0,
    seed: int = 0,
    model: str | None = None,
) -> Direction:
    """Find the direction between two kinds of prompts: the difference of their mean activations.

    Null directions are computed in the same way after a random division of the prompts. Steer with
    them too: if they have the same effect, it is not an effect of the direction.

    Args:
        positive: Prompts of the first kind, at least two.
        negative: Prompts of the second kind, at least two. If there are as many as positive ones,
            each one is paired with the positive prompt at the same index.
        layer: The layer to read (0: the embeddings), or a hook name of TransformerLens.
        position: Which token of each prompt to read.
        stream: What to read there, as for `activations`.
        unit: Which head or neuron, from 0; None for all.
        nulls: How many null directions to compute. For pairs, each pair is swapped or not at
            random; otherwise all prompts are divided at random into two kinds of the same sizes.
        seed: The seed of the random divisions for the null directions.
        model: Which model; the first by default.
    """
    chosen = find(model)
    check_texts("positive", positive, least=2)
    check_texts("negative", negative, least=2)
    check_count("nulls", nulls, MAX_NULLS, least=0)
    check_number("seed", seed, 0, 2**32 - 1)
    site = site_of(chosen, layer, stream)
    check_unit(chosen, site, unit)
    rows = [chosen.encode(prompt) for prompt in (*positive, *negative)]
    check_total(rows)
    found = read_rows(chosen, rows, site, position=position, unit=unit)
    ups, downs = found[: len(positive)], found[len(positive) :]
    vector = ups.mean(0) - downs.mean(0)
    return Direction(
        vector=vector.cpu().numpy(),
        norm=float(vector.norm()),
        accuracy=_left_out(ups, downs),
        nulls=_null_directions(ups, downs, nulls, seed).cpu().numpy() if nulls else None,
    )


def _null_directions(ups: Tensor, downs: Tensor, count: int, seed: int) -> Tensor:
    """Differences of means after random divisions of the prompts: (count, numbers)."""
    random = np.random.default_rng(seed)
    together = torch.cat([ups, downs])
    found: list[Tensor] = []
    for _ in range(count):
        if len(ups) == len(downs):
            signs = torch.tensor(random.choice([-1.0, 1.0], len(ups)), dtype=ups.dtype)
            found.append((signs.to(ups.device)[:, None] * (ups - downs)).mean(0))
        else:
            order = random.permutation(len(together))
            found.append(together[order[: len(ups)]].mean(0) - together[order[len(ups) :]].mean(0))
    return torch.stack(found)


def _left_out(ups: Tensor, downs: Tensor) -> float:
    """The share of held-out pairs, one prompt of each kind, that are in the right order.

    Each pair is ordered along a direction computed without both of its prompts. Matched prompts
    (two versions of one text) have similar activations, so leaving out only one of them would turn
    the direction away from it.
    """
    ups, downs = ups.double(), downs.double()
    up_means = (ups.sum(0) - ups) / (len(ups) - 1)
    down_means = (downs.sum(0) - downs) / (len(downs) - 1)
    if len(ups) == len(downs):
        return float((((ups - downs) * (up_means - down_means)).sum(-1) > 0).double().mean())
    own = (ups * up_means).sum(-1)[:, None] + (downs * down_means).sum(-1)[None, :]
    across = ups @ down_means.T + up_means @ downs.T
    return float((own > across).double().mean())


def check_steering(model: Model, steering: Sequence[Steering], count: int) -> list[SteeringStep]:
    """Check a call's changes; a change of all layers becomes one change per layer.

    Args:
        model: The model.
        steering: What the caller asks for.
        count: The number of tokens of the prompt.

    Raises:
        ModelInputError: A change does not fit the model.
    """
    if steering:
        check_count("steering", len(steering), MAX_STEERING)
    return [step for one in steering for step in _steps(model, one, count)]


def _steps(model: Model, one: Steering, count: int) -> list[SteeringStep]:
    position = None if one.position is None else model.check_position(one.position, count)
    layers = range(1, model.layers + 1) if one.layer is None else [one.layer]
    sites = [site_of(model, layer, one.stream) for layer in layers]
    return [SteeringStep(site, one.mode, _vector(model, one, site), position) for site in sites]


def _vector(model: Model, one: Steering, site: Site) -> Tensor | None:
    """The vector that `_Round` applies at a site, with one entry for each of the site's numbers.

    To ablate a unit, the vector is 1 at the unit's numbers. To ablate everything, it is None.
    """
    if site.stream == "head_outputs":
        raise ModelInputError(
            'head_outputs can only be read; to change a head, use stream="heads" '
            "(blocks.N.attn.hook_z)"
        )
    check_unit(model, site, one.unit)
    if one.unit is None and one.mode == "ablate":
        return None
    whole = torch.zeros(width_of(model, site), device=model.device)
    places = places_of(model, site, one.unit)
    if one.mode == "ablate":
        whole[places] = 1
        return whole
    given = one.direction
    if given is None and numbers_of(model, site, one.unit) == 1:
        given = np.ones(1, np.float32)
    if given is None:
        raise ModelInputError(f"steering with mode={one.mode!r} needs a direction")
    vector = model.check_vector("steering's direction", given, numbers_of(model, site, one.unit))
    if one.mode == "add":
        whole[places] = vector * one.scale
        return whole
    norm = float(vector.norm())
    if norm == 0:
        raise ModelInputError(
            "a direction of zeros cannot be projected out; give another direction"
        )
    whole[places] = vector / norm
    return whole


def bends_of(model: Model, steps: Sequence[SteeringStep]) -> dict[int, Bend] | None:
    """A row's changes at each token that it writes, by layer; None if slots cannot make them.

    Several changes of the residual stream combine into one `Bend`, unless they project out two
    directions at one place. Changes at one token of the prompt are left out, because the prefill
    makes them.
    """
    found: dict[int, Bend] = {}
    if not steps:
        return found
    none = torch.zeros(model.width, device=model.device)
    for step in steps:
        if step.site.stream != "residual":
            return None
        if step.position is not None:
            continue
        old = found.get(step.site.layer, Bend(1.0, none, none, only=True))
        if step.mode == "ablate":
            new = Bend(0.0, none, none)
        elif step.vector is None:
            raise AssertionError("a direction was checked")
        elif step.mode == "add":
            new = Bend(old.keep, old.along, old.add + step.vector, only=old.only)
        else:
            if bool(old.along.any()) and not torch.equal(old.along, step.vector):
                return None
            along = step.vector
            new = Bend(old.keep, along, old.add - (old.add * along).sum() * along)
        found[step.site.layer] = new
    return found


def prompt_changes(
    steps: Sequence[Sequence[SteeringStep]], longest: int
) -> dict[int, Callable[[Tensor], Tensor]]:
    """The changes of the residual stream, by layer, for prompts that are padded at the right."""

    def at_prompt(change: Change, value: Tensor) -> Tensor:
        return change(value, 0)

    # Padding at the right does not shift positions, so treat all rows as equally long.
    changes = changes_of(steps, [longest] * len(steps))
    return {site.layer: partial(at_prompt, change) for site, change in changes.items()}


def changes_of(
    steps: Sequence[Sequence[SteeringStep]], lengths: Sequence[int]
) -> Mapping[Site, Change]:
    """The changes for a batch padded at the left, one list of steps per row.

    Args:
        steps: The changes of each row.
        lengths: The number of tokens of each row's prompt.
    """
    width = max(lengths)
    sites = {step.site for row in steps for step in row}
    found: dict[Site, Change] = {}
    for site in sites:
        here = [[step for step in row if step.site == site] for row in steps]
        rounds = [
            [row[i] if i < len(row) else None for row in here] for i in range(max(map(len, here)))
        ]
        starts = [width - length for length in lengths]
        layered = [
            _Round([s if s is not None and s.mode == mode else None for s in one], starts, mode)
            for one in rounds
            for mode in ("add", "project_out", "ablate")
            if any(s is not None and s.mode == mode for s in one)
        ]
        found[site] = _Change(layered)
    return found


class _Change:
    def __init__(self, rounds: Sequence["_Round"]) -> None:
        self._rounds = rounds

    def __call__(self, value: Tensor, step: int) -> Tensor:
        new = value.float()
        for one in self._rounds:
            new = one.apply(new, step)
        return new.to(value.dtype)


class _Round:
    """One change per row, all of the same mode. Rows without a change stay as they are."""

    def __init__(
        self, steps: Sequence[SteeringStep | None], starts: Sequence[int], mode: str
    ) -> None:
        self._steps = steps
        self._starts = starts
        self._mode = mode
        self._late = any(s is not None and s.position is None for s in steps)
        self._vectors: Tensor | None = None
        self._masks: dict[bool, Tensor] = {}

    def apply(self, value: Tensor, step: int) -> Tensor:
        if step > 0 and not self._late:
            return value
        where = self._where(value, prompt=step == 0)
        if self._vectors is None:
            # Rows without a step are masked. A step without a vector changes all numbers.
            none = value.new_ones(value.shape[-1])
            vectors = [none if s is None or s.vector is None else s.vector for s in self._steps]
            self._vectors = torch.stack(vectors).to(value.device)[:, None, :]
        along = self._vectors
        if self._mode == "ablate":
            return value * (1 - where * along)
        if self._mode == "add":
            return value + where * along
        return value - where * (value * along).sum(-1, keepdim=True) * along

    def _where(self, value: Tensor, *, prompt: bool) -> Tensor:
        """1 where this change applies, over rows and tokens."""
        if prompt in self._masks:
            return self._masks[prompt]
        mask = torch.zeros(len(self._steps), value.shape[1], 1)
        for row, step in enumerate(self._steps):
            if step is None:
                continue
            if step.position is None:
                mask[row] = 1
            elif prompt:
                mask[row, self._starts[row] + step.position] = 1
        self._masks[prompt] = on_device(mask, torch.float32, value.device)
        return self._masks[prompt]
