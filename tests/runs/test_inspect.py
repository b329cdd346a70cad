"""Runs that are exported as Inspect logs are valid for Inspect's own readers."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from seer.cli import main
from seer.errors import ConfigError
from seer.harness import Call, Expect, Limits, Scripted, Step, run_agent
from seer.runs import GateCall, RunRecord, export_inspect, open_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def tools() -> MCPServer:
    server: MCPServer = MCPServer("lab")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def picture() -> Image:
        """A picture."""
        return Image(data=b"\x89PNG", format="png")

    def broken() -> str:
        """Fails."""
        raise ValueError("no")

    for function in (add, picture, broken):
        server.tool()(function)
    return server


STEPS = [
    Step(
        thinking="hm",
        text="let me see",
        usage={"input_tokens": 10, "output_tokens": 5, "cache_read_tokens": 4},
        calls=(
            Call(tool="add", arguments={"a": 1, "b": 2}),
            Call(tool="picture"),
            Call(tool="broken", expect=Expect(error=True)),
        ),
    ),
    Step(text="it is 3", usage={"input_tokens": 20, "output_tokens": 5}),
]


async def record(root: Path, steps: list[Step], **arguments: Any) -> str:
    run = run_agent(
        "you are careful",
        {"lab": tools()},
        task="look at it",
        provider=Scripted(steps),
        record=root,
        name="in_spection",
        **arguments,
    )
    with anyio.fail_after(60):
        async for _ in run:
            continue
    return run.run_id


def by_hand(root: Path, run_id: str, *, status: Any = "completed", **meta: Any) -> None:
    """A record of two tool calls at once, with calls of the gate in each, and two by themselves.

    Its calls do not name their tool call, as in a record of an older version; a script's does.
    """
    made = RunRecord.create(root, run_id, meta={"name": "hand", "model": "m", **meta})
    began = time.time()
    common = {"turn": 1, "time": began + 1}
    made.event(
        {
            "type": "run_started",
            "time": began,
            "turn": 0,
            "system_prompt": "",
            "task": "go",
            "tools": [],
            "model": "m",
        }
    )
    for number, name in enumerate(("left", "right")):
        event: dict[str, Any] = {
            "type": "tool_call",
            "id": name,
            "name": name,
            "arguments": {},
            "seq": number,
        }
        made.event({**common, **event, "time": began + 1 + 2 * number})
    reason = {"type": "answer_finished", "reason": "tool_calls"}
    made.event({**common, **reason, "time": began + 3})
    for number, name in enumerate(("left", "right")):
        done: dict[str, Any] = {
            "type": "tool_result",
            "id": name,
            "name": name,
            "content": [],
            "is_error": False,
        }
        made.event({**common, **done, "time": began + 5 + number})
    made.event({"type": "text", "text": "cut", "turn": 2, "time": began + 8})
    made.event({"type": "answer_finished", "reason": "length", "turn": 2, "time": began + 8})
    times = {"third": 5.5, "second": 3.5, "first": 2.0, "alone": 7.0, "script": 2.5}
    for function, when in times.items():
        call = GateCall(
            interface="tools",
            caller="agent",
            function=function,
            arguments="[[],{}]",
            result="null",
            time=began + when,
        )
        line = call.to_json()
        if function != "script":
            del line["tool_call"]
        made.call(line)
    made.close(status)


def rows(frame: Any) -> list[dict[str, Any]]:
    return frame.to_dict("records")


def inspect_says(*arguments: str) -> str:
    program = str(Path(sys.executable).with_name("inspect"))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("ending", ["eval", "json"])
def test_inspect_reads_what_happened(tmp_path: Path, ending: str) -> None:
    from inspect_ai.log import read_eval_log

    run_id = asyncio.run(record(tmp_path, STEPS))
    (path,) = export_inspect(open_run(run_id, tmp_path), tmp_path / f"run.{ending}")
    assert (path.read_bytes()[:4] == b"PK\x03\x04") == (ending == "eval")
    header = read_eval_log(str(path), header_only=True)
    assert header.status == "success"
    log = read_eval_log(str(path))
    assert log.samples
    sample = log.samples[0]
    assert (log.eval.task, sample.output.completion) == ("in_spection", "it is 3")
    assert [message.role for message in sample.messages] == [
        *("system", "user", "assistant", "tool", "tool", "tool", "assistant"),
    ]
    assert sample.messages[3].text == "3"
    parts = [
        part.type for m in sample.messages if isinstance(m.content, list) for part in m.content
    ]
    assert (parts.count("image"), parts.count("reasoning")) == (1, 1)
    models = [event for event in sample.events if event.event == "model"]
    assert [event.output.stop_reason for event in models] == ["tool_calls", "stop"]
    assert [len(event.input) for event in models] == [2, 6]
    used = [event.output.usage for event in models]
    assert [u and (u.input_tokens, u.input_tokens_cache_read, u.total_tokens) for u in used] == [
        (6, 4, 15),
        (20, None, 25),
    ]
    assert log.stats.model_usage[log.eval.model].total_tokens == 40
    calls = [event for event in sample.events if event.event == "tool"]
    assert [(event.function, event.error is None) for event in calls] == [
        *(("add", True), ("picture", True), ("broken", False)),
    ]


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Inspect's own use of pandas
def test_many_runs_in_a_folder_open_in_every_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from inspect_ai.analysis import evals_df, events_df, messages_df, samples_df
    from inspect_ai.log import bundle_log_dir, list_eval_logs

    ended = asyncio.run(record(tmp_path, STEPS))
    by_hand(tmp_path, "20260101-000000-00000001", score=0.5)
    by_hand(tmp_path, "20260101-000000-00000002", status="error", message="it broke")
    monkeypatch.setenv("SEER_RUNS", str(tmp_path))
    logs = tmp_path / "new" / "logs"
    ids = [ended, "20260101-000000-00000001", "20260101-000000-00000002"]
    for chosen in (ids[:1], ids):  # a new folder, then one that has a log of the same run
        capsys.readouterr()
        assert main(["runs", "export", *chosen, str(logs)]) == 0
        written = capsys.readouterr().out.split()
        assert [Path(line).parent for line in written] == [logs] * len(chosen)
    assert len(list(logs.iterdir())) == 3
    listed = {info.task_id: info.task for info in list_eval_logs(str(logs))}
    names = dict(zip(ids, ("in-spection", "hand", "hand"), strict=True))
    assert listed == {run_id.replace("-", ""): name for run_id, name in names.items()}
    assert len(json.loads(inspect_says("log", "list", "--log-dir", str(logs), "--json"))) == 3
    bundle_log_dir(str(logs), str(tmp_path / "bundle"))
    assert len(list((tmp_path / "bundle" / "logs").glob("*.eval"))) == 3
    evals = {row["eval_id"]: row for row in rows(evals_df(str(logs), strict=True))}
    assert evals[ids[1]]["score_seer_score"] == 0.5
    assert evals[ids[2]]["status"] == "error"
    samples = rows(samples_df(str(logs), strict=True))
    assert sorted(row["id"] for row in samples) == sorted(ids)
    roles = [row["role"] for row in rows(messages_df(str(logs), strict=True))]
    assert roles.count("assistant") == 6
    kinds = [row["event"] for row in rows(events_df(str(logs), strict=True))]
    assert kinds.count("info") == 10


def test_gate_calls_lie_in_time_order_in_the_tool_call_they_belong_to(tmp_path: Path) -> None:
    from inspect_ai.event import EventTreeSpan, InfoEvent, event_tree
    from inspect_ai.log import read_eval_log

    by_hand(tmp_path, "20260101-000000-00000001")
    run = open_run("20260101-000000-00000001", tmp_path)
    (path,) = export_inspect(run, tmp_path / "run.eval")
    log = read_eval_log(str(path))
    assert log.samples
    events = log.samples[0].events
    assert [e.timestamp for e in events] == sorted(e.timestamp for e in events)
    seen: dict[str | None, list[Any]] = {None: []}
    for node in event_tree(events):
        span = node if isinstance(node, EventTreeSpan) else None
        for item in span.children if span else [node]:
            if isinstance(item, InfoEvent) and isinstance(item.data, dict):
                calls = seen.setdefault(span.name if span else None, [])
                calls.append(item.data["function"])
    assert seen == {"left": ["first"], "right": ["second", "third"], None: ["script", "alone"]}
    reasons = [event.output.stop_reason for event in events if event.event == "model"]
    assert reasons == ["tool_calls", "max_tokens"]


def test_inspect_sees_limits_and_errors(tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    call = Call(tool="add", arguments={"a": 1, "b": 2})
    steps = [Step(text="again", calls=(call,), usage={"input_tokens": 1}) for _ in range(5)]
    run_id = asyncio.run(record(tmp_path, steps, limits=Limits(turns=2)))
    (path,) = export_inspect(open_run(run_id, tmp_path), tmp_path / "limit.eval")
    log = read_eval_log(str(path))
    assert log.samples and log.samples[0].limit
    assert (log.status, log.samples[0].limit.type) == ("success", "turn")
    by_hand(tmp_path, "20260101-000000-00000002", status="error", message="it broke")
    run = open_run("20260101-000000-00000002", tmp_path)
    (path,) = export_inspect(run, tmp_path / "error.json")
    log = read_eval_log(str(path), header_only=True)
    assert log.error and (log.status, log.error.message) == ("error", "it broke")


def test_a_run_that_runs_is_exported_as_started(tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    made = RunRecord.create(tmp_path, "20260101-000000-00000001", meta={"model": "m"})
    (path,) = export_inspect(open_run(made.run_id, tmp_path), tmp_path / "run.json")
    assert read_eval_log(str(path), header_only=True).status == "started"
    made.close("completed")


@pytest.mark.parametrize(("runs", "target"), [(1, "run.txt"), (2, "run.eval")])
def test_targets_that_no_log_fits_are_refused(tmp_path: Path, runs: int, target: str) -> None:
    ids = [f"20260101-000000-0000000{number}" for number in range(runs)]
    for run_id in ids:
        by_hand(tmp_path, run_id)
    with pytest.raises(ConfigError, match="folder"):
        export_inspect([open_run(run_id, tmp_path) for run_id in ids], tmp_path / target)


def test_an_export_without_inspect_names_the_extra(tmp_path: Path) -> None:
    by_hand(tmp_path, "20260101-000000-00000001")
    code = (
        "import sys; sys.modules['inspect_ai'] = None\n"
        "from seer.cli import main\n"
        f"sys.exit(main(['runs', 'export', '00000001', 'run.eval', '--runs', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pip install 'seer-interp[inspect]'" in done.stderr
    assert "Traceback" not in done.stderr
