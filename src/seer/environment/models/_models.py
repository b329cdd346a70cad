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
    """All that the sandbox needs mounted for this model, its base included."""
    commit: str | None
    """The commit on the hub; None for a folder of this machine."""
    base_commit: str | None
    """The same of its base model."""
    origin: ModelOrigin


@dataclass(frozen=True)
class ModelNames:
    """How one model of a configuration appears in a sandbox."""

    visible: str
    folder: str
    base_folder: str | None


def assign_names(models: Sequence[ModelConfig]) -> tuple[ModelNames, ...]:
    """One set of names per model. Hidden ones are counted: `model_0`, `model_1`, ..."""
    result: list[ModelNames] = []
    taken: set[str] = set()
    hidden = 0

    def free(folder: str) -> str:
        candidate, number = folder, 1
        while candidate in taken:
            candidate, number = f"{folder}-{number}", number + 1
        taken.add(candidate)
        return candidate

    for model in models:
        if model.hidden:
            visible = f"model_{hidden}"
            hidden += 1
            folder, base = free(visible), f"{visible}_base"
        else:
            visible = model.name
            folder, base = free(model_slug(model.name)), model_slug(model.base_model or "")
        result.append(ModelNames(visible, folder, free(base) if model.base_model else None))
    return tuple(result)


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


def model_handles(models: Sequence[ModelConfig]) -> tuple[ModelHandle, ...]:
    """The handles that prepared models would have, without preparing any."""
    return tuple(
        model_handle(config, names, variable, root=MODELS_ROOT)
        for config, names, variable in zip(
            models, assign_names(models), assign_var_names(models), strict=True
        )
    )


def model_handle(
    config: ModelConfig, names: ModelNames, variable: str, *, root: str
) -> ModelHandle:
    """The handle of one model below the folder `root` of the sandbox."""
    return ModelHandle(
        name=names.visible,
        path=f"{root}/{names.folder}",
        var_name=variable,
        env_name=model_env_name(names.visible),
        hidden=config.hidden,
        base_path=f"{root}/{names.base_folder}" if names.base_folder is not None else None,
    )
