"""Folders that travel between machines: which files, what they hold, and how they are packed.

Of the standard library alone: it runs on the nodes of a cluster too. Only ordinary files travel.
Links do not, since an agent may have planted one that leads to something of its host's; on
arrival, whatever is no ordinary file below the target is refused.
"""

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

Manifest = dict[str, str]
"""Paths in a folder, with slashes, and the hash of what each file holds."""

_LEFT_BEHIND = ("__pycache__", "outputs", "workspace")
"""What programs, records and sessions leave in an experiment's folder."""
_MARKS = ("pyvenv.cfg", "sweep.json")
"""Files by which a virtual environment, and a sweep, are known."""
_CHUNK = 1 << 20


class TooLargeError(Exception):
    """There is more than may be sent. Never leaves this package."""


def source_files(folder: Path) -> Iterator[Path]:
    """The files of an experiment, below its folder.

    Not what is hidden (`.env`, `.git`), nor environments, sweeps, records and workspaces.
    """
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name in _LEFT_BEHIND or entry.is_symlink():
            continue
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not any((entry / mark).exists() for mark in _MARKS):
            yield from source_files(entry)


def all_files(folder: Path) -> Iterator[Path]:
    """All ordinary files below a folder."""
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(base, name)
            if path.is_file() and not path.is_symlink():
                yield path


def manifest(folder: Path, files: list[Path]) -> Manifest:
    """What the files hold."""
    return {file.relative_to(folder).as_posix(): _hash(file) for file in files}


def holds(folder: Path, wanted: Manifest) -> bool:
    """Whether a folder has all these files, as they are wanted."""
    try:
        return all(_hash(folder / name) == digest for name, digest in wanted.items())
    except OSError:
        return False


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def pack(folder: Path, files: list[Path], target: io.IOBase, *, limit: int) -> None:
    """Write files as an archive.

    Raises:
        TooLargeError: They hold more than `limit` bytes; it names the largest.
    """
    sizes = {file: file.stat().st_size for file in files}
    if sum(sizes.values()) > limit:
        largest = sorted(files, key=lambda file: -sizes[file])[:3]
        names = ", ".join(f"{f.relative_to(folder)} ({sizes[f]:,} bytes)" for f in largest)
        raise TooLargeError(f"{sum(sizes.values()):,} bytes, of {limit:,}; the largest: {names}")
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            archive.add(file, file.relative_to(folder).as_posix(), recursive=False)


def unpack(archive: Path, target: Path) -> None:
    """Make `target` the folder that an archive holds; all of it or nothing.

    Raises:
        OSError: It cannot be written.
        tarfile.TarError: It is broken, or holds what has no business there.
    """
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with tarfile.open(archive) as files:
            for member in files:
                if not member.isfile():
                    raise tarfile.ReadError(f"{member.name!r} is no ordinary file")
                files.extract(member, part, filter="data")
        part.chmod(0o755)
        if target.is_dir():
            shutil.rmtree(target)
        part.replace(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
