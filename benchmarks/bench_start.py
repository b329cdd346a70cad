"""How long a sandbox on this machine takes to answer, and how many start at once.

    python benchmarks/bench_start.py                       # writes results/start.md
    python benchmarks/bench_start.py --rounds 5 --dry      # a quick look

The floor is the unavoidable cost: the start of one interpreter and of one bare jail. Every round
times the floor and the sandbox one after the other, so that a busy moment affects both.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table
from seer._sync import run_sync
from seer.environment import ExecutionMode, Sandbox, SandboxConfig
from seer.isolation import BackendName, Policy, choose
from seer.providers import Machine, MachineSpec, get_provider

MOST = 3.0
"""The bar: the start of a machine, as a multiple of the floor."""
BACKENDS: tuple[BackendName, ...] = ("bubblewrap", "landlock")


@dataclass
class Times:
    """Seconds of each round."""

    interpreter: list[float] = field(default_factory=list[float])
    jail: list[float] = field(default_factory=list[float])
    machine: list[float] = field(default_factory=list[float])
    sandbox: list[float] = field(default_factory=list[float])

    def floor(self, share: float) -> float:
        """The floor at this percentile of the rounds."""
        return percentile(self.interpreter, share) + percentile(self.jail, share)


def percentile(values: list[float], share: float) -> float:
    """The percentile at `share`, which is always one of the values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def time_interpreter() -> float:
    """Start an interpreter that does nothing."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def time_jail(backend: BackendName) -> float:
    """Start a jail with nothing in it."""
    chosen = choose(backend)
    began = time.perf_counter()
    launch = chosen.launch(Policy(), ["/bin/true"])
    subprocess.run(launch.argv, env=launch.env, pass_fds=launch.pass_fds, check=True)
    spent = time.perf_counter() - began
    launch.close()
    return spent


async def time_machine(backend: BackendName) -> float:
    """Seconds from the start of a machine to the answer of its first command."""
    began = time.perf_counter()
    started = await get_provider("local").start(MachineSpec(isolation=backend))
    await started.exec(["/bin/true"])
    spent = time.perf_counter() - began
    await started.terminate()
    return spent


def time_sandbox(backend: BackendName) -> float:
    """The same through the public `Sandbox`."""
    config = SandboxConfig(
        gpu=None,
        provider="local",
        execution_mode=ExecutionMode.CLI,
        isolation=backend,
        # A landlock jail has no network of its own; the others use the default, with its proxy.
        network="none" if backend == "landlock" else SandboxConfig().network,
    )
    began = time.perf_counter()
    sandbox = Sandbox(config).start()
    sandbox.exec("true")
    spent = time.perf_counter() - began
    sandbox.terminate()
    return spent


def measure(backend: BackendName, rounds: int) -> Times:
    """All rounds of one backend."""
    times = Times()
    run_sync(time_machine(backend))
    time_sandbox(backend)
    for _ in range(rounds):
        times.interpreter.append(time_interpreter())
        times.jail.append(time_jail(backend))
        times.machine.append(run_sync(time_machine(backend)))
        times.sandbox.append(time_sandbox(backend))
    return times


@dataclass(frozen=True)
class Crowd:
    """The figures of many machines at once."""

    count: int
    seconds: float
    memory: float
    """Bytes of each machine, shared pages counted once."""
    processes: float


async def measure_crowd(backend: BackendName, count: int) -> Crowd:
    """Start many machines at once, and run a command in each."""
    provider = get_provider("local")
    began = time.perf_counter()

    async def one() -> Machine:
        started = await provider.start(MachineSpec(isolation=backend))
        await started.exec(["/bin/true"])
        return started

    machines = await asyncio.gather(*(one() for _ in range(count)))
    seconds = time.perf_counter() - began
    pids = [pid for started in machines for pid in processes_of(started.id)]
    memory = sum(map(proportional, pids))
    await asyncio.gather(*(started.terminate() for started in machines))
    return Crowd(count, seconds, memory / count, len(pids) / count)


def processes_of(machine_id: str) -> list[int]:
    """The keeper and reaper of a machine, and everything below them."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        name = entry.name
        if not name.isdigit():
            continue
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
            if machine_id.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.add(int(name))
        except OSError:
            continue
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def proportional(pid: int) -> int:
    """A process's memory, with shared pages divided among the processes that share them."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def rows_of(backend: str, times: Times) -> list[list[str]]:
    """The table's rows for one backend."""
    rows: list[list[str]] = []
    for name, values in (
        ("`python -c pass`", times.interpreter),
        ("bare jail with /bin/true", times.jail),
        ("machine, to the first command's answer", times.machine),
        ("`Sandbox.start()`, to the first `exec`'s answer", times.sandbox),
    ):
        found = [(percentile(values, share), times.floor(share)) for share in (0.5, 0.99)]
        cells = [f"{value * 1e3:.1f}" for value, _ in found]
        rows.append([backend, name, *cells, *(f"{value / floor:.2f}x" for value, floor in found)])
    return rows


def main() -> int:
    """Measure, print, and write the page; the status says whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--crowd", type=int, default=50)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    where = machine()
    rows: list[list[str]] = []
    crowd_rows: list[list[str]] = []
    met = True
    for backend in BACKENDS:
        times = measure(backend, options.rounds)
        rows += rows_of(backend, times)
        if backend == "bubblewrap":
            slowest = max(percentile(values, 0.5) for values in (times.machine, times.sandbox))
            met = slowest <= MOST * times.floor(0.5)
        crowd = run_sync(measure_crowd(backend, options.crowd))
        crowd_rows.append(
            [
                backend,
                str(crowd.count),
                f"{crowd.seconds:.2f}",
                f"{crowd.seconds / crowd.count * 1e3:.0f}",
                f"{crowd.memory / 2**20:.1f}",
                f"{crowd.processes:.1f}",
            ]
        )
    page = "\n".join(
        [
            header("Starting a sandbox", {}, where),
            f"{options.rounds} rounds, milliseconds; the floor is the sum of the first two lines."
            f" Bar: at most {MOST:g} floors (p50, bubblewrap):"
            f" **{'met' if met else 'not met'}**.",
            "",
            table(["jail", "what", "p50", "p99", "p50 / floor", "p99 / floor"], rows),
            "",
            "Many at once, each with its first command answered; none may fail. Memory is the"
            " proportional share (PSS) of all of a machine's processes.",
            "",
            table(
                ["jail", "machines", "s in all", "ms each", "MiB each", "processes each"],
                crowd_rows,
            ),
            "",
        ]
    )
    print(page)
    if not options.dry:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "start.md").write_text(page)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
