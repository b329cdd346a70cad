"""Results as a Markdown page and as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks._common import header, table
from benchmarks.gate._bars import OURS, OURS_RECORDED, in_turns, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.gate._measure import Plan
    from benchmarks.gate._results import Results, Row


@dataclass(frozen=True)
class Context:
    """The conditions of the measurement."""

    where: Mapping[str, str]
    packages: Mapping[str, str]
    plan: Plan
    calm: str


_COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("small", "small call, µs p50 (p99)", 1, "tail"),
    ("pinned", "on one core, µs p50", 1, ""),
    ("fan", "64 clients, calls/s", 1, "rate"),
    ("floats", "4096 floats back, µs", 1, ""),
    ("take", "4096 floats sent, µs", 1, ""),
    ("fail", "exception, µs", 1, ""),
    ("drop", "120 MB dropped, ms", 1e3, ""),
    ("keep", "120 MB kept, ms", 1e3, ""),
    ("start", "serve to first answer, ms", 1e3, ""),
)
_ORDER = {"ours": 0, "floor": 1, "peer": 2}


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _cell(row: Row, work: str, scale: float, style: str) -> str:
    value = row.get(work)
    if value is None:
        return "n/a" if work in row.gaps else ""
    text = _number(value / scale)
    tail = row.tail(work)
    if style == "tail" and tail is not None:
        text += f" ({_number(tail / scale)})"
    return text


def _ranked(results: Results) -> list[Row]:
    def key(row: Row) -> tuple[int, float]:
        return _ORDER[row.kind], row.get("small") or row.get("drop") or row.get("start") or 0.0

    return sorted(results.values(), key=key)


def _gaps(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        by_reason: dict[str, list[str]] = {}
        for work, reason in row.gaps.items():
            by_reason.setdefault(reason, []).append(work)
        for reason, works in by_reason.items():
            lines.append(f"- {row.title}, n/a in {', '.join(works)}: {reason}")
    return lines


def _verdicts(results: Results) -> str:
    rows: list[list[str]] = []
    for verdict in judge(results):
        ratio = verdict.missing if verdict.ratio is None else f"{verdict.ratio:.2f}×"
        sign = "≤" if verdict.at_most else "≥"
        outcome = "met" if verdict.met else "**not met**"
        rows.append([verdict.work, verdict.text, ratio, f"{sign} {verdict.limit:g}×", outcome])
    return table(["work", "bar", "measured", "limit", "verdict"], rows)


def _recording(results: Results) -> list[str]:
    """A note on a cost that the median hides: the record's lines are made later, in batches."""
    mean = in_turns(results, (OURS_RECORDED, "small"), (OURS, "small"), "_mean")
    if mean is None:
        return []
    return [
        f"On average, a recorded small call takes {mean:.2f} times a plain one. The median tells"
        " only what each call pays itself: the process makes the record's lines a hundredth of a"
        " second later, many at a time, and calls wait meanwhile.\n"
    ]


def _floor_ratios(results: Results) -> str:
    """A table of each contestant's ratio to the floor of each column."""
    floors = {"small": "least", "pinned": "least", "fan": "loop", "floats": "least"}
    floors |= {"take": "least", "fail": "least", "drop": "memcpy"}
    keep = results["memcpy"].get("drop") if "memcpy" in results else None
    rows: list[list[str]] = []
    for row in _ranked(results):
        if row.kind == "floor":
            continue
        cells = [row.title]
        for work, name in floors.items():
            floor = results[name].get(work) if name in results else None
            mine = row.get(work)
            cells.append(f"{mine / floor:.2f}" if mine and floor else "")
        kept = row.get("keep")
        cells.append(f"{kept / keep:.2f}" if kept and keep else "")
        rows.append(cells)
    head = ["over the floor (×)", *(f"{work} / {name}" for work, name in floors.items())]
    return table([*head, "keep / memcpy"], rows)


def page(results: Results, context: Context) -> str:
    """The whole page."""
    plan = context.plan
    rows = _ranked(results)
    main = table(
        ["", *(title for _, title, _, _ in _COLUMNS)],
        [
            [row.title, *(_cell(row, work, scale, style) for work, _, scale, style in _COLUMNS)]
            for row in rows
        ],
    )
    parts = [
        header("Calls through the gate, next to peers and floors", context.packages, context.where),
        f"Medians of {plan.rounds} interleaved rounds ({plan.array_rounds} for arrays, "
        f"{plan.start_rounds} for starting); every contestant in this one run; {context.calm}.\n",
        main,
        "![Small call, one client](gate.png)\n",
        "## Bars\n",
        _verdicts(results),
        *_recording(results),
        "## Ratios to floors\n",
        _floor_ratios(results),
        "With one read of every element, 120 MB take:\n",
        table(
            ["", "dropped, ms", "kept, ms"],
            [
                [row.title, _cell(row, "drop_read", 1e3, ""), _cell(row, "keep_read", 1e3, "")]
                for row in rows
                if row.get("drop_read") is not None
            ],
        ),
        "## How each was set up\n",
        *(f"- {row.title}: {row.note}" for row in rows if row.note),
        "",
        *_gaps(rows),
    ]
    return "\n".join(parts)


def data(results: Results, context: Context) -> dict[str, Any]:
    """The page's content as data: microseconds, or calls per second for `fan`."""
    return {
        "machine": dict(context.where),
        "packages": dict(context.packages),
        "rounds": context.plan.rounds,
        "contestants": {name: row.as_data() for name, row in results.items()},
        "bars": [verdict.as_data() for verdict in judge(results)],
    }
