"""Checks the names of libraries, skills and their files."""

import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from seer.errors import ConfigError

_KERNEL_MODULES = frozenset(
    {"IPython", "ipykernel", "jupyter_client", "jupyter_core", "tornado", "traitlets", "zmq"}
)
"""Modules that a session's kernel imports. A library of the same name would break the kernel."""

SESSION_PACKAGES = ("matplotlib", "numpy", "pandas", "scipy")
"""Packages that every local session has, and that an agent expects to be themselves."""

_SKILL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def check_module_name(field: str, name: str) -> None:
    """Raise `ConfigError` if `import name` would fail or shadow another module."""
    if not name.isidentifier():
        fix = re.sub(r"\W", "_", name) or "my_library"
        fix = f"_{fix}" if fix[0].isdigit() else fix
        raise ConfigError(field, name, f"is not a Python identifier; use for example {fix!r}")
    if keyword.iskeyword(name):
        raise ConfigError(field, name, f"is a Python keyword; use for example {name + '_'!r}")
    if name in sys.stdlib_module_names:
        raise ConfigError(
            field,
            name,
            "shadows a module of the standard library; "
            f"use for example {'my_' + name.lstrip('_')!r}",
        )
    if name in SESSION_PACKAGES:
        raise ConfigError(
            field,
            name,
            f"shadows a package that every local session has; use for example {'my_' + name!r}",
        )
    if name in _KERNEL_MODULES:
        raise ConfigError(
            field,
            name,
            f"shadows a package that the session's kernel needs; use for example {'my_' + name!r}",
        )


def check_skill_name(field: str, name: str) -> None:
    """Raise `ConfigError` unless the Agent Skills format allows `name`."""
    if not _SKILL_NAME.fullmatch(name) or len(name) > 64:
        raise ConfigError(
            field,
            name,
            "must have 1 to 64 lower-case letters and digits, in words joined by hyphens; "
            f"use for example {skill_name_of(name)!r}",
        )


def skill_name_of(text: str) -> str:
    """The nearest allowed skill name: `getEmbedding_2` becomes `getembedding-2`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:64].strip("-") or "skill"


def check_files(field: str, files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    """Check the paths of `files`, and return the files with every content as bytes.

    Raises:
        ConfigError: A path is absolute, leads out of its folder, or is not normalized.
    """
    checked: dict[str, bytes] = {}
    for path, content in files.items():
        check_relative(field, path)
        checked[path] = content.encode() if isinstance(content, str) else bytes(content)
    return checked


def check_exists(field: str, path: Path) -> None:
    """Raise `ConfigError` if there is no file or folder at `path`."""
    if not path.exists():
        raise ConfigError(field, str(path), "does not exist")


def check_relative(field: str, path: str) -> None:
    """Raise `ConfigError` unless `path` is a normalized relative path such as `data/a.csv`."""
    parts = PurePosixPath(path).parts
    plain = path and "\0" not in path and "/".join(parts) == path
    if not plain or path.startswith("/") or ".." in parts:
        raise ConfigError(field, path, "must be a relative path such as 'data/a.csv'")
