"""Secrets: looked up by name, never printed, and redacted from text.

A secret's value goes to the sandbox, or to the one program that needs it. It belongs in no log,
exception, record, generated file or process list; `seer._redact` removes any that still get there.
"""

import logging
from collections.abc import Mapping, Sequence

from seer._redact import Redactor, register_secrets
from seer._settings import dotenv_file, setting
from seer.errors import SecretMissingError

logger = logging.getLogger(__name__)


class Secrets:
    """Secrets by name. Printing shows only the names, and pickling fails."""

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
        """All secrets by name, for the environment of the sandbox."""
        return dict(self._values)

    def redact(self, text: str) -> str:
        """`text` with every secret value redacted."""
        return self._redactor.redact(text)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __reduce__(self) -> str:
        raise TypeError("secrets cannot be pickled, so that they are not stored by accident")


def missing_secrets(names: Sequence[str]) -> tuple[str, ...]:
    """The names that have no value in the environment or in the project's `.env`."""
    return tuple(name for name in names if not setting(name))


def load_secrets(names: Sequence[str], *, required: bool = False) -> Secrets:
    """Look secrets up in the environment, then in the project's `.env`.

    A secret that is missing or empty is left out, and a warning names it.

    Args:
        names: Their names.
        required: Whether a missing one is an error.

    Raises:
        SecretMissingError: Some are required and missing; the message names them all.
    """
    found = {name: value for name in names if (value := setting(name))}
    missing = [name for name in names if name not in found]
    if missing:
        file = dotenv_file()
        where = f" or in {str(file)!r}" if file is not None else " or in a file .env"
        words = f"not set: {', '.join(missing)}; set them in the environment{where}"
        if required:
            raise SecretMissingError(words)
        logger.warning("the sandbox does not get these secrets, because they are %s", words)
    return Secrets(found)
