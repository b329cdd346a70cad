"""Agents at work for an hour, with exact bookkeeping: `python benchmarks/campaign_soak.py`.

    python benchmarks/campaign_soak.py                    # an hour, writes results/soak.md
    python benchmarks/campaign_soak.py --seconds 180 --dry

Eight agents do run after run. A seed chooses their calls: small calls, arrays in both directions,
streams, exceptions, calls that pass their deadline, streams that are abandoned, calls beyond a
budget. Meanwhile, the interface is reloaded again and again, and sessions close and open. Some runs
are cancelled at a random moment. Some runs have a sandbox of their own, and are replayed at the
end.

The books must agree, call by call: the calls that the agents' code made, the calls that the
interface executed, the calls in the run's record, in order, and the charges. Memory, descriptors,
shared memory, files and control groups must not grow. Any difference fails the campaign.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks._common import RESULTS, header, machine, table  # noqa: E402
from seer.environment import SandboxConfig, ScopedSandbox  # noqa: E402
from seer.execution import LocalSession, acreate_local_session  # noqa: E402
from seer.harness import (  # noqa: E402
    Agent,
    Call,
    ReplayAgent,
    RunFinished,
    Scripted,
    Step,
    run_agent,
)
from seer.providers.local._groups import group_prefix  # noqa: E402
from seer.rpc import Budget  # noqa: E402
from seer.runs import GateCall, Run, compare_runs, open_run  # noqa: E402
from seer.workspace import Workspace  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_INTERFACE = '''"""Functions that note each time they are executed."""

import os
import time
from collections.abc import Iterator

import numpy as np


def _executed(tag: str) -> None:
    fd = os.open(os.environ["SOAK_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, tag.encode() + b"\\n")
    os.close(fd)


@expose
def small(tag: str) -> str:
    """Answer."""
    _executed(tag)
    return tag


@expose
def give(tag: str, size: int) -> np.ndarray:
    """An array."""
    _executed(tag)
    return np.full(size, float(size))


@expose
def take(tag: str, values: np.ndarray) -> float:
    """The sum of an array."""
    _executed(tag)
    return float(values.sum())


@expose
def stream(tag: str, items: int) -> Iterator[int]:
    """Some numbers."""
    _executed(tag)
    yield from range(items)


@expose
def fail(tag: str) -> None:
    """Raise."""
    _executed(tag)
    raise KeyError(tag)


@expose(max_concurrency=16)
def slow(tag: str) -> str:
    """Take longer than its callers wait."""
    _executed(tag)
    for _ in range(2000):
        time.sleep(0.005)
    return tag


@expose
def scarce(tag: str) -> str:
    """What each caller may call a few times only."""
    _executed(tag)
    return tag
'''
_STOPPED = ("CallCancelledError", "DeadlineExceededError")
_SCARCE = 40
"""The budget of `scarce` for all callers of one sandbox; it runs out in the first minute."""
_CELL = """
import json, random, time
import numpy as np
import tools
from _seer_gate import deadline

def _soak(run, seed, calls):
    chosen = random.Random(seed)
    log = []
    kinds = ["small"] * 12 + ["give", "take", "stream", "left", "fail", "slow", "scarce", "large"]
    for number in range(calls):
        kind = chosen.choice(kinds)
        tag = f"{run}/{number}"
        try:
            if kind == "small":
                assert tools.small(tag) == tag
            elif kind == "give":
                size = chosen.randrange(10, 100_000)
                assert tools.give(tag, size).sum() == float(size) * size
            elif kind == "large":
                assert tools.give(tag, 1_000_000)[-1] == 1_000_000.0
            elif kind == "take":
                size = chosen.randrange(10, 100_000)
                assert tools.take(tag, np.ones(size)) == size
            elif kind == "stream":
                assert list(tools.stream(tag, 20)) == list(range(20))
            elif kind == "left":
                for item in tools.stream(tag, 1000):
                    break
            elif kind == "fail":
                tools.fail(tag)
            elif kind == "slow":
                with deadline(0.3):
                    tools.slow(tag)
            else:
                assert tools.scarce(tag) == tag
            log.append([tag, kind, "ok"])
        except AssertionError:
            raise
        except Exception as error:
            log.append([tag, kind, type(error).__name__])
    with open("log.json", "w") as file:
        json.dump(log, file)
    print(len(log), sorted({(kind, how) for _, kind, how in log}))
