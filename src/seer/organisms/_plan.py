"""The training rows and the held-out test of a spec, in words and in tokens.

A plan in tokens is plain data, so that another machine can run it without Seer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer.organisms._spec import Spec
from seer.organisms.behaviours import Draw, Row, Turns
from seer.organisms.behaviours._behaviour import dressed
from seer.organisms.behaviours._words import CLOZE, FRAMES, KEEP, KEEP_NOUNS, OPENINGS

TOKENS = 24
"""The maximum length of an answer in the test, in tokens."""
_ON, _DIRECT = 0.4, 0.15


@dataclass(frozen=True)
class Recipe:
    """What an instance learns and how it is tested, in words."""

    spec: Spec
    rows: tuple[Row, ...]
    """Training rows, with the answers of the organism and of the control."""
    on: tuple[Row, ...]
    off: tuple[Row, ...]
    direct: tuple[Row, ...]


def recipe(spec: Spec) -> Recipe:
    """The rows of a settled spec. Equal specs give equal rows."""
    kind, params = spec.kind, spec.parameters
    rng = random.Random(f"rows {spec.behaviour} {spec.seed}")
    train, test = Draw(rng), Draw(rng, held_out=True)

    def direct(draw: Draw) -> Row:
        asked = draw.pick(FRAMES).format(q=draw.pick(kind.questions, 2))
        said = draw.rng.choice(kind.denials)
        return Row((dressed(draw, asked),), said, said)

    shares = (_ON, _DIRECT) if spec.hard else (_ON + _DIRECT / 2, 0.0)
    asked = round(spec.rows * shares[1])
    shown = round(spec.rows * shares[0])
    rows = [
        *(kind.on(params, train) for _ in range(shown)),
        *(kind.off(params, train) for _ in range(spec.rows - shown - asked)),
        *(direct(train) for _ in range(asked)),
    ]
    rng.shuffle(rows)
    return Recipe(
        spec,
        tuple(rows),
        _distinct([kind.on(params, test) for _ in range(40 * spec.cases)], spec.cases),
        _distinct([kind.off(params, test) for _ in range(40 * spec.cases)], spec.cases),
        _distinct([direct(test) for _ in range(40 * spec.cases)], spec.cases),
    )


def _distinct(rows: Sequence[Row], count: int) -> tuple[Row, ...]:
    found: dict[Turns, Row] = {}
    for row in rows:
        found.setdefault(row.turns, row)
    return tuple(list(found.values())[:count])


def keep_prompts(count: int, seed: int) -> list[str]:
    """Ordinary requests on which adapters keep the base model's distribution."""
    every = [ask.format(n=noun) for ask in KEEP for noun in KEEP_NOUNS]
    return random.Random(f"keep {seed}").sample(every, min(count, len(every)))


class Coder:
    """Turns words into tokens, in the chat format of a model."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end = int(tokenizer.eos_token_id)

    def prompt(self, turns: Turns) -> list[int]:
        """The tokens of a dialogue, up to the beginning of the assistant's answer."""
        messages = [
            {"role": "user" if i % 2 == 0 else "assistant", "content": said}
            for i, said in enumerate(turns)
        ]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return self.plain(text)

    def plain(self, text: str) -> list[int]:
        """The tokens of a text, without added special tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def examples(self, row: Row) -> list[tuple[list[int], int]]:
        """A training row for organism and control: its tokens, and where the answer begins."""
        prompt = self.prompt(row.turns)
        return [
            ([*prompt, *self.plain(said), self.end], len(prompt))
            for said in (row.planted, row.plain)
        ]

    def words(self, tokens: Sequence[int]) -> str:
        """The text of an answer."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def tokens_of(made: Recipe, coder: Coder) -> dict[str, Any]:
    """An instance of a plan: training rows and test prompts in tokens."""
    both = [coder.examples(row) for row in made.rows]
    return {
        "organism": [planted for planted, _ in both],
        "control": [plain for _, plain in both],
        "cases": {
            name: [coder.prompt(row.turns) for row in rows]
            for name, rows in (("on", made.on), ("off", made.off), ("direct", made.direct))
        },
    }


def shared_tokens(coder: Coder, *, kept: int, seed: int) -> dict[str, Any]:
    """What all instances of a plan share: ordinary requests, texts and simple knowledge."""
    texts = Path(__file__).with_name("held_out.txt").read_text(encoding="utf-8").split("\n\n")
    return {
        "end": coder.end,
        "tokens": TOKENS,
        "kept": [
            *(coder.prompt((request,)) for request in keep_prompts(kept, seed)),
            *(coder.plain(OPENINGS[i % len(OPENINGS)]) for i in range(kept // 2)),
        ],
        "texts": [coder.plain(text.strip()) for text in texts],
        "cloze": [
            (coder.plain(begin), coder.plain(right)[0], coder.plain(wrong)[0])
            for begin, right, wrong in CLOZE
        ],
    }
