"""What can be set for machines that are reached with SSH, and where it comes from."""

import dataclasses
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from seer.errors import ConfigError

PREFIX = "SEER_SSH_"


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """Options of `provider="ssh"`. What is not given comes from `SEER_SSH_...`, by name."""

    host: str = ""
    """A host name, or an alias of the SSH configuration."""
    user: str = ""
    port: int = 0
    """0 is the SSH configuration's, or 22."""
    config: str = ""
    """The SSH configuration; empty is `~/.ssh/config`."""
    identity: str = ""
    """A private key; empty is the SSH configuration's, the agent's, or the usual files."""
    known_hosts: str = ""
    """Keys of known hosts; empty is the SSH configuration's. They are always checked."""
    root: str = ""
    """The folder there that holds everything of Seer's; empty is `~/.seer`."""
    python: str = ""
    """The interpreter there, 3.11 or newer; empty is the first that is found."""
    launcher: str = ""
    """A command to start machines with, such as `srun --gres=gpu:1`."""
    share_gpus: bool = False
    """Whether a machine may get a GPU that is in use."""
    price_per_hour: float = 0.0
    """US dollars, for listings and records; 0 for none."""
    connect_timeout: float = 20.0
    """Seconds that connecting and logging in may take."""
    models: str = ""
    """A folder there that holds models already: by name, or in the layout of the hub's cache."""


_KINDS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


def read_options(given: object) -> SshOptions:
    """Options from what a configuration has, completed from the environment.

    Args:
        given: None, a mapping, or `SshOptions`.

    Raises:
        ConfigError: There is no such option, or a value is of the wrong kind.
    """
    fields = {field.name: field for field in dataclasses.fields(SshOptions)}
    values: dict[str, Any] = {}
    if isinstance(given, SshOptions):
        values = {
            name: value
            for name, field in fields.items()
            if (value := getattr(given, name)) != field.default
        }
    elif isinstance(given, Mapping):
        for name, value in cast("Mapping[str, object]", given).items():
            if name not in fields:
                known = ", ".join(fields)
                raise ConfigError(
                    "provider_options", name, f"is no option of ssh; there are {known}"
                )
            values[name] = _checked(
                f"provider_options[{name!r}]", value, type(fields[name].default).__name__
            )
    elif given is not None:
        raise ConfigError("provider_options", given, "must be a mapping or SshOptions")
    for name, field in fields.items():
        text = os.environ.get(PREFIX + name.upper(), "")
        if name not in values and text:
            values[name] = _parsed(PREFIX + name.upper(), text, type(field.default).__name__)
    options = SshOptions(**values)
    if not options.host:
        raise ConfigError("provider_options['host']", "", f"name a host, there or in {PREFIX}HOST")
    try:
        shlex.split(options.launcher)
    except ValueError as error:
        raise ConfigError(
            "provider_options['launcher']", options.launcher, f"is no command line: {error}"
        ) from None
    return options


def _checked(where: str, value: object, kind: str) -> object:
    wanted = _KINDS[kind]
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (kind == "int" and isinstance(value, bool)):
        raise ConfigError(where, value, f"must be of type {kind}")
    return value


def _parsed(where: str, text: str, kind: str) -> object:
    if kind == "bool":
        if text.lower() in ("1", "true", "yes"):
            return True
        if text.lower() in ("0", "false", "no"):
            return False
        raise ConfigError(where, text, "must be 1 or 0")
    try:
        return _KINDS[kind](text)
    except ValueError:
        raise ConfigError(where, text, f"must be of type {kind}") from None
