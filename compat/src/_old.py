"""What the modules of this package share: a word on what is accepted and does nothing."""

import warnings


class OldSpellingWarning(UserWarning):
    """An argument of the original that has no meaning here."""


def without_meaning(where: str, given: dict[str, object]) -> None:
    """Warn once of all arguments among these that were given and do nothing here."""
    names = sorted(name for name, value in given.items() if value not in (None, False, (), [], {}))
    if names:
        warnings.warn(
            f"{where}: {', '.join(names)} has no meaning in Seer and is ignored; see "
            "docs/original.md",
            OldSpellingWarning,
            stacklevel=4,
        )
