"""Controlling a run from another process, through the folder of its record."""

import json
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from seer.errors import ConfigError, RunControlError
from seer.events import LimitReached, UserMessage
from seer.harness import (
    AgentRun,
    Limits,
    RunFinished,
    Scripted,
    Step,
    Waiting,
    control_run,
    run_agent,
)
from seer.runs import Run


def talk() -> AgentRun:
    """A run that waits for a person after each answer."""
    steps = [Step(text="first"), Step(text="second"), Step(text="third")]
    return run_agent(
        task="begin", provider=Scripted(steps), interactive=True, limits=Limits(turns=5)
    )


async def until(run: AgentRun, kind: type) -> Any:
    """The next event of a kind."""
    with anyio.fail_after(30):
        async for event in run:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} came")


async def control(run: AgentRun, *args: Any, **kwargs: Any) -> None:
    assert run.folder is not None
    folder = run.folder
    await anyio.to_thread.run_sync(lambda: control_run(folder, *args, **kwargs))


async def test_another_process_can_speak_to_the_agent_and_stop_it() -> None:
    run = talk()
    await until(run, Waiting)
    code = (
        "import sys, pathlib\nfrom seer.harness import control_run\n"
        "control_run(pathlib.Path(sys.argv[1]), 'message', text='go on')"
    )
    await anyio.run_process([sys.executable, "-c", code, str(run.folder)], stderr=None)
    assert (await until(run, UserMessage)).text == "go on"
    await until(run, Waiting)
    await control(run, "stop")
    finished = await until(run, RunFinished)
    assert finished.reason == "cancelled"
    assert run.folder is not None
    await run.aclose()
    assert not (run.folder / "control.sock").exists()
    with pytest.raises(RunControlError, match=r"has ended \(cancelled\)"):
        await control(run, "stop")


async def test_a_running_run_is_steered_from_the_command_line() -> None:
    run = talk()
    await until(run, Waiting)
    assert run.folder is not None
    short, root = run.folder.name.rpartition("-")[2], str(run.folder.parent)

    async def seer(name: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "seer", "runs", name, short, *arguments, "--runs", root]
        return (await anyio.run_process(command)).stderr.decode()

    assert "delivered after the agent's reply" in await seer("say", "go on")
    assert (await until(run, UserMessage)).text == "go on"
    await until(run, Waiting)
    await seer("limits", "--turns", "9")
    assert Run(run.folder).meta["limits"]["turns"] == 9
    assert "stopped; the record is kept" in await seer("stop")
    assert (await until(run, RunFinished)).reason == "cancelled"
    await run.aclose()


async def test_a_raised_limit_holds_and_is_in_the_record() -> None:
    run = talk()
    await until(run, Waiting)
    await control(run, "limits", limits={"turns": 9, "cost_usd": 2.5})
    assert run.folder is not None
    limits = Run(run.folder).meta["limits"]
    assert (limits["turns"], limits["cost_usd"]) == (9, 2.5)
    for wrong in ({"turns": -1}, {"turns": "many"}, {"fun": 1}):
        with pytest.raises(RunControlError, match="refuses"):
            await control(run, "limits", limits=wrong)
    await run.aclose()


async def test_an_agent_can_be_asked_to_conclude() -> None:
    run = talk()
    await until(run, Waiting)
    await control(run, "conclude")
    assert (await until(run, LimitReached)).limit == "stop"
    await run.aclose()


async def test_malformed_requests_are_answered_and_change_nothing() -> None:
    run = talk()
    await until(run, Waiting)
    assert run.folder is not None
    path = run.folder / "control.sock"
    mode = path.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600

    def ask(line: bytes) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            folder = os.open(path.parent, os.O_RDONLY)
            client.connect(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)
            client.sendall(line)
            return json.loads(client.makefile("rb").readline())

    for line in (
        b"\n",
        b"[]\n",
        b"{}\n",
        b"nonsense\n",
        b'{"action":"fly"}\n',
        b"[" * 9000 + b"\n",
    ):
        assert "error" in await anyio.to_thread.run_sync(ask, line)
    for action, given in (("message", {"text": " "}), ("limits", {})):
        with pytest.raises(ConfigError):
            await control(run, action, **given)
    await run.aclose()


async def test_a_folder_with_a_long_path_can_be_controlled(tmp_path: Path) -> None:
    steps = [Step(text="first"), Step(text="second")]
    folder = tmp_path / ("long" * 40)
    run = run_agent(task="x", provider=Scripted(steps), interactive=True, record=folder)
    await until(run, Waiting)
    await control(run, "stop")
    assert (await until(run, RunFinished)).reason == "cancelled"
    await run.aclose()
