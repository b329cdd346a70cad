"""A workspace: a description of everything that an agent finds in its session."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer._checks import check_type, items_of
from seer.errors import ConfigError
from seer.workspace._docs import parse_module
from seer.workspace._library import Library
from seer.workspace._names import check_exists, check_relative
from seer.workspace._skill import Skill

LocalPath = str | os.PathLike[str] | tuple[str | os.PathLike[str], str]
"""A path on this host, or a pair of such a path and a relative path in the workspace."""

SKILL_FOLDERS = (".claude/skills", ".agents/skills")
"""The folders in which agents look for skills. Every skill is written to both."""


@dataclass(frozen=True)
class Workspace:
    """What an agent can import and read. This is data only: it executes and starts nothing.

    Raises:
        ConfigError: A name is used twice, a path does not exist, or code does not parse.
    """

    libraries: Sequence[Library] = ()
    skills: Sequence[Skill] = ()
    skill_dirs: Sequence[str | os.PathLike[str]] = ()
    """Folders of skills, or folders that hold such folders."""
    local_dirs: Sequence[LocalPath] = ()
    local_files: Sequence[LocalPath] = ()
    custom_init_code: str | None = None
    """Python that runs in the session's kernel before the agent's first cell."""
    preload_models: bool = True
    """Whether a notebook session loads the sandbox's models into variables."""

    def __post_init__(self) -> None:
        def freeze(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        def freeze_items(name: str, kind: type[Any] | tuple[type[Any], ...], wanted: str) -> None:
            freeze(name, items_of(f"Workspace.{name}", getattr(self, name), kind, wanted))

        code = self.custom_init_code
        check_type("Workspace.custom_init_code", code, str, "Python code as a string", none=True)
        freeze_items("libraries", Library, "Library objects")
        freeze_items("skills", Skill, "Skill objects")
        freeze_items("skill_dirs", (str, os.PathLike), "paths")
        freeze_items("local_dirs", (str, os.PathLike, tuple), "paths")
        freeze_items("local_files", (str, os.PathLike, tuple), "paths")
        freeze("skills", (*self.skills, *self._skills_of_dirs()))
        _check_unique("Workspace.libraries", [library.name for library in self.libraries])
        _check_unique("Workspace.skills", [skill.name for skill in self.skills])
        self.library_files()
        for source, target in self.local_sources():
            check_relative("Workspace.local_files", target)
            check_exists("Workspace.local_files", source)
        for entry in self.local_dirs:
            if not _split(entry)[0].is_dir():
                raise ConfigError("Workspace.local_dirs", str(_split(entry)[0]), "is not a folder")
        if self.custom_init_code is not None:
            parse_module(
                "Workspace.custom_init_code", "custom_init_code", self.custom_init_code.encode()
            )

    def library_files(self) -> dict[str, bytes]:
        """The files of all libraries, by relative path.

        Raises:
            ConfigError: Two libraries have different files with the same path.
        """
        files: dict[str, bytes] = {}
        for library in self.libraries:
            for path, content in library.files.items():
                if files.setdefault(path, content) != content:
                    raise ConfigError(
                        "Workspace.libraries",
                        library.name,
                        f"has a file {path!r} that differs from another library's; rename one",
                    )
        return files

    def local_sources(self) -> Iterator[tuple[Path, str]]:
        """Each local file or folder, with its relative path in the workspace."""
        for entry in (*self.local_dirs, *self.local_files):
            yield _split(entry)

    def get_library_docs(self) -> str:
        """Markdown for the prompt: the libraries, with signatures and docstrings."""
        if not self.libraries:
            return ""
        names = ", ".join(f"`import {library.name}`" for library in self.libraries)
        docs = "\n".join(library.docs.strip() + "\n" for library in self.libraries)
        return f"# Libraries\n\nThese can be imported: {names}.\n\n{docs}"

    def get_skill_docs(self) -> str:
        """Markdown for agents that do not find skills themselves: a list with paths."""
        if not self.skills:
            return ""
        lines = [
            f"- **{skill.name}**: {' '.join(skill.description.split())} "
            f"(read `{SKILL_FOLDERS[0]}/{skill.name}/SKILL.md` first)"
            for skill in self.skills
        ]
        return "# Skills\n\n" + "\n".join(lines) + "\n"

    def _skills_of_dirs(self) -> Iterator[Skill]:
        for entry in self.skill_dirs:
            root = Path(entry)
            check_exists("Workspace.skill_dirs", root)
            if (root / "SKILL.md").is_file():
                yield Skill.from_dir(root)
                continue
            found = sorted(root.glob("*/SKILL.md"))
            if not found:
                raise ConfigError(
                    "Workspace.skill_dirs", str(entry), "has no SKILL.md, and no folder with one"
                )
            for path in found:
                yield Skill.from_dir(path.parent)


def _split(entry: LocalPath) -> tuple[Path, str]:
    if isinstance(entry, tuple):
        return Path(entry[0]), entry[1]
    path = Path(entry)
    return path, path.name or path.resolve().name


def _check_unique(field: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(field, twice[0], "is the name of two entries; rename one")
