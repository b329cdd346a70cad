"""Sparse autoencoders on disk, as SAELens, Gemma Scope and EleutherAI's sparsify save them.

SAELens writes `cfg.json` and safetensors; its architectures standard, topk, jumprelu and gated are
supported. A transcoder is an autoencoder that reads one site and writes another: it predicts the
output of an MLP from its input. This module reads the files without SAELens, which would also
install an experiment tracker, a dataset library and another model library.
"""

import json
import os
import re
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from seer.errors import ModelInputError

from ._interventions import Site
from ._records import SaeInfo
from ._sites import parse_hook

FOLDER_VARIABLE = "SEER_SAES"
"""The variable that names the folder of autoencoders on the machine. Each has its own subfolder."""

_WEIGHTS = ("sae_weights.safetensors", "sae.safetensors", "params.npz")
_TRANSCODERS = {
    "transcoder": "standard",
    "skip_transcoder": "standard",
    "jumprelu_transcoder": "jumprelu",
    "jumprelu_skip_transcoder": "jumprelu",
}
"""SAELens's name of a transcoder's architecture -> how it encodes."""
_BLOCK = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)")
_TENSORS = {
    "standard": ("W_enc", "b_enc", "W_dec", "b_dec"),
    "topk": ("W_enc", "b_enc", "W_dec", "b_dec"),
    "jumprelu": ("W_enc", "b_enc", "W_dec", "b_dec", "threshold"),
    "gated": ("W_enc", "b_gate", "b_mag", "r_mag", "W_dec", "b_dec"),
}


_FOLDED = {
    "fold_ln": ("mlp_inputs",),
    "fold_value_biases": ("values", "heads"),
    "refactor_factored_attn_matrices": ("queries", "keys", "values", "heads"),
}
"""Options with which TransformerLens changes weights, and the streams that this changes."""


