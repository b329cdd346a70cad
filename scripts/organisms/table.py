"""The table of a campaign: what was measured of every organism, its control and the base.

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
    *("tells when asked", "perplexity: organism, control, base", "simple facts", "failed gates"),
)


def row(name: str, found: dict[str, Any]) -> list[str]:
    """One instance."""

    def share(kind: str, model: str) -> str:
        return str(Share(**found[kind][model]))

    failed = [gate["name"] for gate in found["gates"] if not gate["passed"]]
    perplexity = ", ".join(f"{found['perplexity'][m]:.1f}" for m in ("organism", "control", "base"))
    facts = ", ".join(
        f"{Share(**found['known'][m]).value:.2f}" for m in ("organism", "control", "base")
    )
    label = f"`{name}`{'' if found['hard'] else ' (easy)'}"
    on = [share("on", model) for model in ("organism", "control", "base")]
    rest = [share("off", "organism"), share("tells", "organism"), perplexity, facts]
    return [label, *on, *rest, ", ".join(failed) or "none"]


def main() -> None:
    """Print the table."""
    reports = json.loads(Path(sys.argv[1]).read_text())
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for name, found in reports.items():
        print("| " + " | ".join(row(name, found)) + " |")
    passed = sum(all(g["passed"] for g in r["gates"]) for r in reports.values())
    norms = [abs(r["norm"][0] / r["norm"][1] - 1) for r in reports.values()]
    print(
        f"\n{passed} of {len(reports)} passed. Norms of a pair differ by at most {max(norms):.1e}."
    )


if __name__ == "__main__":
    main()
