"""`seer replay`: what it says about a program whose calls are not the recorded ones."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seer.runs import RunFilter, RunIndex, open_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = """
total = 0

@expose
def plus(n: int) -> int:
    '''Add.'''
    global total
    total += n
    return total
"""

BEGIN = """
import asyncio, os
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import acreate_local_session
from seer.harness import Call, Scripted, Step, run_agent
from seer.rpc import Budget
from seer.workspace import Workspace

async def run(agent=Scripted([Step(text="Done.")]), **more):
    async for event in run_agent(task="look", provider=agent, **more):
        if event.type in ("tool_result", "error"):
            print(getattr(event, "text", None) or event, flush=True)

def tried(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__
"""

PROGRAM = """
async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        library = await scoped.aserve("interface.py", name="vec")
        tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp")
        vec = library.connect()
        for n in os.environ["CALLS"].split():
            print(tried(vec.plus, int(n)), flush=True)
        await run(mcp_config=tools)

asyncio.run(main())
"""


def seer(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "SEER_RUNS"}
    return subprocess.run(
        [sys.executable, "-m", "seer", *arguments, "--runs", "records"],
        cwd=folder,
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=200,
    )


def recorded(folder: Path, program: str, interface: str = INTERFACE, **env: str) -> str:
    """Record a program; returns the id of its first run."""
    (folder / "interface.py").write_text(interface)
    (folder / "main.py").write_text(BEGIN + program)
    done = seer(folder, "run", "main.py", **env)
    assert done.returncode == 0, done.stderr
    return RunIndex(folder / "records").list(RunFilter(), descending=False)[0].run_id


def test_calls_that_differ_or_are_missing_are_told_although_the_program_catches_their_errors(
    tmp_path: Path,
) -> None:
    run_id = recorded(tmp_path, PROGRAM, CALLS="1 2 3")
    same = seer(tmp_path, "replay", run_id, CALLS="1 2 3")
    assert same.returncode == 0, same.stdout + same.stderr
    assert same.stdout.startswith("1\n3\n6\nthe same as"), same.stdout
    other = seer(tmp_path, "replay", run_id, CALLS="1 9 3")
    assert other.returncode == 3, other.stdout + other.stderr
    assert other.stdout.startswith("1\nGateError\nGateError\n")
    assert "'vec': call 2 of 'vec-in-a-script-2' is not the recorded one" in other.stdout
    assert "recorded: plus(2)" in other.stdout
    assert "'vec': further calls that differ: 1" in other.stdout
    for calls in ("1 2", "1"):
        fewer = seer(tmp_path, "replay", run_id, CALLS=calls)
        missing = 3 - len(calls.split())
        assert fewer.returncode == 3, fewer.stdout + fewer.stderr
        assert f"did not make {missing} of its recorded calls" in fewer.stdout
        assert f"the first is plus({4 - missing})" in fewer.stdout
    none = seer(tmp_path, "replay", run_id, CALLS="")
    assert none.returncode == 3
    assert "'vec-in-a-script-2' did not make 3 of its recorded calls" in none.stdout


FULL_DISK = PROGRAM.replace(
    "        await run(",
    """
        for n in os.environ["CALLS_IN_A_FULL_DISK"].split():
            disk = os.open(os.environ["TMPDIR"] + "/filled", os.O_CREAT | os.O_WRONLY)
            try:
                while os.write(disk, bytes(4096)):
                    pass
            except OSError:
                pass
            print(tried(vec.plus, int(n)), flush=True)
            os.ftruncate(disk, 0)
        await run(""",
)


def test_a_difference_that_a_full_disk_keeps_from_being_noted_is_told(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a filesystem takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", disk], check=True)
    try:
        about = {"CALLS": "1 2", "TMPDIR": str(disk)}
        run_id = recorded(tmp_path, FULL_DISK, CALLS_IN_A_FULL_DISK="", **about)
        done = seer(tmp_path, "replay", run_id, CALLS_IN_A_FULL_DISK="9", **about)
        assert done.returncode == 3, done.stdout + done.stderr
        assert done.stdout.startswith("1\n3\nGateError\n")
        assert "the differences could not be written" in done.stdout
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_a_fork_or_a_live_interface_leaves_unplayed_is_no_difference(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, PROGRAM, CALLS="1 2 3")
    live = seer(tmp_path, "replay", run_id, "--live-after", "local", CALLS="1 20")
    assert live.returncode == 0, live.stdout + live.stderr
    assert live.stdout.startswith("1\n21\n"), live.stdout + live.stderr
    assert "diverges from the record" not in live.stdout
    forked = seer(tmp_path, "replay", run_id, "--fork-at", "1", CALLS="1")
    assert forked.returncode == 0, forked.stdout + forked.stderr
    assert "diverges from the record" not in forked.stdout


TWO_IN_A_ROW = """
async def main():
    for n in (10, 20):
        Path("interface.py").write_text(INTERFACE.replace("total = 0", f"total = {n}"))
        async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
            library = await scoped.aserve("interface.py", name="vec")
            tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp")
            vec = library.connect()
            print("script", tried(vec.plus, 1), flush=True)
            await run(Scripted([Step(calls=[Call("plus", {"n": 2})])]), mcp_config=tools)

asyncio.run(main())
"""

TWO_AT_ONCE = """
async def main():
    first, second = [ScopedSandbox(SandboxConfig(gpu=None)) for _ in range(2)]
    async with first, second:
        servers = {}
        for n, scoped in ((10, first), (20, second)):
            Path("interface.py").write_text(INTERFACE.replace("total = 0", f"total = {n}"))
            tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp")
            servers[f"from{n}"] = tools["vec"]
        calls = [Call(f"{name}__plus", {"n": 2}) for name in servers]
        await run(Scripted([Step(calls=calls)]), mcp_config=servers)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(TWO_IN_A_ROW, "script 11\n13\nscript 21\n23\n"), (TWO_AT_ONCE, "12\n22\n")],
    ids=["in a row", "at once"],
)
def test_two_interfaces_of_one_name_keep_their_own_calls(
    tmp_path: Path, program: str, printed: str
) -> None:
    text = f"from pathlib import Path\nINTERFACE = {INTERFACE!r}\n{program}"
    run_id = recorded(tmp_path, text)
    found = open_run(run_id, tmp_path / "records")
    sources = {
        (about["name"], about["served"]): about["source"]
        for run in found.siblings()
        for about in run.info.interfaces.values()
    }
    assert sorted(sources) == [("vec", 1), ("vec", 2)]
    assert len(set(sources.values())) == 2
    for run in found.siblings():
        assert "vec" in run.info.interfaces
        for call in run.typed_calls():
            assert sources[call.interface, call.served] == call.source
    again = seer(tmp_path, "replay", run_id)
    assert again.stdout.startswith(printed), again.stdout + again.stderr
    assert again.returncode == 0, again.stdout + again.stderr


