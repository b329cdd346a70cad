"""The matrix of a sweep: all combinations of its axes, except those that are excluded."""

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
    """The number of repetitions, or a list of seeds."""
    base_seed: int = 0
    """If `seeds` is a number, the seeds are derived from this one."""
    exclude: Sequence[Mapping[str, Any]] = ()
    """Combinations to leave out. A cell is left out if all entries of one rule match it."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values that every cell gets."""

    def __post_init__(self) -> None:
        for name in _AXES:
            values = getattr(self, name)
            if not _is_list(values) or not all(isinstance(v, str) and v for v in values):
                raise ConfigError(f"Matrix.{name}", values, "must be a list of names")
            if len(set(values)) < len(values):
                raise ConfigError(f"Matrix.{name}", list(values), "has a name twice")
        if isinstance(self.seeds, int):
            if isinstance(self.seeds, bool) or self.seeds < 1:
                raise ConfigError("Matrix.seeds", self.seeds, "must be at least 1")
        elif (
            not _is_list(self.seeds)
            or not self.seeds
            or not all(type(s) is int for s in self.seeds)
        ):
            raise ConfigError(
                "Matrix.seeds", self.seeds, "must be a whole number, or a list of whole numbers"
            )
        if type(self.base_seed) is not int:
            raise ConfigError("Matrix.base_seed", self.base_seed, "must be a whole number")
        if not _is_table(self.settings):
            raise ConfigError("Matrix.settings", self.settings, "must be a table of values")
        if not _is_list(self.exclude) or not all(map(_is_table, self.exclude)):
            raise ConfigError("Matrix.exclude", self.exclude, "must be a list of tables")
        known = {"agent", "tools", "model", "seed", "repetition"}
        for rule in self.exclude:
            if not rule or set(rule) - known:
                raise ConfigError(
                    "Matrix.exclude", dict(rule), f"must name one or more of {sorted(known)}"
                )
        if not self.cells():
            raise ConfigError("Matrix.exclude", list(self.exclude), "excludes every cell")

    @classmethod
    def from_file(cls, path: str | Path) -> "Matrix":
        """Read a matrix from a TOML file.

        Raises:
            ConfigError: The file is missing, is not valid TOML, or has an unknown key.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("matrix", str(path), f"cannot be read: {error}") from error
        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Matrix":
        """Make a matrix from JSON data.

        Raises:
            ConfigError: The data has an unknown key or a wrong value.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ConfigError("matrix", unknown[0], f"is unknown; known keys are {sorted(known)}")
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        """The matrix as JSON data."""
        seeds = self.seeds if isinstance(self.seeds, int) else list(self.seeds)
        return {
            **{name: list(getattr(self, name)) for name in _AXES},
            "seeds": seeds,
            "base_seed": self.base_seed,
            "exclude": [dict(rule) for rule in self.exclude],
            "settings": dict(self.settings),
        }

    def cells(self) -> list[Cell]:
        """All cells, one repetition after another, so that a sweep that stops early is balanced."""
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
        # Hashed, so that sweeps with neighbouring base seeds share no seed.
        digests = (
            hashlib.sha256(f"{self.base_seed}/{number}".encode()).digest()
            for number in range(self.seeds)
        )
        return [int.from_bytes(digest[:4], "big") >> 1 for digest in digests]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _fits(cell: Cell, rule: Mapping[str, Any]) -> bool:
    return all(getattr(cell, name) == value for name, value in rule.items())