"""


@dataclass
class Books:
    """The counts, and the differences between them."""

    runs: int = 0
    cancelled: int = 0
    cancelled_calls: int = 0
    sessions: int = 0
    reloads: int = 0
    made: Counter[str] = field(default_factory=Counter[str])
    recorded: int = 0
    refused: int = 0
    """Calls that a budget refused: recorded, not executed."""
    not_run: int = 0
    """Calls whose deadline passed before they ran: recorded, not executed."""
    executed: int = 0
    charged: int = 0
    expected: dict[str, int] = field(default_factory=dict[str, int])
    """The calls of the shared sandbox that must have been executed once each: by run, the numbers
    of its calls as bits. A text per call would take memory and hide a leak of the program."""
    stopped: set[str] = field(default_factory=set[str])
    """The calls among them that were stopped after the gate began them. A function that is stopped
    at its entry has not noted its execution yet."""
    stopped_at_once: int = 0
    differences: list[str] = field(default_factory=list[str])
    alone: int = 0
    kept: list[Run] = field(default_factory=list[Run])
    replayed: int = 0

    def tags(self) -> Counter[str]:
        """The tags of the calls that must have been executed."""
        return Counter(
            f"{run}/{number}"
            for run, numbers in self.expected.items()
            for number in range(numbers.bit_length())
            if numbers >> number & 1
        )

    def differ(self, words: str) -> None:
        """Note a difference."""
        print(f"DIFFERENCE: {words}", flush=True)
        self.differences.append(words)


@dataclass
class Sandbox:
    """A sandbox with the interface, and the file in which its executions are noted."""

    scoped: ScopedSandbox
    library: Any

    async def executed(self) -> Counter[str]:
        """The tags of all calls that the interface began to execute."""
        try:
            text = await self.scoped.aread_file("/tmp/executed")
        except OSError:
            return Counter()
        return Counter(text.decode().splitlines())


@asynccontextmanager
async def sandbox(folder: Path) -> AsyncGenerator[Sandbox]:
    """Serve the interface in a sandbox of its own."""
    file = folder / "tools.py"
    if not file.exists():
        file.write_text(_INTERFACE)
    config = SandboxConfig(
        gpu=None,
        provider="local",
        python_packages=["numpy"],
        env={"SOAK_FILE": "/tmp/executed"},
    )
    scoped = ScopedSandbox(config)
    await scoped.astart()
    try:
        budgets = {"scarce": Budget(calls=_SCARCE)}
        library: Any = await scoped.aserve(file, name="tools", function_budgets=budgets)
        yield Sandbox(scoped, library)
    finally:
        await scoped.aterminate()


async def session_in(here: Sandbox, folder: Path, name: str) -> LocalSession:
    """A session with the interface as a library."""
    where = folder / name
    return await acreate_local_session(
        Workspace(libraries=[here.library]), workspace_dir=where, name=name
    )


def agent_for(tag: str, seed: int, calls: int) -> Agent:
    """An agent that runs the cell once."""
    code = f"{_CELL}\n_soak({tag!r}, {seed}, {calls})\n"
    call = Call(tool="python", arguments={"code": code})
    return Scripted([Step(calls=(call,)), Step(text="done")])


async def one_run(
    books: Books, here: Sandbox, session: LocalSession, tag: str, seed: int, calls: int
) -> Run | None:
    """One run of an agent, with its bookkeeping; returns its record, unless something is wrong."""
    run = run_agent("soak", provider=agent_for(tag, seed, calls), session=session)
    events = [event async for event in run]
    end = events[-1]
    record = open_run(run.run_id)
    if not isinstance(end, RunFinished) or end.reason != "completed":
        words = end.message if isinstance(end, RunFinished) else end.type
        books.differ(f"{tag} ended otherwise: {words[:1000]}")
        return None
    log = json.loads((Path(session.workspace_dir) / "log.json").read_bytes())
    await asyncio.to_thread(check_run, books, record, tag, log)
    return record


def check_run(books: Books, record: Run, tag: str, log: list[list[str]]) -> None:
    """Compare the calls that an agent's code made with those in the record of its run."""
    record.verify()
    lines = [GateCall.from_json(line) for line in record.calls()]
    calls = [call for call in lines if call.arguments is not None]
    refused = len(lines) - len(calls)
    tags = [str(json.loads(call.arguments or "")[0][0]) for call in calls]
    own = [entry for entry in log if entry[0] in set(tags)]
    denied = [entry for entry in log if entry[0] not in set(tags)]
    if [entry[0] for entry in own] != tags:
        foreign = [found for found in tags if not found.startswith(f"{tag}/")]
        twice = [found for found, count in Counter(tags).items() if count > 1]
        books.differ(f"{tag}: the record has {foreign[:3]} of others, {twice[:3]} twice")
    wrong = [entry for entry in denied if entry[2] != "BudgetExceededError"]
    if wrong or len(denied) != refused:
        books.differ(f"{tag}: {wrong[:3]} are not recorded; {refused} of {len(denied)} refused are")
    for entry, call in zip(own, calls, strict=False):
        if (entry[2] == "ok") != (call.outcome == "ok") and entry[1] != "left":
            books.differ(f"{tag}: {entry} is recorded as {call.outcome!r}")
    books.runs += 1
    books.recorded += len(lines)
    books.refused += refused
    books.made.update(entry[1] for entry in log)
    expect(books, calls, tags)


