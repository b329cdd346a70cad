"""`Library` as the original spells it: positional arguments, and a method that installs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import seer.workspace
from seer.workspace import Gate


class Library(seer.workspace.Library):
    """A `seer.workspace.Library` with the original's spellings."""

    def __init__(
        self,
        name: str,
        files: Mapping[str, str | bytes],
        docs: str = "",
        gate: Gate | None = None,
    ) -> None:
        super().__init__(name=name, files=cast("Mapping[str, bytes]", files), docs=docs, gate=gate)

    @classmethod
    def of(cls, library: seer.workspace.Library) -> "Library":
        """The same library, with the original's spellings."""
        return cls(library.name, library.files, library.docs, library.gate)

    @property
    def is_single_file(self) -> bool:
        """Whether the library is one module, not a package."""
        return f"{self.name}.py" in self.files

    def install_in(self, folder: str | Path) -> Path:
        """Write the library's files below a folder of this machine.

        Returns:
            The module's file, or the package's folder.
        """
        write_below(folder, self.files)
        return Path(folder) / (f"{self.name}.py" if self.is_single_file else self.name)

    def get_prompt_docs(self) -> str:
        """The library's documentation as Markdown, for a prompt."""
        return self.docs


def write_below(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Write files by their relative paths."""
    for name, content in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
