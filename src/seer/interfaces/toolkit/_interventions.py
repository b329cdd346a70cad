"""Reading and changing activations while a model runs, with nnsight.

Only this module uses nnsight. `_reading` and `_attention` read the residual stream and attention
patterns without it. `docs/decisions/whitebox-library.md` says why this library was chosen, and what
it costs.
"""

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seer.errors import MissingExtraError

from ._model import Model
from ._records import Stream

_ORDER: tuple[Stream, ...] = (
    *("embeddings", "position_embeddings", "queries", "keys", "values", "heads", "attention"),
    *("middle", "mlp_inputs", "preactivations", "neurons", "mlp", "residual"),
)


class Site(NamedTuple):
    """A place where activations can be read or changed. Layer 0 is what the first block reads."""

    layer: int
    stream: Stream


Change = Callable[[Tensor, int], Tensor]
"""Computes new activations (rows, tokens, width) from the old ones. The second argument is the
step: 0 for the prompt, then 1, 2 and so on for the tokens that are written."""


def read(model: Model, batch: Mapping[str, Tensor], sites: Iterable[Site]) -> dict[Site, Tensor]:
    """Activations at some sites, (rows, tokens, width) each. The run stops after the last site.

    Raises:
        MissingExtraError: nnsight is not installed.
    """
    sight = _sight(model)
    visits = _visits(model, sight, batch, set(sites))
    found: dict[Site, Tensor] = {}
    with model.turn, torch.no_grad(), sight.trace(dict(batch)) as tracer:
        for place, site in visits:
            if site is None:
                place.begin()
            else:
                found[site] = _saved(place.get())
        tracer.stop()
    return found


def run_changed(
    model: Model, batch: Mapping[str, Tensor], changes: Mapping[Site, Change]
) -> Tensor:
    """The logits of the last token, in float32, with changed activations.

    Raises:
        MissingExtraError: nnsight is not installed.
    """
    sight = _sight(model)
    visits = _visits(model, sight, batch, changes)
    inputs = {**batch, "logits_to_keep": 1, "use_cache": False}
    with model.turn, torch.no_grad(), sight.trace(inputs):
        for place, site in visits:
            _change(place, site, changes, 0)
        logits = _saved(sight.output.logits)
    return logits.float()


def generate_changed(
    model: Model, batch: Mapping[str, Tensor], changes: Mapping[Site, Change], options: Any
) -> None:
    """Run transformers' `generate` with activations changed at every step.

    Args:
        model: The model.
        batch: The prompts.
        changes: What to change, at each step.
        options: The arguments of `generate`. Its logits processors collect the written tokens.

    Raises:
        MissingExtraError: nnsight is not installed.
    """
    sight = _sight(model)
    visits = _visits(model, sight, batch, changes)
    with warnings.catch_warnings():
        # The number of steps is not known in advance; nnsight warns when the loop ends early.
        warnings.filterwarnings("ignore", message=".*was never reached", category=UserWarning)
        with model.turn, torch.no_grad(), sight.generate(dict(batch), **options) as tracer:
            for step in tracer.iter[:]:
                for place, site in visits:
                    _change(place, site, changes, step)


def _visits(
    model: Model, sight: Any, batch: Mapping[str, Tensor], sites: Iterable[Site]
) -> list[tuple["_Place", Site | None]]:
    """The places of sites in the order in which the model reaches them, as nnsight requires.

    The place of a `middle` stream appears twice. The first time, without its site, saves the input
    of the block, to which the second one adds the output of attention.
    """
    rows = len(batch["input_ids"])
    found: list[tuple[tuple[int, int], _Place, Site | None]] = []
    for site in sites:
        place = _Place(model, sight, site, rows)
        if site.stream == "middle":
            found.append(((site.layer, -1), place, None))
        found.append(((site.layer, _ORDER.index(site.stream)), place, site))
    return [(place, site) for _, place, site in sorted(found, key=lambda visit: visit[0])]


def _change(place: "_Place", site: Site | None, changes: Mapping[Site, Change], step: int) -> None:
    if site is None:
        place.begin()
    else:
        place.put(changes[site](place.get(), step))


class _Place:
    """A site in terms of nnsight."""

    def __init__(self, model: Model, sight: Any, site: Site, rows: int) -> None:
        part = model.site(site.layer, site.stream)
        self._input = part.at_input
        self._scale = part.scale
        self._rows = rows
        self._places = None if part.places is None else torch.tensor(part.places).to(model.device)
        self._envoy = _envoy(model, sight, part.module)
        self._onto: Any = None if part.onto is None else _envoy(model, sight, part.onto)
        self._before: Tensor | None = None

    def begin(self) -> None:
        """Save the tensor that the part is added to; call this within a trace."""
        self._before = self._onto.input.clone()

    def get(self) -> Tensor:
        """The activations, (rows, tokens, width), as they are added; call this within a trace."""
        value = self._value()
        # OPT flattens rows and tokens.
        value = value.reshape(self._rows, -1, value.shape[-1])
        if self._places is not None:
            return value[..., self._places]
        # A copy, because Falcon adds to this tensor in place afterwards.
        value = value.clone() if self._scale == 1 else value.float() * self._scale
        return value if self._before is None else self._before.reshape(value.shape) + value

    def put(self, value: Tensor) -> None:
        """Replace the activations; call this within a trace."""
        old = self._value()
        if self._before is not None:
            value = value - self._before.reshape(value.shape)
        value = (value / self._scale).to(old.dtype)
        if self._places is not None:
            part, value = value, old.clone()
            value[..., self._places] = part.reshape(*old.shape[:-1], -1)
        value = value.reshape(old.shape)
        if self._input:
            self._envoy.input = value
        elif isinstance(self._envoy.output, tuple):
            self._envoy.output = (value, *self._envoy.output[1:])
        else:
            self._envoy.output = value

    def _value(self) -> Tensor:
        found: Any = self._envoy.input if self._input else self._envoy.output
        value: Tensor = found[0] if isinstance(found, tuple) else found
        # Position embeddings may have one row for all rows.
        return value.expand(self._rows, -1, -1) if value.ndim == 3 and len(value) == 1 else value


def _envoy(model: Model, sight: Any, module: Any) -> Any:
    """The wrapper of nnsight for a module."""
    name = next(n for n, m in model.net.named_modules() if m is module)
    for step in name.split("."):
        sight = sight[int(step)] if step.isdigit() else getattr(sight, step)
    return sight


def _saved(value: Tensor) -> Tensor:
    return importlib.import_module("nnsight").save(value)


def _sight(model: Model) -> Any:
    """The model as nnsight wraps it. It is made on first use and kept in the model."""
    if model.sight is None:
        try:
            made: Any = importlib.import_module("nnsight.modeling.transformers")
        except ImportError as error:
            raise MissingExtraError(
                "reading or changing activations inside a model needs nnsight where the model "
                f"runs ({error}); add 'nnsight' to SandboxConfig.python_packages"
            ) from error
        model.sight = made.TransformersModel(model.net, tokenizer=model.tokenizer)
    return model.sight
