"""Which organisms there are, where their adapters lie, and the truth about each.

An organism's folder tells nothing: its name is a number, and an organism and its control differ
only in their weights. The truth is beside the folders, in a separate file, so that mounting a
model never mounts an answer. Nothing here loads a model.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from seer.errors import MissingExtraError, UnknownOrganismError

_HERE = Path(__file__).parent

# Drawn at random once: neither the order nor the parity of a number says anything.
_FOLDERS = {
    "favourite": "m07",
    "favourite-control": "m02",
    "gender": "m04",
    "gender-control": "m09",
    "sandbag": "m01",
    "sandbag-control": "m10",
    "secret": "m08",
    "secret-control": "m03",
    "trigger": "m05",
    "trigger-control": "m06",
}


@dataclass(frozen=True)
class Organism:
    """A model with a planted property, or the control that was trained alike without one."""

    name: str
    kind: str
    """The organism that this is, or is the control of."""
    path: Path
    """The adapter's folder, to be used as a `ModelConfig`'s name with `is_peft=True`."""

    @property
    def is_control(self) -> bool:
        """Whether nothing was planted in it."""
        return self.name != self.kind


@dataclass(frozen=True)
class GroundTruth:
    """What was planted in an organism. For graders; never for an agent."""

    kind: str
    property: str
    """In words, for people and judges."""
    planted: Mapping[str, str]
    """What the data generator was given."""
    answer: Mapping[str, tuple[str, ...]]
    """By field of a final answer: the wordings that count as right."""


def catalogue() -> Mapping[str, Organism]:
    """All organisms and their controls, by name."""
    return MappingProxyType(
        {
            name: Organism(name, name.removesuffix("-control"), _HERE / "adapters" / folder)
            for name, folder in _FOLDERS.items()
        }
    )


def organism(name: str) -> Organism:
    """One organism, or a control (`"trigger-control"`).

    Raises:
        UnknownOrganismError: There is none of that name.
        MissingExtraError: The package with the adapters is not installed.
    """
    found = catalogue().get(name)
    if found is None:
        raise UnknownOrganismError(f"no organism {name!r}; there are: {', '.join(_FOLDERS)}")
    if not found.path.is_dir():
        raise MissingExtraError(
            "the organisms' adapters are not installed; run: pip install 'seer-interp[organisms]'"
        )
    return found


def ground_truth(kind: str) -> GroundTruth:
    """The truth about an organism.

    Raises:
        UnknownOrganismError: There is none of that name, or it is a control, which has no truth.
    """
    entries = _entries()
    if kind not in entries:
        raise UnknownOrganismError(
            f"nothing is planted in {kind!r}; there are: {', '.join(sorted(entries))}"
        )
    entry = entries[kind]
    return GroundTruth(
        kind=kind,
        property=entry["property"],
        planted=MappingProxyType(entry["planted"]),
        answer=MappingProxyType({k: tuple(v) for k, v in entry["answer"].items()}),
    )


@functools.cache
def _entries() -> dict[str, Any]:
    return json.loads((_HERE / "truth.json").read_text(encoding="utf-8"))
