"""Many complete agents at once on one served interface: failures, fairness, memory.

    python benchmarks/bench_agents.py                   # 64 agents, writes results/agents.md
    python benchmarks/bench_agents.py --agents 8 --dry

Every agent is complete: `run_agent` with a script, a local session of its own (a kernel in a jail,
with numpy, pandas, scipy and matplotlib imported) and its record. First, all agents open their
sessions and import; then all call the interface at the same time. The benchmark compares what an
agent notices: how long its own calls took, by the clock in its jail. It is fair if no agent's mean
is more than twice the median agent's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, versions, write_results
from benchmarks.bench_session import memory_of
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import LocalSession, acreate_local_session
from seer.harness import Call, RunFinished, Scripted, Step, ToolResult, run_agent
from seer.workspace import Workspace

INTERFACE = """
import time

@expose
def look(agent: int, number: int) -> dict:
    "Five milliseconds, as of a GPU that is busy."
    time.sleep(0.005)
    return {"agent": agent, "number": number}
"""
IMPORTS = "import time, numpy, pandas, scipy.stats, matplotlib.pyplot, lab"
CELL = """
import json
times = []
for number in range({first}, {last}):
    began = time.perf_counter()
    found = lab.look({agent}, number)
    times.append(time.perf_counter() - began)
    assert found == {{"agent": {agent}, "number": number}}
print("times", json.dumps(times))
"""
CELLS, CALLS = 5, 4
"""The number of cells per agent, and of calls per cell."""
BAR = 2.0


@dataclass
class Seated:
    """One agent: its session and its results."""

    number: int
    session: LocalSession
    times: list[float]
    wrong: str = ""


async def drive(agent: Seated, steps: Sequence[Step], folder: Path) -> None:
    """Run the agent over a script; collect what its cells print."""
    run = run_agent(
        prompt="Look at the model.",
        provider=Scripted([*steps, Step(text="That is all.")]),
        session=agent.session,
        record=folder / "runs",
    )
    finished = ""
    async for event in run:
        if isinstance(event, ToolResult):
            agent.times += _printed(event.text)
        elif isinstance(event, RunFinished):
            finished = event.reason
    if finished != "completed":
        agent.wrong = f"the run ended as {finished!r}"


def _printed(text: str) -> list[float]:
    lines = [line.removeprefix("times ") for line in text.splitlines() if line[:6] == "times "]
    return [float(value) for line in lines for value in json.loads(line)]


def looking(number: int) -> list[Step]:
    """The script of one agent."""
    cells = [
        CELL.format(agent=number, first=cell * CALLS, last=(cell + 1) * CALLS)
        for cell in range(CELLS)
    ]
    return [Step(calls=[Call("python", {"code": code})]) for code in cells]


async def measure(folder: Path, count: int) -> dict[str, Any]:
    """All agents, from the first session to the last call."""
    (folder / "lab.py").write_text(INTERFACE)
    before = psutil.Process().memory_full_info().pss
    async with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        served: Any = await scoped.aserve(folder / "lab.py", "library")
        workspace = Workspace(libraries=[served])
        began = time.perf_counter()
        opened = await asyncio.gather(
            *(
                acreate_local_session(workspace, folder / f"agent{n}", f"agent-{n}")
                for n in range(count)
            )
        )
        agents = [Seated(number, session, []) for number, session in enumerate(opened)]
        try:
            ready = [Step(calls=[Call("python", {"code": IMPORTS})])]
            await asyncio.gather(*(drive(agent, ready, folder) for agent in agents))
            seated = time.perf_counter() - began
            began = time.perf_counter()
            await asyncio.gather(*(drive(a, looking(a.number), folder) for a in agents))
            called = time.perf_counter() - began
            memory = await memory_of([agent.session for agent in agents])
            own = psutil.Process().memory_full_info().pss - before
        finally:
            await asyncio.gather(*(agent.session.aclose() for agent in agents))
    for agent in agents:
        if not agent.wrong and len(agent.times) != CELLS * CALLS:
            agent.wrong = f"{len(agent.times)} of {CELLS * CALLS} calls answered"
    return {
        "failed": [f"agent {a.number}: {a.wrong}" for a in agents if a.wrong],
        "times_s": [agent.times for agent in agents],
        "seat_s": seated,
        "call_s": called,
        "session_mib": memory,
        "controller_mib": own / count / 2**20,
    }


def means(data: dict[str, Any]) -> list[float]:
    """The mean of each agent's calls, in milliseconds, the slowest agent last."""
    return sorted(sum(times) / len(times) * 1e3 for times in data["times_s"] if times)


def report(data: dict[str, Any], where: dict[str, str]) -> tuple[str, bool]:
    """The result page, and whether no agent failed and the bar is met."""
    each = means(data)
    middle = median(each)
    ratio = each[-1] / middle
    count = len(data["times_s"])
    calls = sorted(value * 1e3 for times in data["times_s"] for value in times)
    rows = [
        ["agents, each with a session of its own", str(count), "", ""],
        ["agents that failed", str(len(data["failed"])), "0", _kept(not data["failed"])],
        ["calls answered", str(len(calls)), str(count * CELLS * CALLS), ""],
        ["slowest agent over the median one", f"{ratio:.2f}x", f"{BAR:.1f}x", _kept(ratio <= BAR)],
        ["memory of a session, libraries imported", f"{data['session_mib']:.0f} MiB", "", ""],
        ["memory of the controller, per agent", f"{data['controller_mib']:.1f} MiB", "", ""],
        ["until all had a session and had imported", f"{data['seat_s']:.1f} s", "", ""],
        ["all calls of all agents", f"{data['call_s']:.1f} s", "", ""],
    ]
    spread = [
        ["an agent's mean", *(f"{each[_at(each, q)]:.0f} ms" for q in _QUANTILES)],
        ["a single call", *(f"{calls[_at(calls, q)]:.0f} ms" for q in _QUANTILES)],
    ]
    page = "\n".join(
        [
            header(
                f"{count} agents on one interface",
                versions(Path(sys.executable), ("ipykernel", "mcp")),
                where,
            ),
            f"Each agent makes {CELLS * CALLS} calls, in {CELLS} cells, of a function that takes "
            "5 ms; the interface runs one call at a time, so with all agents calling a call waits "
            "for those of the others.",
            "",
            table(["", "measured", "bar", "kept"], rows),
            table(["", *_NAMES], spread),
            "Agents by the mean of their calls:",
            "",
            "```",
            *plot(each),
            "```",
            *data["failed"],
        ]
    )
    return page, not data["failed"] and ratio <= BAR


_NAMES = ("fastest", "10 %", "median", "90 %", "slowest")
_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


def _at(values: Sequence[float], quantile: float) -> int:
    return round(quantile * (len(values) - 1))


def _kept(kept: bool) -> str:
    return "yes" if kept else "no"


def plot(values: Sequence[float], bins: int = 10) -> list[str]:
    """A histogram in text."""
    width = (values[-1] - values[0]) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(int((value - values[0]) / width), bins - 1)] += 1
    return [
        f"{values[0] + number * width:7.0f} ms  {'#' * count:<40} {count}"
        for number, count in enumerate(counts)
    ]


def main() -> int:
    """Measure, print, and write the result page; the status says whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    os.environ["SEER_PROGRESS"] = "off"
    where = machine()
    with tempfile.TemporaryDirectory(prefix="seer-bench-") as name:
        data = asyncio.run(measure(Path(name), given.agents))
    page, well = report(data, where)
    print(page)
    if not given.dry:
        write_results("agents", page, data, folder=RESULTS)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
