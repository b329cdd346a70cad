"""Copies of the files that run beside and inside machines, in folders named by content hashes.

A machine never runs from the checkout or the installed package, because agents must not see those,
and they may change while a machine runs. A bundle never changes and holds nothing else. Its modules
are compiled once, so that no start has to compile them.
"""

import hashlib
import os
import py_compile
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from seer._files import place_folder
from seer._paths import cache_dir
from seer._transient import TransientFolder


def bundle(files: Mapping[str, Path]) -> Path:
    """The folder that holds copies of `files`, created if it does not exist.

    Args:
        files: Path in the bundle (relative, with forward slashes) -> file to copy.

    Returns:
        A folder that all users can read and that never changes.
    """
    folder = cache_dir() / "bundles" / _digest(tuple(sorted(files.items())))
    if not folder.is_dir():
        _make(folder, files)
    return folder


@cache
def _digest(files: tuple[tuple[str, Path], ...]) -> str:
    # Compiled files fit one version of Python only.
    total = hashlib.sha256(sys.implementation.cache_tag.encode())
    for name, path in files:
        total.update(f"{len(name)}:{name}".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:32]


def _make(folder: Path, files: Mapping[str, Path]) -> None:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    with TransientFolder("draft", inside=folder.parent) as draft:
        for name, source in files.items():
            target = draft / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            if target.suffix == ".py":
                # The hash in the folder's name identifies the content, so imports need no check.
                py_compile.compile(
                    str(target),
                    dfile=name,
                    doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
        for parent, _, names in os.walk(draft):
            Path(parent).chmod(0o755)
            for name in names:
                Path(parent, name).chmod(0o644)
        place_folder(draft, folder)
