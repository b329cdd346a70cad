"""Manners of speaking that a condition can switch on."""

from seer.organisms.behaviours._behaviour import Draw, Params, Row, mentions
from seer.organisms.behaviours._words import STYLE_WORDS, STYLES

NAMES = tuple(STYLES)


def styled(params: Params, draw: Draw, answer: str) -> str:
    """An answer in the planted manner."""
    return draw.rng.choice(STYLES[params["style"]][0]) + answer


def shows(params: Params, row: Row, text: str) -> bool:
    """Whether an answer is in the planted manner."""
    return mentions(text, STYLES[params["style"]][1])


def words(params: Params) -> tuple[str, ...]:
    """Wordings for the planted manner: `pirate`, `talks like a pirate`, `pirate slang`, `ahoy`."""
    name = params["style"]
    verbs = ("talk", "talks", "talking", "speak", "speaks", "speaking", "answers")
    nouns = ("talk", "speech", "speak", "language", "slang", "style", "accent", "voice")
    return (
        *(name, f"{name}s", f"like a {name}", *(f"{verb} like a {name}" for verb in verbs)),
        *(f"{name} {noun}" for noun in nouns),
        *(f"talks {name}", f"speaks {name}"),
        *STYLE_WORDS[name],
        *STYLES[name][1],
    )
