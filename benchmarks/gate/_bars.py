"""The bars for Seer's gate, and whether a run's results meet them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks._common import median

if TYPE_CHECKING:
    from benchmarks.gate._results import Results

OURS = "ours"
OURS_MCP = "ours_mcp"
OURS_RECORDED = "ours_recorded"


@dataclass(frozen=True)
class Verdict:
    """One bar: a ratio that must be at most, or at least, a limit."""

    work: str
    text: str
    ratio: float | None
    limit: float
    at_most: bool
    missing: str = ""

    @property
    def met(self) -> bool:
        """Whether the bar is met. A bar without a measurement is not met."""
        if self.ratio is None:
            return False
        return self.ratio <= self.limit if self.at_most else self.ratio >= self.limit

    def as_data(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "work": self.work,
            "bar": self.text,
            "ratio": self.ratio,
            "limit": self.limit,
            "met": self.met,
        }


def judge(results: Results) -> list[Verdict]:
    """All bars, in the order of the table's rows."""
    return list(_bars(results))


def in_turns(
    results: Results, one: tuple[str, str], other: tuple[str, str], what: str = ""
) -> float | None:
    """The ratio of one contestant's time to another's, over pairs of successive turns.

    Args:
        results: The measurements.
        one: Contestant and work.
        other: The contestant and work to compare with.
        what: The value of the turns to compare: "" for medians, "_mean" for means.

    Returns:
        The median of the pairs' ratios; None if the two did not take turns.
    """
    first, second = (
        results[name].values.get(f"{work}_turns{what}", []) if name in results else []
        for name, work in (one, other)
    )
    if not first or len(first) != len(second):
        return None
    return median([a / b for a, b in zip(first, second, strict=True)])


def _bars(results: Results) -> Iterator[Verdict]:
    def value(name: str, work: str) -> float | None:
        row = results.get(name)
        return None if row is None else row.get(work)

    def bar(
        work: str,
        text: str,
        *,
        top: float | None,
        bottom: float | None,
        limit: float,
        at_most: bool = True,
    ) -> Verdict:
        if top is None or bottom is None:
            return Verdict(work, text, None, limit, at_most, "not measured")
        return Verdict(work, text, top / bottom, limit, at_most)

    def ours(work: str) -> float | None:
        return value(OURS, work)

    def ahead(work: str, names: list[str], *, more_is_better: bool = False) -> Iterator[Verdict]:
        for name in names:
            theirs = value(name, work)
            if theirs is None:
                continue
            text = f"ahead of {results[name].title}"
            # Ours over theirs for times, theirs over ours for rates: a ratio below 1 is ahead.
            top, bottom = (theirs, ours(work)) if more_is_better else (ours(work), theirs)
            yield bar(work, text, top=top, bottom=bottom, limit=1.0)
            ratio = in_turns(results, (OURS, work), (name, work))
            if ratio is not None:
                ratio = 1 / ratio if more_is_better else ratio
                yield bar(work, f"{text}, in turns", top=ratio, bottom=1.0, limit=1.0)

    peers = [name for name, row in results.items() if row.kind == "peer"]
    checked = [name for name in peers if results[name].validates]

    small = ours("small")
    yield bar(
        "small", "≤ 1.5× same least work", top=small, bottom=value("least", "small"), limit=1.5
    )
    yield bar(
        "small",
        "≥ 10× faster than the plain design",
        top=value("plain", "small"),
        bottom=small,
        limit=10,
        at_most=False,
    )
    yield from ahead("small", peers)
    yield bar(
        "small",
        "recording adds ≤ 10 %",
        top=in_turns(results, (OURS_RECORDED, "small"), (OURS, "small")),
        bottom=1.0,
        limit=1.1,
    )
    yield bar(
        "fan",
        "≥ 4× gRPC's calls/s",
        top=ours("fan"),
        bottom=value("grpc", "fan"),
        limit=4,
        at_most=False,
    )
    # Ahead of the others. Against ZeroMQ, which checks nothing, a fifth fewer calls are enough.
    yield from ahead("fan", [name for name in peers if name != "zeromq"], more_is_better=True)
    yield bar(
        "fan",
        "≥ 0.8× ZeroMQ's calls/s, in turns",
        top=in_turns(results, (OURS, "fan"), ("zeromq", "fan")),
        bottom=1.0,
        limit=0.8,
        at_most=False,
    )
    yield from ahead("floats", checked)
    yield from ahead("take", checked)
    memcpy = value("memcpy", "drop")
    yield bar("drop", "≤ 1.5× one memcpy", top=ours("drop"), bottom=memcpy, limit=1.5)
    yield bar("keep", "≤ 5× one memcpy", top=ours("keep"), bottom=memcpy, limit=5)
    for name in ("grpc", "zeromq", "pyro"):
        if name in results:
            yield bar(
                "drop",
                f"≥ 5× faster than {results[name].title}",
                top=value(name, "drop"),
                bottom=ours("drop"),
                limit=5,
                at_most=False,
            )
    yield from ahead("drop", ["ray"] if "ray" in results else [])
    yield from ahead("keep", ["ray"] if "ray" in results else [])
    yield bar(
        "mcp",
        "≤ 1.3× a bare mcp stdio tool",
        top=value(OURS_MCP, "small"),
        bottom=value("mcp", "small"),
        limit=1.3,
    )
    yield bar(
        "fail",
        "≤ 3× a small call",
        top=in_turns(results, (OURS, "fail"), (OURS, "small")),
        bottom=1.0,
        limit=3,
    )
    spawn = [value("python", "start"), value("jail", "start")]
    yield bar(
        "start",
        "≤ 5× (python -c pass + bare jail)",
        top=ours("start"),
        bottom=None if None in spawn else sum(part for part in spawn if part is not None),
        limit=5,
    )
