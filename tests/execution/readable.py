"""A copy of this interpreter, Seer and what they need that every user of the machine can read.

It includes bytecode: a user who may not write there would compile again in every process.
"""

import compileall
import os
import shutil
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

from packaging.requirements import Requirement

import seer

PACKAGES = ("ipykernel", "matplotlib", "numpy", "pandas", "scipy")
_LEFT_OUT = {"test", "tests", "site-packages", "idlelib", "ensurepip", "tkinter"}


def copy_environment(folder: Path, *packages: str) -> Path:
    """Make it in `folder`; returns its interpreter. Files are linked where that is possible."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    home = folder / "python"
    _link_tree(base / "lib" / version, home / "lib" / version)
    for shared in (base / "lib").glob("libpython*"):
        _link(shared, home / "lib" / shared.name)
    _link((base / "bin" / version).resolve(), home / "bin" / version)
    (home / "bin" / "python3").symlink_to(version)
    venv = folder / "venv"
    site = venv / "lib" / version / "site-packages"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(home / "bin" / version)
    (venv / "pyvenv.cfg").write_text(f"home = {home / 'bin'}\n")
    project = tomllib.loads((Path(seer.__file__).parents[2] / "pyproject.toml").read_text())
    needed = [Requirement(line).name for line in project["project"]["dependencies"]]
    for distribution in _closure([*needed, *PACKAGES, *packages]).values():
        _link_distribution(distribution, venv)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(seer.__file__).parent, site / "seer", ignore=ignored)
    compileall.compile_dir(site / "seer", quiet=1)
    return venv / "bin" / "python"


def _closure(names: list[str]) -> dict[str, Distribution]:
    """These distributions and all that they require here."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = Distribution.from_name(name)
        except PackageNotFoundError:
            continue  # not needed on this platform
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def _link_distribution(distribution: Distribution, venv: Path) -> None:
    for file in distribution.files or ():
        source = Path(os.path.normpath(str(file.locate())))
        if source.is_relative_to(sys.prefix):
            _link(source, venv / source.relative_to(sys.prefix))


def _link_tree(source: Path, target: Path) -> None:
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in _LEFT_OUT]
        for file in files:
            path = Path(folder, file)
            _link(path, target / path.relative_to(source))


def _link(source: Path, target: Path) -> None:
    if target.exists() or not source.exists():
        return
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if source.stat().st_mode & 0o004:
        try:
            target.hardlink_to(source)
            return
        except OSError:
            pass  # another file system
    shutil.copy2(source, target)  # with its time, to which the compiled file refers
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
