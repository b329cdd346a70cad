"""A policy's mounts, checked and resolved, and Seer's own files, which no mount may show.

These rules are the same for every backend. Files of Seer that a mount would show are masked;
`masks_within` finds them.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seer.errors import IsolationError
from seer.isolation._policy import Mount, Policy

PACKAGE = Path(__file__).resolve().parents[1]
"""Seer's package folder."""


@dataclass(frozen=True)
class Resolved:
    """A checked mount."""

    source: str
    """The real path, without symbolic links."""
    target: str
    writable: bool


def resolve_mounts(policy: Policy) -> list[Resolved]:
    """The policy's mounts, outer targets first.

    Raises:
        IsolationError: A target is invalid, or a source is missing or must stay invisible.
    """
    found: list[Resolved] = []
    for mount in sorted(policy.mounts, key=lambda mount: mount.target):
        _check_target(mount, found)
        source = os.path.realpath(mount.source)
        if not os.path.lexists(source):
            raise IsolationError(
                f"mount source {str(mount.source)!r} (for {mount.target!r}) does not exist; "
                f"create it first"
            )
        _check_source(source, mount)
        found.append(Resolved(source, mount.target, mount.writable))
    return found


def _check_target(mount: Mount, earlier: Sequence[Resolved]) -> None:
    target = mount.target
    if not target.startswith("/") or os.path.normpath(target) != target or target == "/":
        raise IsolationError(
            f"mount target {target!r} must be an absolute, normal path other than '/'"
        )
    for other in earlier:
        if target == other.target:
            raise IsolationError(f"two mounts have the target {target!r}; give each its own")
        # Content of a writable folder may be hostile: a planted link would redirect the mount.
        if other.writable and inside(target, other.target):
            raise IsolationError(
                f"mount target {target!r} lies inside the writable mount {other.target!r}; "
                f"choose a target outside it"
            )


def _check_source(source: str, mount: Mount) -> None:
    """Refuse Seer's package and the whole checkout.

    A folder inside the checkout may be mounted, because experiments keep their workspaces there.
    """
    if inside(source, str(PACKAGE)) or any(source == str(path) for path in own_paths()):
        raise IsolationError(
            f"mount of {str(mount.source)!r} at {mount.target!r} would show Seer's own files "
            f"to the jail; mount another folder"
        )


@cache
def own_paths() -> tuple[Path, ...]:
    """Seer's package, its checkout, and all files of its installed distributions."""
    found = {PACKAGE}
    checkout = PACKAGE.parents[1]
    if PACKAGE.parent.name == "src" and (checkout / "pyproject.toml").is_file():
        found.add(checkout)
    for folder in _site_folders():
        found.update(_distribution_files(folder))
    # The list keeps paths inside the checkout, because mounts from inside it are permitted.
    return tuple(sorted(found))


def _site_folders() -> list[Path]:
    paths = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths.append(str(Path(sys.base_prefix, "lib", version, "site-packages")))
    return [Path(path).resolve() for path in dict.fromkeys(paths) if path and Path(path).is_dir()]


def _distribution_files(site: Path) -> Iterator[Path]:
    for name in os.listdir(site):  # noqa: PTH208 (one listing of a large folder, names only)
        lowered = name.lower()
        if lowered.endswith(".pth") and "seer" in lowered:
            yield site / name
        elif lowered.endswith(".dist-info") and lowered.startswith(("seer-", "seer_")):
            yield site / name
            yield from _recorded(site, site / name / "RECORD")


def _recorded(site: Path, record: Path) -> Iterator[Path]:
    """What a distribution installed: its top-level entries, and its scripts."""
    if not record.is_file():
        return
    seen: set[str] = set()
    for line in record.read_text(encoding="utf-8").splitlines():
        name = line.split(",", 1)[0]
        top = name.split("/", 1)[0]
        if top == "..":
            yield (site / name).resolve()
        elif top not in seen and top != "__pycache__":
            seen.add(top)
            yield site / top


def masks_within(source: str) -> list[tuple[str, bool]]:
    """The relative paths in `source` that must stay invisible, each with whether it is a folder.

    A path below another masked one is left out.
    """
    found: list[tuple[str, bool]] = []
    for path in own_paths():
        text = str(path)
        if text != source and inside(text, source) and path.exists():
            relative = text[len(source.rstrip("/")) + 1 :]
            if not any(inside(relative, parent) for parent, _ in found):
                found.append((relative, path.is_dir()))
    return found


def in_view(view: Mapping[str, str], path: str) -> str:
    """`path` as a jail sees it: translated by the mount that holds it, otherwise unchanged.

    Args:
        view: Where the jail sees each mount's target (`Backend.view`).
        path: A path in terms of the targets.
    """
    target = max((target for target in view if inside(path, target)), key=len, default=None)
    return path if target is None else view[target] + path[len(target.rstrip("/")) :]


def inside(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or inside it; both absolute and normal."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