def expect(books: Books, calls: list[GateCall], tags: list[str]) -> None:
    """Note which of the recorded calls must have been executed."""
    for call, found in zip(calls, tags, strict=True):
        if call.outcome == "BudgetExceededError":
            books.refused += 1
        elif call.outcome in _STOPPED and call.run == 0.0:
            books.not_run += 1
        else:
            run, _, number = found.rpartition("/")
            books.expected[run] = books.expected.get(run, 0) | 1 << int(number)
            if call.outcome in _STOPPED:
                books.stopped.add(found)


def compare_executed(books: Books, executed: Counter[str], name: str = "") -> None:
    """Compare the executions that the interface noted with the expected ones."""
    expected = books.tags()
    more, less = executed - expected, expected - executed
    books.stopped_at_once += sum(tag in books.stopped for tag in less)
    wrong = [tag for tag in less if tag not in books.stopped]
    if more or wrong:
        books.differ(
            f"{name}{more.total()} executed that should not be, as {list(more)[:3]}; "
            f"{len(wrong)} not executed that should be, as {wrong[:3]}"
        )


async def cancelled_run(
    books: Books, session: LocalSession, tag: str, seed: int, after: float
) -> None:
    """A run that is cancelled after some seconds. Its record must have only its own calls."""
    run = run_agent("soak", provider=agent_for(tag, seed, 1000), session=session)

    async def consume() -> None:
        async for _ in run:
            pass

    task = asyncio.create_task(consume())
    await asyncio.wait([task], timeout=after)
    task.cancel()
    await asyncio.wait([task])
    if run.folder is None:
        return  # cancelled before it began
    record = open_run(run.run_id)
    record.verify()
    lines = [GateCall.from_json(line) for line in record.calls()]
    calls = [call for call in lines if call.arguments is not None]
    tags = [str(json.loads(call.arguments or "")[0][0]) for call in calls]
    foreign = [found for found in tags if not found.startswith(f"{tag}/")]
    twice = [found for found, count in Counter(tags).items() if count > 1]
    if foreign or twice:
        books.differ(f"{tag}: the record has {foreign[:3]} of others, {twice[:3]} twice")
    if missing := record.meta.get("missing"):
        books.differ(f"{tag}: {missing}")
    books.cancelled += 1
    books.cancelled_calls += len(calls)
    expect(books, calls, tags)
    await asyncio.to_thread(shutil.rmtree, record.folder)


