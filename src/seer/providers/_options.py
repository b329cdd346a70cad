"""A provider's options, from the configuration and the environment."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

from seer.errors import ConfigError

T = TypeVar("T")


def options_from(kind: type[T], given: object, *, vendor: str, prefix: str = "") -> T:
    """Make options from None, a mapping or an options object.

    Args:
        kind: The provider's options, a dataclass.
        given: The configuration's `provider_options`.
        vendor: The provider's name, for messages.
        prefix: The prefix of environment variables that supply missing options. Every option must
            then have a string, number or boolean as its default.

    Raises:
        ConfigError: There is no such option, a value has the wrong type, or the options belong to
            another provider.
    """
    defaults: dict[str, object] = {item.name: item.default for item in fields(cast(Any, kind))}
    values: dict[str, Any] = {}
    if isinstance(given, Mapping):
        for name, value in cast("Mapping[str, Any]", given).items():
            if name not in defaults:
                known = ", ".join(defaults)
                raise ConfigError("provider_options", name, f"{vendor} has: {known}")
            where = f"provider_options[{name!r}]"
            values[name] = _checked(where, value, type(defaults[name])) if prefix else value
    elif isinstance(given, kind):
        if not prefix:
            return given
        found = {name: getattr(given, name) for name in defaults}
        values = {name: value for name, value in found.items() if value != defaults[name]}
    elif given is not None:
        raise ConfigError("provider_options", given, f"must be {kind.__name__} or a mapping")
    for name, default in defaults.items() if prefix else ():
        text = os.environ.get(prefix + name.upper(), "")
        if name not in values and text:
            values[name] = _parsed(prefix + name.upper(), text, type(default))
    return kind(**values)


def _checked(where: str, value: object, wanted: type) -> object:
    if wanted is float and type(value) is int:
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ConfigError(where, value, f"must be of type {wanted.__name__}")
    return value


def _parsed(where: str, text: str, wanted: type) -> object:
    if wanted is bool:
        if text.lower() in ("1", "true", "yes"):
            return True
        if text.lower() in ("0", "false", "no"):
            return False
        raise ConfigError(where, text, "must be 1 or 0")
    try:
        return wanted(text)
    except ValueError:
        raise ConfigError(where, text, f"must be of type {wanted.__name__}") from None
