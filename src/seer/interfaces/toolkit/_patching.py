"""Activation patching: which activations of a clean run restore its answer in a corrupted run."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from seer.errors import ModelInputError

from ._interventions import Change, Site, read, run_changed
from ._limits import BATCH_TOKENS, MAX_PATCHES, check_count
from ._model import Model, Prompt
from ._records import Layer, Patching, Stream
from ._registry import find
from ._sites import check_unit, layers_of, places_of, site_of
from ._tokens import last_logits


class _Patch(NamedTuple):
    site: Site
    position: int
    unit: int | None


def patch(
    clean: Prompt,
    corrupted: Prompt,
    answer: str,
    *,
    wrong: str | None = None,
    stream: Stream = "residual",
    layers: list[Layer] | None = None,
    positions: list[int] | None = None,
    units: list[int] | None = None,
    model: str | None = None,
) -> Patching:
    """Run a corrupted prompt with single activations of a clean one, and score the answer.

    Each patch copies one activation (a layer at a token) of the clean run into the corrupted run.
    A patch that restores the clean answer shows where the information passes.

    Args:
        clean: The prompt that leads to the answer.
        corrupted: A prompt with the same number of tokens that leads to another answer.
        answer: The answer; its first token is scored.
        wrong: Another answer; scores are then differences of the two log-probabilities.
        stream: What to patch, as for `activations` (not `head_outputs`).
        layers: The layers to patch, or hook names of TransformerLens; all layers by default.
        positions: The tokens to patch at; all tokens by default.
        units: The heads or neurons to patch one by one; by default all of them together.
        model: Which model; the first by default.
    """
    chosen = find(model)
    rows = [chosen.encode(clean), chosen.encode(corrupted)]
    count = len(rows[0])
    if len(rows[1]) != count:
        raise ModelInputError(
            f"the clean prompt has {count} tokens, the corrupted one {len(rows[1])}; patching "
            "needs equal numbers (tokenize() shows the tokens)"
        )
    asked = layers_of(chosen, stream) if layers is None else layers
    at = [site_of(chosen, layer, stream) for layer in asked]
    if any(site.stream == "head_outputs" for site in at):
        raise ModelInputError(
            'head_outputs can only be read; to patch a head, use stream="heads" '
            "(blocks.N.attn.hook_z)"
        )
    each: list[int | None] = [None] if units is None else [*units]
    for site, unit in product(at, each):
        check_unit(chosen, site, unit)
    where = [
        chosen.check_position(p, count) for p in (range(count) if positions is None else positions)
    ]
    check_count("layers x positions x units", len(at) * len(where) * len(each), MAX_PATCHES)
    ids = [chosen.token_id(text) for text in ([answer] if wrong is None else [answer, wrong])]
    source = read(chosen, chosen.pad_rows(rows[:1]), at)
    plain = _scores(last_logits(chosen, chosen.pad_rows(rows)), ids)
    patches = [_Patch(site, place, unit) for site, place, unit in product(at, where, each)]
    found = _patched(chosen, rows[1], patches, source, ids)
    shape = (len(at), len(where)) if units is None else (len(at), len(where), len(each))
    return Patching(
        clean=float(plain[0]),
        corrupted=float(plain[1]),
        patched=found.reshape(shape).cpu().numpy(),
        layers=[site.layer for site in at],
        positions=where,
        tokens=chosen.texts([rows[1][place] for place in where]),
        units=units,
    )


def _patched(
    model: Model,
    row: list[int],
    patches: Sequence[_Patch],
    source: dict[Site, Tensor],
    ids: Sequence[int],
) -> Tensor:
    """The score of each patch; many patches run as the rows of one batch."""
    size = max(1, BATCH_TOKENS // len(row))
    found: list[Tensor] = []
    for begin in range(0, len(patches), size):
        part = patches[begin : begin + size]
        changes: dict[Site, Change] = {}
        for site in {one.site for one in part}:
            own = [(i, one) for i, one in enumerate(part) if one.site == site]
            changes[site] = _change(model, own, source[site][0])
        logits = run_changed(model, model.pad_rows([row] * len(part)), changes)
        found.append(_scores(logits[:, -1], ids))
    return torch.cat(found)


def _change(model: Model, patches: Sequence[tuple[int, _Patch]], source: Tensor) -> Change:
    def change(value: Tensor, _step: int) -> Tensor:
        new = value.clone()
        clean = source.to(value.dtype)
        for row, one in patches:
            places = places_of(model, one.site, one.unit)
            new[row, one.position, places] = clean[one.position, places]
        return new

    return change


def _scores(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Log-probability of the answer, minus that of the wrong answer if there is one."""
    logprobs = logits.float().log_softmax(-1)
    return logprobs[:, ids[0]] - (logprobs[:, ids[1]] if len(ids) > 1 else 0)
