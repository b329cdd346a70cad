"""What a session costs over a bare kernel, and a tool over a bare MCP server.

    python benchmarks/bench_session.py                     # writes results/session.md
    python benchmarks/bench_session.py --rounds 2 --dry    # a quick look

Bare means: the same work without a jail, by the ordinary library. Rounds are interleaved and
medians of rounds compared, so that a busy moment hits everybody.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import AsyncKernelManager
from mcp import Client, StdioServerParameters

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, versions, write_results
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import LocalSession, acreate_local_session

CALLS = 40
"""Calls in one round of one contestant."""
PACKAGES = ("ipykernel", "jupyter_client", "mcp")
BARE_SERVER = """
from mcp.server import MCPServer
server = MCPServer("bare")
@server.tool()
def add(a: int, b: int = 2) -> int:
    "Add two numbers."
    return a + b
server.run("stdio")
"""
INTERFACE = (
    '@expose\ndef add(a: int, b: int = 2) -> int:\n    "Add two numbers."\n    return a + b\n'
)

Call = Callable[[], Awaitable[object]]


class BareKernel:
    """A kernel as `jupyter_client` starts it: no jail, loopback ports."""

    def __init__(self) -> None:
        self._manager = AsyncKernelManager()
        self._client: Any = None

    async def start(self) -> None:
        """Start it and wait until it answers."""
        await self._manager.start_kernel()
        self._client = self._manager.client()
        self._client.start_channels()
        await self._client.wait_for_ready(timeout=60)

    async def execute(self) -> None:
        """Run `1 + 1` to its end: the reply, and the kernel idle again."""
        message_id = self._client.execute("1 + 1")
        while True:
            message = await self._client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            if message["content"].get("execution_state") == "idle":
                break
        while (await self._client.get_shell_msg(timeout=30))["parent_header"][
            "msg_id"
        ] != message_id:
            continue

    async def stop(self) -> None:
        """End it."""
        self._client.stop_channels()
        await self._manager.shutdown_kernel(now=True)


def server_of(config: dict[str, dict[str, Any]]) -> StdioServerParameters:
    """The one server of a configuration."""
    (entry,) = config.values()
    return StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])


async def one_round(call: Call) -> float:
    """The median seconds of one round's calls."""
    times: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return median(times)