class Sae:
    """One autoencoder. It computes in float32.

    Args:
        name: The name that callers use.
        config: The content of its `cfg.json`.
        folder: The folder of its weights, unless `tensors` has them.
        tensors: Its weights.

    Raises:
        ModelInputError: The autoencoder cannot be used here.
    """

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        folder: Path | None = None,
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        try:
            self._read(name, {**(config.get("metadata") or {}), **config})
        except ModelInputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelInputError(
                f"sae={name!r}: its cfg.json does not describe an autoencoder: {error!r}"
            ) from error
        self._folder = folder
        self._tensors: dict[str, Tensor] = tensors or {}

    def _read(self, name: str, config: dict[str, Any]) -> None:
        self.architecture: str = config.get("architecture", "standard")
        if self.architecture == "standard" and "topk" in (config.get("activation_fn_str") or ""):
            self.architecture = "topk"
        if self.architecture not in {**_TENSORS, **_TRANSCODERS}:
            raise ModelInputError(
                f"sae={name!r}: the architecture {self.architecture!r} is not supported; "
                f"known are {', '.join((*_TENSORS, *_TRANSCODERS))}"
            )
        self._kind = _TRANSCODERS.get(self.architecture, self.architecture)
        self.name = name
        self.site = _site(name, config)
        self.written = self.site
        """The site that a transcoder predicts, or that an autoencoder reads."""
        self.transcodes = self.architecture in _TRANSCODERS or bool(config.get("transcode"))
        if self.transcodes:
            block = f"blocks.{self.site.layer - 1}.hook_mlp_out"
            self.written = _site(name, {"hook_name": config.get("hook_name_out") or block})
        self.own_output = bool(config.get("own_output"))
        """Whether it was trained on the output of the module itself, before a norm that follows."""
        self.width = int(config["d_in"])
        self.written_width = int(config.get("d_out") or config["d_in"])
        self.features = int(config["d_sae"])
        self._subtract: bool = config.get("apply_b_dec_to_input", True) and not self.transcodes
        self._normalize: str = config.get("normalize_activations") or "none"
        if self._normalize not in ("none", "layer_norm", "constant_norm_rescale"):
            raise ModelInputError(
                f"sae={name!r}: normalize_activations={self._normalize!r} is not supported; fold "
                "it into the weights when saving"
            )
        if self.transcodes and self._normalize != "none":
            raise ModelInputError(
                f"sae={name!r}: normalize_activations={self._normalize!r} is not supported for "
                "transcoders"
            )
        kwargs: Any = config.get("activation_fn_kwargs") or {}
        self._k = int(config.get("k") or kwargs.get("k") or 0)
        self._rescale: bool = config.get("rescale_acts_by_decoder_norm", False)
        self.prepend_bos: bool | None = config.get("prepend_bos")
        """Whether texts began with the first special token in training; None if unknown."""
        loading: Any = config.get("model_from_pretrained_kwargs") or {}
        for option, streams in _FOLDED.items():
            if loading.get(option) and self.site.stream in streams:
                raise ModelInputError(
                    f"sae={name!r}: it was trained on a model loaded with {option}=True, which "
                    f"changes {self.site.stream}; use one that was trained without it"
                )
        self.centered = bool(loading.get("center_writing_weights", False))
        """Whether it was trained on a model whose weights were changed so that their outputs have a
        mean of zero, an option of TransformerLens."""

    def info(self) -> SaeInfo:
        """The description for callers."""
        return SaeInfo(
            name=self.name,
            layer=self.site.layer,
            stream=self.site.stream,
            features=self.features,
            width=self.width,
            architecture=self.architecture,
            writes=self.written.stream,
        )

    def load(self, device: torch.device) -> "Sae":
        """Read the weights, unless they are loaded already.

        Raises:
            ModelInputError: The file cannot be read, or its tensors do not fit the configuration.
        """
        if not self._tensors and self._folder is not None:
            file = next((self._folder / n for n in _WEIGHTS if (self._folder / n).is_file()), None)
            if file is None:
                raise ModelInputError(
                    f"sae={self.name!r}: its folder has none of {', '.join(_WEIGHTS)}"
                )
            try:
                found = _named(load_any(file, device))
            except (OSError, ValueError, SafetensorError, BadZipFile) as error:
                raise ModelInputError(
                    f"sae={self.name!r}: {file.name} cannot be read, perhaps because it is "
                    f"incomplete: {error}"
                ) from error
            needed = [*_TENSORS[self._kind], *(["W_skip"] if "skip" in self.architecture else [])]
            sizes = {"W_enc": (self.width, self.features)}
            sizes |= {"W_dec": (self.features, self.written_width)}
            if any(n not in found for n in needed) or any(
                found[n].shape != size for n, size in sizes.items()
            ):
                raise ModelInputError(f"sae={self.name!r}: its weights do not fit its cfg.json")
            if not all(bool(torch.isfinite(tensor).all()) for tensor in found.values()):
                raise ModelInputError(f"sae={self.name!r}: it has weights that are not finite")
            self._tensors = {n: t.float() for n, t in found.items()}
        return self

    def encode(self, activations: Tensor) -> Tensor:
        """Feature activations (..., features)."""
        t = self._tensors
        inputs, _, _ = self._normalized(activations.float())
        if self._subtract:
            inputs = inputs - t["b_dec"]
        if self._kind == "gated":
            open_gates = inputs @ t["W_enc"] + t["b_gate"] > 0
            sizes = inputs @ (t["W_enc"] * t["r_mag"].exp()) + t["b_mag"]
            return open_gates * sizes.relu()
        before = inputs @ t["W_enc"] + t["b_enc"]
        if self._kind == "jumprelu":
            return before.relu() * (before > t["threshold"])
        if self._kind == "topk":
            if self._rescale:
                before = before * torch.linalg.vector_norm(t["W_dec"], dim=-1)
            return top_features(before, min(self._k, self.features))
        return before.relu()

    def decode(self, features: Tensor, activations: Tensor) -> Tensor:
        """The activations that the features reconstruct, in the original units.

        For a transcoder, these are the predicted activations of another site.
        """
        t = self._tensors
        if self._rescale:
            features = features / torch.linalg.vector_norm(t["W_dec"], dim=-1)
        _, shift, scale = self._normalized(activations.float())
        found = (features @ t["W_dec"] + t["b_dec"]) * scale + shift
        return found + activations.float() @ t["W_skip"].T if "W_skip" in t else found

    def direction(self, feature: int) -> Tensor:
        """The decoder vector of one feature.

        Raises:
            ModelInputError: There is no such feature.
        """
        if not 0 <= feature < self.features:
            raise ModelInputError(f"feature={feature!r}: there are 0 to {self.features - 1}")
        return self._tensors["W_dec"][feature]

    def _normalized(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalized activations, (x - shift) / scale, with the shift and the scale."""
        shift, scale = x.new_zeros(()), x.new_ones(())
        if self._normalize == "constant_norm_rescale":
            scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / self.width**0.5
        elif self._normalize == "layer_norm":
            shift = x.mean(-1, keepdim=True)
            scale = (x - shift).std(-1, keepdim=True)
            return (x - shift) / (scale + 1e-5), shift, scale
        return (x - shift) / scale, shift, scale


def top_features(before: Tensor, k: int) -> Tensor:
    """Keep the k largest values of each row if they are positive, and set the others to 0."""
    values, places = before.topk(k, dim=-1)
    return torch.zeros_like(before).scatter(-1, places, values.relu())


_Stamp = tuple[tuple[str, int, int], ...]
"""Names, times and sizes of files."""
_loaded: dict[Path, tuple[_Stamp, Sae]] = {}
"""Folder -> the stamp of its files, and the autoencoder loaded from them."""
_MOST_LOADED = 8
_collections: dict[str, Path] = {}
"""Folders of autoencoders that are configured like models, by their names."""


def add_collection(name: str, folder: Path) -> bool:
    """Register a configured folder of autoencoders. Returns False if it is a model or has none.

    A repository of autoencoders on the Hugging Face Hub is configured like a model.
    """
    if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
        return False
    if not _folders_in(folder):
        return False
    _collections[name] = folder
    return True


def _folders_in(root: Path) -> list[Path]:
    """Folders with all files of an autoencoder. A folder that is being written lacks some."""
    found = {file.parent for file in root.rglob("cfg.json")}
    found = {one for one in found if any((one / name).is_file() for name in _WEIGHTS)}
    return sorted(found | {file.parent for file in root.rglob("params.npz")})


def all_saes() -> dict[str, Path]:
    """The autoencoders' folders by name: a path, after the collection's name if there is one."""
    found: dict[str, Path] = {}
    if root := os.environ.get(FOLDER_VARIABLE):
        found |= {path.relative_to(root).as_posix(): path for path in _folders_in(Path(root))}
    for name, folder in _collections.items():
        for path in _folders_in(folder):
            inner = path.relative_to(folder).as_posix()
            found[name if inner == "." else f"{name}/{inner}"] = path
    return found


def open_sae(name: str, folder: Path) -> Sae:
    """Open an autoencoder on disk, without its weights.

    Raises:
        ModelInputError: The autoencoder cannot be used here.
    """
    try:
        config = _config(name, folder)
    except ModelInputError:
        raise
    except (EOFError, KeyError, OSError, TypeError, ValueError, BadZipFile) as error:
        raise ModelInputError(f"sae={name!r}: its settings cannot be read: {error!r}") from error
    return Sae(name, config, folder)


def find_sae(name: str, device: torch.device) -> Sae:
    """The autoencoder with this name, with its weights. A few stay loaded.

    Raises:
        ModelInputError: There is no such autoencoder, or it cannot be used here.
    """
    folders = all_saes()
    if name not in folders:
        known = (
            ", ".join(map(repr, folders))
            or f"none (set {FOLDER_VARIABLE} to a folder that has some)"
        )
        raise ModelInputError(f"sae={name!r}: there are {known}")
    folder = folders[name]
    stamp = _stamp(folder)
    kept = _loaded.get(folder)
    if kept is None or kept[0] != stamp:
        while len(_loaded) >= _MOST_LOADED:
            _loaded.pop(next(iter(_loaded)))
        kept = _loaded[folder] = stamp, open_sae(name, folder).load(device)
    return kept[1]


def _stamp(folder: Path) -> _Stamp:
    """A value that changes if the autoencoder is saved again."""
    found = [(name, folder / name) for name in ("cfg.json", *_WEIGHTS)]
    there = [(name, path.stat()) for name, path in found if path.is_file()]
    return tuple((name, state.st_mtime_ns, state.st_size) for name, state in there)


def _config(name: str, folder: Path) -> dict[str, Any]:
    if not (folder / "cfg.json").is_file():
        return _gemma_scope(name, folder)
    try:
        config: Any = json.loads((folder / "cfg.json").read_text())
    except ValueError as error:
        raise ModelInputError(f"sae={name!r}: its cfg.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelInputError(f"sae={name!r}: its cfg.json does not describe an autoencoder")
    if "expansion_factor" in config and "d_sae" not in config:
        return _sparsify(name, folder, config)
    return config


def _gemma_scope(name: str, folder: Path) -> dict[str, Any]:
    """The settings of an autoencoder of Gemma Scope, whose folders have no configuration.

    Raises:
        ModelInputError: The folder's name does not say which layer it reads.
    """
    whole = f"{name}/{folder.as_posix()}"
    if "-transcoders" in whole:
        raise ModelInputError(
            f"sae={name!r}: transcoders of Gemma Scope are not supported; they read the MLP's "
            "input before the weights of the norm"
        )
    layer = re.search(r"layer_(\d+)(?:/|$)", name)
    if layer is None:
        raise ModelInputError(f"sae={name!r}: params.npz must be in a folder layer_N")
    kinds = {"-mlp": "hook_mlp_out", "-att": "attn.hook_z"}
    hook = next((h for mark, h in kinds.items() if mark in whole), "hook_resid_post")
    # Opened here, because numpy does not close a file that is not an archive.
    with (folder / "params.npz").open("rb") as file, np.load(file) as arrays:
        features, width = arrays["W_dec"].shape
    return {
        "architecture": "jumprelu",
        "d_in": width,
        "d_sae": features,
        "apply_b_dec_to_input": False,
        "prepend_bos": True,
        "hook_name": f"blocks.{layer[1]}.{hook}",
    }


def _sparsify(name: str, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The settings of an autoencoder that EleutherAI's `sparsify` saved in a folder layers.N.

    Raises:
        ModelInputError: The settings have an unsupported value.
    """
    for key, plain in (("activation", "topk"), ("embed_skip", False), ("gram_lookup", False)):
        if config.get(key, plain) != plain:
            raise ModelInputError(f"sae={name!r}: {key}={config[key]!r} is not supported")
    place = re.fullmatch(
        r"(?:.*\.)?(?:layers|h)\.(\d+)(?:\.(mlp|self_attn|attn|attention))?", folder.name
    )
    part = {"mlp": "hook_mlp_out", None: "hook_resid_post"}
    hook = "" if place is None else f"blocks.{place[1]}.{part.get(place[2], 'hook_attn_out')}"
    if config.get("transcode"):
        if place is None or place[2] != "mlp":
            raise ModelInputError(f"sae={name!r}: only transcoders of an MLP are supported")
        hook = f"blocks.{place[1]}.mlp.hook_in"
    width = int(config["d_in"])
    features = int(config.get("num_latents") or width * int(config["expansion_factor"]))
    found = {"architecture": "topk", "d_sae": features, "hook_name": hook}
    return {**config, **found, "own_output": place is not None and place[2] is not None}


def load_any(file: Path, device: torch.device) -> dict[str, Tensor]:
    """The tensors of a file in the format of safetensors or numpy."""
    if file.suffix == ".safetensors":
        return load_file(file, device=str(device))
    with file.open("rb") as opened, np.load(opened) as arrays:
        return {name: torch.tensor(arrays[name], device=device) for name in arrays.files}


def _named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of SAELens. The encoder of `sparsify` is a linear layer."""
    found = dict(tensors)
    if "encoder.weight" in found:
        found["W_enc"] = found.pop("encoder.weight").T.contiguous()
        found["b_enc"] = found.pop("encoder.bias")
    return found


def _site(name: str, config: dict[str, Any]) -> Site:
    hook = str(config.get("hook_name") or config.get("hook_point") or "")
    if found := _BLOCK.fullmatch(hook):
        return Site(int(found[1]) + 1, "residual")
    try:
        return parse_hook(hook)
    except ModelInputError as error:
        raise ModelInputError(f"sae={name!r}: {error}") from None