ROUNDS = """
async def main():
    for n in (1, 2):
        async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
            library = await scoped.aserve("interface.py", name="vec")
            tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp")
            vec = library.connect()
            if str(n) in os.environ["SCRIPT"]:
                print(tried(vec.plus, 1), flush=True)
            await run(Scripted([Step(calls=[Call("plus", {"n": 2})])]), mcp_config=tools)

asyncio.run(main())
"""


def as_an_older_version(run: Path) -> None:
    """Rewrite a record without the numbers of interfaces."""
    info = json.loads((run / "run.json").read_text())
    for about in info["interfaces"].values():
        del about["served"]
    lines: list[str] = []
    head = "0" * 64
    for line in (run / "calls.jsonl").read_text().splitlines():
        body = json.loads(line)["body"]
        del body["served"]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        head = hashlib.sha256(f"{head}\n{text}".encode()).hexdigest()
        lines.append(f'{{"hash":"{head}","body":{text}}}\n')
    (run / "calls.jsonl").write_text("".join(lines))
    info["calls_head"] = head
    (run / "run.json").write_text(json.dumps(info))


def test_calls_of_an_older_record_are_missing_only_if_no_interface_of_the_name_made_them(
    tmp_path: Path,
) -> None:
    run_id = recorded(tmp_path, ROUNDS, SCRIPT="12")
    for run in open_run(run_id, tmp_path / "records").siblings():
        as_an_older_version(run.folder)
    again = seer(tmp_path, "replay", run_id, SCRIPT="12")
    assert again.returncode == 0, again.stdout + again.stderr
    fewer = seer(tmp_path, "replay", run_id, SCRIPT="1")
    assert fewer.returncode == 3
    assert fewer.stdout.count("did not make") == 1, fewer.stdout + fewer.stderr
    assert "did not make 1 of its recorded calls, of which the first is plus(1)" in fewer.stdout


