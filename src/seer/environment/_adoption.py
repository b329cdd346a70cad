"""The note that a machine keeps, so that another process can take its sandbox over.

The note travels with the machine's lease. It never holds a secret's value: secrets stand in a
configuration by name only.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seer.environment._handles import ModelHandle, RepoHandle
from seer.environment.config._config import ExecutionMode, ModelConfig, RepoConfig, SandboxConfig
from seer.environment.models._provenance import ModelOrigin
from seer.errors import SandboxNotFoundError
from seer.providers._registry import is_default_provider


@dataclass(frozen=True, kw_only=True)
class Note:
    """A sandbox, as the note of its machine describes it."""

    kind: str
    config: SandboxConfig
    models: tuple[ModelHandle, ...]
    repos: tuple[RepoHandle, ...]
    origins: tuple[ModelOrigin, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict[str, str])


def write_note(note: Note) -> str:
    """The note as text."""
    return json.dumps(
        {
            "kind": note.kind,
            "config": config_to_dict(note.config),
            "models": [dataclasses.asdict(handle) for handle in note.models],
            "repos": [dataclasses.asdict(handle) for handle in note.repos],
            "origins": [dataclasses.asdict(origin) for origin in note.origins],
            "packages": dict(note.packages),
        }
    )


def read_note(text: str) -> Note:
    """The note from its text.

    Raises:
        SandboxNotFoundError: The machine carries no note, so it is no sandbox.
    """
    try:
        data = json.loads(text)
        return Note(
            kind=data["kind"],
            config=config_from_dict(data["config"]),
            models=tuple(ModelHandle(**handle) for handle in data["models"]),
            repos=tuple(RepoHandle(**handle) for handle in data["repos"]),
            origins=tuple(ModelOrigin(**origin) for origin in data["origins"]),
            packages=data["packages"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxNotFoundError(
            f"the machine is no sandbox of this version of Seer: {error}"
        ) from error


def config_to_dict(config: SandboxConfig) -> dict[str, Any]:
    """A configuration as plain data."""
    data: dict[str, Any] = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if is_default_provider(config.provider):
        # A process that reads the note resolves the default again.
        del data["provider"]
    data["execution_mode"] = config.execution_mode.value
    data["models"] = [dataclasses.asdict(model) for model in config.models]
    data["repos"] = [dataclasses.asdict(repo) for repo in config.repos]
    data["env"] = dict(config.env)
    for name in ("local_files", "local_dirs"):
        data[name] = [[str(source), target] for source, target in getattr(config, name)]
    options = config.provider_options
    if isinstance(options, Mapping):
        data["provider_options"] = dict(options)
    elif options is not None:
        data["provider_options"] = dataclasses.asdict(options)
    return data


def config_from_dict(data: dict[str, Any]) -> SandboxConfig:
    """A configuration from plain data; checked again like one that a user writes."""
    fields = dict(data)
    fields["execution_mode"] = ExecutionMode(fields["execution_mode"])
    fields["models"] = [ModelConfig(**model) for model in fields["models"]]
    fields["repos"] = [RepoConfig(**repo) for repo in fields["repos"]]
    for name in ("local_files", "local_dirs"):
        # What was copied in at the start is there; the originals may be gone by now.
        fields[name] = []
    return SandboxConfig(**fields)
