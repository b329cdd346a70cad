"""Controlling a run from another process, through the folder of its record."""

import errno
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
from mcp.server import MCPServer

from seer.errors import ConfigError, RecordError, RunControlError
from seer.events import (
    Event,
    LimitReached,
    MessageNotDelivered,
    MessageQueued,
    Text,
    ToolCall,
    UserMessage,
)
from seer.harness import (
    AgentRun,
    Call,
    HumanAgent,
    Limits,
    LineTerminal,
    ReplayAgent,
    RunFinished,
    Scripted,
    Step,
    Waiting,
    control_run,
    run_agent,
)
from seer.runs import Run, open_run


def talk() -> AgentRun:
    """A run that waits for a person after each answer."""
    steps = [Step(text="first"), Step(text="second"), Step(text="third")]
    return run_agent(
        task="begin", provider=Scripted(steps), interactive=True, limits=Limits(turns=5)
    )


async def until(run: AgentRun, kind: type) -> Any:
    """The next event of a kind."""
    with anyio.fail_after(30):
        while not isinstance(event := await anext(run), kind):
            pass  # `anext` leaves no loop, which would end the run
    return event


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
        with pytest.raises(RunControlError, match="refused the request"):
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


# --- messages to an agent that is busy ---------------------------------------------------------


def busy(*after: Step) -> AgentRun:
    """A run whose agent is in a tool call that lasts until the run is stopped."""
    server = MCPServer("lab")

    @server.tool()
    async def forever() -> str:
        """Never return."""
        await anyio.sleep_forever()
        return ""

    steps = [Step(calls=(Call("forever"),)), *after]
    return run_agent("go", {"lab": server}, provider=Scripted(steps))


async def rest(run: AgentRun) -> list[Event]:
    """The events that are left."""
    with anyio.fail_after(30):
        return [event async for event in run]


async def test_a_message_that_a_stopped_run_did_not_deliver_is_in_its_record() -> None:
    run = busy(Step(text="a reply"), Step(text="the end"))
    await until(run, ToolCall)
    await control(run, "message", text="look at layer 5")
    assert (await until(run, MessageQueued)).text == "look at layer 5"
    await control(run, "stop")
    events = await rest(run)
    assert [type(event) for event in events] == [MessageNotDelivered, RunFinished]
    assert isinstance(lost := events[0], MessageNotDelivered)
    assert (lost.text, lost.reason) == ("look at layer 5", "the run ended first (cancelled)")
    assert run.folder is not None
    kept = [event["type"] for event in Run(run.folder).events()]
    assert kept[-3:] == ["message_queued", "message_not_delivered", "run_finished"]
    shown = await anyio.run_process([sys.executable, "-m", "seer", "runs", "show", str(run.folder)])
    assert b"message not delivered, the run ended first (cancelled): look at" in shown.stdout


async def test_a_script_gets_a_message_after_its_next_reply(calculator: MCPServer) -> None:
    call = Call("add", {"a": 1, "b": 2})
    steps = [Step(calls=(call,)), Step(text="a reply"), Step(calls=(call,)), Step(text="the end")]
    run = run_agent("go", {"calculator": calculator}, provider=Scripted(steps))
    await until(run, ToolCall)
    await control(run, "message", text="and then?")
    events = await rest(run)
    kinds = (MessageQueued, UserMessage, Text)
    found = [(type(event), event.text) for event in events if isinstance(event, kinds)]
    assert found == [
        (MessageQueued, "and then?"),
        (Text, "a reply"),
        (UserMessage, "and then?"),
        (Text, "the end"),
    ]


async def test_an_agent_that_takes_no_messages_refuses_at_once() -> None:
    run = busy(Step(text="the end"))
    await until(run, ToolCall)
    with pytest.raises(RunControlError, match="a script gets messages only after a step"):
        await control(run, "message", text="look at layer 5")
    run.send("from the program")
    lost = await until(run, MessageNotDelivered)
    assert lost.text == "from the program" and "no such step is left" in lost.reason
    await control(run, "stop")
    assert [type(event) for event in await rest(run)] == [RunFinished]


async def test_a_replay_takes_no_messages(calculator: MCPServer) -> None:
    steps = [Step(calls=(Call("add", {"a": 1, "b": 2}),)), Step(text="the end")]
    servers = {"calculator": calculator}
    recorded = run_agent("go", servers, provider=Scripted(steps))
    await rest(recorded)
    run = run_agent("go", servers, provider=ReplayAgent(open_run(recorded.run_id)))
    await until(run, ToolCall)
    with pytest.raises(RunControlError, match="a replay repeats the recorded messages"):
        await control(run, "message", text="hello")
    assert not [event for event in await rest(run) if isinstance(event, MessageQueued)]


async def test_a_person_and_a_last_turn_take_no_messages() -> None:
    refusals: list[str] = []

    class Asked(LineTerminal):
        async def ask(self, mark: str) -> str | None:
            with pytest.raises(RunControlError) as caught:
                await control(run, "message", text="hello")
            refusals.append(str(caught.value))
            return None

    run = run_agent("go", provider=HumanAgent(Asked()), tools=False)
    await rest(run)
    assert "the agent is a person at a terminal" in refusals[0]

    run = busy(Step(text="a reply"), Step(text="the end"))
    await until(run, ToolCall)
    run.conclude()
    run.send("one more thing")
    lost = await until(run, MessageNotDelivered)
    assert lost.reason == "the agent has only its last turn left"
    await rest(run)


async def test_a_message_before_the_start_waits_and_one_after_the_end_is_refused() -> None:
    run = run_agent("go", provider=Scripted([Step(text="one"), Step(text="two")]), tools=False)
    run.send("early")
    events = await rest(run)
    assert [event.text for event in events if isinstance(event, UserMessage)] == ["early"]
    with pytest.raises(RunControlError, match=r"has ended \(completed\)"):
        run.send("late")


@pytest.mark.parametrize("cause", ["message", "conclude", "seconds"])
async def test_a_full_disk_ends_the_run_also_for_an_event_that_the_agent_did_not_cause(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if data.startswith(b'{"hash"') and (b"message_queued" in data or b"limit_reached" in data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    run = busy(Step(text="a reply"), Step(text="the end"))
    await until(run, ToolCall)
    monkeypatch.setattr(os, "write", full)
    if cause == "seconds":
        await control(run, "limits", limits={"seconds": 0.001})
    else:
        with pytest.raises(RunControlError, match="the disk is full"):
            await control(run, cause, text="hello")
    seen: list[str] = []
    with anyio.fail_after(30), pytest.raises(RecordError, match="the disk is full"):
        async for event in run:
            seen.append(event.type)
    assert seen[-2:] == ["error", "run_finished"]
    assert run.result is not None and run.result.reason == "error"
    assert run.folder is not None and Run(run.folder).status == "error"
