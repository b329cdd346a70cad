"""Copies of an interface behind one gate: throughput, the cost of the front, and fairness.

    python benchmarks/bench_replicas.py             # writes results/replicas.md, about 3 minutes
    python benchmarks/bench_replicas.py --quick     # a check of the script; writes nothing

One scoped sandbox in a jail serves the same file twice: with one process, and with copies behind a
front. Callers are in processes of their own. Rounds alternate between both, so that a busy moment
affects both. If a bar is not met, the run ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, versions, write_results
from seer._sync import run_sync
from seer.environment import SandboxConfig, ScopedSandbox

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".venv-bench" / "bin" / "python"
SPEED_UP = 1.6
RAY = 1.5
FAIR = 2.0
INTERFACE = '''
@expose(stateful=False)
def small(x: int) -> int:
    """Next."""
    return x + 1


@expose(stateful=False)
def burn(turns: int) -> int:
    """Work for the processor."""
    found = 0
    for i in range(turns):
        found += i * i
    return found
'''
RAY_SCRIPT = """
import json, logging, statistics, sys, time
import ray
ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False,
         object_store_memory=200 << 20)
@ray.remote(num_cpus=0)
class Actor:
    def small(self, x): return x + 1
actor = Actor.remote()
for i in range(200): ray.get(actor.small.remote(i))
rounds = []
for _ in range(int(sys.argv[1])):
    times = []
    for i in range(int(sys.argv[2])):
        began = time.perf_counter()
        assert ray.get(actor.small.remote(i)) == i + 1
        times.append(time.perf_counter() - began)
    rounds.append(statistics.median(times))
