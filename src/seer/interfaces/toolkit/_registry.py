"""The models that this interface serves, by the names that callers know."""

from functools import partial

from seer.errors import ModelInputError
from seer.rpc import get_model_path, keep, list_configured_models

from ._model import Model
from ._records import ModelInfo

_models: dict[str, Model] = {}


def load_models() -> None:
    """Load every configured model; those that an earlier load of the file kept are kept.

    Raises:
        ModelInputError: None is configured.
    """
    for name in list_configured_models():
        _models[name] = keep(f"model {name}", partial(_load, name))
    if not _models:
        raise ModelInputError("no model is configured; give SandboxConfig(models=[...]) one")


def _load(name: str) -> Model:
    return Model.load(name, get_model_path(name))


def find(name: str | None) -> Model:
    """The model of this name; the first one without a name.

    Raises:
        ModelInputError: There is no such model.
    """
    if name is None:
        return next(iter(_models.values()))
    found = _models.get(name)
    if found is None:
        raise ModelInputError(f"model={name!r}: there are {', '.join(map(repr, _models))}")
    return found


def models() -> list[ModelInfo]:
    """What models there are, and how large they are. The first is used where no name is given."""
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
        )
        for model in _models.values()
    ]
