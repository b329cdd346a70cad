"""Reading and changing activations while a model runs, with nnsight.

The only module that knows nnsight. What can be had without it (the residual stream, attention) is
read without it, see `_reading` and `_attention`. Why this library, and what it costs, is in
`docs/decisions/whitebox-library.md`.
"""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seer.errors import MissingExtraError

from ._model import Model
from ._parts import Part
from ._records import Stream

_ORDER: dict[Stream, int] = {"heads": 0, "attention": 1, "neurons": 2, "mlp": 3, "residual": 4}


class Site(NamedTuple):
    """A place where activations can be read or changed. Layer 0 has a residual stream only."""

    layer: int
    stream: Stream


Change = Callable[[Tensor, int], Tensor]
"""Gives the new activations (rows, tokens, width) for the old ones; the second argument is the
step: 0 for the prompt, then one for each token that is written."""


def read(model: Model, batch: Mapping[str, Tensor], sites: Iterable[Site]) -> dict[Site, Tensor]:
    """Activations at some sites, (rows, tokens, width) each; what comes after the last is not run.

    Raises:
        MissingExtraError: nnsight is not installed.
    """
    ordered = sorted(set(sites), key=_time)
    sight = _sight(model)
    rows = len(batch["input_ids"])
    places = [_Place(model, sight, site, rows) for site in ordered]
    found: list[Tensor] = []
    with model.turn, torch.no_grad(), sight.trace(dict(batch)) as tracer:
        for place in places:
            found.append(_saved(place.get()))
        tracer.stop()
    return dict(zip(ordered, found, strict=True))


def run_changed(
    model: Model, batch: Mapping[str, Tensor], changes: Mapping[Site, Change], *, keep: int = 1
) -> Tensor:
    """The logits of the last `keep` tokens, in float32, with changed activations.

    Raises:
        MissingExtraError: nnsight is not installed.
    """
    sight = _sight(model)
    places = _places(model, sight, batch, changes)
    inputs = {**batch, "logits_to_keep": keep, "use_cache": False}
    with model.turn, torch.no_grad(), sight.trace(inputs):
        for place, change in places:
            place.put(change(place.get(), 0))
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
        options: The arguments of `generate`; what is written is seen by the processors in it.

    Raises:
        MissingExtraError: nnsight is not installed.
    """
    sight = _sight(model)
    places = _places(model, sight, batch, changes)
    with warnings.catch_warnings():
        # The number of steps is not known in advance; nnsight warns when the loop ends early.
        warnings.filterwarnings("ignore", message=".*was never reached", category=UserWarning)
        with model.turn, torch.no_grad(), sight.generate(dict(batch), **options) as tracer:
            for step in tracer.iter[:]:
                for place, change in places:
                    place.put(change(place.get(), step))


def _time(site: Site) -> tuple[int, int]:
    """The order in which a model reaches its sites; nnsight needs them in this order."""
    return site.layer, _ORDER[site.stream]


def _places(
    model: Model, sight: Any, batch: Mapping[str, Tensor], changes: Mapping[Site, Change]
) -> Sequence[tuple["_Place", Change]]:
    rows = len(batch["input_ids"])
    return [(_Place(model, sight, s, rows), changes[s]) for s in sorted(changes, key=_time)]


class _Place:
    """A site as nnsight sees it."""

    def __init__(self, model: Model, sight: Any, site: Site, rows: int) -> None:
        if site.layer == 0:
            part = Part(model.blocks[0], 1.0, at_input=True)
        else:
            part = model.site(site.layer, site.stream)
        self._input = part.at_input
        self._scale = part.scale
        self._rows = rows
        name = next(n for n, m in model.net.named_modules() if m is part.module)
        for step in name.split("."):
            sight = sight[int(step)] if step.isdigit() else getattr(sight, step)
        self._envoy: Any = sight

    def get(self) -> Tensor:
        """The activations, (rows, tokens, width), as they are added; within a trace."""
        value = self._value()
        # OPT flattens rows and tokens.
        shaped = value.reshape(self._rows, -1, value.shape[-1])
        # A copy, because Falcon adds to this tensor in place afterwards.
        return shaped.clone() if self._scale == 1 else shaped.float() * self._scale

    def put(self, value: Tensor) -> None:
        """Replace them; within a trace."""
        old = self._value()
        value = (value / self._scale).to(old.dtype).reshape(old.shape)
        if self._input:
            self._envoy.input = value
        elif isinstance(self._envoy.output, tuple):
            self._envoy.output = (value, *self._envoy.output[1:])
        else:
            self._envoy.output = value

    def _value(self) -> Tensor:
        found: Any = self._envoy.input if self._input else self._envoy.output
        return found[0] if isinstance(found, tuple) else found


def _saved(value: Tensor) -> Tensor:
    return importlib.import_module("nnsight").save(value)


def _sight(model: Model) -> Any:
    """The model as nnsight wraps it; made on first use, and then kept with it."""
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
