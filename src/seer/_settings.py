"""Settings from the environment, or from the nearest `.env` file of the project.

The file is in the current folder or in a folder above it, up to the project's root. `.git` or
`pyproject.toml` marks the root. Outside a project, only the current folder is searched.
"""

import os
from pathlib import Path

from dotenv import dotenv_values

_ROOT_MARKS = (".git", "pyproject.toml")


def dotenv_file() -> Path | None:
    """The nearest `.env` file; None if there is none."""
    here = Path.cwd()
    folders = [here, *here.parents]
    ends = [i for i, f in enumerate(folders) if any((f / mark).exists() for mark in _ROOT_MARKS)]
    for folder in folders[: ends[0] + 1] if ends else folders[:1]:
        if (folder / ".env").is_file():
            return folder / ".env"
    return None


def read_dotenv(file: Path | None) -> dict[str, str]:
    """The variables of a file that have a value. A `$` in a value is not expanded."""
    if file is None or not file.is_file():
        return {}
    return {name: value for name, value in dotenv_values(file, interpolate=False).items() if value}


def setting(name: str) -> str | None:
    """The value of a variable in the environment, else in `.env`; None if it is in neither."""
    return os.environ.get(name) or read_dotenv(dotenv_file()).get(name)