async def work(
    books: Books, here: Sandbox, folder: Path, number: int, until: float, seed: int
) -> None:
    """One agent: run after run, with a new session now and then."""
    chosen = random.Random(f"{seed}-{number}")
    count = 0
    while time.monotonic() < until:
        name = f"agent-{number}-{count}"
        books.sessions += 1
        async with await session_in(here, folder, name) as session:
            for _ in range(chosen.randrange(2, 8)):
                count += 1
                tag = f"{number}.{count}"
                if chosen.random() < 0.1:
                    await cancelled_run(
                        books, session, tag, chosen.randrange(1 << 30), chosen.uniform(0.0, 2.0)
                    )
                    continue
                run = await one_run(
                    books, here, session, tag, chosen.randrange(1 << 30), chosen.randrange(20, 120)
                )
                if run is not None:
                    await asyncio.to_thread(shutil.rmtree, run.folder)
                if time.monotonic() >= until:
                    break
        await asyncio.to_thread(shutil.rmtree, folder / name, ignore_errors=True)


async def work_alone(books: Books, folder: Path, until: float, seed: int, most: int) -> None:
    """Runs with a sandbox of their own. A random sample of them is kept to be replayed."""
    chosen = random.Random(f"{seed}-alone")
    while time.monotonic() < until:
        name = f"alone-{books.alone}"
        async with sandbox(folder) as here, await session_in(here, folder, name) as session:
            own = Books()
            run = await one_run(own, here, session, name, chosen.randrange(1 << 30), 100)
            executed = await here.executed()
        compare_executed(own, executed, f"{name}: ")
        books.differences += own.differences
        books.alone += 1
        if run is not None:
            await asyncio.to_thread((run.folder / "soak.txt").write_text, name)
            books.kept.append(run)
            if len(books.kept) > most:
                # Keep the newest run with the same probability as every run before it.
                going = most if chosen.randrange(books.alone) >= most else chosen.randrange(most)
                await asyncio.to_thread(shutil.rmtree, books.kept.pop(going).folder)
        await asyncio.to_thread(shutil.rmtree, folder / name, ignore_errors=True)
        await asyncio.sleep(max(0.0, min(30.0, until - time.monotonic())))


async def reload_often(books: Books, here: Sandbox, until: float) -> None:
    """Load the interface again and again while it is called."""
    while time.monotonic() < until:
        await asyncio.sleep(min(5.0, max(0.0, until - time.monotonic())))
        await here.scoped.areload("tools")
        books.reloads += 1


async def replay(books: Books, folder: Path) -> None:
    """Replay the kept runs; each must be the same, call by call."""
    for run in books.kept:
        name = await asyncio.to_thread((run.folder / "soak.txt").read_text)
        os.environ["SEER_REPLAY"] = str(run.folder)
        try:
            async with sandbox(folder) as here, await session_in(here, folder, name) as session:
                again = run_agent("soak", provider=ReplayAgent(run), session=session)
                events = [event async for event in again]
        finally:
            del os.environ["SEER_REPLAY"]
        made = open_run(again.run_id)
        end = events[-1]
        reason = end.message if isinstance(end, RunFinished) else ""
        if not compare_runs(run, made).equal:
            books.differ(f"the replay of {name} is another: {reason[:1000]}")
        elif _keys(run) != _keys(made):
            books.differ(f"the replay of {name} made other calls")
        else:
            books.replayed += 1
        await asyncio.to_thread(shutil.rmtree, folder / name, ignore_errors=True)


def _keys(run: Run) -> list[tuple[str, str, str, tuple[str, ...]]]:
    calls = [GateCall.from_json(line) for line in run.calls()]
    return [(call.key, call.outcome, call.result, call.result_buffers) for call in calls]


