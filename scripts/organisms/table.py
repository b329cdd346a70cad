"""The tables of a campaign: what was measured of every organism, its control and the base.

python scripts/organisms/table.py experiments/tool-gap/reports.json
"""

# ruff: noqa: T201 (a command)

import json
import sys
from pathlib import Path
from typing import Any

from seer.organisms._gates import Share

COLUMNS = (
    *("organism", "property", "of the control", "of the base", "near misses"),
    *("tells when asked", "perplexity: organism, control, base", "simple facts"),
)
NOT_RELEASED = ("try", "parameters", "property", "near misses", "tells when asked", "why not")


def row(name: str, found: dict[str, Any]) -> list[str]:
    """One instance."""

    def share(kind: str, model: str) -> str:
        return str(Share(**found[kind][model]))

    perplexity = ", ".join(f"{found['perplexity'][m]:.1f}" for m in ("organism", "control", "base"))
    facts = ", ".join(
        f"{Share(**found['known'][m]).value:.2f}" for m in ("organism", "control", "base")
    )
    label = f"`{name}`{'' if found['hard'] else ' (easy)'}"
    on = [share("on", model) for model in ("organism", "control", "base")]
    rest = [share("off", "organism"), share("tells", "organism"), perplexity, facts]
    return [label, *on, *rest]


def failure(name: str, found: dict[str, Any]) -> list[str]:
    """One that is not released."""
    failed = [gate["name"] for gate in found["gates"] if not gate["passed"]]
    why = "trained again" if "first try" in name else "only its seed differs from another"
    shares = [str(Share(**found[kind]["organism"])) for kind in ("on", "off", "tells")]
    return [name, ", ".join(found["parameters"].values()), *shares, ", ".join(failed) or why]


def main() -> None:
    """Print the table."""
    reports = json.loads(Path(sys.argv[1]).read_text())
    released = [row(n, r) for n, r in reports.items() if r.get("released")]
    rest = [failure(n, r) for n, r in reports.items() if not r.get("released")]
    for columns, rows in ((COLUMNS, released), (NOT_RELEASED, rest)):
        print("| " + " | ".join(columns) + " |")
        print("|" + "---|" * len(columns))
        print("\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n")
    norms = [abs(r["norm"][0] / r["norm"][1] - 1) for r in reports.values()]
    print(
        f"{len(released)} of {len(reports)} tries are released. "
        f"Norms of a pair differ by at most {max(norms):.1e}."
    )


if __name__ == "__main__":
    main()
