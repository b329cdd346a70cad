"""Copies of controllers' files on a host, in folders named by their content."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tarfile
import time
from pathlib import Path

from seer._places import cache_dir
from seer._transient import TransientFolder
from seer.errors import ProviderError
from seer.providers.local._record import is_mounted

_CODE = Path(__file__).parents[4]
_LIFE = 30 * 86400


def has(name: str) -> str | None:
    """The folder of the copy of that name, if it is here; it counts as used."""
    folder = cache_dir() / "store" / name
    if not folder.is_dir():
        return None
    os.utime(folder)
    return str(folder)


def keep(name: str) -> str:
    """Unpack a tar from standard input, under a name that says what is in it; its folder.

    Raises:
        ProviderError: It could not be put in its place.
    """
    store = cache_dir() / "store"
    store.mkdir(mode=0o700, exist_ok=True)
    with TransientFolder("draft", inside=store) as draft:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            # Interpreters older than 3.11.4 have no filters, and need none: it comes from us.
            archive.extraction_filter = getattr(tarfile, "tar_filter", None)
            archive.extractall(draft)
        draft.chmod(0o755)
        with contextlib.suppress(FileExistsError, OSError):
            draft.rename(store / name)
    _prune(store)
    _prune(_CODE.parent)
    found = has(name)
    if found is None:
        raise ProviderError(f"the copy {name!r} could not be put in its place")
    return found


def _prune(store: Path) -> None:
    for folder in store.iterdir():
        with contextlib.suppress(OSError):
            if folder.lstat().st_mtime < time.time() - _LIFE and not is_mounted(folder):
                shutil.rmtree(folder, ignore_errors=True)