LOOP = """
async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        budget = Budget(calls=20)
        library = await scoped.aserve("interface.py", name="vec", caller_budget=budget)
        vec = library.connect()
        print(sorted(Counter(str(tried(vec.plus, 1)) for _ in range(400)).items())[-1], flush=True)
        tools = await scoped.aserve(
            "interface.py", name="vec", expose_as="mcp", caller_budget=budget
        )
        await run(mcp_config=tools)

asyncio.run(main())
"""


def test_a_loop_past_a_budget_is_refused_as_often_as_before(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, "from collections import Counter\n" + LOOP)
    calls = list(open_run(run_id, tmp_path / "records").typed_calls())
    assert len(calls) < 400, "all refused calls are recorded"
    again = seer(tmp_path, "replay", run_id)
    assert again.stdout.startswith("('BudgetExceededError', 380)\n"), again.stdout + again.stderr
    assert again.returncode == 0, again.stdout + again.stderr


BUDGETS = """
async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        given = {
            "caller_budget": Budget(calls=10, seconds=100),
            "budget": Budget(calls=50),
            "function_budgets": {"plus": Budget(calls=20)},
        }
        library = await scoped.aserve("interface.py", name="vec", **given)
        vec = library.connect()
        for n in range(5):
            tried(vec.plus, *["x", 1, 2, 3][n:n + 1])
            print(vec.budget(), flush=True)
        tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp", **given)
        await run(mcp_config=tools)

asyncio.run(main())
"""


def test_budgets_are_the_recorded_ones(tmp_path: Path) -> None:
    (tmp_path / "interface.py").write_text(INTERFACE)
    (tmp_path / "main.py").write_text(BEGIN + BUDGETS)
    first = seer(tmp_path, "run", "main.py")
    assert "'calls': 10" in first.stdout and "'calls': 50" in first.stdout, first.stderr
    (run,) = RunIndex(tmp_path / "records").list()
    again = seer(tmp_path, "replay", run.run_id)
    assert again.stdout.startswith(first.stdout), again.stdout + again.stderr + first.stdout
    assert again.returncode == 0


HANDLES = """
async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        budget = Budget(calls=30)
        library = await scoped.aserve("interface.py", name="vec", caller_budget=budget)
        vec = library.connect()
        kept, freed, dropped = [vec.keep(n) for n in (5, 6, 7)]
        print("add", vec.add(kept), vec.add(freed), flush=True)
        freed.free()
        del dropped
        if os.environ["MORE"]:
            print("live", vec.plus(100), vec.add(kept), kept.fetch(), flush=True)
            print("kept", vec.alive(), vec.budget()["caller"]["used"]["calls"], flush=True)
            kept.free()
            print("kept", vec.alive(), tried(kept.fetch), flush=True)
        tools = await scoped.aserve(
            "interface.py", name="vec", expose_as="mcp", caller_budget=budget
        )
        await run(mcp_config=tools)

asyncio.run(main())
"""

WITH_HANDLES = """
import weakref
from seer.rpc import Handle

found = []

@expose
def keep(n: int) -> Handle:
    made = {n}
    found.append(weakref.ref(made))
    return made

@expose
def add(kept: set) -> int:
    global total
    total += sum(kept)
    return total

@expose
def alive() -> int:
    return sum(item() is not None for item in found)
"""


def test_a_live_interface_has_the_handles_of_the_record_and_serves_everything(
    tmp_path: Path,
) -> None:
    interface = f"{INTERFACE}\n{WITH_HANDLES}"
    run_id = recorded(tmp_path, HANDLES, interface, MORE="")
    live = seer(tmp_path, "replay", run_id, "--live-after", "local", MORE="1")
    lines = live.stdout.splitlines()
    assert lines[:2] == ["add 5 11", "live 111 116 {5}"], live.stdout + live.stderr
    assert lines[2:4] == ["kept 1 9.0", "kept 0 HandleError"]
    assert live.returncode == 0, live.stdout + live.stderr


