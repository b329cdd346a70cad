"""Training a small sparse autoencoder on a model's activations."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seer.errors import CallLimitError, ModelInputError
from seer.rpc import Handle

from ._batches import check_total, split
from ._interventions import Site
from ._limits import (
    MAX_FEATURES,
    MAX_TRAIN_STEPS,
    MAX_TRAIN_WORK,
    check_bytes,
    check_count,
    check_number,
    check_texts,
)
from ._model import Model, Prompt
from ._reading import read_batch
from ._records import Layer, Stream, TrainedSae
from ._registry import find
from ._sae import Sae, top_features
from ._sites import flattens_heads, hook_name, site_of, width_of

_TEST_EVERY = 4
"""Every fourth text is held out."""
_IDLE = 100
"""After this many idle steps, a feature counts as dead and is trained on the residual."""
_IDLE_WEIGHT = 1 / 32


def train_sae(
    texts: list[Prompt],
    layer: Layer,
    *,
    stream: Stream = "residual",
    features: int | None = None,
    k: int = 16,
    steps: int = 1000,
    batch: int = 256,
    learning_rate: float = 1e-3,
    seed: int = 0,
    weights: bool = False,
    model: str | None = None,
) -> TrainedSae:
    """Train a sparse autoencoder (TopK) on the activations of texts, and test it on held-out texts.

    The autoencoder is small: it is for a first look, or a layer with no published autoencoder.

    Args:
        texts: At least eight texts like those that it will read; every fourth is held out.
        layer: The layer to read (0: the embeddings), or a hook name of TransformerLens.
        stream: What to read there, as for `activations` (not `head_outputs`).
        features: The number of features; by default four for each number of a token.
        k: The number of features that are active at each token.
        steps: The number of training steps.
        batch: The number of tokens in each step.
        learning_rate: The learning rate of Adam.
        seed: The seed of the initial weights and of the order of the tokens.
        weights: Also return the weights. Save them as `sae_weights.safetensors`, beside `config` as
            `cfg.json`: Seer and SAELens can load that folder.
        model: Which model; the first by default.
    """
    chosen = find(model)
    site = site_of(chosen, layer, stream)
    if site.stream == "head_outputs":
        raise ModelInputError('head_outputs has several vectors per token; use stream="heads"')
    width = width_of(chosen, site)
    check_texts("texts", texts, least=2 * _TEST_EVERY)
    count = check_count("features", 4 * width if features is None else features, MAX_FEATURES)
    check_count("k", k, count)
    check_count("steps", steps, MAX_TRAIN_STEPS)
    check_count("batch", batch, 8192)
    check_number("learning_rate", learning_rate, 1e-7, 1)
    check_number("seed", seed, 0, 2**32 - 1)
    _check_work(chosen, steps * batch * count * width)
    check_bytes("the autoencoder", 2 * count * width * 4)
    rows = [chosen.encode(text) for text in texts]
    check_total(rows)
    training = _read(chosen, [r for i, r in enumerate(rows) if i % _TEST_EVERY], site)
    held_out = _read(chosen, rows[::_TEST_EVERY], site)
    tensors = _train(training, count, k, steps=steps, batch=batch, rate=learning_rate, seed=seed)
    config = _config(chosen, rows, site, width, count, k)
    sae = Sae("trained", config, tensors=tensors)
    found = sae.encode(held_out)
    missed = held_out - sae.decode(found, held_out)
    used = (found > 0).any(0) | (sae.encode(training) > 0).any(0)
    return TrainedSae(
        sae=Handle(sae),
        layer=site.layer,
        stream=site.stream,
        features=count,
        unexplained=float(torch.square(missed).sum() / torch.square(held_out).sum()),
        dead=float((~used).float().mean()),
        trained_on=len(training),
        tested_on=len(held_out),
        config=json.dumps(config, indent=2),
        weights={name: t.cpu().numpy() for name, t in tensors.items()} if weights else None,
    )


def _check_work(model: Model, work: int) -> None:
    most = MAX_TRAIN_WORK * (1 if model.device.type == "cpu" else 100)
    if work > most:
        raise CallLimitError(
            f"steps x batch x features x width is {work / most:.1f} times what one call may do on "
            f"this machine ({model.device.type}); lower one of them"
        )


def _read(model: Model, rows: Sequence[list[int]], site: Site) -> Tensor:
    """The activations of all tokens, (tokens, numbers), in float32."""
    found: list[Tensor] = []
    for group in split(rows, len):
        states = read_batch(model, group, {site})[site]
        found += [states[i, -len(row) :].float() for i, row in enumerate(group)]
    return torch.cat(found)


def _train(
    values: Tensor, features: int, k: int, *, steps: int, batch: int, rate: float, seed: int
) -> dict[str, Tensor]:
    """The weights of an autoencoder, for activations in their original scale."""
    width = values.shape[1]
    # Scale the mean length to the root of the width, as the learning rate expects.
    scale = float(width**0.5 / torch.linalg.vector_norm(values, dim=-1).mean().clamp(min=1e-12))
    inputs = values * scale
    random = np.random.default_rng(seed)
    first = torch.tensor(random.normal(size=(features, width)), dtype=torch.float32)
    first = torch.nn.functional.normalize(first, dim=-1).to(values.device)
    tensors = {
        "W_enc": first.T.clone(),
        "b_enc": torch.zeros(features, device=values.device),
        "W_dec": first.clone(),
        "b_dec": inputs.mean(0),
    }
    for tensor in tensors.values():
        tensor.requires_grad_(True)
    optimizer: Any = torch.optim.Adam(tensors.values(), lr=rate)
    variance = inputs.var(0).sum().clamp(min=1e-12)
    idle = torch.zeros(features, device=values.device)
    for _ in range(steps):
        chosen = torch.tensor(random.integers(0, len(inputs), batch), device=values.device)
        with torch.enable_grad():
            loss, active = _loss(tensors, inputs[chosen], k, idle >= _IDLE)
            optimizer.zero_grad()
            (loss / variance).backward()
        optimizer.step()
        idle = torch.where(active, 0.0, idle + 1)
        with torch.no_grad():
            decoder = tensors["W_dec"]
            decoder.copy_(torch.nn.functional.normalize(decoder, dim=-1))
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    plain["b_enc"] = plain["b_enc"] / scale
    plain["b_dec"] = plain["b_dec"] / scale
    return {name: tensor.contiguous() for name, tensor in plain.items()}


def _loss(
    tensors: dict[str, Tensor], inputs: Tensor, k: int, dead: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss (with a term for dead features on the residual), and which features were active."""
    before = (inputs - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"]
    found = top_features(before, k)
    missed = inputs - found @ tensors["W_dec"] - tensors["b_dec"]
    loss = torch.square(missed).sum(-1).mean()
    count = int(dead.sum())
    if count:
        idle = top_features(before.masked_fill(~dead, -torch.inf), min(2 * k, count))
        rest = missed.detach() - idle @ tensors["W_dec"]
        loss = loss + _IDLE_WEIGHT * torch.square(rest).sum(-1).mean()
    return loss, (found > 0).any(0)


def _config(
    model: Model, rows: Sequence[list[int]], site: Site, width: int, features: int, k: int
) -> dict[str, Any]:
    """The content of `cfg.json` in the format of SAELens. It does not name the model."""
    begin = model.tokenizer.bos_token_id
    begun = {row[0] == begin for row in rows}
    return {
        "architecture": "topk",
        "d_in": width,
        "d_sae": features,
        "k": k,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "hook_z" if flattens_heads(site) else "none",
        "rescale_acts_by_decoder_norm": False,
        "metadata": {
            # Tells SAELens that the settings have the form of its version 6.
            "sae_lens_version": "6.0.0",
            "hook_name": hook_name(site),
            **({"prepend_bos": begun.pop()} if len(begun) == 1 and begin is not None else {}),
        },
    }
