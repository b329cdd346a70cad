"""A library: Python code that an agent imports in its session, local or served through the gate.

Both kinds are the same to an agent. A served library's files are a generated module and the
gate's client; its `gate` hands out the socket that they connect to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import MappingProxyType, ModuleType

from seer.errors import ConfigError
from seer.isolation import read_bytes
from seer.workspace._docs import document_library, parse_module
from seer.workspace._frontmatter import split_frontmatter
from seer.workspace._gate import Gate
from seer.workspace._names import check_files, check_module_name, skill_name_of

MAX_FILES = 2000
MAX_BYTES = 64 * 1024 * 1024
_SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".venv", "node_modules"})


@dataclass(frozen=True, kw_only=True)
class Library:
    """Python code that can be imported as `name` in a session.

    Nothing of it is executed on the controller: signatures and docstrings are read with `ast`.
    """

    name: str
    """What the agent imports."""
    files: Mapping[str, bytes] = field(hash=False, repr=False)
    """Relative path -> content; `name.py` or files under `name/`, and what they need."""
    docs: str = field(default="", repr=False)
    """Markdown for the prompt; made from the code where none is given."""
    gate: Gate | None = field(default=None, compare=False, repr=False)
    """Where a served library's calls go; None for local code."""

    def __repr__(self) -> str:
        kind = "served" if self.gate is not None else "local code"
        return f"<Library {self.name}: {kind}>"

    def _repr_html_(self) -> str:
        return f"<b>{escape(repr(self)[1:-1])}</b><pre>{escape(self.docs)}</pre>"

    def __post_init__(self) -> None:
        check_module_name("Library.name", self.name)
        files = check_files("Library.files", self.files)
        if not any(path == f"{self.name}.py" or path.startswith(f"{self.name}/") for path in files):
            raise ConfigError(
                "Library.files",
                sorted(files)[:5],
                f"holds neither {self.name}.py nor a file under {self.name}/, "
                f"so `import {self.name}` would fail",
            )
        for path, content in files.items():
            if path.endswith(".py"):
                parse_module(f"Library {self.name!r}", path, content)
        object.__setattr__(self, "files", MappingProxyType(files))
        if not self.docs:
            object.__setattr__(self, "docs", document_library(self.name, files))

    @classmethod
    def from_code(cls, name: str, code: str) -> Library:
        """A library of one module, from its source.

        Raises:
            ConfigError: The name cannot be imported, or the code does not parse.
        """
        return cls(name=name, files={f"{name}.py": code.encode()})

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], name: str | None = None) -> Library:
        """A library of one module, from a file; named after the file unless `name` is given.

        Raises:
            ConfigError: The file is missing or does not parse, or the name cannot be imported.
        """
        source = Path(path)
        if source.suffix != ".py" or not source.is_file():
            hint = (
                "is a folder; use Library.from_directory" if source.is_dir() else "is no .py file"
            )
            raise ConfigError("Library.from_file", str(path), hint)
        stem = name if name is not None else source.stem
        return cls(name=stem, files={f"{stem}.py": source.read_bytes()})

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str], name: str | None = None) -> Library:
        """A package, from its folder; named after the folder unless `name` is given.

        Data files in the folder come along; caches and version control do not.

        Raises:
            ConfigError: There is no Python in the folder, it is too large, or see `from_file`.
        """
        root = Path(path)
        if not root.is_dir():
            raise ConfigError("Library.from_directory", str(path), "is no folder")
        files = read_folder("Library.from_directory", root)
        if not any(file.endswith(".py") for file in files):
            raise ConfigError("Library.from_directory", str(path), "has no .py file in it")
        package = name if name is not None else root.resolve().name
        return cls(name=package, files={f"{package}/{file}": data for file, data in files.items()})

    @classmethod
    def from_skill_dir(cls, path: str | os.PathLike[str], name: str | None = None) -> Library:
        """The Python code of a skill's folder as a library, documented by its `SKILL.md`.

        One `.py` file becomes a module, several become a package; the name is the skill's, with
        underscores.

        Raises:
            ConfigError: There is no `SKILL.md`, or no Python beside it; or see `from_file`.
        """
        root = Path(path)
        if not (root / "SKILL.md").is_file():
            raise ConfigError("Library.from_skill_dir", str(path), "has no SKILL.md")
        files = read_folder("Library.from_skill_dir", root)
        meta, body = split_frontmatter("Library.from_skill_dir", files["SKILL.md"].decode())
        code = {file: data for file, data in files.items() if file.endswith(".py")}
        if not code:
            raise ConfigError(
                "Library.from_skill_dir", str(path), "has no .py file beside SKILL.md"
            )
        if name is None:
            name = skill_name_of(meta.get("name") or root.resolve().name).replace("-", "_")
        if len(code) == 1:
            packed = {f"{name}.py": next(iter(code.values()))}
        else:
            packed = {f"{name}/{file}": data for file, data in code.items()}
        signatures = document_library(name, packed)
        return cls(name=name, files=packed, docs=f"{body.strip()}\n\n{signatures}".strip() + "\n")

    def connect(self) -> ModuleType:
        """A live module for a person's own script: calls go through the gate as an own caller.

        A local library has nothing to connect to: import its file instead.

        Raises:
            ConfigError: The library is local code.
        """
        from seer.workspace._connect import connect_library

        return connect_library(self)


def read_folder(field: str, root: Path) -> dict[str, bytes]:
    """All regular files below `root`, by relative path; links are not followed.

    Raises:
        ConfigError: There are too many files, or they are too large together.
    """
    files: dict[str, bytes] = {}
    total = 0
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
        for file in sorted(names):
            path = Path(folder, file)
            if path.is_symlink() or not path.is_file() or path.suffix == ".pyc":
                continue
            # The folder may be one that an agent works in, and the check above a moment old.
            data = read_bytes(root, path.relative_to(root))
            total += len(data)
            files[path.relative_to(root).as_posix()] = data
            if len(files) > MAX_FILES or total > MAX_BYTES:
                raise ConfigError(
                    field,
                    str(root),
                    f"holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB; "
                    "give large data to the session with Workspace(local_dirs=...)",
                )
    return files
