"""Real tool servers and whole programs: no process is left, however a run ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from seer.errors import ToolServerError
from seer.events import ErrorEvent, Event, RunStarted
from seer.harness import Call, Expect, RunFinished, Scripted, Step, ToolResult, run_agent
from seer.runs import RunIndex
from tests.waiting import await_until, wait_until

pytestmark = pytest.mark.full


async def collect(run: Any) -> list[Event]:
    with anyio.fail_after(60):
        return [event async for event in run]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pid: int) -> None:
    wait_until(lambda: gone(pid), f"the end of process {pid}")


async def test_a_real_server_is_used_and_ended(stdio_server: dict[str, Any]) -> None:
    agent = Scripted(
        [
            Step(
                calls=(
                    Call(tool="add", arguments={"a": 2, "b": 3}, expect=Expect(contains="5")),
                    Call(tool="whoami"),
                    Call(tool="picture"),
                )
            )
        ]
    )
    results = [
        e
        for e in await collect(run_agent("x", stdio_server, provider=agent))
        if isinstance(e, ToolResult)
    ]
    assert results[2].images[0].mime_type == "image/png"
    wait_gone(int(results[1].text))


async def test_half_a_character_costs_a_call_and_not_the_server(
    stdio_server: dict[str, Any],
) -> None:
    # The text that a program gets from non-ASCII arguments in a locale without UTF-8.
    task = "日本".encode().decode("ascii", "surrogateescape")
    half = Call(tool="add", arguments={"a": task, "b": 3}, expect=Expect(error=True))
    whole = Call(tool="add", arguments={"a": 2, "b": 3}, expect=Expect(contains="5"))
    agent = Scripted([Step(calls=(half, whole)), Step(text="done")])
    events = await collect(run_agent(task, stdio_server, provider=agent))
    assert isinstance(events[0], RunStarted)
    assert events[0].task == "日本"
    results = [event for event in events if isinstance(event, ToolResult)]
    assert "lone surrogate" in results[0].text
    assert isinstance(events[-1], RunFinished)
    assert events[-1].reason == "completed"


async def test_a_server_that_dies_in_a_call_is_an_error_with_its_last_words(
    stdio_server: dict[str, Any],
) -> None:
    agent = Scripted([Step(calls=(Call(tool="die"),)), Step(text="I lost my tools")])
    events = await collect(run_agent("x", stdio_server, provider=agent))
    error = next(event for event in events if isinstance(event, ErrorEvent))
    assert error.kind == "tool_server"
    assert "out of cheese" in error.message
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert (end.reason, end.result) == ("error", "I lost my tools")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('I will not')", "I will not"),
        ("print('this is no protocol', flush=True)", "tool server 'bad'"),
    ],
)
async def test_a_server_that_does_not_start_is_an_error_at_once(code: str, reason: str) -> None:
    server = {"bad": {"command": sys.executable, "args": ["-c", code]}}
    run = run_agent("x", server, provider=Scripted([Step(text="never")]))
    with pytest.raises(ToolServerError, match=reason):
        await collect(run)
    [summary] = RunIndex().list()
    assert summary.status == "error"


FAILING = """
import asyncio, gc, sys
from seer.harness import Scripted, Step, run_agent

async def main():
    server = {"command": sys.executable, "args": ["-c", ""]}
    servers = dict.fromkeys(("one", "two", "three"), server)
    async for _ in run_agent("x", servers, provider=Scripted([Step(text="never")]), record=False):
        pass

try:
    asyncio.run(main())
except Exception as error:
    print(type(error).__name__, error)
gc.collect()
"""


def test_of_several_servers_that_do_not_start_one_error_is_raised_and_none_is_logged() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("ToolServerError tool server 'one'")
    assert "never retrieved" not in done.stderr


async def test_a_server_that_never_answers_does_not_hold_up_the_end(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    server = {"mute": {"command": sys.executable, "args": ["-c", code]}}
    run = run_agent("x", server, provider=Scripted([Step(text="never")]))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect, run)
            await await_until(lambda: mark.exists() and mark.read_text(), "the server's start")
            tasks.cancel_scope.cancel()
        await run.aclose()
    wait_gone(int(mark.read_text()))


PROGRAM = """
import asyncio, json, sys
from seer.harness import Call, Scripted, Step, ToolCall, ToolResult, run_agent

server = json.loads(sys.argv[1])
how = sys.argv[2]

async def main():
    agent = Scripted([
        Step(calls=(Call(tool="whoami"),)),
        Step(calls=(Call(tool="sleep", arguments={"seconds": 3600}),)),
    ])
    async for event in run_agent("x", server, provider=agent):
        if isinstance(event, ToolResult):
            print(event.text, flush=True)
        if isinstance(event, ToolCall) and event.name == "sleep":
            print("sleeping", flush=True)
            if how == "raise":
                raise RuntimeError("the consumer fails")
            if how == "break":
                break

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["sigint", "raise", "break", "sigkill"])
def test_however_a_program_ends_its_tool_servers_end_and_the_record_says_so(
    how: str, stdio_server: dict[str, Any], tmp_path: Path, runs_folder: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(script), json.dumps(stdio_server), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert program.stdout is not None
    server = int(program.stdout.readline())
    assert program.stdout.readline() == "sleeping\n"
    if how == "sigint":
        program.send_signal(signal.SIGINT)
    elif how == "sigkill":
        program.kill()
    _, words = program.communicate(timeout=60)
    wait_gone(server)
    [summary] = RunIndex(runs_folder).list()
    assert summary.status == ("crashed" if how == "sigkill" else "cancelled")
    if how == "raise":
        assert "the consumer fails" in words
    if how == "break":
        assert program.returncode == 0
