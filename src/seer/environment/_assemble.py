"""The folder of a package environment: its skeleton, and what a build jail adds to it."""

import os
import platform
import re
import stat
import sys
from pathlib import Path

JAIL_PYTHON = "/seer/python/bin/python3"
"""The interpreter, as programs in a jail see it."""


def write_skeleton(environment: Path) -> None:
    """Make an empty environment for the interpreter that jails have."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (environment / "lib" / version / "site-packages").mkdir(parents=True)
    (environment / "bin").mkdir()
    (environment / "lib64").symlink_to("lib")
    (environment / "bin" / "python3").symlink_to(JAIL_PYTHON)
    for name in ("python", version):
        (environment / "bin" / name).symlink_to("python3")
    (environment / "pyvenv.cfg").write_text(
        f"home = {Path(JAIL_PYTHON).parent}\n"
        "include-system-site-packages = false\n"
        f"version = {platform.python_version()}\n"
        "relocatable = true\n"
    )


def take_over(fetched: Path, environment: Path) -> None:
    """Move what the build jail made into the environment.

    The jail ran strangers' code, so nothing it left is followed: only plain files are taken, into
    folders made here, and never over a file that is there already.
    """
    for parent, folders, names in os.walk(fetched):
        relative = Path(parent).relative_to(fetched)
        folders[:] = [f for f in folders if not Path(parent, f).is_symlink()]
        for name in names:
            source, target = Path(parent, name), environment / relative / name
            mode = source.lstat().st_mode
            if not stat.S_ISREG(mode) or _is_scaffolding(relative, name) or os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
            if os.geteuid() == 0:
                os.chown(target, 0, 0, follow_symlinks=False)
            target.chmod(0o755 if mode & 0o100 else 0o644)


def _is_scaffolding(relative: Path, name: str) -> bool:
    """What uv puts into every new environment, beside the packages."""
    if relative == Path("bin"):
        return bool(re.match(r"(python|activate|deactivate|pydoc)", name))
    return relative == Path() or name in ("_virtualenv.py", "_virtualenv.pth")


def site_packages(environment: Path) -> str:
    """The folder of an environment that interpreters look for modules in."""
    return str(next(environment.glob("lib/python*/site-packages")))


def open_folders(environment: Path) -> None:
    """Let the sandbox's user walk through, whatever this process's umask is."""
    environment.chmod(0o755)
    for parent, folders, _ in os.walk(environment):
        for name in folders:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755)
    (environment / "pyvenv.cfg").chmod(0o644)
