"""Packages that are installed beside Seer, and how other environments reuse them.

Their files are linked instead of being installed a second time. Seer itself, its aliases and
packages installed from a checkout are never reused.
"""

import csv
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from seer._paths import package_folders

_OWN_MODULES = {"seer", "src", "interp_infra"}
_SCRIPT_GROUPS = ("console_scripts", "gui_scripts")
_SHARED = {"share", "etc", "include"}
"""Folders beside `lib` that packages put data into. Scripts are generated instead."""
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = {"direct_url.json", "INSTALLER", "REQUESTED"}
_SCRIPT = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python3' "$0" "$@"
' '''
import sys
from {module} import {first}
sys.argv[0] = sys.argv[0].removesuffix(".exe")
sys.exit({attribute}())
"""


@dataclass(frozen=True)
class Installed:
    """One installed distribution."""

    name: str
    """The canonical name."""
    version: str
    distribution: Distribution
    site: Path
    """The site-packages folder that it is in."""

    @property
    def pin(self) -> str:
        """The requirement that only this version meets."""
        return f"{self.name}=={self.version}"


def installed_packages() -> dict[str, Installed]:
    """The distributions that other environments may reuse, by canonical name."""
    found: dict[str, Installed] = {}
    for site in site_folders():
        for distribution in distributions(path=[str(site)]):
            name = canonicalize_name(distribution.name or "")
            if name and name not in found and _is_reusable(distribution, site):
                found[name] = Installed(name, distribution.version, distribution, site)
    return found


def site_folders() -> tuple[Path, ...]:
    """The folders in which this interpreter finds packages, in search order."""
    own = (Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
    paths = dict.fromkeys((*package_folders(), *own))
    return tuple(path for path in paths if path.is_dir())


def fingerprint() -> str:
    """A hash that changes whenever a package is installed or removed beside Seer."""
    entries = sorted(
        (entry.name, entry.stat().st_mtime_ns)
        for site in site_folders()
        for entry in os.scandir(site)
        if entry.name.endswith(".dist-info")
    )
    text = json.dumps([[str(site) for site in site_folders()], entries])
    return hashlib.sha256(text.encode()).hexdigest()


def _is_reusable(distribution: Distribution, site: Path) -> bool:
    files = _record(distribution)
    if not files:
        return False
    if '"editable"' in (distribution.read_text("direct_url.json") or ""):
        return False
    for file in files:
        top, slash, _ = file.partition("/")
        if top.removesuffix(".py") in _OWN_MODULES:
            return False
        # A .pth file that names a folder would lead out of the environment.
        if not slash and file.endswith(".pth"):
            text = (site / file).read_text(errors="replace")
            if any(line.strip().startswith("/") for line in text.splitlines()):
                return False
    return True


def _record(distribution: Distribution) -> list[str]:
    """The files of a distribution, relative to its site-packages folder.

    This avoids `Distribution.files`, which makes an object for each file: a second in total.
    """
    text = distribution.read_text("RECORD") or ""
    return [row[0] for row in csv.reader(text.splitlines()) if row]


def write_stubs(packages: Iterable[Installed], folder: Path) -> None:
    """Write a wheel without content for each package, so that a resolver can choose it."""
    for package in packages:
        stem = f"{re.sub(r'[-_.]+', '_', package.name)}-{package.version}"
        info = f"{stem}.dist-info"
        metadata = package.distribution.read_text("METADATA") or ""
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", metadata)
            wheel.writestr(
                f"{info}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: seer\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{info}/RECORD", "")


def link_package(package: Installed, environment: Path) -> int:
    """Link a package's files into another environment. Returns the bytes that had to be copied.

    Raises:
        FileNotFoundError: A file of the package is missing, so it cannot be reused.
    """
    prefix = package.site.parents[2]
    site = environment / "lib" / _VERSION / "site-packages"
    copied = 0
    for file in _record(package.distribution):
        source = Path(os.path.normpath(package.site / file))
        if source.name in _LEFT_OUT or (source.suffix == ".pyc" and not source.exists()):
            continue
        if source.is_relative_to(package.site):
            target = site / source.relative_to(package.site)
        elif source.is_relative_to(prefix) and source.relative_to(prefix).parts[0] in _SHARED:
            target = environment / source.relative_to(prefix)
        else:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        copied += _link(source, target)
    _write_scripts(package.distribution, environment / "bin")
    return copied


def _link(source: Path, target: Path) -> int:
    status = source.stat()
    closed = os.geteuid() == 0 and not status.st_mode & stat.S_IROTH
    if not closed:
        try:
            os.link(source, target)
            return 0
        except FileExistsError:
            # Two packages may share a file, such as a namespace's __init__.py.
            return 0
        except OSError:
            if not source.is_file():
                raise
    if target.exists():
        return 0
    shutil.copy2(source, target)
    target.chmod(0o755 if status.st_mode & 0o100 else 0o644)
    return status.st_size


def _write_scripts(distribution: Distribution, folder: Path) -> None:
    for entry in distribution.entry_points:
        if entry.group not in _SCRIPT_GROUPS or "/" in entry.name or entry.name.startswith("."):
            continue
        folder.mkdir(exist_ok=True)
        attribute = entry.attr or "main"
        text = _SCRIPT.format(
            module=entry.module, first=attribute.partition(".")[0], attribute=attribute
        )
        script = folder / entry.name
        script.write_text(text)
        script.chmod(0o755)
