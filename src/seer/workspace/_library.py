"""A library: Python code that an agent imports in its session, local or served through the gate.

An agent uses both kinds in the same way. The files of a served library are a generated module and
the gate's client. Its `gate` makes the socket that the client connects to.
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
from seer.workspace._names import check_exists, check_files, check_module_name, skill_name_of

MAX_FILES = 2000
MAX_BYTES = 64 * 1024 * 1024
_SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".venv", "node_modules"})


@dataclass(frozen=True, kw_only=True)
class Library:
    """Python code that can be imported as `name` in a session.

    The controller does not execute the code. It reads signatures and docstrings with `ast`.
    """

    name: str
    """The name that the agent imports."""
    files: Mapping[str, bytes] = field(hash=False, repr=False)
    """The content of each file by relative path: `name.py` or `name/...`, and the files that they
    import."""
    docs: str = field(default="", repr=False)
    """Markdown for the prompt; by default, generated from the code."""
    gate: Gate | None = field(default=None, compare=False, repr=False)
    """The interface of a served library; None for local code."""

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
                f"has neither {self.name}.py nor a file under {self.name}/, "
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
        """Make a library of one module from its source.

        Raises:
            ConfigError: The name cannot be imported, or the code does not parse.
        """
        return cls(name=name, files={f"{name}.py": code.encode()})

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], name: str | None = None) -> Library:
        """Make a library of one module from a file. The default name is the file's stem.

        Raises:
            ConfigError: The file is missing or does not parse, or the name cannot be imported.
        """
        source = Path(path)
        check_exists("Library.from_file", source)
        if source.suffix != ".py" or not source.is_file():
            hint = (
                "is a folder; use Library.from_directory"
                if source.is_dir()
                else "is not a .py file"
            )
            raise ConfigError("Library.from_file", str(path), hint)
        stem = name if name is not None else source.stem
        return cls(name=stem, files={f"{stem}.py": source.read_bytes()})

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str], name: str | None = None) -> Library:
        """Make a library of a package from its folder. The default name is the folder's name.

        The library includes data files in the folder, but no caches or version control folders.

        Raises:
            ConfigError: The folder has no Python file or is too large, or a file does not parse.
        """
        root = Path(path)
        check_exists("Library.from_directory", root)
        if not root.is_dir():
            raise ConfigError("Library.from_directory", str(path), "is not a folder")
        files = read_folder("Library.from_directory", root)
        if not any(file.endswith(".py") for file in files):
            raise ConfigError("Library.from_directory", str(path), "has no .py file in it")
        package = name if name is not None else root.resolve().name
        return cls(name=package, files={f"{package}/{file}": data for file, data in files.items()})

    @classmethod
    def from_skill_dir(cls, path: str | os.PathLike[str], name: str | None = None) -> Library:
        """Make a library from the Python code in a skill's folder, documented by its `SKILL.md`.

        One `.py` file becomes a module; several become a package. The default name is the skill's
        name with underscores.

        Raises:
            ConfigError: The folder has no `SKILL.md` or no Python file, or a file does not parse.
        """
        root = Path(path)
        check_exists("Library.from_skill_dir", root)
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
        """Return a module whose functions call the interface, for your own script or notebook.

        Each call of `connect` makes a new caller. For a local library, import its file instead.

        Raises:
            ConfigError: The library is local code.
        """
        from seer.workspace._connect import connect_library

        return connect_library(self)


def read_folder(field: str, root: Path) -> dict[str, bytes]:
    """The content of all regular files below `root`, by relative path. Links are skipped.

    Raises:
        ConfigError: The folder has too many files or bytes.
    """
    files: dict[str, bytes] = {}
    total = 0
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
        for file in sorted(names):
            path = Path(folder, file)
            if path.is_symlink() or not path.is_file() or path.suffix == ".pyc":
                continue
            # An agent may work in this folder and replace the file by a link after the check.
            data = read_bytes(root, path.relative_to(root))
            total += len(data)
            files[path.relative_to(root).as_posix()] = data
            if len(files) > MAX_FILES or total > MAX_BYTES:
                raise ConfigError(
                    field,
                    str(root),
                    f"has more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB; "
                    "keep large data out of this folder",
                )
    return files
