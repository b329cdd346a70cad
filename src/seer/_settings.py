"""Variables of a project: in the environment, and in the nearest `.env` of the project.

A file lies in the current folder, or above it up to the project's root, which `.git` or
`pyproject.toml` marks. Outside a project only the current folder is looked in.
"""

import os
from pathlib import Path

from dotenv import dotenv_values

_ROOT_MARKS = (".git", "pyproject.toml")


def dotenv_file() -> Path | None:
    """The nearest `.env`; None where there is none."""
    here = Path.cwd()
    folders = [here, *here.parents]
    ends = [i for i, f in enumerate(folders) if any((f / mark).exists() for mark in _ROOT_MARKS)]
    for folder in folders[: ends[0] + 1] if ends else folders[:1]:
        if (folder / ".env").is_file():
            return folder / ".env"
    return None


def read_dotenv(file: Path | None) -> dict[str, str]:
    """What a file sets to some value. A `$` in a value stands for itself."""
    if file is None or not file.is_file():
        return {}
    return {name: value for name, value in dotenv_values(file, interpolate=False).items() if value}


def setting(name: str) -> str | None:
    """The value of a variable in the environment, else in `.env`; None where it has none."""
    return os.environ.get(name) or read_dotenv(dotenv_file()).get(name)
