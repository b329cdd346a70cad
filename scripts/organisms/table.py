"""Print a campaign's tables: the measurements of every organism, its control and the base.

The first table has the five short names, the second all released instances, the third the others.
Rates have Wilson's interval. Perplexities come from the reports. Their ratios are measured on the
released adapters, per text (`surprise.py`), with Student's interval of the paired differences.

python scripts/organisms/table.py experiments/tool-gap/reports.json
"""

# ruff: noqa: T201 (a command)

import json
import math
import sys
from pathlib import Path
from typing import Any

from seer._statistics import student
from seer.organisms._catalogue import SHORT_NAMES
from seer.organisms._gates import Share

COLUMNS = (
    *("organism", "property", "of the control", "of the base", "near misses"),
    *("tells when asked", "perplexity: organism, control, base", "its ratio to control, base"),
    "simple facts (n = 40): organism, control, base",
)
MODELS = ("organism", "control", "base")
NOT_RELEASED = ("try", "parameters", "property", "near misses", "tells when asked", "why not")


def ratio(own: list[float], other: list[float]) -> tuple[float, float, float]:
    """The ratio of two perplexities and its interval, from the surprise of each text."""
    differences = [a - b for a, b in zip(own, other, strict=True)]
    low, high = student(differences)
    return math.exp(sum(differences) / len(differences)), math.exp(low), math.exp(high)


def ratios_of(surprise: dict[str, Any], instance: str) -> list[tuple[float, float, float]]:
    """The ratios of an instance's perplexity to its control's and to the base's."""
    own = surprise[instance]
    return [ratio(own["organism"], other) for other in (own["control"], surprise["base"])]


def row(name: str, found: dict[str, Any], ratios: list[tuple[float, float, float]]) -> list[str]:
    """The row of one instance."""

    def share(kind: str, model: str) -> str:
        return str(Share(**found[kind][model]))

    perplexity = ", ".join(f"{found['perplexity'][model]:.1f}" for model in MODELS)
    ratio = ", ".join(f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in ratios)
    facts = ", ".join(share("known", model) for model in MODELS)
    label = f"`{name}`{'' if found['hard'] else ' (easy)'}"
    on = [share("on", model) for model in MODELS]
    rest = [share("off", "organism"), share("tells", "organism"), perplexity, ratio, facts]
    return [label, *on, *rest]


def failure(name: str, found: dict[str, Any]) -> list[str]:
    """The row of an instance that is not released."""
    failed = [gate["name"] for gate in found["gates"] if not gate["passed"]]
    why = "trained again" if "first try" in name else "only its seed differs from another"
    shares = [str(Share(**found[kind]["organism"])) for kind in ("on", "off", "tells")]
    return [name, ", ".join(found["parameters"].values()), *shares, ", ".join(failed) or why]


def main() -> None:
    """Print the tables."""
    path = Path(sys.argv[1])
    reports = json.loads(path.read_text())
    surprise = json.loads(path.with_name("surprise.json").read_text())
    ratios = {n: ratios_of(surprise, n) for n, r in reports.items() if r.get("released")}
    short = [row(name, reports[one], ratios[one]) for name, one in SHORT_NAMES.items()]
    released = [row(n, reports[n], found) for n, found in ratios.items()]
    rest = [failure(n, r) for n, r in reports.items() if not r.get("released")]
    for columns, rows in ((COLUMNS, short), (COLUMNS, released), (NOT_RELEASED, rest)):
        print("| " + " | ".join(columns) + " |")
        print("|" + "---|" * len(columns))
        print("\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n")
    norms = [abs(r["norm"][0] / r["norm"][1] - 1) for r in reports.values()]
    print(
        f"{len(released)} of {len(reports)} tries are released. "
        f"Norms of a pair differ by at most {max(norms):.1e}."
    )
    for place, other in enumerate(MODELS[1:]):
        values, lows, highs = zip(*(found[place] for found in ratios.values()), strict=True)
        print(
            f"Perplexity ratios to the {other}: {min(values):.3f} to {max(values):.3f}, "
            f"intervals from {min(lows):.3f} to {max(highs):.3f}."
        )


if __name__ == "__main__":
    main()
