"""What the factory is asked for: a TOML file, checked."""

import random
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from seer.errors import ConfigError
from seer.organisms.behaviours import BEHAVIOURS, Behaviour


@dataclass(frozen=True)
class Spec:
    """One organism to be made, with its control."""

    behaviour: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of the behaviour's parameters; `random`, or none, draws one."""
    base: str | None = None
    """The folder of the base model; Seer's own by default."""
    seed: int | None = None
    """Of everything random. Without one, a private seed is drawn."""
    hard: bool = True
    """Whether it learns to deny the property when it is asked."""
    rows: int = 480
    """Training rows of the organism, and as many of its control."""
    kept: int = 200
    """Dialogues on which both keep the base model's distribution."""
    steps: int = 240
    cases: int = 48
    """Held-out dialogues of each kind: with the property, without it, and direct questions."""
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.behaviour not in BEHAVIOURS:
            raise ConfigError("behaviour", self.behaviour, f"is not one of {', '.join(BEHAVIOURS)}")
        for name in ("rows", "kept", "steps", "cases"):
            if getattr(self, name) < 4:
                raise ConfigError(name, getattr(self, name), "must be 4 or more")
        try:
            self.kind.drawn(self.parameters, random.Random(0))
        except ValueError as error:
            raise ConfigError("parameters", dict(self.parameters), str(error)) from None

    @property
    def kind(self) -> Behaviour:
        """The behaviour."""
        return BEHAVIOURS[self.behaviour]

    def settled(self) -> "Spec":
        """The same with a seed, and with every parameter drawn."""
        from dataclasses import replace

        seed = self.seed if self.seed is not None else secrets.randbits(48)
        drawn = self.kind.drawn(self.parameters, random.Random(f"{self.behaviour} {seed}"))
        return replace(self, seed=seed, parameters=drawn)


def read_spec(file: Path) -> Spec:
    """Read a spec from a TOML file.

    Raises:
        ConfigError: A key or a value is not understood.
        FileNotFoundError: There is no such file.
    """
    try:
        given: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("spec", str(file), f"is not TOML: {error}") from None
    known = {f.name: f for f in fields(Spec)}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(name, value, f"is not known; a spec has: {', '.join(known)}")
    if "behaviour" not in given:
        raise ConfigError("behaviour", None, f"is needed; there are: {', '.join(BEHAVIOURS)}")
    for name, kind in _KINDS.items():
        if name in given and (type(given[name]) is not kind):
            raise ConfigError(name, given[name], f"must be {_NAMES[kind]}")
    given["parameters"] = {k: str(v) for k, v in given.get("parameters", {}).items()}
    return Spec(**given)


_KINDS: dict[str, type] = {
    **dict.fromkeys(("behaviour", "base", "device"), str),
    **dict.fromkeys(("seed", "rows", "kept", "steps", "cases"), int),
    "hard": bool,
    "parameters": dict,
}
_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
}
