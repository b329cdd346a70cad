"""A caller learns the ids of its calls, which claims cite, in whatever order calls end."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import acreate_local_session
from seer.harness import Call, Scripted, Step, ToolResult, run_agent
from seer.runs import open_run
from seer.workspace import Workspace

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = """
import threading
from collections.abc import Iterator

answered = threading.Event()

@expose(max_concurrency=4)
def say(word: str, wait: bool = False) -> str:
    if wait:
        assert answered.wait(60)
    else:
        answered.set()
    return word

@expose
def spell(word: str) -> Iterator[str]:
    yield from word
"""

CELLS = (
    """
import asyncio, json, threading, tools
assert tools.last_call() == ""
seen = {}
def ask(word, wait):
    tools.say(word, wait=wait)
    seen[word] = tools.last_call()
late = threading.Thread(target=ask, args=("late", True))
late.start()
ask("early", False)
late.join(60)
assert tools.last_call() == seen["early"]
async def ask_async(word):
    await tools.say.aio(word)
    await asyncio.sleep(0)
    seen[word] = tools.last_call()
async def both():
    await asyncio.gather(ask_async("one"), ask_async("other"))
thread = threading.Thread(target=lambda: asyncio.run(both()))
thread.start(); thread.join(60)
list(tools.spell("abc")); seen["abc"] = tools.last_call()
tools.say("last")
""",
    'seen["last"] = tools.last_call(); print(json.dumps(seen))',
)


async def test_every_caller_sees_the_ids_of_its_own_calls(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(INTERFACE)
    steps = [Step(calls=(Call(tool="python", arguments={"code": code}),)) for code in CELLS]
    async with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        library: Any = await scoped.aserve(tmp_path / "tools.py", name="tools")
        async with await acreate_local_session(
            Workspace(libraries=[library]), workspace_dir=tmp_path / "work"
        ) as session:
            agent = run_agent(
                "look", provider=Scripted([*steps, Step(text="done")]), session=session
            )
            with anyio.fail_after(120):
                events = [event async for event in agent]
    told = [event.text for event in events if isinstance(event, ToolResult)]
    recorded = {
        line["call"]: json.loads(line["arguments"]) for line in open_run(agent.run_id).calls()
    }
    words = ["late", "early", "one", "other", "abc", "last"]
    seen = json.loads(told[-1])
    assert {word: recorded[seen[word]][0][0] for word in words} == {word: word for word in words}
