"""Files and folders of this machine that a sandbox gets a copy of: the forms a user may write."""

from pathlib import Path, PurePosixPath
from typing import NamedTuple, cast

from seer.environment.config import _checks as check
from seer.errors import ConfigError


class LocalPath(NamedTuple):
    """A file or folder of this machine, and where it goes in the sandbox."""

    source: Path
    target: str
    """Relative targets start at the sandbox's working folder."""


PathSpec = LocalPath | tuple[str | Path, str] | str | Path
"""What a user may write: a path that keeps its name, or (path here, path there)."""


def local_paths(where: str, value: object) -> tuple[LocalPath, ...]:
    """Bring every member of a list into the full form.

    Raises:
        ConfigError: A member is no path, or leads out of the sandbox's folder.
    """
    given = check.members_of(where, value, "paths or (path here, path there) pairs")
    return tuple(_local_path(f"{where}[{index}]", item) for index, item in enumerate(given))


def _local_path(where: str, item: object) -> LocalPath:
    pair = cast("tuple[object, ...]", item) if isinstance(item, tuple) else (item, None)
    if len(pair) != 2:
        raise ConfigError(where, pair, "must be a path or a pair (path here, path there)")
    source, target = pair
    if not isinstance(source, (str, Path)):
        check.wrong_type(where, source, "a path")
    path = Path(source).expanduser().absolute()
    there = path.name if target is None else check.text(where, target)
    if ".." in PurePosixPath(there).parts or not PurePosixPath(there).name:
        raise ConfigError(where, there, "is no path in the sandbox (and '..' is not allowed)")
    return LocalPath(path, there)
