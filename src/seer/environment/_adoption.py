"""The note that a machine keeps, so that another process can adopt its sandbox.

The note is part of the machine's record. It never holds the value of a secret: a configuration
holds only the names of secrets.
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
from seer.providers.local._record import known_fields


@dataclass(frozen=True, kw_only=True)
class Note:
    """A sandbox, as described by its machine's note."""

    kind: str
    config: SandboxConfig
    models: tuple[ModelHandle, ...]
    repos: tuple[RepoHandle, ...]
    origins: tuple[ModelOrigin, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class _StoredNote:
    """The JSON form of a note. Pydantic checks it."""

    kind: str
    config: dict[str, Any]
    models: tuple[ModelHandle, ...]
    repos: tuple[RepoHandle, ...]
    origins: tuple[ModelOrigin, ...] = ()
    packages: dict[str, str] = field(default_factory=dict[str, str])


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
    """Parse a note. Fields that this version does not know are ignored.

    Raises:
        SandboxNotFoundError: The text is not a note, so the machine is not a sandbox.
    """
    # Starting a sandbox does not need pydantic, and importing it takes longer than a small start.
    from pydantic import TypeAdapter

    try:
        stored = TypeAdapter(_StoredNote).validate_json(text)
        values: dict[str, Any] = {**vars(stored), "config": config_from_dict(stored.config)}
        return Note(**values)
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxNotFoundError(
            f"the machine is not a sandbox that this version of Seer can read: {error}"
        ) from error


def config_to_dict(config: SandboxConfig) -> dict[str, Any]:
    """A configuration as plain data."""
    data: dict[str, Any] = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if is_default_provider(config.provider):
        # The process that reads the note resolves the default itself.
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


def config_from_dict(data: Mapping[str, Any]) -> SandboxConfig:
    """A configuration from plain data, checked like one that a user writes."""
    values = known_fields(SandboxConfig, data)
    values["execution_mode"] = ExecutionMode(values["execution_mode"])
    values["models"] = [ModelConfig(**known_fields(ModelConfig, it)) for it in values["models"]]
    values["repos"] = [RepoConfig(**known_fields(RepoConfig, it)) for it in values["repos"]]
    for name in ("local_files", "local_dirs"):
        # The machine already has their copies, and the originals may be gone.
        values[name] = []
    return SandboxConfig(**values)
