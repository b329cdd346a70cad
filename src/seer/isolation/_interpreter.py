"""Mounts Seer's own interpreter into a jail at a neutral path, without the rest of its folder.

A jail gets the program, its standard library, its headers and, if it has one, its shared
`libpython`. It does not get the folder that holds them, which is `/usr` for a system's Python and
includes the host's `/usr/local`. Nor does it get the packages installed there.

An interpreter that was built with a shared `libpython` looks for it at the path where it was
installed, which a jail does not show. Without `LD_LIBRARY_PATH`, the interpreter would load the
system's library, which may have another version, or not start at all.
"""

import hashlib
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from seer._files import place_folder
from seer._paths import cache_dir
from seer._transient import TransientFolder
from seer.isolation._choose import choose
from seer.isolation._policy import Mount
from seer.isolation.backends._base import Backend

_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LIBRARY = f"{sys.platlibdir}/{_NAME}"
_PACKAGES = ("site-packages", "dist-packages")


def interpreter_mounts(target: str, backend: Backend | None = None) -> tuple[Mount, ...]:
    """The mounts that make `{target}/bin/python3` this interpreter.

    Args:
        target: Where the interpreter appears in the jail.
        backend: The backend of the jail; by default the one that `choose` returns.
    """
    backend = choose() if backend is None else backend
    library = _standard_library()
    covered = [name for name in _PACKAGES if (library / name).is_dir()]
    copied = covered and not backend.covers
    root = _copy() if copied else None
    program = _program() if root is None else root / "bin" / _NAME
    mounts = [Mount(program, f"{target}/bin/{name}") for name in ("python", "python3", _NAME)]
    mounts.append(Mount(library if root is None else root / _LIBRARY, f"{target}/{_LIBRARY}"))
    if root is None and backend.covers:
        mounts += [Mount(_empty(), f"{target}/{_LIBRARY}/{name}") for name in covered]
    headers = Path(sys.base_prefix, "include", _NAME)
    if headers.is_dir():
        mounts.append(Mount(headers, f"{target}/include/{_NAME}"))
    for path in _shared_libraries():
        source = path if root is None else root / "lib" / path.name
        mounts.append(Mount(source, f"{target}-lib/{path.name}"))
    return tuple(mounts)


def interpreter_env(target: str, view: Mapping[str, str]) -> dict[str, str]:
    """The variables that the interpreter needs in a jail.

    Args:
        target: Where `interpreter_mounts` put it.
        view: Where the jail sees each mount (`Backend.view`).
    """
    seen = [view[f"{target}-lib/{library.name}"] for library in _shared_libraries()]
    # Needed even if the jail shows the library at its own path: it may have been moved there after
    # it was built.
    return {"LD_LIBRARY_PATH": str(Path(seen[0]).parent)} if seen else {}


def interpreter_path(target: str, view: Mapping[str, str]) -> str:
    """The interpreter's program, as the jail sees it."""
    return view[f"{target}/bin/{_NAME}"]


def _program() -> Path:
    base: object = getattr(sys, "_base_executable", None)
    return Path(base if isinstance(base, str) and base else sys.executable).resolve()


@cache
def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib")).resolve()


@cache
def _shared_libraries() -> tuple[Path, ...]:
    """The interpreter's libraries that a jail does not have otherwise."""
    folder = Path(sys.base_prefix, "lib")
    found: set[Path] = set()
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        name = sysconfig.get_config_var("INSTSONAME")
        # The library of a distribution's Python is in the system's folders, which every jail has.
        if name and (folder / name).is_file():
            found.add((folder / name).resolve())
    if Path(sys.base_prefix, "conda-meta").is_dir():
        # Conda's extension modules use libraries of other packages, by their short names.
        found.update(path for path in folder.glob("lib*.so*") if path.is_file())
    return tuple(sorted(found))


def _empty() -> Path:
    folder = cache_dir() / "empty"
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder


@cache
def _copy() -> Path:
    """A copy of the interpreter without its packages, for jails that cannot cover them."""
    library, program = _standard_library(), _program()
    times = [path.stat().st_mtime_ns for path in (library, library / "os.py", program)]
    digest = hashlib.sha256(f"{program} {library} {sys.version} {times}".encode()).hexdigest()[:16]
    folder = cache_dir() / "interpreters" / digest
    if folder.is_dir():
        return folder
    folder.parent.mkdir(mode=0o755, exist_ok=True)
    with TransientFolder("draft", inside=folder.parent) as draft:
        draft.chmod(0o755)
        (draft / "bin").mkdir(mode=0o755)
        shutil.copy2(program, draft / "bin" / _NAME)
        # Keep the files' times, because Python compares them with its compiled files.
        ignored = shutil.ignore_patterns(*_PACKAGES, "test", "idlelib", "ensurepip", "config-*")
        shutil.copytree(library, draft / _LIBRARY, symlinks=True, ignore=ignored)
        (draft / "lib").mkdir(mode=0o755, exist_ok=True)
        for path in _shared_libraries():
            shutil.copy2(path, draft / "lib" / path.name)
        place_folder(draft, folder)
    return folder
