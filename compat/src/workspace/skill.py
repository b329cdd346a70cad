"""`Skill` as the original spells it."""

from pathlib import Path

import seer.workspace
from src.workspace.library import write_below


class Skill(seer.workspace.Skill):
    """A `seer.workspace.Skill` with the original's spellings."""

    @property
    def content(self) -> str:
        """The skill's instructions, without the front matter."""
        text = self.to_skill_md()
        return text.split("\n---\n", 1)[1].strip() if text.startswith("---\n") else text

    def to_skill_md(self) -> str:
        """The text of `SKILL.md`."""
        return self.files["SKILL.md"].decode()

    def install_in(self, folder: str | Path) -> Path:
        """Write the skill below a folder of this machine; returns the skill's own folder."""
        write_below(Path(folder) / self.name, self.files)
        return Path(folder) / self.name

    @classmethod
    def from_source(
        cls,
        source: str | None = None,
        name: str | None = None,
        *,
        description: str | None = None,
        source_code: str | None = None,
        instructions: str | None = None,
    ) -> "Skill":
        """As in `seer.workspace`; `source_code` is `source`, `instructions` is a text before it."""
        code = source if source is not None else source_code
        if code is None:
            raise TypeError("from_source() needs source or source_code")
        made = super().from_source(code, name, description=description)
        if instructions is None:
            return cls(name=made.name, description=made.description, files=made.files)
        head, mark, body = made.files["SKILL.md"].decode().partition("\n---\n")
        text = f"{head}{mark}\n{instructions.strip()}\n{body}"
        return cls(
            name=made.name,
            description=made.description,
            files={**made.files, "SKILL.md": text.encode()},
        )
