"""A run's results: values by contestant and work, one per round, and reasons for gaps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks._common import median

if TYPE_CHECKING:
    from benchmarks.gate._adapter import Kind


@dataclass
class Row:
    """One contestant's results."""

    title: str
    kind: Kind
    validates: bool
    note: str
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Work -> one value per round: microseconds (p50 of the round), or calls/s for `fan`."""
    tails: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Work -> p99 of each round, microseconds."""
    gaps: dict[str, str] = field(default_factory=dict[str, str])
    """Work -> why there is no value."""

    def get(self, work: str) -> float | None:
        """The median of the rounds, or None."""
        values = self.values.get(work)
        return median(values) if values else None

    def tail(self, work: str) -> float | None:
        """The median of the rounds' p99, or None."""
        values = self.tails.get(work)
        return median(values) if values else None

    def add(self, work: str, value: float, tail: float | None = None) -> None:
        """Add the value of one round."""
        self.values.setdefault(work, []).append(value)
        if tail is not None:
            self.tails.setdefault(work, []).append(tail)

    def as_data(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "title": self.title,
            "kind": self.kind,
            "validates": self.validates,
            "note": self.note,
            "medians": {work: median(values) for work, values in self.values.items()},
            "rounds": self.values,
            "p99": self.tails,
            "gaps": self.gaps,
        }


Results = dict[str, Row]
"""Contestant's name -> its row; `memcpy`, `python` and `jail` are floors without a server."""
