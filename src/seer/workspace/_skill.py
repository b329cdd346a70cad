"""A skill: a folder with a `SKILL.md` that tells an agent how to do something, and other files."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from seer.errors import ConfigError
from seer.workspace._docs import document_module, first_sentence, parse_module
from seer.workspace._frontmatter import split_frontmatter, with_frontmatter
from seer.workspace._library import read_folder
from seer.workspace._names import check_exists, check_files, check_skill_name, skill_name_of

MAX_DESCRIPTION = 1024
"""The largest number of characters that the Agent Skills format allows."""


@dataclass(frozen=True, kw_only=True)
class Skill:
    """An Agent Skill: instructions with front matter, and the files that they mention."""

    name: str
    """The skill's name, in lower case with hyphens. It is also the folder's name."""
    description: str
    """What the skill does and when to use it. An agent sees only this until it opens the skill."""
    files: Mapping[str, bytes] = field(hash=False)
    """The content of each file by relative path, including `SKILL.md`."""

    def __post_init__(self) -> None:
        check_skill_name("Skill.name", self.name)
        if not self.description.strip() or len(self.description) > MAX_DESCRIPTION:
            raise ConfigError(
                "Skill.description",
                self.description[:80],
                f"must have 1 to {MAX_DESCRIPTION} characters; agents choose skills by it",
            )
        files = check_files("Skill.files", self.files)
        if "SKILL.md" not in files:
            raise ConfigError("Skill.files", sorted(files)[:5], "has no SKILL.md")
        object.__setattr__(self, "files", MappingProxyType(files))

    @classmethod
    def from_text(cls, name: str, *, description: str, body: str) -> Skill:
        """Make a skill that has only instructions (Markdown)."""
        text = with_frontmatter({"name": name, "description": description}, body)
        return cls(name=name, description=description, files={"SKILL.md": text.encode()})

    @classmethod
    def from_markdown(cls, text: str) -> Skill:
        """Make a skill from the text of a `SKILL.md` with front matter.

        Raises:
            ConfigError: The front matter is missing or invalid.
        """
        return cls._from_files("Skill.from_markdown", text[:80], {"SKILL.md": text.encode()})

    @classmethod
    def from_dir(cls, path: str | os.PathLike[str]) -> Skill:
        """Make a skill from its folder, with all files in it.

        Raises:
            ConfigError: The folder has no `SKILL.md`, or its front matter is missing or invalid.
        """
        root = Path(path)
        check_exists("Skill.from_dir", root)
        if not (root / "SKILL.md").is_file():
            raise ConfigError("Skill.from_dir", str(path), "has no SKILL.md")
        return cls._from_files("Skill.from_dir", str(path), read_folder("Skill.from_dir", root))

    @classmethod
    def _from_files(cls, where: str, value: str, files: Mapping[str, bytes]) -> Skill:
        meta, _ = split_frontmatter(where, files["SKILL.md"].decode())
        missing = [key for key in ("name", "description") if not meta.get(key)]
        if missing:
            raise ConfigError(
                where, value, f"the front matter of its SKILL.md lacks {' and '.join(missing)}"
            )
        return cls(name=meta["name"], description=meta["description"], files=files)

    @classmethod
    def from_function(
        cls, function: Callable[..., object], description: str | None = None
    ) -> Skill:
        """Make a skill from the source of one function. Its docstring is the default description.

        Raises:
            ConfigError: The source cannot be read, or there is neither docstring nor description.
        """
        name = getattr(function, "__name__", "")
        try:
            source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError) as error:
            raise ConfigError(
                "Skill.from_function", function, f"the source cannot be read: {error}"
            ) from error
        return cls.from_source(source, skill_name_of(name), description=description)

    @classmethod
    def from_source(
        cls, source: str, name: str | None = None, *, description: str | None = None
    ) -> Skill:
        """Make a skill from Python source: signatures in `SKILL.md`, the code in a file.

        Args:
            source: The code. It is parsed, never executed.
            name: By default, the name of its only public function or class.
            description: By default, the docstring of the module or of that definition.

        Raises:
            ConfigError: The code does not parse, or has no default for `name` or `description`.
        """
        tree = parse_module("Skill.from_source", f"{name or 'source'}.py", source.encode())
        definitions = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
        ]
        sole = definitions[0] if len(definitions) == 1 else None
        if name is None:
            if sole is None:
                raise ConfigError(
                    "Skill.from_source",
                    source[:80],
                    "does not define exactly one public function or class; pass name=",
                )
            name = skill_name_of(sole.name)
        docstring = ast.get_docstring(tree) or (ast.get_docstring(sole) if sole else None)
        description = description or first_sentence(docstring)
        if not description:
            raise ConfigError(
                "Skill.from_source", name, "has no docstring; add one, or pass description="
            )
        script = f"scripts/{name.replace('-', '_')}.py"
        body = (
            f"# {name}\n\n{docstring or description}\n\n```python\n"
            + "\n\n".join(document_module(tree))
            + f"\n```\n\nThe code is in `{script}`, beside this file.\n"
        )
        text = with_frontmatter({"name": name, "description": description}, body)
        return cls(
            name=name,
            description=description,
            files={"SKILL.md": text.encode(), script: source.encode()},
        )
