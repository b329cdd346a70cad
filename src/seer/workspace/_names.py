"""Which names a library, a skill and the files in them may have."""

import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import PurePosixPath

from seer.errors import ConfigError

_KERNEL_MODULES = frozenset(
    {"IPython", "ipykernel", "jupyter_client", "jupyter_core", "tornado", "traitlets", "zmq"}
)
"""What a session's kernel imports; a library of such a name would stop it from starting."""

_SKILL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def check_module_name(field: str, name: str) -> None:
    """Raise unless `import name` finds this library and breaks nothing else."""
    if not name.isidentifier():
        fix = re.sub(r"\W", "_", name) or "my_library"
        fix = f"_{fix}" if fix[0].isdigit() else fix
        raise ConfigError(field, name, f"is no Python identifier; use a name such as {fix!r}")
    if keyword.iskeyword(name):
        raise ConfigError(field, name, f"is a Python keyword; use a name such as {name + '_'!r}")
    if name in sys.stdlib_module_names:
        raise ConfigError(
            field,
            name,
            "shadows a module of the standard library; "
            f"use a name such as {'my_' + name.lstrip('_')!r}",
        )
    if name in _KERNEL_MODULES:
        raise ConfigError(
            field, name, f"shadows a package that the session's kernel needs; use {'my_' + name!r}"
        )


def check_skill_name(field: str, name: str) -> None:
    """Raise unless `name` is allowed by the Agent Skills format."""
    if not _SKILL_NAME.fullmatch(name) or len(name) > 64:
        raise ConfigError(
            field,
            name,
            "a skill's name has 1 to 64 lower-case letters and digits, in words joined by "
            f"hyphens; use a name such as {skill_name_of(name)!r}",
        )


def skill_name_of(text: str) -> str:
    """The nearest allowed skill name: `getEmbedding_2` becomes `getembedding-2`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:64].strip("-") or "skill"


def check_files(field: str, files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    """`files` with every content as bytes.

    Raises:
        ConfigError: A path is absolute, leads out of its folder, or is not in its normal form.
    """
    checked: dict[str, bytes] = {}
    for path, content in files.items():
        check_relative(field, path)
        checked[path] = content.encode() if isinstance(content, str) else bytes(content)
    return checked


def check_relative(field: str, path: str) -> None:
    """Raise unless `path` is a plain relative path such as `data/a.csv`."""
    parts = PurePosixPath(path).parts
    plain = path and "\0" not in path and "/".join(parts) == path
    if not plain or path.startswith("/") or ".." in parts:
        raise ConfigError(field, path, "must be a plain relative path, such as 'data/a.csv'")