print(json.dumps(statistics.median(rounds)))
ray.shutdown()
"""


class Callers:
    """A process with callers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("_replica_callers.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, **asked: Any) -> None:
        """Start the calls of a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def times(self) -> list[list[float]]:
        """The seconds of each caller's calls."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the callers' process has ended"
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Ground:
    """A sandbox that serves the interface with and without copies, and its callers."""

    def __init__(self, folder: Path, copies: int) -> None:
        file = folder / "tools.py"
        file.write_text(INTERFACE)
        self.scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local"))
        self.scoped.start()
        self.libraries = {
            1: self.scoped.serve(file, name="single"),
            copies: self.scoped.serve(file, name="tools", replicas=copies),
        }
        self._sockets: dict[int, list[str]] = {copies: [], 1: []}

    def sockets(self, copies: int, count: int) -> list[str]:
        """The sockets of this many callers."""
        found = self._sockets[copies]
        gate = self.libraries[copies].gate
        assert gate is not None
        while len(found) < count:
            found.append(str(run_sync(gate.open_caller("bench")).path))
        return found[:count]

    def memory(self) -> dict[str, int]:
        """The number of server processes, and their proportional memory (PSS) in KiB."""
        script = (
            "for p in /proc/[0-9]*; do grep -qa seer.rpc.server $p/cmdline 2>/dev/null && "
            "echo \"$(awk '/^Pss:/{print $2}' $p/smaps_rollup)\"; done; true"
        )
        values = [int(line) for line in self.scoped.exec(script).split()]
        return {"processes": len(values), "kib": sum(values)}


def throughput(ground: Ground, process: Callers, *, seconds: float, rounds: int) -> dict[str, Any]:
    """Calls of 50 ms per second with 1 and 2 copies, and two bare processes as the ceiling."""
    turns = calibrate(0.05)
    rounds_of: dict[str, dict[int, list[float]]] = {
        "gate": {1: [], 2: []},
        "bare": {1: [], 2: []},
    }
    for number in range(rounds):
        # The machine's speed drifts over seconds. So the ways are measured close together, and each
        # is first in turn.
        order = (1, 2) if number % 2 else (2, 1)
        for copies in order:
            process.begin(
                function="burn", args=[turns], callers=ground.sockets(copies, 8), seconds=seconds
            )
            times = process.times()
            rounds_of["gate"][copies].append(sum(map(len, times)) / max(map(sum, times)))
        for copies in order:
            rounds_of["bare"][copies].append(bare_rate(copies, turns, seconds))
    found: dict[str, Any] = {"turns": turns, "rounds": rounds_of}
    for name, rates in rounds_of.items():
        ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
        found[name] = {
            "one": median(rates[1]),
            "two": median(rates[2]),
            "ratio": median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }
    return found


def burn(turns: int) -> int:
    """The same work as the interface's `burn`."""
    found = 0
    for i in range(turns):
        found += i * i
    return found


def calibrate(seconds: float) -> int:
    """The number of turns that take this long on this machine."""
    turns, took = 100_000, 0.0
    for _ in range(5):
        began = time.perf_counter()
        burn(turns)
        took = time.perf_counter() - began
        turns = int(turns * seconds / took)
    return turns


def _bare(turns: int, seconds: float, done: Any) -> None:
    count, until = 0, time.perf_counter() + seconds
    began = time.perf_counter()
    while time.perf_counter() < until:
        burn(turns)
        count += 1
    done.put(count / (time.perf_counter() - began))


def bare_rate(processes: int, turns: int, seconds: float) -> float:
    """Calls per second of the same work in bare processes, without a gate."""
    context = multiprocessing.get_context("fork")
    done: Any = context.Queue()
    running = [context.Process(target=_bare, args=(turns, seconds, done)) for _ in range(processes)]
    for process in running:
        process.start()
    rates = [done.get() for _ in running]
    for process in running:
        process.join()
    return sum(rates)


def small_call(ground: Ground, process: Callers, *, calls: int, rounds: int) -> dict[str, float]:
    """The median of one caller's small call: without a front, through it, and to a Ray actor."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for copies in (1, 2):
            process.begin(
                function="small", args=[1], callers=ground.sockets(copies, 1), calls=calls
            )
            found[copies].append(median(process.times()[0]))
    result = {"one": median(found[1]), "front": median(found[2])}
    if BENCH.exists():
        done = subprocess.run(
            [str(BENCH), "-c", RAY_SCRIPT, str(rounds), str(calls)],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "RAY_USAGE_STATS_ENABLED": "0", "HOME": "/tmp"},
        )
        if done.returncode:
            sys.stderr.write(done.stderr)
        else:
            result["ray"] = float(json.loads(done.stdout.splitlines()[-1]))
    return result


def many(ground: Ground, processes: list[Callers], *, calls: int) -> dict[str, Any]:
    """256 callers at once: the slowest caller, the median caller, and the servers' memory."""
    turns = calibrate(0.001)
    found: dict[str, Any] = {}
    for copies in (1, 2):
        sockets = ground.sockets(copies, 256)
        share = len(sockets) // len(processes)
        for i, process in enumerate(processes):
            part = sockets[i * share : (i + 1) * share]
            process.begin(function="burn", args=[turns], callers=part, calls=calls)
        times = [taken for process in processes for taken in process.times()]
        assert all(len(taken) == calls for taken in times), "a call has failed"
        medians = sorted(median(taken) for taken in times)
        found[str(copies)] = {
            "calls": sum(map(len, times)),
            "median": median(medians),
            "slowest": medians[-1],
            "ratio": medians[-1] / median(medians),
        }
    return {**found, "memory": ground.memory()}


def flooded(ground: Ground, processes: list[Callers], *, seconds: float) -> dict[str, Any]:
    """31 modest callers, alone and beside one that floods with 64 connections."""
    turns = calibrate(0.002)
    found: dict[str, Any] = {}
    for copies in (1, 2):
        flooding, *modest = ground.sockets(copies, 32)
        asked = {"function": "burn", "args": [turns], "callers": modest, "seconds": seconds}
        rounds: dict[str, list[float]] = {"alone": [], "beside": []}
        for _ in range(2):
            processes[0].begin(**asked)
            rounds["alone"].append(_middle(processes[0].times()))
            flood = {**asked, "callers": [flooding], "flood": [flooding], "connections": 64}
            processes[1].begin(**{**flood, "seconds": seconds + 1.0})
            processes[0].begin(**asked)
            rounds["beside"].append(_middle(processes[0].times()))
            processes[1].times()
        alone, beside = median(rounds["alone"]), median(rounds["beside"])
        found[str(copies)] = {"alone": alone, "beside": beside, "ratio": beside / alone}
    return found


def _middle(times: list[list[float]]) -> float:
    return median([took for taken in times for took in taken])


def report(data: dict[str, Any]) -> tuple[str, list[str]]:
    """The page, and the bars that were not met."""
    work, small, crowd, flood = (data[k] for k in ("throughput", "small", "many", "flood"))
    missed: list[str] = []

    def bar(text: str, met: bool) -> str:
        if not met:
            missed.append(text)
        return f"{text}: {'met' if met else 'NOT met'}."

    lines = ["## Calls of 50 ms on both cores, 8 callers", ""]
    rows = [
        [
            what,
            f"{work[name]['one']:.1f}",
            f"{work[name]['two']:.1f}",
            f"{work[name]['ratio']:.2f}",
            f"{work[name]['least']:.2f} to {work[name]['most']:.2f}",
        ]
        for what, name in (("through the gate", "gate"), ("bare processes", "bare"))
    ]
    lines.append(table(["calls/s", "1", "2", "ratio, median of rounds", "from to"], rows))
    met = work["gate"]["ratio"] >= SPEED_UP
    lines += [bar(f"Two copies at least {SPEED_UP} times as fast", met), ""]
    lines += ["## A small call of one caller, p50", ""]
    rows = [
        ["one process", f"{small['one'] * 1e6:.0f} µs", "1.00"],
        ["through the front", f"{small['front'] * 1e6:.0f} µs",
         f"{small['front'] / small['one']:.2f}"],
    ]  # fmt: skip
    if "ray" in small:
        rows.append(["bare Ray actor", f"{small['ray'] * 1e6:.0f} µs",
                     f"{small['ray'] / small['one']:.2f}"])  # fmt: skip
    lines.append(table(["", "p50", "against one process"], rows))
    if "ray" in small:
        met = small["front"] <= RAY * small["ray"]
        lines += [bar(f"Through the front at most {RAY} times a bare Ray actor call", met), ""]
        lines.append(
            "Ray was measured after the gate, whose processes were idle then. Ray Serve is not in"
            " the peers' environment; it is measured with the Ray provider.\n"
        )
    lines += ["## 256 callers at once, calls of 1 ms", ""]
    rows = [
        [f"{n} {'process' if n == '1' else 'copies'}", str(crowd[n]["calls"]),
         f"{crowd[n]['median'] * 1e3:.0f} ms", f"{crowd[n]['slowest'] * 1e3:.0f} ms",
         f"{crowd[n]['ratio']:.2f}"]
        for n in ("1", "2")
    ]  # fmt: skip
    head = ["", "calls, none failed", "p50 of the middle caller", "of the slowest", "ratio"]
    lines.append(table(head, rows))
    kib = crowd["memory"]["kib"]
    lines.append(
        f"Memory of both servers' {crowd['memory']['processes']} processes with 512 callers in all:"
        f" {kib / 1024:.0f} MiB.\n"
    )
    worst = max(crowd[n]["ratio"] for n in ("1", "2"))
    lines += [bar(f"The slowest caller within {FAIR:g} times the middle one", worst <= FAIR), ""]
    lines += ["## 31 callers beside one that floods with 64 connections, calls of 2 ms, p50", ""]
    rows = [
        [f"{n} {'process' if n == '1' else 'copies'}", f"{flood[n]['alone'] * 1e3:.1f} ms",
         f"{flood[n]['beside'] * 1e3:.1f} ms", f"{flood[n]['ratio']:.2f}"]
        for n in ("1", "2")
    ]  # fmt: skip
    lines.append(table(["", "without it", "beside it", "ratio"], rows))
    worst = max(flood[n]["ratio"] for n in ("1", "2"))
    lines.append(bar(f"Beside it at most {FAIR:g} times as long", worst <= FAIR))
    return "\n".join(lines), missed


def main() -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Short, and write nothing.")
    quick = parser.parse_args().quick
    processes = [Callers() for _ in range(4)]
    where = machine()
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder), 2)
        try:
            data = {
                "throughput": throughput(
                    ground, processes[0], seconds=1.0 if quick else 2.5, rounds=2 if quick else 8
                ),
                "small": small_call(
                    ground, processes[0], calls=300 if quick else 3000, rounds=1 if quick else 5
                ),
                "flood": flooded(ground, processes, seconds=2.0 if quick else 6.0),
                "many": many(ground, processes, calls=5 if quick else 30),
            }
        finally:
            ground.scoped.terminate()
            for process in processes:
                process.close()
    page, missed = report(data)
    packages = versions(BENCH, ["ray"]) if BENCH.exists() else {}
    text = header("Copies of an interface", packages, where) + "\n" + page
    sys.stdout.write(text + "\n")
    if not quick:
        write_results("replicas", text, data, folder=RESULTS)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
