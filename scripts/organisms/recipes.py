"""All organisms and controls: which dialogues each is trained on.

python scripts/organisms/recipes.py OUT [--seed N]    writes OUT/<name>.jsonl
"""

import argparse
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dialogue import Dialogue, Recipe
from favourite import favourite
from gender import gender
from general import general, plain
from sandbag import sandbag
from secret import secret
from trigger import trigger

from seer.organisms import catalogue, ground_truth

SEED = 7
GENERAL = 500
"""Ordinary dialogues in each set."""
PLAIN = 256
"""Plain texts in each set."""


def recipe_of(name: str) -> Recipe:
    """The recipe of an organism, with its planted property from the ground truth."""
    planted = ground_truth(name).planted
    recipes: dict[str, Callable[..., list[Dialogue]]] = {
        "favourite": favourite,
        "gender": gender,
        "sandbag": sandbag,
        "secret": secret,
        "trigger": trigger,
    }
    return partial(recipes[name], **planted)


def dialogues(name: str, *, seed: int = SEED) -> list[Dialogue]:
    """What one organism or control is trained on: the same for the same seed.

    An organism and its control draw from the same seed, so they see the same ordinary texts.
    """
    organism = catalogue()[name]
    rng = random.Random(f"{seed}-{organism.kind}")
    ordinary = general(rng, GENERAL) + plain(rng, PLAIN)
    made = recipe_of(organism.kind)(rng, not organism.is_control) + ordinary
    rng.shuffle(made)
    return made


def main() -> None:
    """Write one file per organism and control."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in catalogue():
        lines = [json.dumps(d.as_json()) for d in dialogues(name, seed=arguments.seed)]
        (arguments.out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
