"""Sparse autoencoders on disk, in the layout that SAELens writes: `cfg.json` and safetensors.

The files are read here and not with SAELens itself, which brings a tracker, a dataset library and
another model library with it. Known are its architectures standard, topk, jumprelu and gated.
"""

# torch, transformers and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from seer.errors import ModelInputError

from ._inside import Site
from ._records import SaeInfo
from ._sites import parse_hook

FOLDER_VARIABLE = "SEER_SAES"
"""Names the folder of autoencoders on the machine; each has a folder of its own in it."""

_WEIGHTS = ("sae_weights.safetensors", "sae.safetensors")
_BLOCK = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)")
_TENSORS = {
    "standard": ("W_enc", "b_enc", "W_dec", "b_dec"),
    "topk": ("W_enc", "b_enc", "W_dec", "b_dec"),
    "jumprelu": ("W_enc", "b_enc", "W_dec", "b_dec", "threshold"),
    "gated": ("W_enc", "b_gate", "b_mag", "r_mag", "W_dec", "b_dec"),
}


class Sae:
    """One autoencoder. It computes in float32."""

    def __init__(self, name: str, folder: Path) -> None:
        config = _config(folder)
        self.architecture: str = config.get("architecture", "standard")
        if self.architecture == "standard" and "topk" in (config.get("activation_fn_str") or ""):
            self.architecture = "topk"
        if self.architecture not in _TENSORS:
            raise ModelInputError(
                f"sae={name!r}: architecture {self.architecture!r}; known are {', '.join(_TENSORS)}"
            )
        self.name = name
        self.site = _site(name, config)
        self.width = int(config["d_in"])
        self.features = int(config["d_sae"])
        self._subtract: bool = config.get("apply_b_dec_to_input", True)
        self._normalize: str = config.get("normalize_activations") or "none"
        if self._normalize not in ("none", "layer_norm", "constant_norm_rescale"):
            raise ModelInputError(
                f"sae={name!r}: normalize_activations={self._normalize!r} is not known; fold it "
                "into the weights when saving"
            )
        kwargs: Any = config.get("activation_fn_kwargs") or {}
        self._k = int(config.get("k") or kwargs.get("k") or 0)
        self._rescale: bool = config.get("rescale_acts_by_decoder_norm", False)
        self.prepend_bos: bool | None = config.get("prepend_bos")
        """Whether texts began with the first special token in training; None if not said."""
        loading: Any = config.get("model_from_pretrained_kwargs") or {}
        self.centered = bool(loading.get("center_writing_weights", False))
        """Whether it was trained on a model whose weights are changed so that what they write has
        a mean of zero, as TransformerLens does on request."""
        self._folder = folder
        self._tensors: dict[str, Tensor] = {}

    def info(self) -> SaeInfo:
        """What callers learn of it."""
        return SaeInfo(
            name=self.name,
            layer=self.site.layer,
            stream=self.site.stream,
            features=self.features,
            width=self.width,
            architecture=self.architecture,
        )

    def load(self, device: torch.device) -> "Sae":
        """Read the weights, unless they are there.

        Raises:
            ModelInputError: Tensors are missing, or of another size than the configuration says.
        """
        if not self._tensors:
            file = next((self._folder / n for n in _WEIGHTS if (self._folder / n).is_file()), None)
            if file is None:
                raise ModelInputError(f"sae={self.name!r}: there is none of {', '.join(_WEIGHTS)}")
            found = load_file(file, device=str(device))
            missing = [n for n in _TENSORS[self.architecture] if n not in found]
            if missing or found["W_dec"].shape != (self.features, self.width):
                raise ModelInputError(f"sae={self.name!r}: its weights do not fit its cfg.json")
            self._tensors = {n: t.float() for n, t in found.items()}
        return self

    def encode(self, activations: Tensor) -> Tensor:
        """Feature activations (..., features)."""
        t = self._tensors
        inputs, _, _ = self._normalized(activations.float())
        if self._subtract:
            inputs = inputs - t["b_dec"]
        if self.architecture == "gated":
            open_gates = inputs @ t["W_enc"] + t["b_gate"] > 0
            sizes = inputs @ (t["W_enc"] * t["r_mag"].exp()) + t["b_mag"]
            return open_gates * sizes.relu()
        before = inputs @ t["W_enc"] + t["b_enc"]
        if self.architecture == "jumprelu":
            return before.relu() * (before > t["threshold"])
        if self.architecture == "topk":
            if self._rescale:
                before = before * torch.linalg.vector_norm(t["W_dec"], dim=-1)
            values, places = before.topk(min(self._k, self.features), dim=-1)
            return torch.zeros_like(before).scatter(-1, places, values.relu())
        return before.relu()

    def decode(self, features: Tensor, activations: Tensor) -> Tensor:
        """What the features stand for, in the units of the activations that they came from."""
        t = self._tensors
        if self._rescale:
            features = features / torch.linalg.vector_norm(t["W_dec"], dim=-1)
        _, shift, scale = self._normalized(activations.float())
        return (features @ t["W_dec"] + t["b_dec"]) * scale + shift

    def direction(self, feature: int) -> Tensor:
        """What one feature writes.

        Raises:
            ModelInputError: There is no such feature.
        """
        if not 0 <= feature < self.features:
            raise ModelInputError(f"feature={feature!r}: there are 0 to {self.features - 1}")
        return self._tensors["W_dec"][feature]

    def _normalized(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Activations as the encoder wants them, and what undoes it: (x - shift) / scale."""
        shift, scale = x.new_zeros(()), x.new_ones(())
        if self._normalize == "constant_norm_rescale":
            scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / self.width**0.5
        elif self._normalize == "layer_norm":
            shift = x.mean(-1, keepdim=True)
            scale = (x - shift).std(-1, keepdim=True)
            return (x - shift) / (scale + 1e-5), shift, scale
        return (x - shift) / scale, shift, scale


_loaded: dict[str, Sae] = {}
_MOST_LOADED = 8


def all_saes() -> dict[str, Path]:
    """The autoencoders' folders by name: their path in the folder that is configured."""
    root = os.environ.get(FOLDER_VARIABLE)
    if not root:
        return {}
    found = sorted(path.parent for path in Path(root).rglob("cfg.json"))
    return {path.relative_to(root).as_posix(): path for path in found}


def find_sae(name: str, device: torch.device) -> Sae:
    """The autoencoder of this name, with its weights; a few stay loaded.

    Raises:
        ModelInputError: There is none.
    """
    folders = all_saes()
    if name not in folders:
        known = ", ".join(map(repr, folders)) or f"none (the variable {FOLDER_VARIABLE} names them)"
        raise ModelInputError(f"sae={name!r}: there are {known}")
    if name not in _loaded:
        while len(_loaded) >= _MOST_LOADED:
            _loaded.pop(next(iter(_loaded)))
        _loaded[name] = Sae(name, folders[name]).load(device)
    return _loaded[name]


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "cfg.json").read_text())
    metadata: dict[str, Any] = config.get("metadata") or {}
    return {**metadata, **config}


def _site(name: str, config: dict[str, Any]) -> Site:
    hook = str(config.get("hook_name") or config.get("hook_point") or "")
    if found := _BLOCK.fullmatch(hook):
        return Site(int(found[1]) + 1, "residual")
    try:
        return parse_hook(hook)
    except ModelInputError as error:
        raise ModelInputError(f"sae={name!r}: {error}") from None
