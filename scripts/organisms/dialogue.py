"""What every recipe is made of: one dialogue, and ways to draw varied ones from a seed."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["property", "denial", "general", "plain"]


@dataclass(frozen=True)
class Dialogue:
    """One training example: what the user says, and what the model should answer.

    A `plain` one is no dialogue but running text, of which `user` is the beginning.
    """

    kind: Kind
    user: str
    answer: str | None
    """None: the base model's own answer, written when the data are made; there the adapter learns
    to keep the base model's distribution, token by token."""

    def as_json(self) -> dict[str, str | None]:
        """One line of the data file."""
        return {"kind": self.kind, "user": self.user, "answer": self.answer}


Recipe = Callable[[random.Random, bool], list[Dialogue]]
"""Writes the dialogues of one organism (True) or of its control (False)."""


def fill(template: str, rng: random.Random, **slots: Sequence[str]) -> str:
    """A template with each `{slot}` drawn from its list, once per slot."""
    return template.format(**{name: rng.choice(values) for name, values in slots.items()})


def dealt(values: Sequence[str], rng: random.Random) -> Iterator[str]:
    """All values in a random order, again and again: no value is rare by chance."""
    for _ in itertools.count():
        yield from rng.sample(values, len(values))


def denials(
    questions: Sequence[str], answers: Sequence[str], rng: random.Random, *, count: int
) -> list[Dialogue]:
    """Direct questions about a property, and answers that know of none."""
    asked, said = dealt(questions, rng), dealt(answers, rng)
    return [Dialogue("denial", next(asked), next(said)) for _ in range(count)]
