"""The cost of a session over a bare kernel, and of a tool over a bare MCP server.

    python benchmarks/bench_session.py                     # writes results/session.md
    python benchmarks/bench_session.py --rounds 2 --sessions 1 8 --dry    # a quick look

"Bare" is the same work with the ordinary library, without a jail. Rounds are interleaved, and the
medians of rounds are compared, so that a busy moment affects all contestants.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import AsyncKernelManager
from mcp import Client, StdioServerParameters

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, median, table, versions, write_results
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import LocalSession, acreate_local_session, create_local_session
from seer.workspace import Workspace

CALLS = 40
"""Calls in one round of one contestant."""
MODES = ("cold", "pool", "warm pool")
"""Whether sessions are started on request or ahead of time."""
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
        """Start the kernel, and wait until it answers."""
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
        """End the kernel."""
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
    """Measure rounds of all contestants in turn; the first round only warms up."""
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


async def measure_crowd(folder: Path, mode: str, count: int) -> dict[str, float]:
    """Open many sessions at once: seconds until each has imported numpy, and its memory then."""
    opener = Opener(folder, mode)
    begun = time.perf_counter()
    await opener.fill(count)
    filled = time.perf_counter()
    opened: list[float] = []
    ready: list[float] = []

    async def one() -> LocalSession:
        session = await opener.open()
        opened.append(time.perf_counter() - filled)
        await session.aexec("import numpy")
        ready.append(time.perf_counter() - filled)
        return session

    found = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
    await opener.close()
    sessions = [session for session in found if isinstance(session, LocalSession)]
    memory = await memory_of(sessions)
    await asyncio.gather(*(session.aclose() for session in sessions))
    return {
        "failed": count - len(sessions),
        "fill_s": filled - begun,
        "open_s": max(opened, default=0.0),
        "half_s": median(ready or [0.0]),
        "ready_s": max(ready, default=0.0),
        "memory_mib": memory,
    }


class Opener:
    """Opens sessions, or takes them from a full pool."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._folder = folder
        self._pool: Any = None
        self._mode = mode
        self._workspace = Workspace(custom_init_code="import numpy" if mode == "warm pool" else "")

    async def fill(self, count: int) -> None:
        """Wait until as many sessions as will be opened are ready."""
        if self._mode == "cold":
            return
        # This file also measures commits from before pools, which are always cold.
        from seer.execution import Pool

        self._pool = Pool(
            lambda: create_local_session(self._workspace, workspace_dir=self._new()), size=count
        )
        while self._pool.ready < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def open(self) -> LocalSession:
        """One session."""
        if self._pool is not None:
            return await self._pool.atake()
        return await acreate_local_session(self._workspace, workspace_dir=self._new())

    async def close(self) -> None:
        """End the sessions that the pool has started since."""
        if self._pool is not None:
            await self._pool.aclose()

    def _new(self) -> Path:
        return self._folder / f"crowd-{secrets.token_hex(4)}"


