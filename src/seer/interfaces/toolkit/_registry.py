"""The models that this interface serves, by the names that callers know."""

from functools import partial
from pathlib import Path
from typing import Any

from seer.errors import ModelInputError
from seer.rpc import get_model_path, keep, list_configured_models

from ._model import Model, base_folder
from ._records import ModelInfo
from ._sae import add_collection

_folders: dict[str, str] = {}
"""Every name that callers may use -> the model's folder. Several names can have the same one."""
_models: dict[str, Model] = {}
"""Folder -> the model loaded from it."""


def load_models() -> None:
    """Load every configured model, unless it was kept from an earlier load of this file.

    Configured folders of autoencoders are registered, not loaded. The base of an adapter is loaded
    only when a caller asks for it by name: comparing an adapter with its base needs no second copy.

    Raises:
        ModelInputError: No model is configured.
    """
    paths = {name: get_model_path(name) for name in list_configured_models()}
    _folders.update({n: p for n, p in paths.items() if not add_collection(n, Path(p))})
    if not _folders:
        raise ModelInputError("no model is configured; add one to SandboxConfig(models=[...])")
    for folder in _own_folders():
        _load(folder)


def loaded() -> list[Model]:
    """The loaded models."""
    return list(_models.values())


def _own_folders() -> list[str]:
    """The folders of all models, except those that are only the base of another."""
    bases = set(map(base_folder, _folders.values()))
    return [folder for folder in dict.fromkeys(_folders.values()) if folder not in bases]


def _load(folder: str) -> Model:
    if folder not in _models:
        _models[folder] = keep(f"model {folder}", partial(Model.load, _name(folder), folder))
    return _models[folder]


def _name(folder: str) -> str:
    return next(name for name, other in _folders.items() if other == folder)


def find(name: str | None) -> Model:
    """The model with this name; the first model if the name is None.

    Raises:
        ModelInputError: There is no such model.
    """
    folder = next(iter(_folders.values())) if name is None else _folders.get(name)
    if folder is None:
        raise ModelInputError(f"model={name!r}: there are {', '.join(map(repr, _folders))}")
    return _load(folder)


def _quantization_of(model: Model) -> str | None:
    found: Any = getattr(model.net.config, "quantization_config", None)
    if found is None:
        return None
    method: Any = getattr(found, "quant_method", "unknown")
    return str(getattr(method, "value", method))


def models() -> list[ModelInfo]:
    """List the models, with their sizes. Functions use the first if no name is given."""
    names = {folder: name for name, folder in reversed(_folders.items())}
    return [
        ModelInfo(
            name=model.name,
            architecture=str(model.config.model_type),
            layers=model.layers,
            width=model.width,
            heads=model.heads,
            vocabulary=model.vocabulary,
            parameters=sum(p.numel() for p in model.net.parameters()),
            dtype=str(model.net.dtype).removeprefix("torch."),
            max_tokens=model.max_tokens,
            adapter=model.adapter is not None,
            chat=bool(model.tokenizer.chat_template),
            base=names.get(base_folder(folder) or ""),
            generation=model.suggested_settings(),
            quantization=_quantization_of(model),
        )
        for folder in _own_folders()
        for model in (_load(folder),)
    ]
