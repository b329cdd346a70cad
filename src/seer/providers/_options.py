"""A provider's options, from what a configuration has."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

from seer.errors import ConfigError

T = TypeVar("T")


def options_from(kind: type[T], given: object, *, vendor: str) -> T:
    """Options from nothing, a mapping, or themselves.

    Args:
        kind: The provider's options, a dataclass.
        given: What the configuration has.
        vendor: The provider's name, for people.

    Raises:
        ConfigError: There is no such option, or they are of another provider.
    """
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError("provider_options", given, f"must be {kind.__name__} or a mapping")
    values = {str(name): value for name, value in cast("Mapping[object, Any]", given).items()}
    known = [item.name for item in fields(cast(Any, kind))]
    for name in values:
        if name not in known:
            raise ConfigError("provider_options", name, f"{vendor} has: {', '.join(known)}")
    return kind(**values)
