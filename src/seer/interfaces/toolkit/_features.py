"""The features that sparse autoencoders and transcoders find in a prompt."""

from typing import cast

import torch
from torch import Tensor

from seer.errors import ModelInputError
from seer.rpc import Handle

from ._batches import prepare_each, run_each
from ._interventions import Site
from ._limits import MAX_TOP, check_count
from ._model import Model, Prompt
from ._reading import read_batch
from ._records import Array, FeatureScore, SaeList, SaeReading
from ._registry import find
from ._sae import Sae, all_saes, find_sae, open_sae
from ._sites import width_of


def saes() -> SaeList:
    """List the sparse autoencoders and transcoders on this machine, and what they read.

    The result also names those that cannot be used, each with the reason.
    """
    found = SaeList([], {})
    for name, folder in all_saes().items():
        try:
            found.usable.append(open_sae(name, folder).info())
        except ModelInputError as error:
            found.unsupported[name] = str(error).removeprefix(f"sae={name!r}: ")
    return found


def sae_features(
    prompt: list[Prompt], sae: str | Handle, *, k: int = 10, model: str | None = None
) -> list[SaeReading]:
    """Find the features of an autoencoder or transcoder that are active at each token of a prompt.

    Args:
        prompt: Text, or token ids.
        sae: The name of an autoencoder (`saes()` lists them), or the `sae` of a `TrainedSae`.
        k: How many of the strongest features to give for each token.
        model: Which model; the first by default. The autoencoder must have been trained on it.
    """
    chosen = find(model)
    encoder = _find(sae, chosen)
    check_count("k", k, min(MAX_TOP, encoder.features))
    _check_fit(encoder, chosen)

    def run(rows: list[list[int]]) -> list[SaeReading]:
        sites = (encoder.site, encoder.written)
        read = read_batch(chosen, rows, set(sites))
        given, target = (_as_centered(encoder, chosen, site, read[site]) for site in sites)
        return [
            _reading(chosen, encoder, given[i, -len(r) :], target[i, -len(r) :], r, k)
            for i, r in enumerate(rows)
        ]

    def prepare(one: Prompt) -> list[int]:
        return _as_trained(chosen, encoder, chosen.encode(one))

    return run_each(prepare_each(prepare, prompt), len, run)


def sae_direction(sae: str | Handle, feature: int, *, model: str | None = None) -> Array:
    """Get the direction that a feature writes (its decoder vector), for steering or lookups.

    Args:
        sae: The name of an autoencoder, or the `sae` of a `TrainedSae`.
        feature: Which feature, from 0.
        model: The model that the autoencoder belongs to; the first by default.
    """
    return cast("Array", _find(sae, find(model)).direction(feature))


def _check_fit(sae: Sae, model: Model) -> None:
    """Check that a model has the sites of an autoencoder.

    Raises:
        ModelInputError: The model lacks a site, or a site has another width.
    """
    for site, width in ((sae.site, sae.width), (sae.written, sae.written_width)):
        if site.layer > model.layers:
            raise ModelInputError(
                f"sae={sae.name!r} reads layer {site.layer}; {model.name!r} has "
                f"{model.layers} layers"
            )
        part = model.site(site.layer, site.stream)
        if width != width_of(model, site):
            raise ModelInputError(
                f"sae={sae.name!r} reads {width} numbers at layer {site.layer}; "
                f"{model.name!r} has {width_of(model, site)} there"
            )
    if sae.own_output and (part.scale != 1 or type(part.module).__name__.endswith("Norm")):
        raise ModelInputError(
            f"sae={sae.name!r} was trained on the output of a module; {model.name!r} applies a "
            "norm or a factor after this module"
        )


def _as_centered(sae: Sae, model: Model, site: Site, states: Tensor) -> Tensor:
    """The activations, minus their mean if the autoencoder was trained on centred activations.

    Models with layer norms remove the mean of the residual stream anyway, so centring is valid.
    """
    wide = site.stream in ("residual", "middle", "attention", "mlp", "embeddings")
    if sae.centered and wide and isinstance(model.final_norm, torch.nn.LayerNorm):
        return states - states.mean(-1, keepdim=True)
    return states


def _find(sae: str | Handle, model: Model) -> Sae:
    if isinstance(sae, str):
        return find_sae(sae, model.device)
    if not isinstance(sae.value, Sae):
        raise ModelInputError("sae: give a name, or the `sae` of a TrainedSae that train_sae made")
    return sae.value


def _as_trained(model: Model, sae: Sae, row: list[int]) -> list[int]:
    """A prompt's tokens with or without the first special token, as the autoencoder was trained."""
    begin = model.tokenizer.bos_token_id
    if begin is None:
        begin = model.tokenizer.eos_token_id  # as TransformerLens does
    if begin is None or sae.prepend_bos is None or (row[0] == begin) == sae.prepend_bos:
        return row
    if sae.prepend_bos:
        return [begin, *row]
    return row[1:] or row


def _reading(
    model: Model, sae: Sae, given: Tensor, target: Tensor, row: list[int], k: int
) -> SaeReading:
    found = sae.encode(given)
    wide = target.float()
    missed = wide - sae.decode(found, given)
    values, places = found.topk(k, dim=-1)
    features = [
        [FeatureScore(f, v) for f, v in zip(fs, vs, strict=True) if v > 0]
        for fs, vs in zip(places.tolist(), values.tolist(), strict=True)
    ]
    return SaeReading(
        tokens=model.texts(row),
        features=features,
        active=(found > 0).sum(-1).tolist(),
        unexplained=float(torch.square(missed).sum() / torch.square(wide).sum()),
    )
