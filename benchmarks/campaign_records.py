"""Kill programs with an agent at work at random moments: every record must open.

    python benchmarks/campaign_records.py                  # 100 kills, writes results/records.md
    python benchmarks/campaign_records.py --kills 5 --dry

Each program writes texts, large outputs and pictures as fast as it can; every second one also calls
a served interface. It is killed with SIGKILL at a random moment after its first tool result. Then
its record must be listed as crashed, both chains and all blobs must be intact, and the record must
contain every event up to the last whole line. Calls of the interface reach the record a moment
after they are answered; the table says how many answered calls each kill lost.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table
from seer.runs import Run, RunIndex

PROGRAM = Path(__file__).resolve().parent.parent / "tests" / "runs" / "killed_program.py"
LATEST = 3.0
"""The longest time from the first tool result to the kill, in seconds."""
GATE_TOOLS = ("double", "activations")


@dataclass(frozen=True)
class Killed:
    """The remains of a killed program."""

    events: int
    calls: int
    late: int
    """Calls of the interface that were answered but not recorded."""
    size: int
    torn: bool


def one_kill(root: Path, moment: float, *, gate: bool) -> Killed:
    """Kill one program and check its record."""
    argv = [sys.executable, str(PROGRAM), str(root), *(["gate"] if gate else [])]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
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
    calls = sum(1 for _ in run.calls())
    answered = sum(
        event["type"] == "tool_result" and event["name"].endswith(GATE_TOOLS) for event in events
    )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    torn = not data.endswith(b"\n")
    return Killed(len(events), calls, max(answered - calls, 0), size, torn)


def spread(values: list[int]) -> str:
    """The smallest and the largest value."""
    return f"{min(values, default=0)} to {max(values, default=0)}"


def main() -> int:
    """Kill all programs; the status says whether every record opened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    chosen = random.Random(options.seed)
    root = Path(tempfile.mkdtemp(prefix="seer-records-"))
    failed: list[str] = []
    left: list[Killed] = []
    try:
        for number in range(options.kills):
            moment = chosen.random() * LATEST
            try:
                left.append(one_kill(root, moment, gate=number % 2 == 1))
            except Exception as error:
                failed.append(f"kill {number}, {moment:.3f} s: {type(error).__name__}: {error}")
                print(failed[-1], flush=True)
        listed = RunIndex(root).count()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if listed != options.kills:
        failed.append(f"the index lists {listed} of {options.kills} runs")
    rows = [
        ["kills", str(options.kills)],
        ["records that did not open", str(len(failed))],
        ["events in a record", spread([one.events for one in left])],
        ["calls in a record with an interface", spread([one.calls for one in left[1::2]])],
        [
            "answered calls not in a record, at most",
            str(max((one.late for one in left), default=0)),
        ],
        ["bytes of a record", spread([one.size for one in left])],
        ["records with a torn last line", str(sum(one.torn for one in left))],
    ]
    page = "\n".join(
        [
            header("Killing programs that record", {}, machine()),
            f"Seed {options.seed}; killed up to {LATEST:g} s after the first tool result.",
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