async def compare(contestants: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Rounds of everybody in turn; the first one only warms up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, call in contestants.items():
            spent = await one_round(call)
            if number:
                times[name].append(spent)
    return times


async def measure_calls(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Executing `1 + 1`, and calling a small tool."""
    (folder / "lab.py").write_text(INTERFACE)
    (folder / "bare.py").write_text(BARE_SERVER)
    async with AsyncExitStack() as stack:
        bare = BareKernel()
        await bare.start()
        stack.push_async_callback(bare.stop)
        session = await acreate_local_session(workspace_dir=folder / "work")
        stack.push_async_callback(session.aclose)
        config = await asyncio.to_thread(lambda: session.mcp_config)
        python = await stack.enter_async_context(Client(server_of(config)))
        scoped = await ScopedSandbox(SandboxConfig(gpu=None, provider="local")).astart()
        stack.push_async_callback(scoped.aterminate)
        served: Any = await scoped.aserve(folder / "lab.py", "mcp")
        lab = await stack.enter_async_context(Client(server_of(served)))
        plain = StdioServerParameters(command=sys.executable, args=[str(folder / "bare.py")])
        other = await stack.enter_async_context(Client(plain))
        contestants: dict[str, Call] = {
            "bare kernel": bare.execute,
            "session": lambda: session.aexec("1 + 1"),
            "session through MCP": lambda: python.call_tool("python", {"code": "1 + 1"}),
            "bare MCP tool": lambda: other.call_tool("add", {"a": 40}),
            "exposed function through MCP": lambda: lab.call_tool("add", {"a": 40}),
        }
        return await compare(contestants, rounds)


async def measure_starts(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Starting a kernel, and opening a session."""
    times: dict[str, list[float]] = {"bare kernel": [], "session": []}
    for number in range(rounds + 1):
        began = time.perf_counter()
        bare = BareKernel()
        await bare.start()
        spent = time.perf_counter() - began
        await bare.stop()
        began = time.perf_counter()
        session = await acreate_local_session(workspace_dir=folder / f"start{number}")
        both = (spent, time.perf_counter() - began)
        await session.aclose()
        if number:
            for name, seconds in zip(times, both, strict=True):
                times[name].append(seconds)
    return times


async def measure_crowd(folder: Path, count: int) -> dict[str, float]:
    """Many sessions open at once: time, failures, memory of each."""

    async def open_one(number: int) -> LocalSession:
        return await acreate_local_session(workspace_dir=folder / f"crowd{number}")

    began, before = time.perf_counter(), kernels()
    opened = await asyncio.gather(*(open_one(n) for n in range(count)), return_exceptions=True)
    started = time.perf_counter() - began
    sessions = [session for session in opened if isinstance(session, LocalSession)]
    began = time.perf_counter()
    results = await asyncio.gather(*(session.aexec("1 + 1") for session in sessions))
    answered = time.perf_counter() - began
    each = memory_of_sessions(before) / max(len(sessions), 1)
    await asyncio.gather(*(session.aclose() for session in sessions))
    failed = count - sum(result.value == "2" for result in results)
    return {
        "count": count,
        "failed": failed,
        "open_s": started,
        "answer_s": answered,
        "memory_mib": each / 2**20,
    }


def kernels() -> set[int]:
    """The kernels of all sessions that are open on this machine."""
    return {
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "kernel_main.py" in " ".join(process.info["cmdline"] or ())
    }


def memory_of_sessions(before: set[int]) -> float:
    """Bytes of all that runs for sessions opened since: keepers, jails, stewards, kernels.

    Pages that several processes share count for each of them in part.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    total = 0.0
    for process in map(psutil.Process, kernels() - before):
        chain = [process, *process.parents()]
        total += sum(one.memory_full_info().pss for one in chain if one.pid not in own)
    return total


def verdict(ours: float, floor: float, bar: float) -> list[str]:
    """The ratio, the bar, and whether it is kept."""
    ratio = ours / floor
    return [f"{ratio:.2f}x", f"{bar:.1f}x", "yes" if ratio <= bar else "no"]


def report(
    calls: dict[str, list[float]], starts: dict[str, list[float]], crowd: dict[str, float]
) -> str:
    """The result page."""
    call = {name: median(times) for name, times in calls.items()}
    start = {name: median(times) for name, times in starts.items()}
    rows = [
        ["execute `1 + 1` in a session", call["session"], call["bare kernel"], 1.5],
        ["the same through MCP", call["session through MCP"], call["bare kernel"], 3.0],
        [
            "call a function through MCP",
            call["exposed function through MCP"],
            call["bare MCP tool"],
            1.3,
        ],
        ["open a session", start["session"], start["bare kernel"], 1.5],
    ]
    lines = [
        [name, f"{ours * 1e3:.2f} ms", f"{floor * 1e3:.2f} ms", *verdict(ours, floor, bar)]
        for name, ours, floor, bar in rows
    ]
    where = machine()
    page = header("Sessions and tools", versions(Path(sys.executable), PACKAGES), where)
    page += (
        "\nMedians over rounds; bare: the same work by the ordinary library, without a jail.\n\n"
    )
    page += table(["work", "here", "bare", "ratio", "bar", "kept"], lines)
    page += (
        f"\n{crowd['count']:.0f} sessions opened at once in {crowd['open_s']:.1f} s, all answered "
        f"`1 + 1` in {crowd['answer_s']:.2f} s, {crowd['failed']:.0f} failed; "
        f"{crowd['memory_mib']:.0f} MiB of memory each.\n"
    )
    return page


async def run(rounds: int, crowd: int) -> tuple[str, dict[str, Any]]:
    """All measurements."""
    with tempfile.TemporaryDirectory(prefix="seer-bench-") as name:
        folder = Path(name)
        calls = await measure_calls(folder, rounds)
        starts = await measure_starts(folder, rounds)
        many = await measure_crowd(folder, crowd)
    page = report(calls, starts, many)
    return page, {"calls_s": calls, "starts_s": starts, "crowd": many}


def main() -> None:
    """Measure, print, and write the result page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sessions", type=int, default=64, help="how many to open at once")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    page, data = asyncio.run(run(given.rounds, given.sessions))
    print(page)
    if not given.dry:
        write_results("session", page, data, folder=RESULTS)


if __name__ == "__main__":
    main()