CLOSED = """
async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        library = await scoped.aserve("interface.py", name="vec")
        workspace = Workspace(libraries=[library])
        async with await acreate_local_session(workspace=workspace) as session:
            cell = {"code": "import vec; print(vec.plus(2))"}
            await run(Scripted([Step(calls=[Call("python", cell)])]), session=session)
        if os.environ["MORE"]:
            vec = library.connect()
            print("live", vec.plus(10), flush=True)

asyncio.run(main())
"""


def test_a_live_interface_repeats_the_calls_of_callers_that_were_closed(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, CLOSED, MORE="")
    live = seer(tmp_path, "replay", run_id, "--live-after", "local", MORE="1")
    assert "live 12" in live.stdout, live.stdout + live.stderr
    assert live.returncode == 0, live.stdout + live.stderr


def test_a_live_interface_that_answers_otherwise_does_not_take_over(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, PROGRAM, CALLS="1 2 3")
    (tmp_path / "interface.py").write_text(INTERFACE.replace("total += n", "total += 1 / (n - 2)"))
    live = seer(tmp_path, "replay", run_id, "--live-after", "local", CALLS="1 2 9 10")
    assert live.returncode == 3, live.stdout + live.stderr
    assert live.stdout.startswith("1\n3\nGateError\nGateError\n"), live.stdout + live.stderr
    assert "plus(2) succeeded in the recording, and failed with ZeroDivisionError" in live.stdout


RAW = """
def ask(path, method, target, body):
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(60)
        made.connect(path)
        length = b"" if method == "GET" else b"content-length: %d\\r\\n" % len(body)
        made.sendall(f"{method} {target} HTTP/1.1\\r\\nhost: g\\r\\n".encode() + length)
        made.sendall(b"connection: close\\r\\n\\r\\n" + body)
        answer = b""
        while data := made.recv(65536):
            answer += data
    return answer.split()[1].decode(), json.loads(answer.partition(b"\\r\\n\\r\\n")[2])

REQUESTS = [
    ("POST", "/v1/call/plus", b"[[1"),
    ("POST", "/v1/call/plus", b"[" * 50_000),
    ("POST", "/v1/call/plus", b'{"args": [1], "more": 1}'),
    ("POST", "/v1/call/plus", b""),
    ("POST", "/v1/call/plus/x", b"[[1],{}]"),
    ("POST", "/v1/call/", b"[[1],{}]"),
    ("POST", "/v1/call//plus", b"[[1],{}]"),
    ("POST", "/v1/fetch/h/x", b"[[1],{}]"),
    ("POST", "/v1/fetch/h", b"[[],{}]"),
    ("GET", "/v1/call/plus", b""),
    ("POST", "/v1/nothing", b""),
    ("POST", "/v1/budget", b""),
]

async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        library = await scoped.aserve("interface.py", name="vec")
        caller = await library.gate.open_caller("vec in a script")
        path = caller.address.partition(":")[2]
        for n, request in enumerate(REQUESTS):
            status, found = ask(path, *request)
            error = found["error"]
            print(status, error["type"], flush=True)
            print(ask(path, "POST", "/v1/call/plus", b"[[%d],{}]" % n), flush=True)
        tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp")
        await run(mcp_config=tools)

asyncio.run(main())
"""


def test_requests_that_the_gate_refused_are_refused_again_and_the_others_answered(
    tmp_path: Path,
) -> None:
    (tmp_path / "interface.py").write_text(INTERFACE)
    (tmp_path / "main.py").write_text(f"import json, socket\n{BEGIN}{RAW}")
    first = seer(tmp_path, "run", "main.py")
    assert "('200', {'result': 66})" in first.stdout, first.stdout + first.stderr
    (run,) = RunIndex(tmp_path / "records").list()
    again = seer(tmp_path, "replay", run.run_id)
    assert again.stdout.startswith(first.stdout), again.stdout + again.stderr
    assert again.returncode == 0, again.stdout + again.stderr


WHOLE = """
from seer.environment import Sandbox
from seer.execution import acreate_cli_session

async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        library = await scoped.aserve("interface.py", name="vec")
        async with Sandbox(SandboxConfig(gpu=None)) as box:
            workspace = Workspace(libraries=[library])
            async with await acreate_cli_session(box, workspace=workspace) as session:
                command = "python3 -c 'import vec; print(vec.plus(3))'"
                agent = Scripted([Step(calls=[Call("shell", {"command": command})])])
                await run(agent, session=session)

asyncio.run(main())
"""


