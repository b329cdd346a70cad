"""Which paths a jail must never show: Seer's own files, and what a policy masks.

A mask only matters where some mount would show the path; `masks_within` finds those places.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""Seer's package folder."""


@cache
def own_paths() -> tuple[Path, ...]:
    """Seer's package, its checkout, and everything its installed distributions consist of."""
    found = {PACKAGE}
    checkout = PACKAGE.parents[1]
    if PACKAGE.parent.name == "src" and (checkout / "pyproject.toml").is_file():
        found.add(checkout)
    for folder in _site_folders():
        found.update(_distribution_files(folder))
    # A path beneath another one needs no mask of its own, but one that is inside the checkout is
    # kept: mounts from inside the checkout are permitted.
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


def masks_within(source: str, masked: Sequence[Path]) -> list[tuple[str, bool]]:
    """Paths relative to `source` that must not be seen there, each with whether it is a folder.

    A path below another masked one is left out.
    """
    found: list[tuple[str, bool]] = []
    for path in sorted({*own_paths(), *(Path(os.path.realpath(path)) for path in masked)}):
        text = str(path)
        if text != source and inside(text, source) and path.exists():
            relative = text[len(source.rstrip("/")) + 1 :]
            if not any(inside(relative, parent) for parent, _ in found):
                found.append((relative, path.is_dir()))
    return found


def inside(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it; both absolute and normal."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
