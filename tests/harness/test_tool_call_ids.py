"""Each call of the gate in a run's record has the id of the tool call whose code made it."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.events import ToolCall
from seer.execution import (
    acreate_cli_session,
    acreate_local_session,
    acreate_notebook_session,
)
from seer.harness import Agent, AgentContext, AgentRequest, Call, Scripted, Step, run_agent
from seer.runs import open_run
from seer.workspace import Workspace

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

LAB = '''
import asyncio
import os

running = 0

@expose
def double(x: int) -> int:
    return 2 * x

@expose
async def meet(x: int) -> int:
    """Wait until two calls of this run at once."""
    global running
    running += 1
    while running < 2:
        await asyncio.sleep(0.01)
    return x

@expose
def leave(x: int) -> int:
    os._exit(3)
'''


class Calls(Agent):
    """Makes its calls one after the other, one per turn, or all at once."""

    name = "calls"

    def __init__(self, *calls: tuple[str, str, dict[str, Any]], together: bool = False) -> None:
        self._calls = calls
        self._together = together

    def check(self, request: AgentRequest) -> None:
        """Nothing is needed."""

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Make the calls."""
        context.begin_turn()
        waiting = [
            context.call_tool(key, tool, arguments=given) for key, tool, given in self._calls
        ]
        if self._together:
            await asyncio.gather(*waiting)
        else:
            for call in waiting:
                await call


@pytest.fixture(scope="module")
def sandbox() -> Generator[ScopedSandbox]:
    with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("interface") / "lab.py"
    found.write_text(LAB)
    return found


async def recorded(run: Any) -> dict[int, str]:
    """The tool call of each call in the record of a run, by the number in its arguments."""
    with anyio.fail_after(120):
        async for _ in run:
            pass
    found = list(open_run(run.run_id).calls())
    assert found, "no call was recorded"
    made: dict[int, str] = {}
    for line in found:
        args, kwargs = json.loads(line["arguments"])
        made[[*args, *kwargs.values()][0]] = line["tool_call"]
    return made


BEGIN = """
import asyncio, threading, lab
lab.double(1)
go = threading.Event()
def later():
    go.wait(60)
    lab.double(2)
thread = threading.Thread(target=later)
thread.start()
async def soon():
    while not go.is_set():
        await asyncio.sleep(0.01)
    await asyncio.to_thread(lab.double, 3)
task = asyncio.ensure_future(soon())
"""
GO_ON = """
import os, subprocess, sys
go.set()
thread.join()
await task
lab.double(4)
new = threading.Thread(target=lab.double, args=(5,))
new.start()
new.join()
code = f"import sys; sys.path.insert(0, {sys.path[0]!r}); import lab; lab.double(6)"
subprocess.run([sys.executable, "-c", code], check=True, close_fds=False)
if os.fork() == 0:
    lab.double(7)
    os._exit(0)
os.wait()
"""
FROM = {1: "one", 2: "one", 3: "one", 4: "two", 5: "two", 6: "two", 7: "two"}


async def test_threads_and_tasks_of_python_keep_the_tool_call_that_started_them(
    sandbox: ScopedSandbox, file: Path, tmp_path: Path
) -> None:
    library: Any = await sandbox.aserve(file)
    workspace = Workspace(libraries=[library])
    async with await acreate_local_session(workspace, workspace_dir=tmp_path / "w") as session:
        agent = Calls(("one", "python", {"code": BEGIN}), ("two", "python", {"code": GO_ON}))
        assert await recorded(run_agent("x", provider=agent, session=session)) == FROM


async def test_cells_of_a_notebook_have_their_tool_call_and_those_of_a_person_have_none(
    sandbox: ScopedSandbox, file: Path, tmp_path: Path
) -> None:
    library: Any = await sandbox.aserve(file)
    workspace = Workspace(libraries=[library])
    async with await acreate_notebook_session(
        workspace=workspace, workspace_dir=tmp_path / "w", notebook_dir=tmp_path / "n"
    ) as session:
        agent = Calls(
            ("one", "add_code_cell", {"source": BEGIN}),
            ("two", "add_code_cell", {"source": GO_ON}),
            ("three", "add_markdown_cell", {"source": "done"}),
        )
        run = run_agent("x", provider=agent, session=session)
        async for event in run:
            if isinstance(event, ToolCall) and event.id == "three":
                # The agent waits while the program handles the event.
                await session.aexec("lab.double(8)")
                await session.aexec("t = threading.Thread(target=lab.double, args=(9,)); t.start()")
                await session.aexec("t.join()")
        assert await recorded(run) == {**FROM, 8: "", 9: ""}


SHELL = "python3 -c 'import lab; lab.double({})'"


async def test_commands_of_a_shell_have_their_tool_call(
    sandbox: ScopedSandbox, file: Path, tmp_path: Path
) -> None:
    library: Any = await sandbox.aserve(file)
    workspace = Workspace(libraries=[library])
    async with await acreate_cli_session(workspace=workspace, workspace_dir=tmp_path) as session:
        wait = "until [ -e go ]; do sleep 0.05; done; "
        agent = Calls(
            ("one", "shell", {"command": SHELL.format(1)}),
            ("job", "shell", {"command": wait + SHELL.format(2), "background": True}),
            ("two", "shell", {"command": f"{SHELL.format(3)}; touch go"}),
            ("three", "get_result", {"result_id": "e2"}),
        )
        run = run_agent("x", provider=agent, session=session)
        assert await recorded(run) == {1: "one", 2: "job", 3: "two"}


