"""The models of a configuration, by name: aliases, folders, handles.

`_download` downloads a model, `_view` makes the folder that a sandbox sees, and `Preparer.models`
brings them together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seer.environment._handles import ModelHandle
from seer.environment.config._config import ModelConfig, assign_var_names
from seer.environment.models._names import model_env_name, model_slug
from seer.environment.models._provenance import ModelOrigin
from seer.errors import ConfigError
from seer.isolation import Mount

ALIASES = "SEER_MODEL_ALIASES"
MODELS_ROOT = "/models"
"""The folder of a sandbox that holds its models."""


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model on this machine, ready to be mounted."""

    config: ModelConfig
    host_path: Path
    """The folder that the sandbox sees."""
    handle: ModelHandle
    mounts: tuple[Mount, ...]
    """All mounts of this model in the sandbox, with those of its base."""
    commit: str | None
    """The commit on the hub; None for a folder of this machine."""
    base_commit: str | None
    """The base model's commit."""
    origin: ModelOrigin


def read_aliases(environ: Mapping[str, str]) -> dict[str, str]:
    """The aliases in `SEER_MODEL_ALIASES`: `name=other,name=other`.

    Raises:
        ConfigError: An entry is not of the form `name=other`, or a name occurs twice.
    """
    aliases: dict[str, str] = {}
    for entry in environ.get(ALIASES, "").split(","):
        if not entry.strip():
            continue
        name, equals, other = (part.strip() for part in entry.partition("="))
        if not (name and equals and other):
            raise ConfigError(ALIASES, entry, "must be written as 'name=other,name=other'")
        if name in aliases:
            raise ConfigError(ALIASES, name, "is given two aliases")
        aliases[name] = other
    return aliases


def model_handles(
    models: Sequence[ModelConfig], *, root: str = MODELS_ROOT
) -> tuple[ModelHandle, ...]:
    """The handles of a configuration's models, in the folder `root` of the sandbox.

    Hidden models are numbered: `model_0`, `model_1`, ... No two models share a folder.
    """
    handles: list[ModelHandle] = []
    taken: set[str] = set()
    hidden = 0

    def free(folder: str) -> str:
        candidate, number = folder, 1
        while candidate in taken:
            candidate, number = f"{folder}-{number}", number + 1
        taken.add(candidate)
        return f"{root}/{candidate}"

    for model, variable in zip(models, assign_var_names(models), strict=True):
        name, folder, base = model.name, model_slug(model.name), model_slug(model.base_model or "")
        if model.hidden:
            name = folder = f"model_{hidden}"
            base = f"{name}_base"
            hidden += 1
        handle = ModelHandle(
            name=name,
            path=free(folder),
            var_name=variable,
            env_name=model_env_name(name),
            hidden=model.hidden,
            base_path=free(base) if model.base_model is not None else None,
        )
        handles.append(handle)
    return tuple(handles)
