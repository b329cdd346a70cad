"""Activation patching: what of a clean run brings its answer into a corrupted one."""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from seer.errors import ModelInputError

from ._inside import Change, Site, read, run_changed
from ._limits import BATCH_TOKENS, MAX_PATCHES, check_count
from ._model import Model, Prompt
from ._records import Patching, Stream
from ._registry import find
from ._tokens import last_logits


def patch(
    clean: Prompt,
    corrupted: Prompt,
    answer: str,
    *,
    wrong: str | None = None,
    stream: Stream = "residual",
    layers: list[int] | None = None,
    positions: list[int] | None = None,
    model: str | None = None,
) -> Patching:
    """Run a corrupted prompt with single activations of a clean one, and see what it answers.

    Each patch puts one activation (a layer at a token) of the clean run into the corrupted one.
    Where that brings the clean answer back, the information passes.

    Args:
        clean: The prompt that leads to the answer.
        corrupted: One of as many tokens that leads elsewhere.
        answer: The answer (its first token counts).
        wrong: Another answer; results are then differences of log-probabilities.
        stream: What to patch.
        layers: After which blocks; all without it.
        positions: At which tokens; all without it.
        model: Which model.
    """
    chosen = find(model)
    rows = [chosen.encode(clean), chosen.encode(corrupted)]
    count = len(rows[0])
    if len(rows[1]) != count:
        raise ModelInputError(
            f"the clean prompt has {count} tokens, the corrupted one {len(rows[1])}; patching "
            "needs as many in both (tokenize() shows them)"
        )
    least = 0 if stream == "residual" else 1
    all_layers = range(least, chosen.layers + 1)
    at = [chosen.check_layer(n, least=least) for n in (all_layers if layers is None else layers)]
    where = [
        chosen.check_position(p, count) for p in (range(count) if positions is None else positions)
    ]
    check_count("layers x positions", len(at) * len(where), MAX_PATCHES)
    ids = [chosen.token_id(text) for text in ([answer] if wrong is None else [answer, wrong])]
    source = read(chosen, chosen.pad_rows(rows[:1]), [Site(layer, stream) for layer in at])
    plain = _scores(last_logits(chosen, chosen.pad_rows(rows)), ids)
    patches = [(Site(layer, stream), place) for layer, place in product(at, where)]
    found = _patched(chosen, rows[1], patches, source, ids)
    return Patching(
        clean=float(plain[0]),
        corrupted=float(plain[1]),
        patched=found.reshape(len(at), len(where)).cpu().numpy(),
        layers=at,
        positions=where,
        tokens=chosen.texts([rows[1][place] for place in where]),
    )


def _patched(
    model: Model,
    row: list[int],
    patches: Sequence[tuple[Site, int]],
    source: dict[Site, Tensor],
    ids: Sequence[int],
) -> Tensor:
    """The score of each patch; many patches run as the rows of one batch."""
    size = max(1, BATCH_TOKENS // len(row))
    found: list[Tensor] = []
    for begin in range(0, len(patches), size):
        part = patches[begin : begin + size]
        changes: dict[Site, Change] = {}
        for site in {site for site, _ in part}:
            own = [(i, place) for i, (other, place) in enumerate(part) if other == site]
            changes[site] = _change(own, source[site][0])
        logits = run_changed(model, model.pad_rows([row] * len(part)), changes)
        found.append(_scores(logits[:, -1], ids))
    return torch.cat(found)


def _change(places: Sequence[tuple[int, int]], source: Tensor) -> Change:
    rows = [row for row, _ in places]
    tokens = [token for _, token in places]

    def change(value: Tensor, _step: int) -> Tensor:
        new = value.clone()
        new[rows, tokens] = source[tokens].to(value.dtype)
        return new

    return change


def _scores(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Log-probability of the answer, less that of the wrong one where there is one."""
    logprobs = logits.float().log_softmax(-1)
    return logprobs[:, ids[0]] - (logprobs[:, ids[1]] if len(ids) > 1 else 0)
