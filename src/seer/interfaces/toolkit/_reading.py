"""Reads activations of many prompts in the cheapest way.

Hooks on the blocks read the residual stream; `_interventions` reads everything else. If launching
kernels takes longer than running them (few tokens), the run is captured as a CUDA graph.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ._batches import split
from ._graphs import Graphs, engine_use, on_device
from ._interventions import Site, read
from ._model import Model
from ._parts import probe, replace, watch
from ._sites import numbers_of, source_of, split_units
from ._slots import launch_bound, passing

_log = logging.getLogger(__name__)
_MOST = 8192
"""The most tokens, including padding, of a captured run that is mostly not padding."""
_PADDING = 1.25
_KEPT = 16
"""The number of batch sizes that stay captured."""
_MOST_MISSED = 0.05
"""The largest relative error of a captured run against a plain one; rounding is far below."""


def residual_states(
    model: Model, rows: Sequence[Sequence[int]], layers: Iterable[int] | None = None
) -> tuple[dict[int, Tensor], Tensor]:
    """The residual stream (rows, longest, width) by layer, and the output of the final norm.

    Rows are padded at the left. The values come from the blocks themselves: transformers returns
    the last layer only after the final norm, and its other hidden states differ by architecture.
    """
    wanted = set(range(model.layers + 1) if layers is None else layers)
    inputs = {0: model.blocks[0]} if 0 in wanted else {}
    outputs = {layer: model.blocks[layer - 1] for layer in wanted if layer > 0}
    with model.turn, watch(inputs, outputs) as found, torch.no_grad():
        output = model.decoder(**model.pad_rows(rows), use_cache=False)
    return found, output.last_hidden_state


def read_batch(model: Model, rows: Sequence[Sequence[int]], sites: set[Site]) -> dict[Site, Tensor]:
    """Activations (rows, longest, width) at some sites; rows are padded at the left."""
    if any(site.stream != "residual" for site in sites):
        return read(model, model.pad_rows(rows), sites)
    states, _ = residual_states(model, rows, {site.layer for site in sites})
    return {site: states[site.layer] for site in sites}


def read_rows(
    model: Model,
    rows: Sequence[Sequence[int]],
    site: Site,
    *,
    position: int | None,
    unit: int | None = None,
) -> Tensor:
    """One vector per prompt, in float32: at one position, or the mean over all tokens.

    Args:
        model: The model.
        rows: The prompts.
        site: The site to read.
        position: The token to read at; None for the mean over all tokens.
        unit: The head or neuron of the site; None for all of them, one after the other.

    Raises:
        ModelInputError: A prompt has no token at the position.
    """
    places = [None if position is None else model.check_position(position, len(r)) for r in rows]
    found = torch.empty(len(rows), numbers_of(model, site, unit), device=model.device)
    source = source_of(site)
    for group in split(list(enumerate(rows)), lambda pair: len(pair[1])):
        read_now = read_batch(model, [row for _, row in group], {source})[source]
        for k, (i, row) in enumerate(group):
            own = read_now[k, -len(row) :].float()
            place = places[i]
            value = own.mean(0) if place is None else own[place]
            # Selecting a unit is linear, so the mean may come first.
            found[i] = split_units(model, site, value, unit).reshape(-1)
    return found


def read_each(model: Model, rows: Sequence[Sequence[int]], sites: Sequence[Site]) -> list[Tensor]:
    """The activations (tokens, width) of each prompt at its site, in float32."""
    with model.turn:
        residual = all(site.stream == "residual" for site in sites)
        reader = _reader(model, rows) if residual else None
        if reader is not None:
            layers = [site.layer for site in sites]
            reader.run(rows, layers, [0] * len(rows), depth=max(layers))
            # Always copy, because the next run overwrites `chosen`.
            wide = reader.chosen.to(torch.float32, copy=True)
            return [wide[i, : len(row)] for i, row in enumerate(rows)]
    found = {site: states.float() for site, states in read_batch(model, rows, set(sites)).items()}
    return [
        found[site][i, -len(row) :] for i, (site, row) in enumerate(zip(sites, rows, strict=True))
    ]


def read_at(
    model: Model, rows: Sequence[Sequence[int]], positions: Sequence[int]
) -> tuple[list[Tensor], Tensor] | None:
    """At one token of each prompt: the residual stream before each block, and the head's input.

    Args:
        model: The model.
        rows: The prompts.
        positions: The token of each prompt.

    Returns:
        (rows, width) for each layer but the last, then the final norm's output. None if a captured
        run is not possible or would not be faster.
    """
    with model.turn:
        reader = _reader(model, rows)
        if reader is None:
            return None
        reader.run(rows, [0] * len(rows), positions)
        count = len(rows)
        return list(reader.states[:, :count].clone()), reader.normed[:count].clone()


def read_logits(model: Model, rows: Sequence[Sequence[int]]) -> Tensor | None:
    """The logits after each prompt, in float32; None if a captured run would not be faster."""
    with model.turn:
        reader = _reader(model, rows)
        if reader is None:
            return None
        reader.run(rows, [0] * len(rows), [len(row) - 1 for row in rows])
        return reader.logits[: len(rows)].clone()


class _Enough(Exception):
    """Ends a forward pass early, when the rest is not needed."""


class _Reader:
    """A captured run of one size. Its results stay in its own tensors until the next run.

    Rows are padded at the right, where no token of a prompt attends to the padding.

    Attributes:
        chosen: Rows by tokens by width, at the requested layer of each row.
        states: Layers by rows by width, at the requested token of each row.
        normed: Rows by width, the head's input at that token.
        logits: Rows by vocabulary, the head's output at that token, in float32.
    """

    def __init__(self, model: Model, graphs: Graphs, rows: int, length: int) -> None:
        self._model = model
        self._graphs = graphs
        device, dtype = model.device, model.net.dtype
        self._ids = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self._layer = torch.zeros(rows, 1, 1, dtype=torch.int64, device=device)
        self._at = torch.zeros(rows, dtype=torch.int64, device=device)
        self._rows = torch.arange(rows, device=device)
        self.chosen = torch.zeros(rows, length, model.width, dtype=dtype, device=device)
        self.states = torch.zeros(model.layers, rows, model.width, dtype=dtype, device=device)
        self.normed = torch.zeros(rows, model.width, dtype=dtype, device=device)
        self.logits = torch.zeros(rows, model.vocabulary, device=device)

    def run(
        self,
        rows: Sequence[Sequence[int]],
        layers: Sequence[int],
        positions: Sequence[int],
        *,
        depth: int | None = None,
    ) -> None:
        """Run prompts.

        Args:
            rows: The prompts.
            layers: The layer of each prompt that goes to `chosen`.
            positions: The token of each prompt that goes to `states`, `normed` and `logits`.
            depth: The last layer that is needed; the run ends soon after it.
        """
        count, length = self._ids.shape
        device = self._ids.device
        ids = [[*row, *[row[0]] * (length - len(row))] for row in rows]
        self._ids[: len(rows)] = on_device(ids, torch.int64, device)
        self._layer[: len(rows), 0, 0] = on_device(layers, torch.int64, device)
        self._at[: len(rows)] = on_device(positions, torch.int64, device)
        with torch.no_grad():
            last = None if depth is None else self._quarter(depth)
            self._graphs.run(("read", count, length, last), partial(self._forward, last))

    def _quarter(self, depth: int) -> int:
        """The layer to stop after: one of four, so that not every depth needs its own graph."""
        layers = self._model.layers
        return next(n for n in (-(-layers * i // 4) for i in range(1, 5)) if n >= depth)

    def _forward(self, last: int | None) -> None:
        blocks = self._model.blocks

        def see(layer: int, value: Tensor) -> Tensor:
            shaped = value.reshape(self.chosen.shape)
            self.chosen.copy_(torch.where(self._layer == layer, shaped, self.chosen))
            if layer < len(self.states):
                self.states[layer].copy_(shaped[self._rows, self._at])
            if layer == last:
                raise _Enough
            return value

        def head(value: Tensor) -> Tensor:
            self.normed.copy_(value[self._rows, self._at])
            return self.normed[:, None]

        seen: dict[Any, Callable[[Tensor], Tensor]] = {
            blocks[n - 1]: partial(see, n) for n in range(1, self._model.layers + 1)
        }
        inputs = {blocks[0]: partial(see, 0), self._model.head: head}
        with replace(inputs=inputs, outputs=seen), suppress(_Enough):
            logits = self._model.net(
                input_ids=self._ids, past_key_values=passing(), use_cache=True
            ).logits
            self.logits.copy_(logits[:, -1])


class _Readers:
    """The captured runs of one model, by size."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._graphs = Graphs(model.device, model.name)
        self._held: dict[tuple[int, int], _Reader] = {}
        self.small = launch_bound(model)
        self.refused = self._check()
        if self.refused:
            _log.warning("%s: forward passes are not captured: %s", model.name, self.refused)

    def get(self, rows: int, length: int) -> _Reader:
        if (rows, length) not in self._held:
            if len(self._held) >= _KEPT:
                self._held.clear()
                self._graphs.forget()
            self._held[rows, length] = _Reader(self._model, self._graphs, rows, length)
        return self._held[rows, length]

    def _check(self) -> str:
        """Why runs cannot be captured; empty if a captured run gives a plain run's results."""
        model = self._model
        if getattr(model.net, "is_quantized", False):
            return "the weights are quantised"
        if len({weight.device for weight in model.net.parameters()}) > 1:
            return "the model is spread over several devices"
        ids = probe(model.net)[0].tolist()
        rows, layers, positions = [ids, ids[:5]], [model.layers, model.layers // 2], [-1, 2]
        reader = _Reader(model, Graphs(torch.device("cpu"), "probe"), 2, len(ids))
        try:
            reader.run(rows, layers, [len(ids) - 1, 2])
            states, normed = residual_states(model, rows)
        except Exception as error:  # an architecture's own code may raise anything
            return f"{type(error).__name__}: {error}"
        pairs = [
            *(
                (reader.chosen[i, : len(r)], states[layers[i]][i, -len(r) :])
                for i, r in enumerate(rows)
            ),
            *((reader.states[n, 1], states[n][1, 2 - 5]) for n in range(model.layers)),
            *(
                (reader.normed[i], normed[i, p if p < 0 else p - 5])
                for i, p in enumerate(positions)
            ),
        ]
        for found, expected in pairs:
            missed = (found.float() - expected.float()).norm() / expected.float().norm()
            if not float(missed) < _MOST_MISSED:
                return f"activations differ from a plain run's by {float(missed):.2g}"
        return ""


def _reader(model: Model, rows: Sequence[Sequence[int]]) -> _Reader | None:
    """A captured run for these prompts; None if it is not possible or would not be faster."""
    if engine_use() == "off" or not model.plain:
        return None
    longest = max(map(len, rows))
    count = 1 << (len(rows) - 1).bit_length()
    length = 1 << max(4, (longest - 1).bit_length())
    size = count * length
    if length > model.context:
        return None
    if model.readers is None:
        model.readers = _Readers(model)
    little = size <= _MOST and size <= _PADDING * len(rows) * longest
    if model.readers.refused or not (size <= model.readers.small or little):
        return None
    return model.readers.get(count, length)
