"""A private folder of this host behind the same file API as a machine's."""

from pathlib import Path

from seer._files import replace_file
from seer.errors import RemoteFileError


class HostFolder:
    """Files below one folder that no agent can write to; paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file.

        Raises:
            RemoteFileError: With the errno.
        """
        try:
            with (self._root / path).open("rb") as file:
                file.seek(offset)
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise RemoteFileError(error.errno, error.strerror, path) from None

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """Write a file, whole or not at all; everybody in a jail may read it.

        Raises:
            RemoteFileError: With the errno.
        """
        target = self._root / path
        try:
            await self.ensure_dir(str(Path(path).parent))
            if append and target.exists():
                data = target.read_bytes() + data
            replace_file(target, data, mode=mode)
        except OSError as error:
            raise RemoteFileError(error.errno, error.strerror, path) from None

    async def ensure_dir(self, path: str) -> None:
        """Make a folder and its parents, readable for the jail's user."""
        folder = self._root
        for part in Path(path).parts:
            folder = folder / part
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(0o755)
