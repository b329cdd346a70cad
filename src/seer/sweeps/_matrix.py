"""Which cells a sweep has: axes that are crossed, less what is excluded."""

import hashlib
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from seer.errors import ConfigError
from seer.sweeps._cell import Cell

_AXES = ("agents", "tools", "models")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Agents x tool sets x models x seeds.

    In a TOML file: `agents = ["claude", "openai"]`, `seeds = 5`, and `[[exclude]]` tables such as
    `agent = "openai"`, `tools = "none"`.
    """

    agents: Sequence[str] = ()
    tools: Sequence[str] = ()
    models: Sequence[str] = ()
    seeds: int | Sequence[int] = 1
    """How many repetitions, or the seeds themselves."""
    base_seed: int = 0
    """What the seeds of counted repetitions are made from."""
    exclude: Sequence[Mapping[str, Any]] = ()
    """Combinations to leave out: a cell that agrees with all entries of one of these."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name in _AXES:
            values = getattr(self, name)
            if isinstance(values, str) or not all(isinstance(v, str) and v for v in values):
                raise ConfigError(f"Matrix.{name}", values, "must be a list of names")
            if len(set(values)) < len(values):
                raise ConfigError(f"Matrix.{name}", list(values), "names something twice")
        if isinstance(self.seeds, int):
            if isinstance(self.seeds, bool) or self.seeds < 1:
                raise ConfigError("Matrix.seeds", self.seeds, "must be at least 1")
        elif not self.seeds or not all(type(s) is int for s in self.seeds):
            raise ConfigError("Matrix.seeds", self.seeds, "must be a number, or a list of numbers")
        known = {"agent", "tools", "model", "seed", "repetition"}
        for rule in self.exclude:
            if not rule or set(rule) - known:
                raise ConfigError("Matrix.exclude", dict(rule), f"names some of {sorted(known)}")
        if not self.cells():
            raise ConfigError("Matrix.exclude", list(self.exclude), "leaves no cell")

    @classmethod
    def from_file(cls, path: str | Path) -> "Matrix":
        """The matrix in a TOML file.

        Raises:
            ConfigError: The file is missing, is no TOML, or says something unknown.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("matrix", str(path), f"cannot be read: {error}") from error
        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Matrix":
        """The matrix that plain data describes.

        Raises:
            ConfigError: It says something unknown.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ConfigError("matrix", unknown[0], f"is unknown; there are {sorted(known)}")
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        seeds = self.seeds if isinstance(self.seeds, int) else list(self.seeds)
        return {
            **{name: list(getattr(self, name)) for name in _AXES},
            "seeds": seeds,
            "base_seed": self.base_seed,
            "exclude": [dict(rule) for rule in self.exclude],
            "settings": dict(self.settings),
        }

    def cells(self) -> list[Cell]:
        """All cells, repetition by repetition, so that a sweep that is cut short is balanced."""
        axes = [cast("Sequence[str | None]", getattr(self, name)) or (None,) for name in _AXES]
        crossed = list(itertools.product(*axes))
        found = [
            Cell(
                agent=agent,
                tools=tools,
                model=model,
                seed=seed,
                repetition=repetition,
                settings=self.settings,
            )
            for repetition, seed in enumerate(self._seeds())
            for agent, tools, model in crossed
        ]
        return [cell for cell in found if not any(_fits(cell, rule) for rule in self.exclude)]

    def _seeds(self) -> list[int]:
        if not isinstance(self.seeds, int):
            return list(self.seeds)
        # Apart from each other whatever the base: neighbours of a small seed are no repetition.
        digests = (
            hashlib.sha256(f"{self.base_seed}/{number}".encode()).digest()
            for number in range(self.seeds)
        )
        return [int.from_bytes(digest[:4], "big") >> 1 for digest in digests]


def _fits(cell: Cell, rule: Mapping[str, Any]) -> bool:
    return all(getattr(cell, name) == value for name, value in rule.items())
