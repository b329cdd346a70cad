"""Checks on single configuration values. Each raises `ConfigError` or returns the value normalised.

Checks of several fields (names that collide, options that need each other) are in `_config`.
"""

import keyword
import math
import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from seer._checks import items_of as items_of
from seer._checks import members_of as members_of
from seer._checks import wrong_type as wrong_type
from seer._name_conflict import OTHER
from seer.errors import ConfigError
from seer.isolation.network._network import host_pattern
from seer.providers import GPUS
from seer.providers._gpus import suggest_gpu

V = TypeVar("V")

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"[A-Z_][A-Z0-9_]*|[a-z]+(-[a-z]+)+")
"""A variable's name, or words joined by hyphens, such as the name of a Modal secret."""
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_REVISION = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9._/+=-]*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)")
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_PYTHON_VERSION = re.compile(r"3\.(\d{1,2})(\.\d{1,2})?")
_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_OWN_PACKAGES = {"seer-interp", "seer-compat"}
_URL_USER = re.compile(r"(?<=://)[^/\s]*@")


class FrozenMapping(Mapping[str, V]):
    """A read-only copy of a mapping; unlike `MappingProxyType` it can be hashed and pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def text(field: str, value: object) -> str:
    """A non-empty string without a NUL."""
    if not isinstance(value, str):
        wrong_type(field, value, "a string")
    if not value.strip() or "\0" in value:
        raise ConfigError(field, value, "must not be empty or contain a NUL character")
    return value


def flag(field: str, value: object) -> bool:
    """True or False, and no other value."""
    if not isinstance(value, bool):
        wrong_type(field, value, "True or False")
    return value


def positive(field: str, value: object, *, unit: str) -> float:
    """A finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        wrong_type(field, value, f"a number of {unit}")
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(field, value, f"must be a finite number of {unit} above 0")
    return value


def count(field: str, value: object) -> int:
    """A whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int):
        wrong_type(field, value, "a whole number")
    if value < 1:
        raise ConfigError(field, value, "must be at least 1")
    return value


def size(field: str, value: object) -> int:
    """Bytes, from an int or from text such as `"16GiB"`."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ConfigError(field, value, 'is not a size; write bytes as an int, or e.g. "16GiB"')
        parsed = int(float(match[1]) * _UNITS[match[2]])
        if parsed < 1:
            raise ConfigError(field, value, "must be at least 1 byte")
        return parsed
    return count(field, value)


def gpu(field: str, value: object) -> str:
    """A known GPU name."""
    name = text(field, value)
    if name in GPUS:
        return name
    base, _, number = name.partition(":")
    if number.isdigit() and base in GPUS:
        raise ConfigError(field, value, f"write gpu={base!r}, gpu_count={int(number)}")
    near = suggest_gpu(base)
    hint = f"did you mean {near!r}? " if near else ""
    raise ConfigError(field, value, f"unknown GPU; {hint}Known: {', '.join(GPUS)}; None for CPU")


def env_name(field: str, value: object) -> str:
    """A name that an environment variable can have."""
    name = text(field, value)
    if not _ENV_NAME.fullmatch(name):
        raise ConfigError(field, value, "is not an environment variable name (letters, digits, _)")
    return name


def secret_name(field: str, value: object) -> str:
    """The name of a secret. A refused value is not shown: it may be the secret itself."""
    if not isinstance(value, str) or not _SECRET_NAME.fullmatch(value):
        raise ConfigError(
            field,
            "<not shown>",
            "must be the name of an environment variable in upper case, such as 'HF_TOKEN'; "
            "the value itself belongs in the environment or in .env",
        )
    return value


def env_value(field: str, value: object) -> str:
    """The value of an environment variable. A refused value is not shown."""
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(field, "<not shown>", "must be a string without a NUL character")
    return value


def variable_name(field: str, value: object) -> str:
    """A name that a Python variable can have."""
    name = text(field, value)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(field, value, "must be a Python identifier and not a keyword")
    return name


def hub_id(field: str, value: object) -> str:
    """A model's id on the hub, such as `google/gemma-2-9b`."""
    name = text(field, value)
    if not _HUB_ID.fullmatch(name) or "--" in name or ".." in name or len(name) > 96:
        raise ConfigError(
            field,
            value,
            "is neither a hub id such as 'google/gemma-2-9b' nor an existing folder "
            "(write a folder as './name' or '/path/name')",
        )
    return name


def revision(field: str, value: object) -> str:
    """A branch, tag or commit of a model."""
    name = text(field, value)
    if not _REVISION.fullmatch(name) or ".." in name:
        raise ConfigError(field, value, "is not a branch, tag or commit")
    return name


def hosts(field: str, value: object) -> tuple[str, ...]:
    """Host names, or `*.name` for all subdomains of a name; without scheme, port or path."""
    names = items_of(field, value, str, "host names")
    return tuple(host_pattern(f"{field}[{index}]", name) for index, name in enumerate(names))


def requirement(field: str, value: str) -> str:
    """A package in PEP 508 form."""
    if _URL_USER.search(value):
        raise ConfigError(
            field,
            _URL_USER.sub("<not shown>@", value),
            "has credentials in its URL; put them in your pip or uv configuration, or in netrc",
        )
    try:
        parsed = Requirement(value)
    except InvalidRequirement as error:
        reason = "does not parse: " + str(error).splitlines()[0]
        if "://" in value:
            reason += "; write a URL as 'name @ https://...' or 'name @ git+https://...'"
        raise ConfigError(field, value, reason) from None
    if canonicalize_name(parsed.name) in _OWN_PACKAGES:
        raise ConfigError(field, value, "Seer itself is never installed where an agent works")
    if canonicalize_name(parsed.name) == OTHER:
        raise ConfigError(
            field, value, "is another project that also installs a module 'seer', which Seer needs"
        )
    return value.strip()


def debian_package(field: str, value: str) -> str:
    """The name of a Debian package."""
    if not _DEBIAN_NAME.fullmatch(value):
        raise ConfigError(field, value, "is not a Debian package name (lower case, no version)")
    return value


def python_version(field: str, value: object) -> str:
    """A Python version of at least 3.11, such as `3.12`."""
    version = text(field, value)
    match = _PYTHON_VERSION.fullmatch(version)
    if match is None or int(match[1]) < 11:
        raise ConfigError(field, value, "must be 3.11 or later, written as '3.12' or '3.12.4'")
    return version
