"""Ids of calls from threads, tasks, batches, after errors and reconnections, in two runs."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import acreate_local_session
from seer.harness import Call, Scripted, Step, ToolResult, run_agent
from seer.runs import open_run
from seer.scoring import verify
from seer.workspace import Workspace

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

INTERFACE = """
@expose(max_concurrency=4)
def say(word: str) -> str:
    if word.startswith("bad"):
        raise ValueError(word)
    return word

@expose(batch=16, batch_wait=0.05)
def together(word: list[str]) -> list[str]:
    return [one.upper() for one in word]

@expose
def last(word: str) -> dict[str, float]:
    return {"size": float(len(word))}
"""

CELL = """
import asyncio, concurrent.futures, json, tools, other
mark = MARK
seen = {}
def ask(word):
    function = tools.together if "batch" in word else tools.say
    try:
        function(word)
    except Exception:
        pass
    seen[word] = tools.last_call()
words = [f"{mark}{kind}{i}" for i in range(12) for kind in ("", "batch")]
words += [f"bad{mark}{i}" for i in range(6)]
with concurrent.futures.ThreadPoolExecutor(10) as pool:
    list(pool.map(ask, words))
async def task(word):
    await asyncio.sleep(0)
    await tools.say.aio(word)
    await asyncio.sleep(0.01)
    seen[word] = tools.last_call()
async def tasks():
    await asyncio.gather(*(task(f"{mark}task{i}") for i in range(10)))
    await asyncio.gather(*(asyncio.to_thread(ask, f"{mark}moved{i}") for i in range(5)))
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    pool.submit(lambda: asyncio.run(tasks())).result()
tools._gate.close()
ask(f"{mark}again")
try:
    tools.say(5)
except Exception as error:
    refused = type(error).__name__
ask(f"{mark}after")
tools.last("abc"); other.last("abcdef"); tools.last("abcd")
print(json.dumps([seen, refused]))
"""

REPORT: dict[str, Any] = {
    "found": True,
    "answer": {},
    "claims": [
        {"text": "sizes", "kind": "fact", "checks": [
            {"call": f"last#{n}", "path": "size", "operator": "==", "value": size}
            for n, size in ((1, 3.0), (2, 6.0), (3, 4.0))
        ]}
    ],
}  # fmt: skip


async def test_ids_name_exactly_the_call_of_their_caller(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(INTERFACE)
    told: dict[str, Any] = {}
    runs: dict[str, str] = {}

    async def one(mark: str, libraries: list[Any]) -> None:
        code = CELL.replace("MARK", repr(mark))
        steps = [
            Step(calls=(Call(tool="python", arguments={"code": code}),)),
            Step(text=json.dumps(REPORT)),
        ]
        async with await acreate_local_session(
            Workspace(libraries=libraries), workspace_dir=tmp_path / mark
        ) as session:
            agent = run_agent("look", provider=Scripted(steps), session=session)
            events = [event async for event in agent]
        runs[mark] = agent.run_id
        told[mark] = [event.text for event in events if isinstance(event, ToolResult)][-1]

    async with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        libraries = [
            await scoped.aserve(tmp_path / "tools.py", name=name) for name in ("tools", "other")
        ]
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                for mark in ("x", "y"):
                    group.start_soon(one, mark, libraries)
    for mark, text in told.items():
        seen, refused = json.loads(text)
        assert refused == "ArgumentError"
        run = open_run(runs[mark])
        calls = list(run.typed_calls())
        recorded = {call.call: call for call in calls}
        assert len(seen) == 24 + 6 + 10 + 5 + 2 and len(set(seen.values())) == len(seen)
        for word, call in seen.items():
            assert json.loads(recorded[call].arguments or "")[0] == [word], word
            assert (recorded[call].outcome == "ok") == (not word.startswith("bad"))
        # An id that names a refused call is in the record too, with the refusal.
        assert [c.outcome for c in calls if c.arguments == "[[5],{}]"] == ["ArgumentError"]
        (claim,) = verify(run).claims
        assert claim.stands, claim.problems
