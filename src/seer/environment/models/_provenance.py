"""Where a sandbox's models and packages come from, for the records of runs.

No agent can read records, so they hold the real names of hidden models.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name

from seer._files import replace_file
from seer._paths import cache_dir
from seer.environment.models._view import ModelFile, walk_model

_REMEMBERED = 10_000


@dataclass(frozen=True, kw_only=True)
class ModelOrigin:
    """Where a configured model really comes from."""

    name: str
    """As the configuration names it."""
    revision: str
    source: str
    """The hub id or folder that was used; differs from `name` if that has an alias."""
    commit: str | None
    """The hub's commit; None for a folder of this machine."""
    folder: str
    """Its files on the host that prepared it."""
    names: Sequence[str] = ()
    """For a hidden model: other strings that reveal its name, taken from its files and its name."""


def package_versions(environment: Path | None, wanted: Sequence[str]) -> dict[str, str]:
    """The versions of an environment's packages, and of wanted packages beside Seer."""
    found: dict[NormalizedName, str] = {}
    if environment is not None:
        for folder in environment.glob("lib/python*/site-packages/*.dist-info"):
            name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
            found[canonicalize_name(name)] = version
    names: set[NormalizedName] = set()
    for text in wanted:
        try:
            names.add(canonicalize_name(Requirement(text).name))
        except InvalidRequirement:
            continue  # a path or an address, which has no version to look up
    missing = names - set(found)
    if missing:
        below = {canonicalize_name(item.name): item.version for item in distributions()}
        found.update((name, below[name]) for name in missing & set(below))
    return {str(name): found[name] for name in sorted(found)}


def fingerprint(folder: Path) -> dict[str, Any]:
    """The hashes of a model's files, and one hash of all of them. Blocks.

    Raises:
        OSError: A file cannot be read.
        ModelError: A link is broken, or leads out of the folder.
    """
    memory = _Memory(cache_dir() / "digests.json")
    files: dict[str, str] = {}
    for file in sorted(walk_model(folder), key=lambda file: file.name):
        files[file.name] = _digest(file, memory)
    memory.save()
    listing = json.dumps(files, sort_keys=True).encode()
    return {"sha256": hashlib.sha256(listing).hexdigest(), "files": files}


def _digest(file: ModelFile, memory: "_Memory") -> str:
    if file.path.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", file.path.name):
        return file.path.name  # the hub's cache names large files by their hash
    status = file.status
    key = f"{file.path}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
    known = memory.get(key)
    if known is None:
        with file.open() as content:
            known = hashlib.file_digest(content, "sha256").hexdigest()
        memory.put(key, known)
    return known


class _Memory:
    """A cache of file digests, each valid until its file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new: dict[str, str] = {}
        self._known: dict[str, str] = self._read()

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def put(self, key: str, digest: str) -> None:
        self._known[key] = self._new[key] = digest

    def save(self) -> None:
        if not self._new:
            return
        kept = {**self._read(), **self._new}
        replace_file(self._path, json.dumps(dict(list(kept.items())[-_REMEMBERED:])))

    def _read(self) -> dict[str, str]:
        try:
            found: Any = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return dict(found) if isinstance(found, Mapping) else {}  # pyright: ignore[reportUnknownArgumentType]
