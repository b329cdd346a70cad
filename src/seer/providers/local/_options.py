"""What can be set for machines on this host."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from seer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of `provider="local"`."""

    users: bool = False
    """Whether commands can be run as other users than the agent's, root among them. It needs
    bubblewrap, and Seer started by root; a sandbox that serves an interface or hides a model cannot
    have it."""


def read_options(given: object) -> LocalOptions:
    """Options from what a configuration has: None, a mapping, or `LocalOptions`.

    Raises:
        ConfigError: There is no such option, or its value is no bool.
    """
    if given is None:
        return LocalOptions()
    if isinstance(given, LocalOptions):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError("provider_options", given, "must be a mapping or LocalOptions")
    values = dict(cast("Mapping[str, object]", given))
    users = values.pop("users", False)
    for name in values:
        raise ConfigError("provider_options", name, "is no option of local; there is users")
    if not isinstance(users, bool):
        raise ConfigError("provider_options['users']", users, "must be True or False")
    return LocalOptions(users=users)
