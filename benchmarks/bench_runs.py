"""The cost of records: finding runs among 10,000, and writing events while an agent works.

    python benchmarks/bench_runs.py                        # writes results/runs.md and .json
    python benchmarks/bench_runs.py --runs 500 --dry

The floor of a listing is one look at each run's folder (a directory scan and one `stat` per run),
which every correct listing needs. The floor of writing is appending the same bytes to a plain file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, write_results
from seer.runs import RunFilter, RunIndex, RunRecord, new_run_id

REPEATS = 15


def fill(root: Path, count: int) -> None:
    """Make run folders, each with a `run.json` of the usual size."""
    schema = {f"function_{n}": {"doc": "words " * 20} for n in range(8)}
    for number in range(count):
        folder = root / f"20260101-{number:06d}-00000000"
        folder.mkdir()
        word = "zebra" if number % 9 == 0 else "heron"
        data: dict[str, Any] = {
            "format": 1,
            "status": "completed" if number % 10 else "error",
            "created": float(number),
            "ended": number + 30.5,
            "name": f"experiment {number % 50}",
            "provider": "claude" if number % 3 else "openai",
            "model": f"model-{number % 4}",
            "task": "find out what the model hides",
            "system_prompt": "You are a careful researcher. " * 10,
            "result": f"it likes the {word}",
            "tokens": number,
            "cost_usd": number / 1000,
            "interfaces": {"tools": {"schema": schema}},
        }
        (folder / "run.json").write_text(json.dumps(data, indent=2))


def timed(action: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median time of an action in milliseconds."""
    spent: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        spent.append((time.perf_counter() - began) * 1e3)
    return median(spent)


def scan(root: Path) -> None:
    """Look at each run's folder once."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir():
                os.stat(f"{entry.path}/run.json")  # noqa: PTH116 (the floor itself)


def looking(count: int) -> dict[str, float]:
    """How long it takes to find runs, in milliseconds."""
    root = Path(tempfile.mkdtemp(prefix="seer-runs-"))
    try:
        fill(root, count)
        index = RunIndex(root)
        asked: dict[str, Callable[[], Any]] = {
            "list, newest 50": index.list,
            "list, dearest 50": lambda: index.list(order="cost_usd"),
            "filter by status and model": lambda: index.list(
                RunFilter(status="error", model="model-2")
            ),
            "filter by the beginning of a name": lambda: index.list(
                RunFilter(name="experiment 1*")
            ),
            "search two words": lambda: index.list(RunFilter(search="hides zebra")),
            "page 100": lambda: index.list(limit=50, offset=5000),
            "count": index.count,
        }

        def rebuild() -> None:
            (root / "index.sqlite").unlink(missing_ok=True)
            index.count()

        anew = timed(rebuild, 3)
        asked = {"floor: scan and stat": lambda: scan(root), **asked}
        # Interleaved, so that a busy moment affects all of them.
        spent: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(REPEATS):
            for name, action in asked.items():
                spent[name].append(timed(action, 1))
        return {name: median(times) for name, times in spent.items()} | {
            "make the index anew": anew
        }
    finally:
        shutil.rmtree(root)


def writing(count: int) -> dict[str, float]:
    """How long it takes to write one event, in microseconds."""
    root = Path(tempfile.mkdtemp(prefix="seer-runs-"))
    events = [
        {"type": "text", "seq": n, "time": 1.5, "turn": n, "text": "some words " * 20}
        for n in range(count)
    ]
    try:
        record = RunRecord.create(root, new_run_id(), meta={})

        def write() -> None:
            for event in events:
                record.event(event)

        spent = timed(write, 3) * 1e3 / count
        record.close("completed")
        size = (record.folder / "events.jsonl").stat().st_size // (3 * count)
        plain = os.open(root / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def append() -> None:
            for _ in events:
                os.write(plain, b"x" * size)

        floor = timed(append, 3) * 1e3 / count
        os.close(plain)
        return {"floor: append the bytes": floor, "write an event": spent}
    finally:
        shutil.rmtree(root)


def main() -> int:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    where = machine()
    found, written = looking(options.runs), writing(5000)
    floor = found["floor: scan and stat"]
    rows = [[name, f"{spent:.1f} ms", f"{spent / floor:.1f}"] for name, spent in found.items()]
    base = written["floor: append the bytes"]
    rows += [[name, f"{spent:.1f} us", f"{spent / base:.1f}"] for name, spent in written.items()]
    page = "\n".join(
        [
            header("Records of runs", {}, where),
            f"{options.runs} runs, medians of {REPEATS}; the last column is against the floor.",
            "",
            table(["", "time", "x floor"], rows),
        ]
    )
    print(page)
    if not options.dry:
        data = {"machine": where, "runs": options.runs, "looking_ms": found, "writing_us": written}
        write_results("runs", page, data, folder=RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
