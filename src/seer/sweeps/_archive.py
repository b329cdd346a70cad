"""Archives of folders that are copied between machines.

This module uses only the standard library, because it also runs on the nodes of a cluster. An
archive holds only regular files. It holds no links, because an agent may have planted a link to a
file of its host. `unpack` refuses everything that is not a regular file below the target.
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
"""Maps the path of each file in a folder, with slashes, to the hash of its content."""

_GENERATED = ("__pycache__", "outputs", "workspace")
"""Folders that programs, records and sessions write into an experiment's folder."""
_MARKERS = ("pyvenv.cfg", "sweep.json")
"""Files that mark a folder as a virtual environment or as a sweep."""
_CHUNK = 1 << 20


class TooLargeError(Exception):
    """The files are larger than the limit. This exception does not leave the package."""


def source_files(folder: Path) -> Iterator[Path]:
    """The files of an experiment, below its folder.

    Leaves out hidden files (`.env`, `.git`), links, environments, sweeps, records and workspaces.
    """
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name in _GENERATED or entry.is_symlink():
            continue
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not any((entry / marker).exists() for marker in _MARKERS):
            yield from source_files(entry)


def all_files(folder: Path) -> Iterator[Path]:
    """All regular files below a folder."""
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(base, name)
            if path.is_file() and not path.is_symlink():
                yield path


def manifest(folder: Path, files: list[Path]) -> Manifest:
    """The hash of each file, by its path below `folder`."""
    return {file.relative_to(folder).as_posix(): _hash(file) for file in files}


def matches(folder: Path, wanted: Manifest) -> bool:
    """Whether a folder has all files of a manifest, with the same content."""
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
    """Write files into an archive.

    Raises:
        TooLargeError: The files have more than `limit` bytes; the message names the largest.
    """
    sizes = {file: file.stat().st_size for file in files}
    if sum(sizes.values()) > limit:
        largest = sorted(files, key=lambda file: -sizes[file])[:3]
        names = ", ".join(f"{f.relative_to(folder)} ({sizes[f]:,} bytes)" for f in largest)
        total = sum(sizes.values())
        raise TooLargeError(f"{total:,} bytes; the limit is {limit:,}; the largest files: {names}")
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            archive.add(file, file.relative_to(folder).as_posix(), recursive=False)


def unpack(archive: Path, target: Path) -> None:
    """Replace `target` by the content of an archive. On an error, `target` is unchanged.

    Raises:
        OSError: The folder cannot be written.
        tarfile.TarError: The archive is broken, or holds something other than regular files.
    """
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with tarfile.open(archive) as files:
            for member in files:
                if not member.isfile():
                    raise tarfile.ReadError(f"{member.name!r} is not a regular file")
                _extract(files, member, part)
        part.chmod(0o755)
        if target.is_dir():
            shutil.rmtree(target)
        part.replace(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _extract(files: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a regular file below a folder. (`tarfile`'s own filters came with Python 3.11.4.)

    Raises:
        tarfile.ReadError: Its name leads out of the folder.
    """
    name = member.name.lstrip("/")
    if not name or ".." in Path(name).parts:
        raise tarfile.ReadError(f"{member.name!r} is outside the folder")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = files.extractfile(member)
    assert content is not None, "it is a regular file"
    with content, path.open("xb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)
    os.utime(path, (member.mtime, member.mtime))
