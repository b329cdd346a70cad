"""Sites: the places in a model where activations can be read or changed.

A site is a layer and a stream. Callers may write a hook name of TransformerLens instead of the
layer, such as `blocks.3.attn.hook_z`. TransformerLens counts blocks from 0, and layers here count
from 1: block 3 is layer 4. Some streams consist of units: the heads of attention, the neurons of
an MLP.
"""

import re

import torch
from torch import Tensor

from seer.errors import ModelInputError

from ._interventions import Site
from ._model import Model
from ._records import Layer, Stream

_HOOK = re.compile(r"blocks\.(0|[1-9][0-9]{0,5})\.([a-z_.]+)")
_HOOKS: dict[str, tuple[int, Stream]] = {
    "hook_resid_pre": (0, "residual"),
    "hook_resid_mid": (1, "middle"),
    "hook_resid_post": (1, "residual"),
    "hook_attn_out": (1, "attention"),
    "hook_mlp_out": (1, "mlp"),
    "attn.hook_q": (1, "queries"),
    "attn.hook_k": (1, "keys"),
    "attn.hook_v": (1, "values"),
    "attn.hook_z": (1, "heads"),
    "attn.hook_result": (1, "head_outputs"),
    "mlp.hook_in": (1, "mlp_inputs"),
    "mlp.hook_pre": (1, "preactivations"),
    "mlp.hook_post": (1, "neurons"),
}
"""Name of a hook in its block -> what to add to the block's number, and the stream."""
_FIRST: dict[str, Stream] = {
    "hook_embed": "embeddings",
    "hook_pos_embed": "position_embeddings",
}
"""Name of a hook before the blocks -> the stream at layer 0."""
_HEADS: tuple[Stream, ...] = ("queries", "keys", "values", "heads", "head_outputs")
_NEURONS: tuple[Stream, ...] = ("preactivations", "neurons")


def parse_hook(name: str) -> Site:
    """The site that TransformerLens calls by this name.

    Raises:
        ModelInputError: The name is unknown, or this site is not supported.
    """
    if name in _FIRST:
        return Site(0, _FIRST[name])
    found = _HOOK.fullmatch(name)
    if found is None or found[2] not in _HOOKS:
        known = ", ".join([*(f"blocks.N.{one}" for one in _HOOKS), *_FIRST])
        raise ModelInputError(f"{name!r} is not a supported hook name; supported are {known}")
    more, stream = _HOOKS[found[2]]
    return Site(int(found[1]) + more, stream)


def hook_name(site: Site) -> str:
    """What TransformerLens calls a site."""
    if site == (0, "residual"):
        return "blocks.0.hook_resid_pre"
    if site.layer == 0:
        return next(name for name, stream in _FIRST.items() if stream == site.stream)
    hook = next(n for n, (more, s) in _HOOKS.items() if more == 1 and s == site.stream)
    return f"blocks.{site.layer - 1}.{hook}"


def layers_of(model: Model, stream: Stream) -> range:
    """The layers that have a stream."""
    if stream in _FIRST.values():
        return range(1)
    return range(0 if stream == "residual" else 1, model.layers + 1)


def site_of(model: Model, layer: Layer, stream: Stream) -> Site:
    """The site for a layer and a stream that a caller gave.

    Raises:
        ModelInputError: The model has no such site, or a hook name contradicts `stream`.
    """
    if isinstance(layer, str):
        site = parse_hook(layer)
        if stream not in ("residual", site.stream):
            raise ModelInputError(f"{layer!r} is {site.stream!r}, but stream={stream!r} was given")
        found = _HOOK.fullmatch(layer)
        if found is not None and int(found[1]) >= model.layers:
            raise ModelInputError(f"{layer!r}: the model has blocks 0 to {model.layers - 1}")
    else:
        there = layers_of(model, stream)
        if stream in _FIRST.values() and layer != 0:
            raise ModelInputError(f"layer={layer!r}: stream={stream!r} is at layer 0 only")
        site = Site(model.check_layer(layer, least=there.start), stream)
    if site.stream != "residual":
        # Raises if the architecture does not have this part.
        model.site(site.layer, site.stream)
    return site