def test_a_replayed_machine_is_the_same_without_the_calls_that_only_its_code_could_make(
    tmp_path: Path,
) -> None:
    run_id = recorded(tmp_path, WHOLE)
    made = open_run(run_id, tmp_path / "records")
    assert [call.function for call in made.typed_calls()] == ["plus"]
    again = seer(tmp_path, "replay", run_id)
    assert f"the same as {run_id}" in again.stdout, again.stdout + again.stderr
    assert again.returncode == 0, again.stdout + again.stderr


MEASURED = """
from seer.harness import Agent

class Waits(Agent):
    name = "waits"

    def __init__(self, go):
        self._go = go

    def check(self, request):
        pass

    async def run(self, request, context):
        context.begin_turn()
        await self._go.wait()

async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        library = await scoped.aserve("interface.py", name="vec")
        tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp")
        vec = library.connect()
        begun, go = asyncio.Event(), asyncio.Event()

        async def study():
            provider = Waits(go)
            async for event in run_agent(task="look", provider=provider, mcp_config=tools):
                begun.set()

        task = asyncio.create_task(study())
        await (task if os.environ["LATE"] else begun.wait())
        print(await asyncio.to_thread(tried, vec.plus, int(os.environ["N"])), flush=True)
        go.set()
        await task

asyncio.run(main())
"""


def test_a_call_of_a_script_may_fall_into_another_run_or_none(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, MEASURED, LATE="", N="1")
    (call,) = open_run(run_id, tmp_path / "records").typed_calls()
    assert call.caller.startswith("vec-in-a-script-")
    late = seer(tmp_path, "replay", run_id, LATE="1", N="1")
    assert f"the same as {run_id}" in late.stdout, late.stdout + late.stderr
    assert late.returncode == 0, late.stdout + late.stderr
    other = seer(tmp_path, "replay", run_id, LATE="1", N="2")
    assert "is not the recorded one" in other.stdout, other.stdout + other.stderr
    assert other.returncode == 3


REORDERED = """
async def one(task):
    async for event in run_agent(task=task, provider=Scripted([Step(text=f"I did {task}.")])):
        pass

async def main():
    for task in os.environ["TASKS"].split():
        await one(task)

asyncio.run(main())
"""


def test_runs_that_begin_in_another_order_are_compared_with_their_own(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, REORDERED, TASKS="a b c")
    runs = open_run(run_id, tmp_path / "records").siblings()
    again = seer(tmp_path, "replay", run_id, TASKS="c a b")
    assert again.returncode == 0, again.stdout + again.stderr
    for run in runs:
        assert f"the same as {run.run_id}" in again.stdout
    other = seer(tmp_path, "replay", run_id, TASKS="c a d")
    assert other.returncode == 3, other.stdout + other.stderr
    assert f"diverges from {runs[1].run_id}" in other.stdout
    assert other.stdout.count("the same as") == 2


def test_a_caller_that_diverged_is_not_told_also_which_calls_it_did_not_make(
    tmp_path: Path,
) -> None:
    run_id = recorded(tmp_path, PROGRAM, CALLS="1 2 3")
    again = seer(tmp_path, "replay", run_id, CALLS="1 9 3")
    assert again.returncode == 3, again.stdout + again.stderr
    assert "call 2 of 'vec-in-a-script-2' is not the recorded one" in again.stdout
    assert "did not make" not in again.stdout


ASKED = """
async def main():
    async with ScopedSandbox(SandboxConfig(gpu=None)) as scoped:
        library = await scoped.aserve("interface.py", name="vec")
        tools = await scoped.aserve("interface.py", name="vec", expose_as="mcp")
        if os.environ["ASK"]:
            tried(library.connect().plus, 1)
        await run(Scripted([Step(calls=[Call("plus", {"n": 2})])]), mcp_config=tools)

asyncio.run(main())
"""


def test_a_program_that_asks_nothing_any_more_misses_its_recorded_calls(tmp_path: Path) -> None:
    run_id = recorded(tmp_path, ASKED, ASK="1")
    assert seer(tmp_path, "replay", run_id, ASK="1").returncode == 0
    silent = seer(tmp_path, "replay", run_id, ASK="")
    assert silent.returncode == 3, silent.stdout + silent.stderr
    assert "did not make 1 of its recorded calls, of which the first is plus(1)" in silent.stdout
