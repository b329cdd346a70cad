"""The folder of a package environment: its skeleton, and what a build jail adds to it."""

import os
import platform
import re
import shutil
import stat
import sys
from pathlib import Path

from seer.isolation import open_beneath

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
    """Move what a build jail made into the environment.

    The jail's folder may be hostile. This walks it by descriptors and follows no links. It takes
    only regular files, puts them into folders that it makes itself, and never replaces a file.

    Args:
        fetched: The folder that the jail made.
        environment: The environment's folder, to which no jail can write.

    Raises:
        PathEscapeError: The jail's folder is a link.
    """
    top = open_beneath(fetched.parent, fetched.name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for parent, _, names, folder in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            relative = Path(parent)
            for name in names:
                target = environment / relative / name
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if not stat.S_ISREG(mode) or _is_scaffolding(relative, name):
                    continue
                if not os.path.lexists(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.rename(name, target, src_dir_fd=folder)
                    _own(target, is_script=relative == Path("bin"))
    finally:
        os.close(top)


def _own(path: Path, *, is_script: bool) -> None:
    """Set the owner and the mode of a file, or remove anything that is not a plain file.

    Args:
        path: The file.
        is_script: Whether it must be executable. The jail may not have set that: for an ordinary
            user, chmod has no effect in a landlock jail.
    """
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(path)
    elif not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        path.unlink()
    else:
        if os.geteuid() == 0:
            os.chown(path, 0, 0, follow_symlinks=False)
        path.chmod(0o755 if is_script or found.st_mode & 0o100 else 0o644)


def _is_scaffolding(relative: Path, name: str) -> bool:
    """Whether uv puts this file into every new environment."""
    if relative == Path("bin"):
        return bool(re.match(r"(python|activate|deactivate|pydoc)", name))
    return relative == Path() or name in ("_virtualenv.py", "_virtualenv.pth")


def site_packages(environment: Path) -> str:
    """The folder of an environment that holds its modules."""
    return str(next(environment.glob("lib/python*/site-packages")))


def open_folders(environment: Path) -> None:
    """Let the sandbox's user enter the folders, regardless of this process's umask."""
    environment.chmod(0o755)
    for parent, folders, _ in os.walk(environment):
        for name in folders:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755)
    (environment / "pyvenv.cfg").chmod(0o644)
