"""What the white-box tools add for the baseline: a table, and `gap.png`.

python gap.py SWEEP          # the folder that `seer sweep main.py --matrix gap.toml` made
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from seer.organisms import organism
from seer.scoring import gap_table, plot_gap, tool_gap
from seer.sweeps import read_sweep


@dataclass(frozen=True)
class Result:
    """One run of the sweep."""

    agent: str
    tools: str
    organism: str
    seed: int
    correct: bool | None
    """None: the run failed, so it has no result."""

    @property
    def control(self) -> bool:
        """Whether nothing is planted in the organism."""
        return organism(self.organism).is_control


def main() -> None:
    """Print the table and draw it."""
    rows = read_sweep(Path(sys.argv[1])).rows()
    results = [
        Result(
            "baseline",
            row["tools"],
            row["model"],
            row["repetition"],
            None if row["score"] is None else row["score"] == 1.0,
        )
        for row in rows
    ]
    gap = tool_gap(results, reference="blackbox")
    print(gap_table(gap))
    plot_gap(gap, Path(__file__).parent / "gap.png")


if __name__ == "__main__":
    main()
