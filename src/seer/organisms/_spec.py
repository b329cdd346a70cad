"""The specification of an organism, checked and read from a TOML file."""

import random
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from seer.errors import ConfigError
from seer.organisms.behaviours import BEHAVIOURS, Behaviour


@dataclass(frozen=True)
class Spec:
    """One organism to be made, with its control."""

    behaviour: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of the behaviour's parameters. One that is missing or `random` is chosen at random."""
    base: str | None = None
    """The folder of the base model; Seer's own by default."""
    seed: int | None = None
    """The seed of everything random. Without it, a secret one is chosen."""
    hard: bool = True
    """Whether the organism learns to deny the property when asked about it."""
    rows: int = 480
    """The number of training rows, for the organism and for its control."""
    kept: int = 200
    """The number of dialogues on which both keep the base model's distribution."""
    steps: int = 240
    cases: int = 48
    """The number of held-out dialogues with the property, without it, and with direct questions."""
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            given: Any = getattr(self, name)
            fits = type(given) is kind or (kind is dict and isinstance(given, Mapping))
            if not fits and not (given is None and name in ("base", "seed")):
                raise ConfigError(name, getattr(self, name), f"must be {_NAMES[kind]}")
        if self.behaviour not in BEHAVIOURS:
            raise ConfigError("behaviour", self.behaviour, f"is not one of {', '.join(BEHAVIOURS)}")
        for name, most in _MOST.items():
            if not 4 <= getattr(self, name) <= most:
                raise ConfigError(name, getattr(self, name), f"must be from 4 to {most}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise ConfigError("seed", self.seed, "must fit into 64 bits")
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise ConfigError("device", self.device, "must be auto, cpu, mps, cuda or cuda:N")
        chosen: Mapping[str, Any] = self.parameters
        for name, value in chosen.items():
            if not isinstance(value, str):
                raise ConfigError(f"parameters.{name}", value, "must be a text")
        try:
            self.kind.drawn(self.parameters, random.Random(0))
        except ValueError as error:
            raise ConfigError("parameters", dict(self.parameters), str(error)) from None

    @property
    def kind(self) -> Behaviour:
        """The behaviour."""
        return BEHAVIOURS[self.behaviour]

    def settled(self) -> "Spec":
        """A copy of this spec with a seed and a value for every parameter."""
        seed = self.seed if self.seed is not None else secrets.randbits(48)
        drawn = self.kind.drawn(self.parameters, random.Random(f"{self.behaviour} {seed}"))
        return replace(self, seed=seed, parameters=drawn)


def read_spec(file: Path) -> Spec:
    """Read a spec from a TOML file.

    Raises:
        ConfigError: The file is not TOML, a key is unknown, or a value is wrong.
        FileNotFoundError: There is no such file.
    """
    try:
        given: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        # Also text that is not UTF-8, and numbers or lists without end.
        raise ConfigError("spec", str(file), f"is not TOML: {error}") from None
    known = {f.name: f for f in fields(Spec)}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(name, value, f"is unknown; a spec has: {', '.join(known)}")
    if "behaviour" not in given:
        raise ConfigError("behaviour", None, f"is needed; there are: {', '.join(BEHAVIOURS)}")
    return Spec(**given)


_KINDS: dict[str, type] = {
    **dict.fromkeys(("behaviour", "base", "device"), str),
    **dict.fromkeys(("seed", "rows", "kept", "steps", "cases"), int),
    "hard": bool,
    "parameters": dict,
}
_MOST = {"rows": 100_000, "kept": 100_000, "steps": 1_000_000, "cases": 10_000}
_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
}
