"""The models that this interface serves, by the names that callers know."""

from functools import partial

from seer.errors import ModelInputError
from seer.rpc import get_model_path, keep, list_configured_models

from ._model import Model, base_folder
from ._records import ModelInfo

_folders: dict[str, str] = {}
"""Every name that callers may use -> the model's folder; several may name the same."""
_models: dict[str, Model] = {}
"""Folder -> the model loaded from it."""


def load_models() -> None:
    """Load every configured model; those that an earlier load of the file kept are kept.

    The base of an adapter is loaded when it is asked for by name: to compare the two it is not
    needed twice.

    Raises:
        ModelInputError: None is configured.
    """
    _folders.update({name: get_model_path(name) for name in list_configured_models()})
    if not _folders:
        raise ModelInputError("no model is configured; give SandboxConfig(models=[...]) one")
    for folder in _own_folders():
        _load(folder)


def loaded() -> list[Model]:
    """The models that are loaded."""
    return list(_models.values())


def _own_folders() -> list[str]:
    """The folders of all models that are not just the base of another."""
    bases = set(map(base_folder, _folders.values()))
    return [folder for folder in dict.fromkeys(_folders.values()) if folder not in bases]


def _load(folder: str) -> Model:
    if folder not in _models:
        _models[folder] = keep(f"model {folder}", partial(Model.load, _name(folder), folder))
    return _models[folder]


def _name(folder: str) -> str:
    return next(name for name, other in _folders.items() if other == folder)


def find(name: str | None) -> Model:
    """The model of this name; the first one without a name.

    Raises:
        ModelInputError: There is no such model.
    """
    folder = next(iter(_folders.values())) if name is None else _folders.get(name)
    if folder is None:
        raise ModelInputError(f"model={name!r}: there are {', '.join(map(repr, _folders))}")
    return _load(folder)


def models() -> list[ModelInfo]:
    """What models there are, and how large they are. The first is used where no name is given."""
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
        )
        for folder in _own_folders()
        for model in (_load(folder),)
    ]