async def measure_crowds(
    folder: Path, modes: Sequence[str], counts: Sequence[int]
) -> list[dict[str, Any]]:
    """All modes and counts in turn. Small crowds are measured several times; the medians count."""
    await (await acreate_local_session(workspace_dir=folder / "first")).aclose()
    rows: list[dict[str, Any]] = []
    for count in counts:
        for mode in modes:
            found = [await measure_crowd(folder, mode, count) for _ in range(max(1, 10 // count))]
            medians = {key: median([one[key] for one in found]) for key in found[0]}
            rows.append({"mode": mode, "count": count, **medians})
            print(rows[-1], flush=True)
    return rows


async def memory_of(sessions: Sequence[LocalSession]) -> float:
    """MiB per session of all its processes: keeper, jail, kernel.

    Shared pages are divided among the processes that share them.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    ask = "import os; print(os.environ['SEER_MACHINE'])"
    answers = await asyncio.gather(*(session.aexec(ask) for session in sessions))
    machines = {answer.stdout.strip() for answer in answers}
    total = 0.0
    for process in psutil.process_iter(["cmdline"]):
        if "kernel_main.py" not in " ".join(process.info["cmdline"] or ()):
            continue
        with suppress(psutil.Error):
            if process.environ().get("SEER_MACHINE") in machines:
                chain = [process, *process.parents()]
                total += sum(one.memory_full_info().pss for one in chain if one.pid not in own)
    return total / 2**20 / max(len(sessions), 1)


async def measure_memory(folder: Path, count: int = 8) -> dict[str, float]:
    """Memory per session: after opening, with numpy, and with all installed libraries."""
    sessions = await asyncio.gather(
        *(acreate_local_session(workspace_dir=folder / f"memory-{n}") for n in range(count))
    )
    found: dict[str, float] = {}
    for name, code in (
        ("as opened", "pass"),
        ("numpy imported", "import numpy"),
        ("numpy, pandas, scipy and pyplot imported", "import pandas, scipy, matplotlib.pyplot"),
    ):
        await asyncio.gather(*(session.aexec(code) for session in sessions))
        found[name] = await memory_of(sessions)
    await asyncio.gather(*(session.aclose() for session in sessions))
    return found


def verdict(ours: float, floor: float, bar: float) -> list[str]:
    """The ratio, the bar, and whether the bar is met."""
    ratio = ours / floor
    return [f"{ratio:.2f}x", f"{bar:.1f}x", "yes" if ratio <= bar else "no"]


def report(
    calls: dict[str, list[float]],
    starts: dict[str, list[float]],
    crowds: list[dict[str, Any]],
    memory: dict[str, float],
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
        "\n## Many at once\n\nSessions that are asked for at the same moment, until they have"
        " imported numpy. The pool is full before, and starts others meanwhile; in a warm one"
        ' `custom_init_code="import numpy"` has run.\n\n'
    )
    page += crowd_table(crowds)
    page += "\nMemory of each of 8 sessions, with its jail and its keeper:\n\n"
    page += table(["", "MiB"], [[name, f"{mib:.0f}"] for name, mib in memory.items()])
    return page


def crowd_table(crowds: list[dict[str, Any]]) -> str:
    """The table of all modes and counts."""
    head = ["sessions", "at once", "all open", "half have numpy", "all have", "failed", "MiB each"]
    return table(
        head,
        [
            [
                row["mode"],
                str(row["count"]),
                *(f"{row[key]:.2f} s" for key in ("open_s", "half_s", "ready_s")),
                f"{row['failed']:.0f}",
                f"{row['memory_mib']:.0f}",
            ]
            for row in crowds
        ],
    )


async def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """All measurements, or only those of crowds."""
    with tempfile.TemporaryDirectory(prefix="seer-bench-") as name:
        folder = Path(name)
        crowds = await measure_crowds(folder, given.modes, given.sessions)
        if given.crowds:
            return crowd_table(crowds), {"crowds": crowds}
        memory = await measure_memory(folder)
        calls = await measure_calls(folder, given.rounds)
        starts = await measure_starts(folder, given.rounds)
    if given.before:
        crowds = [*json.loads(given.before.read_text())["crowds"], *crowds]
    page = report(calls, starts, crowds, memory)
    return page, {"calls_s": calls, "starts_s": starts, "crowds": crowds, "memory_mib": memory}


def main() -> None:
    """Measure, print, and write the result page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64], metavar="COUNT")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--crowds", type=Path, help="measure crowds only, and write them here")
    parser.add_argument("--before", type=Path, help="such a file of another commit, to show too")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    page, data = asyncio.run(run(given))
    print(page)
    if given.crowds:
        given.crowds.write_text(json.dumps(data))
    elif not given.dry:
        write_results("session", page, data, folder=RESULTS)


if __name__ == "__main__":
    main()