def unit_count(model: Model, site: Site) -> int:
    """How many heads or neurons a site has; 0 if it has no units."""
    if site.stream in _HEADS:
        own = model.units[site.layer - 1]
        return own.key_count if site.stream in ("keys", "values") else own.head_count
    return model.units[site.layer - 1].neuron_count if site.stream in _NEURONS else 0


def check_unit(model: Model, site: Site, unit: int | None) -> None:
    """Check that a site has a unit; None stands for all of them.

    Raises:
        ModelInputError: The site has no units, or not this one.
    """
    if unit is None:
        return
    count = unit_count(model, site)
    if not count:
        raise ModelInputError(
            f"unit={unit!r}: stream={site.stream!r} has no units; these have: "
            + ", ".join((*_HEADS, *_NEURONS))
        )
    if not 0 <= unit < count:
        what = "neurons" if site.stream in _NEURONS else "heads"
        if site.stream in ("keys", "values"):
            what = f"{site.stream} of heads"
        raise ModelInputError(f"unit={unit!r}: layer {site.layer} has {what} 0 to {count - 1}")


def width_of(model: Model, site: Site) -> int:
    """How many numbers one token has at a site that can be changed."""
    if site.stream in _NEURONS:
        return unit_count(model, site)
    if site.stream in _HEADS and site.stream != "head_outputs":
        return unit_count(model, site) * model.units[site.layer - 1].head_width
    return model.width


def numbers_of(model: Model, site: Site, unit: int | None) -> int:
    """How many numbers one token has at a site, or in one unit of it."""
    if site.stream == "head_outputs":
        return model.width * (unit_count(model, site) if unit is None else 1)
    if unit is None:
        return width_of(model, site)
    return width_of(model, site) // unit_count(model, site)


def places_of(model: Model, site: Site, unit: int | None) -> slice:
    """Which numbers of a token belong to a unit; all of them without one."""
    if unit is None:
        return slice(0, width_of(model, site))
    size = numbers_of(model, site, unit)
    return slice(unit * size, (unit + 1) * size)


def flattens_heads(site: Site) -> bool:
    """Whether a token's numbers at a site are the heads' numbers, one head after the other."""
    return site.stream in _HEADS


def source_of(site: Site) -> Site:
    """The site to read so that `split_units` can compute this one."""
    return Site(site.layer, "heads") if site.stream == "head_outputs" else site


def split_units(model: Model, site: Site, values: Tensor, unit: int | None) -> Tensor:
    """Split what was read at `source_of(site)`, (..., numbers), into units.

    Returns:
        For streams of heads (..., heads, head width), for head_outputs (..., heads, width),
        otherwise (..., numbers). One unit has one dimension less.
    """
    if site.stream in _NEURONS:
        return values if unit is None else values[..., unit]
    if site.stream not in _HEADS:
        return values
    heads = values.unflatten(-1, (unit_count(model, site), -1))
    if site.stream != "head_outputs":
        return heads if unit is None else heads[..., unit, :]
    chosen = range(unit_count(model, site)) if unit is None else [unit]
    outputs = torch.stack([_written(model, site, values, head) for head in chosen], -2)
    return outputs if unit is None else outputs[..., 0, :]


def _written(model: Model, site: Site, values: Tensor, head: int) -> Tensor:
    """What one head adds to the output of attention, before any norm that follows.

    This applies the output matrix to the values of this head only, so adapters and quantised
    weights count as they do in the model. The bias of the matrix belongs to no head and is
    subtracted.
    """
    matrix = model.site(site.layer, "heads").module
    alone = torch.zeros_like(values)
    place = places_of(model, Site(site.layer, "heads"), head)
    alone[..., place] = values[..., place]
    with model.turn, torch.no_grad():
        given = torch.cat([alone.reshape(-1, alone.shape[-1]), alone.new_zeros(1, alone.shape[-1])])
        found: Tensor = matrix(given.to(model.net.dtype)).float()
    return (found[:-1] - found[-1]).reshape(*values.shape[:-1], -1)
