"""Measure calls through the gate against peers and floors: `python benchmarks/gate/run.py`.

This makes the peers' environment if it does not exist. A full run writes
`benchmarks/results/gate.*`. A run with `--quick` or `--only` writes to `outputs/gate-quick`, and
does not count as a result.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # replaces the script's own folder, whose modules would shadow others

from benchmarks._common import RESULTS, machine, versions, write_results  # noqa: E402
from benchmarks.gate._adapter import Contestant  # noqa: E402
from benchmarks.gate._bars import judge  # noqa: E402
from benchmarks.gate._calm import Calm  # noqa: E402
from benchmarks.gate._environment import ensure_environment, packages  # noqa: E402
from benchmarks.gate._floors import FLOORS  # noqa: E402
from benchmarks.gate._measure import QUICK, Plan, run  # noqa: E402
from benchmarks.gate._peers import PEERS  # noqa: E402
from benchmarks.gate._probes import BENCH_PYTHON, bench_env  # noqa: E402
from benchmarks.gate._report import Context, data, page  # noqa: E402


def contestants() -> list[type[Contestant]]:
    """All contestants: Seer's own, then floors, then peers."""
    found: list[type[Contestant]] = []
    if importlib.util.find_spec("benchmarks.gate.ours") is not None:
        found += importlib.import_module("benchmarks.gate.ours").CONTESTANTS
    return [*found, *FLOORS, *PEERS]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the gate against peers and floors.")
    parser.add_argument("--quick", action="store_true", help="one short round: does it all work?")
    parser.add_argument("--only", metavar="NAMES", help="comma-separated contestants")
    parser.add_argument("--rounds", type=int, help="rounds of calls (default 5)")
    parser.add_argument("--list", action="store_true", help="name the contestants and stop")
    return parser.parse_args()


def _chosen(only: str | None) -> list[type[Contestant]]:
    known = {kind.name: kind for kind in contestants()}
    if only is None:
        return list(known.values())
    unknown = sorted(set(only.split(",")) - set(known))
    if unknown:
        raise SystemExit(f"unknown contestants {unknown!r}; there are {sorted(known)!r}")
    return [known[name] for name in known if name in only.split(",")]


def main() -> int:
    """Run, write the results, print the verdicts; 1 if a full run misses a bar."""
    arguments = _arguments()
    chosen = _chosen(arguments.only)
    if arguments.list:
        print("\n".join(f"{kind.name:10} {kind.title}" for kind in chosen))
        return 0
    ensure_environment()
    plan = QUICK if arguments.quick else Plan()
    if arguments.rounds:
        plan = Plan(**{**vars(plan), "rounds": arguments.rounds})
    whole = not arguments.quick and arguments.only is None
    target = RESULTS if whole else ROOT / "outputs" / "gate-quick"
    where = machine()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gate-") as scratch:
        made: list[Contestant] = []
        for kind in chosen:
            folder = Path(scratch) / kind.name
            folder.mkdir()
            made.append(kind(folder))
        Path(scratch).chmod(0o755)
        calm = Calm(plan.patience)
        results = run(made, plan, calm=calm, say=lambda text: print(f"  {text}", flush=True))
    installed = versions(BENCH_PYTHON, packages())
    context = Context(where=where, packages=installed, plan=plan, calm=calm.told())
    write_results("gate", page(results, context), data(results, context), folder=target)
    chart = ["-m", "benchmarks.gate._chart", str(target / "gate.json"), str(target / "gate.png")]
    subprocess.run([str(BENCH_PYTHON), *chart], check=True, env=bench_env())
    print((target / "gate.md").read_text())
    print(f"{time.monotonic() - begin:.0f} s; written to {target.relative_to(ROOT)}/gate.*")
    missed = [verdict for verdict in judge(results) if not verdict.met]
    return 1 if whole and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