# --- what must not grow --------------------------------------------------------------------------


def processes() -> dict[int, list[str]]:
    """The processes in this program's machines, each with its control groups."""
    prefix = group_prefix()
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        if mine := [line for line in lines if prefix in line]:
            found[int(path.parent.name)] = mine
    return found


def measure(home: Path, gate: int) -> dict[str, float]:
    """A sample of the resources that this process, its machines and the interface hold."""
    pids = processes()
    files = sum(len(names) for part in ("state", "tmp") for _, _, names in os.walk(home / part))
    own = {f"memory of {name}, MiB": _rss(pid) for name, pid in _named(gate)}
    open_files = {f"descriptors of {name}": float(_fds(pid)[0]) for name, pid in _named(gate)}
    return {
        **own,
        **open_files,
        "shared memory of the interface, MiB": _fds(gate)[1] / 2**20,
        "processes": float(len(pids)),
        "files in state and temporary folders": float(files),
        "control groups": float(len({group for mine in pids.values() for group in mine})),
    }


def _named(gate: int) -> tuple[tuple[str, int], ...]:
    return (("the program", os.getpid()), ("the interface", gate))


def _rss(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        return 0.0
    return 0.0


def _fds(pid: int) -> tuple[int, int]:
    """How many descriptors a process has, and the bytes of shared memory behind them."""
    count = size = 0
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0, 0
    for entry in entries:
        count += 1
        try:
            if "memfd:" in str(entry.readlink()):
                size += entry.stat().st_blocks * 512
        except OSError:
            continue
    return count, size


async def watch(
    samples: list[dict[str, float]], home: Path, gate: int, until: float, every: float
) -> None:
    """Take a sample at intervals."""
    while time.monotonic() < until:
        await asyncio.sleep(min(every, max(0.0, until - time.monotonic())))
        samples.append(await asyncio.to_thread(measure, home, gate))


_ROOM = {"MiB": 64.0, "descriptors": 24.0, "processes": 12.0, "files": 200.0, "control": 16.0}
"""The allowed difference of each: agents are at different points of their work in each sample."""


def trend(samples: list[dict[str, float]], books: Books) -> list[list[str]]:
    """The table's rows: the first and the last third of the time, side by side."""
    if len(samples) < 6:
        books.differ(f"only {len(samples)} looks at what is held; run it for longer")
        return []
    # The first tenth is for caches and pools to fill.
    steady = samples[len(samples) // 10 :]
    third = len(steady) // 3
    rows: list[list[str]] = []
    for name in steady[0]:
        before = median([sample[name] for sample in steady[:third]])
        after = median([sample[name] for sample in steady[-third:]])
        room = next(value for key, value in _ROOM.items() if key in name)
        if after > before + max(room, before * 0.15):
            books.differ(f"{name} has grown from {before:.0f} to {after:.0f}")
        rows.append([name, f"{before:.0f}", f"{after:.0f}"])
    return rows


# --- all together -------------------------------------------------------------------------------


async def soak(books: Books, home: Path, options: argparse.Namespace) -> list[list[str]]:
    """Run everything; return the resources that are held at the beginning and at the end."""
    folder = home / "work"
    folder.mkdir()
    samples: list[dict[str, float]] = []
    async with sandbox(folder) as here:
        until = time.monotonic() + options.seconds
        gate = interface_pid()
        tasks = [
            *(
                work(books, here, folder, number, until, options.seed)
                for number in range(options.agents)
            ),
            work_alone(books, folder, until, options.seed, options.replays),
            reload_often(books, here, until),
            watch(samples, home, gate, until, max(2.0, options.seconds / 200)),
        ]
        await asyncio.gather(*tasks)
        executed = await here.executed()
        books.executed = executed.total()
        usage = await asyncio.to_thread(here.scoped.usage, "tools")
        books.charged = int(usage.interface["calls"])
    compare_executed(books, executed)
    if books.made.total() != books.recorded:
        books.differ(f"{books.made.total()} calls were made, {books.recorded} are recorded")
    if books.charged != books.executed + books.stopped_at_once:
        books.differ(
            f"{books.executed} calls were executed and {books.stopped_at_once} stopped as their"
            f" functions were entered, {books.charged} were charged"
        )
    await replay(books, folder)
    if not books.kept:
        books.differ("no run was replayed")
    return trend(samples, books)


def interface_pid() -> int:
    """The host's process id of the only served interface."""
    found: list[int] = []
    for pid in processes():
        try:
            if b"seer.rpc.server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    # The supervisor, then its child, which has the callers' sockets and runs the functions.
    if not found:
        raise RuntimeError("no interface is served")
    return max(found)


def left_over(home: Path, books: Books) -> None:
    """Check that nothing is left after everything is closed."""
    state = [path for path in (home / "state").rglob("*") if path.is_socket() or path.is_fifo()]
    machines = list((home / "state" / "seer" / "machines").glob("sb-*"))
    temporary = [path for path in (home / "tmp").glob("seer-*") if path.exists()]
    for what, found in (("sockets", state), ("machines", machines), ("folders", temporary)):
        if found:
            books.differ(f"{len(found)} {what} are left, as {found[0].name}")
    if found := processes():
        books.differ(f"{len(found)} processes are left, as {next(iter(found))}")
    if found := list(Path("/sys/fs/cgroup").glob(f"**/{group_prefix()}*")):
        books.differ(f"{len(found)} control groups are left, as {found[0]}")


def main() -> int:
    """Run the soak; the status says whether the books agree."""
    parser = argparse.ArgumentParser(description="agents at work, with exact books")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--replays", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    where = machine()
    home = Path(tempfile.mkdtemp(prefix="soak-"))
    for name, folder in (("XDG_STATE_HOME", "state"), ("TMPDIR", "tmp"), ("SEER_RUNS", "runs")):
        (home / folder).mkdir()
        os.environ[name] = str(home / folder)
    tempfile.tempdir = None
    books = Books()
    begin = time.monotonic()
    try:
        held = asyncio.run(soak(books, home, options))
        left_over(home, books)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    rows = [
        ["runs, all with their own record", f"{books.runs:,}"],
        ["runs that were cancelled", f"{books.cancelled:,}"],
        ["calls in their records", f"{books.cancelled_calls:,}"],
        ["sessions", f"{books.sessions:,}"],
        ["reloads while calls ran", f"{books.reloads:,}"],
        ["calls made by the agents' code", f"{books.made.total():,}"],
        ["calls in the record of the run that made them", f"{books.recorded:,}"],
        ["of these, refused by a budget", f"{books.refused:,}"],
        ["of these, past their deadline before they ran", f"{books.not_run:,}"],
        ["calls that should have been executed", f"{books.tags().total():,}"],
        ["calls executed", f"{books.executed:,}"],
        ["calls stopped as their functions were entered", f"{books.stopped_at_once:,}"],
        ["calls charged", f"{books.charged:,}"],
        ["runs in sandboxes of their own", f"{books.alone:,}"],
        ["of these, chosen by chance and replayed", f"{len(books.kept):,}"],
        ["replays that were identical", f"{books.replayed:,}"],
        ["differences", f"{len(books.differences):,}"],
    ]
    kinds = [[kind, f"{count:,}"] for kind, count in sorted(books.made.items())]
    page = "\n".join(
        [
            header("Agents at work, with exact books", {}, where),
            f"{options.agents} agents for {options.seconds:,.0f} s, seed {options.seed};"
            f" {time.monotonic() - begin:,.0f} s with the replays.",
            "",
            table(["", "count"], rows),
            "",
            table(["kind of call", "made"], kinds),
            "",
            table(["held", "first third", "last third"], held),
            "",
            *books.differences,
        ]
    )
    print(page)
    if not options.dry:
        (RESULTS / "soak.md").write_text(page.rstrip() + "\n")
    return 1 if books.differences else 0


if __name__ == "__main__":
    sys.exit(main())
