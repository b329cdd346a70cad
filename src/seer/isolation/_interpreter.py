"""The interpreter that Seer runs under, as a jail needs it: at a neutral path, and complete.

An interpreter that was built with a shared `libpython` looks for it at the path it was installed
to, which a jail does not show. Without help it would take the system's, of another version, or
not start at all.
"""

import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from seer.isolation._policy import Mount

_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"


def interpreter_mounts(target: str) -> tuple[Mount, ...]:
    """What to mount so that `{target}/bin/python3` is this interpreter."""
    library = _shared_library()
    mounts = (Mount(Path(sys.base_prefix), target),)
    if library is None:
        return mounts
    return (*mounts, Mount(library, f"{target}-lib/{library.name}"))


def interpreter_env(target: str, view: Mapping[str, str]) -> dict[str, str]:
    """The variables that the interpreter needs in a jail.

    Args:
        target: Where `interpreter_mounts` put it.
        view: Where the jail sees each mount (`Backend.view`).
    """
    library = _shared_library()
    if library is None:
        return {}
    seen = Path(view[f"{target}-lib/{library.name}"])
    return {"LD_LIBRARY_PATH": str(seen.parent)} if seen != library else {}


def interpreter_path(target: str, view: Mapping[str, str]) -> str:
    """The interpreter's program, as the jail sees it."""
    return f"{view[target]}/bin/{_NAME}"


@cache
def _shared_library() -> Path | None:
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return None
    name = sysconfig.get_config_var("INSTSONAME")
    path = Path(sys.base_prefix, "lib", name) if name else None
    # Distributions keep theirs in the system's folders, which every jail has.
    return path.resolve() if path is not None and path.is_file() else None
