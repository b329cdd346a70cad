"""The cost of an idle machine: the processor time of its keeper, with few and with many files.

    python benchmarks/campaign_idle.py               # 100,000 files, 120 s, writes results/idle.md
    python benchmarks/campaign_idle.py --seconds 10 --dry

The keeper counts the bytes of a workspace to enforce its limit. It must not walk all files all the
time, because a host may have dozens of idle machines.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table
from seer.execution import create_local_session

FEW, MANY = 10, 100_000
MAKE = """
import os
for number in range({count}):
    if number % 1000 == 0:
        os.makedirs(f"d{{number // 1000}}", exist_ok=True)
    open(f"d{{number // 1000}}/{{number}}", "w").close()
"""


def keepers() -> dict[int, float]:
    """The processor seconds used so far by each keeper and each reaper, by process id."""
    found: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"seer_machine.keeper" in command:
            ticks = int(fields[11]) + int(fields[12])
            found[int(folder.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return found


def measure(files: int, seconds: float) -> float:
    """The share of a core that the keeper of an idle session with this many files uses."""
    before = set(keepers())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with create_local_session() as session:
            own = set(keepers()) - before
            if len(own) != 2:
                raise SystemExit("another program that uses Seer runs here; end it first")
            session.exec(MAKE.format(count=files))
            began, used = time.monotonic(), keepers()
            time.sleep(seconds)
            now = keepers()
            share = sum(now[pid] - used[pid] for pid in own) / (time.monotonic() - began)
        os.chdir("/")
    return share


def main() -> int:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    where = machine()
    rows = [
        [f"{files:,}", f"{measure(files, options.seconds) * 100:.2f} %"] for files in (FEW, MANY)
    ]
    page = "\n".join(
        [
            header("What an idle machine costs", {}, where),
            f"A session without work for {options.seconds:g} s, right after its files were made.",
            "",
            table(["files in its workspace", "of one core, by its keeper"], rows),
        ]
    )
    print(page)
    if not options.dry:
        (RESULTS / "idle.md").write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
