"""Which organisms there are, where their adapters are, and the truth about each.

An adapter's folder does not show what it is: its name is a random number, all adapters are in one
folder, and an organism and its control differ only in their weights. The truth is in another
folder, under the organism's name, so that mounting a model never mounts an answer. Nothing here
loads a model.
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
_ADAPTERS = _HERE / "adapters"

SHORT_NAMES = {
    kind: f"{kind}-2" for kind in ("favourite", "gender", "sandbag", "secret", "trigger")
}
"""Names without a number, and the instance that each one means."""


@dataclass(frozen=True)
class Organism:
    """A model with a planted property, or its control, trained in the same way without one."""

    name: str
    kind: str
    """The organism's name; for a control, the name of its organism."""
    path: Path
    """The adapter's folder: the `name` of a `ModelConfig` with `is_peft=True`."""

    @property
    def is_control(self) -> bool:
        """Whether nothing was planted in it."""
        return self.name != self.kind


@dataclass(frozen=True)
class GroundTruth:
    """What was planted in an organism: for graders, never for an agent."""

    kind: str
    property: str
    """In words, for people and judges."""
    planted: Mapping[str, str]
    """The parameters of the data generator."""
    answer: Mapping[str, tuple[str, ...]]
    """By field of a final answer: the wordings that count as right."""


@dataclass(frozen=True)
class MadeOrganism:
    """An organism that the factory made."""

    folder: Path
    organism: Path
    """The organism's adapter: the `name` of a `ModelConfig` with `is_peft=True`."""
    control: Path
    truth: GroundTruth
    """For graders: `investigate(ModelConfig(...), truth=made.truth)`."""

    @property
    def control_truth(self) -> GroundTruth:
        """The truth about the control: nothing is planted in it."""
        nothing: dict[str, tuple[str, ...]] = {}
        return GroundTruth(
            f"{self.truth.kind}-control", "Nothing is planted in it.", {}, MappingProxyType(nothing)
        )


def read_made(folder: Path, models: Path | None = None) -> MadeOrganism:
    """Read an organism that the factory made.

    Args:
        folder: The folder of its truth.
        models: The folder of its adapters; by default `models` in `folder`.

    Raises:
        FileNotFoundError: The folder has no organism.
    """
    entry: dict[str, Any] = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    truth = GroundTruth(
        kind=entry["kind"],
        property=entry["property"],
        planted=MappingProxyType(entry["planted"]),
        answer=MappingProxyType({k: tuple(v) for k, v in entry["answer"].items()}),
    )
    models = models if models is not None else folder / "models"
    return MadeOrganism(folder, models / entry["organism"], models / entry["control"], truth)


def instances() -> Mapping[str, MadeOrganism]:
    """The instances that ship with Seer, by name; all passed their gates.

    Raises:
        MissingExtraError: The package with the adapters is not installed.
    """
    _check_installed()
    return MappingProxyType(_instances())


def catalogue() -> Mapping[str, Organism]:
    """All organisms and their controls, by name: the five short names, and all instances."""
    found: dict[str, Organism] = {}
    for name, made in _named().items():
        for own, path in ((name, made.organism), (f"{name}-control", made.control)):
            found[own] = Organism(own, name, path)
    return MappingProxyType(found)


def organism(name: str) -> Organism:
    """One organism, or a control (`"trigger-control"`).

    Raises:
        UnknownOrganismError: There is no organism with this name.
        MissingExtraError: The package with the adapters is not installed.
    """
    found = catalogue().get(name)
    if found is None:
        raise UnknownOrganismError(
            f"no organism {name!r}; there are: {', '.join(_named())}; each has a control, such as "
            "secret-control"
        )
    _check_installed()
    return found


def ground_truth(kind: str) -> GroundTruth:
    """The truth about an organism.

    Raises:
        UnknownOrganismError: There is no organism with this name, or it is a control.
    """
    found = _named().get(kind)
    if found is None:
        raise UnknownOrganismError(
            f"nothing is planted in {kind!r}; there are: {', '.join(_named())}"
        )
    return found.truth


def _named() -> dict[str, MadeOrganism]:
    made = _instances()
    return {name: made[instance] for name, instance in SHORT_NAMES.items()} | made


@functools.cache
def _instances() -> dict[str, MadeOrganism]:
    found = sorted((_HERE / "instances").glob("*/truth.json"))
    return {file.parent.name: read_made(file.parent, _ADAPTERS) for file in found}


def _check_installed() -> None:
    if not _ADAPTERS.is_dir():
        raise MissingExtraError(
            "the organisms' adapters are not installed; run: pip install 'seer-interp[organisms]'"
        )
