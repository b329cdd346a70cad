"""Warns about arguments of the original that are accepted but do nothing."""

import warnings


class OldSpellingWarning(UserWarning):
    """An argument of the original has no meaning in Seer."""


def without_meaning(where: str, given: dict[str, object]) -> None:
    """Warn once about the arguments that were given and are ignored."""
    names = sorted(name for name, value in given.items() if value not in (None, False, (), [], {}))
    if names:
        warnings.warn(
            f"{where}: {', '.join(names)} has no meaning in Seer and is ignored; see "
            "docs/original.md",
            OldSpellingWarning,
            stacklevel=4,
        )