async def test_functions_that_are_tools_have_the_call_that_they_answer(
    sandbox: ScopedSandbox, file: Path
) -> None:
    tools: Any = await sandbox.aserve(file, "mcp")
    # Both run at once, so their times do not show which call belongs to which.
    agent = Calls(("one", "meet", {"x": 1}), ("two", "meet", {"x": 2}), together=True)
    assert await recorded(run_agent("x", mcp_servers=[tools], provider=agent)) == {
        1: "one",
        2: "two",
    }


@pytest.mark.parametrize("key", ["functions.double:0", "x" * 200, "half \udc80", "ü"])
async def test_any_id_of_a_vendor_is_recorded(sandbox: ScopedSandbox, file: Path, key: str) -> None:
    tools: Any = await sandbox.aserve(file, "mcp")
    agent = Calls((key, "double", {"x": 1}))
    assert await recorded(run_agent("x", mcp_servers=[tools], provider=agent)) == {1: key}


async def test_a_made_up_token_is_not_recorded(
    sandbox: ScopedSandbox, file: Path, tmp_path: Path
) -> None:
    library: Any = await sandbox.aserve(file)
    workspace = Workspace(libraries=[library])
    made_up = ["made-up", "one", "", "y" * 5000, "two words", "a\r\nseer-call: b", "\udc80"]
    forge = f"""
import os, subprocess, sys
for x, token in enumerate({made_up!r}):
    code = f"import lab; lab.double({{x}})"
    env = dict(os.environ, SEER_TOOL_CALL=token, PYTHONPATH=sys.path[0])
    subprocess.run([sys.executable, "-c", code], env=env, check=True, close_fds=False)
"""
    reuse = """
env["SEER_TOOL_CALL"] = first
subprocess.run([sys.executable, "-c", "import lab; lab.double(100)"], env=env, close_fds=False)
lab.double(101)
"""
    async with await acreate_local_session(workspace, workspace_dir=tmp_path) as session:
        agent = Calls(
            ("one", "python", {"code": f"import lab\n{forge}first = os.environ['SEER_TOOL_CALL']"}),
            ("two", "python", {"code": reuse}),
        )
        found = await recorded(run_agent("x", provider=agent, session=session))
        # Code can name an earlier tool call of its own run, because it got its token.
        assert found == {**dict.fromkeys(range(len(made_up)), ""), 100: "one", 101: "two"}
        # In the next run, it cannot.
        again = Calls(("one", "python", {"code": reuse.replace("10", "20")}))
        assert await recorded(run_agent("x", provider=again, session=session)) == {
            200: "",
            201: "one",
        }


async def test_what_a_run_leaves_running_belongs_to_no_tool_call_of_the_next_run(
    sandbox: ScopedSandbox, file: Path, tmp_path: Path
) -> None:
    library: Any = await sandbox.aserve(file)
    workspace = Workspace(libraries=[library])
    async with await acreate_local_session(workspace, workspace_dir=tmp_path) as session:
        for code, expected in ((BEGIN, {1: "one"}), (GO_ON, {2: "", 3: "", 4: "one"})):
            agent = Calls(("one", "python", {"code": code}))
            found = await recorded(run_agent("x", provider=agent, session=session))
            assert {x: found.get(x) for x in expected} == expected


async def test_calls_that_were_refused_or_lost_have_their_tool_call(
    sandbox: ScopedSandbox, file: Path, tmp_path: Path
) -> None:
    library: Any = await sandbox.aserve(file, name="dying", restart="on-failure")
    workspace = Workspace(libraries=[library])
    code = "import dying\ntry:\n    dying.{}\nexcept Exception as error:\n    print(error)"
    async with await acreate_local_session(workspace, workspace_dir=tmp_path) as session:
        names = {"lost": "leave(1)", "ill": "double('x')", "unknown": "_gate.call('nothing')"}
        steps = [(key, "python", {"code": code.format(call)}) for key, call in names.items()]
        run = run_agent("x", provider=Calls(*steps), session=session)
        async for _ in run:
            pass
    found = {line["tool_call"]: line["outcome"] for line in open_run(run.run_id).calls()}
    assert found == {
        "lost": "CallLostError",
        "ill": "ArgumentError",
        "unknown": "UnknownFunctionError",
    }


async def test_a_script_has_no_tool_call(sandbox: ScopedSandbox, file: Path) -> None:
    tools: Any = await sandbox.aserve(file, "mcp", name="scripted")
    library: Any = await sandbox.aserve(file, name="scripted")
    module = await anyio.to_thread.run_sync(library.connect)
    agent = Scripted([Step(calls=(Call(tool="double", arguments={"x": 1}),))])
    run = run_agent("x", mcp_servers=[tools], provider=agent)
    async for event in run:
        if isinstance(event, ToolCall):
            await anyio.to_thread.run_sync(module.double, 2)
    lines = open_run(run.run_id).calls()
    found = {"-in-a-script-" in line["caller"]: line["tool_call"] for line in lines}
    assert found == {True: "", False: "call_0_0"}
