"""Kill programs with an agent at work at random moments: every record must open.

    python benchmarks/campaign_records.py                  # 100 kills, writes results/records.md
    python benchmarks/campaign_records.py --kills 5 --dry

Each program writes texts, large outputs and pictures as fast as it can. It is killed with SIGKILL
at a random moment, from its first event on. Then its record must be listed as crashed, its chain
and blobs must hold, and it must have every event up to the last whole line.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table
from seer.runs import Run, RunIndex

PROGRAM = Path(__file__).resolve().parent.parent / "tests" / "runs" / "killed_program.py"
LATEST = 3.0
"""Seconds after the first event by which the kill comes."""


def one_kill(root: Path, moment: float) -> tuple[int, int, bool]:
    """Kill one program; how many events and bytes its record has, and whether a line was torn."""
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(root)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    with program.stdout:
        folder = Path(program.stdout.readline().strip())
        time.sleep(moment)
        program.kill()
        program.wait()
    run = Run(folder)
    if run.status != "crashed":
        raise AssertionError(f"the status is {run.status!r}")
    run.verify()
    events = list(run.events())
    if [event["seq"] for event in events] != list(range(len(events))):
        raise AssertionError("an event is missing")
    data = (folder / "events.jsonl").read_bytes()
    if data.count(b"\n") != len(events):
        raise AssertionError("a whole line was left out")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return len(events), size, not data.endswith(b"\n")


def main() -> int:
    """Kill them all; the status says whether every record opened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    chosen = random.Random(options.seed)
    root = Path(tempfile.mkdtemp(prefix="seer-records-"))
    failed: list[str] = []
    events: list[int] = []
    sizes: list[int] = []
    torn = 0
    try:
        for number in range(options.kills):
            moment = chosen.random() * LATEST
            try:
                count, size, cut = one_kill(root, moment)
            except Exception as error:
                failed.append(f"kill {number}, {moment:.3f} s: {type(error).__name__}: {error}")
                print(failed[-1], flush=True)
            else:
                events.append(count)
                sizes.append(size)
                torn += cut
        listed = RunIndex(root).count()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if listed != options.kills:
        failed.append(f"the index lists {listed} of {options.kills} runs")
    rows = [
        ["kills", str(options.kills)],
        ["records that did not open", str(len(failed))],
        ["events in a record", f"{min(events, default=0)} to {max(events, default=0)}"],
        ["bytes of a record", f"{min(sizes, default=0)} to {max(sizes, default=0)}"],
        ["records with a torn last line", str(torn)],
    ]
    page = "\n".join(
        [
            header("Killing programs that record", {}, machine()),
            f"Seed {options.seed}; killed up to {LATEST:g} s after the first event.",
            "",
            table(["", "count"], rows),
            *failed,
        ]
    )
    print(page)
    if not options.dry:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "records.md").write_text(page.rstrip() + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
