"""Secrets: looked up by name, never printed, and removed from texts.

A secret's value goes to the sandbox, or to the one program that needs it. It belongs in no log,
exception, record, generated file or process list; `seer._redact` catches what still gets there.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from seer._redact import Redactor, register_secrets
from seer._settings import dotenv_file, read_dotenv
from seer.errors import SecretMissingError

logger = logging.getLogger(__name__)


class Secrets:
    """Secrets by name. Printing, comparing or pickling one shows or stores no value."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        register_secrets(self._values.values())
        self._redactor = Redactor(self._values.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of the configuration."""
        return tuple(self._values)

    def get(self, name: str) -> str | None:
        """The value of one secret, or None."""
        return self._values.get(name)

    def values(self) -> dict[str, str]:
        """All of them, by name, for the environment of the sandbox."""
        return dict(self._values)

    def redact(self, text: str) -> str:
        """`text` without any of the values."""
        return self._redactor.redact(text)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __reduce__(self) -> str:
        raise TypeError("secrets cannot be pickled, so that they are not stored by accident")


def missing_secrets(names: Sequence[str]) -> tuple[str, ...]:
    """The names that have no value in the environment or in the project's `.env`."""
    found = _look_up(names, os.environ, dotenv_file())
    return tuple(name for name, value in found.items() if not value)


def load_secrets(
    names: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    dotenv: Path | None = None,
    required: bool = False,
) -> Secrets:
    """Look secrets up in the environment, then in `.env`.

    A secret that is missing or empty is left out, and a warning names it.

    Args:
        names: Their names.
        environ: The environment; this process's by default.
        dotenv: The file to look in second; by default the project's.
        required: Whether a missing one is an error.

    Raises:
        SecretMissingError: Some are required and missing; the message names them all.
    """
    file = dotenv if dotenv is not None else dotenv_file()
    found = _look_up(names, os.environ if environ is None else environ, file)
    missing = [name for name, value in found.items() if not value]
    if missing:
        where = f" or in {str(file)!r}" if file is not None else " or in a file .env"
        words = f"not set: {', '.join(missing)}; set them in the environment{where}"
        if required:
            raise SecretMissingError(words)
        logger.warning("the sandbox does not get these secrets, because they are %s", words)
    return Secrets({name: value for name, value in found.items() if value})


def _look_up(
    names: Sequence[str], environ: Mapping[str, str], dotenv: Path | None
) -> dict[str, str]:
    """The value of each name, empty for one that has none."""
    fallback: Mapping[str, str] = {}
    if any(not environ.get(name) for name in names):
        fallback = read_dotenv(dotenv)
    return {name: environ.get(name) or fallback.get(name) or "" for name in names}
