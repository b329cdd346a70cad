"""An event is printed as one readable line, and a record as a table."""

from dataclasses import replace
from pathlib import Path

import pytest

from seer.environment import ModelConfig, Sandbox, SandboxConfig
from seer.events import (
    AnswerFinished,
    ApprovalAsked,
    ApprovalGiven,
    ErrorEvent,
    Event,
    RunStarted,
    TextBlock,
)
from seer.execution import ExecutionResult
from seer.harness import RunFinished, Text, ToolCall, ToolResult, Waiting
from seer.runs import RunRecord, open_run
from seer.workspace import Library


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            RunStarted(
                run_id="r", provider="claude", model="m", system_prompt="p" * 9000, task="look"
            ),
            "run_started: claude m, 0 tools: look",
        ),
        (Text(text="one\ntwo"), "text: one two"),
        (
            ToolCall(id="1", name="python", server=None, arguments={"code": "print(1)"}),
            "tool_call: python(code='print(1)')",
        ),
        (
            ToolResult(id="1", name="python", content=(TextBlock(text="no"),), is_error=True),
            "tool_result: python failed: no",
        ),
        (ApprovalAsked(id="1", name="python"), "approval_asked: may python be called?"),
        (
            ApprovalGiven(id="1", name="python", approved=True, by="policy"),
            "approval_given: python allowed by a policy",
        ),
        (
            ApprovalGiven(id="1", name="shell", approved=False, by="person", reason="too risky"),
            "approval_given: shell denied by a person: too risky",
        ),
        (AnswerFinished(reason="stop", vendor_reason="end_turn"), "answer_finished: stop"),
        (Waiting(), "waiting"),
        (ErrorEvent(kind="timeout", message="slow"), "error: timeout: slow"),
        (RunFinished(reason="completed", turns=2), "run_finished: completed after 2 turns, 0.0 s"),
    ],
)
def test_an_event_is_one_line(event: Event, line: str) -> None:
    assert str(event) == repr(event) == line


def test_a_long_or_hostile_event_is_one_short_line_too() -> None:
    line = str(Text(text="\x1b]0;x\x07" + "a\n" * 5000))
    assert len(line) < 250 and "\n" not in line and "\x1b" not in line


def test_the_prompt_is_in_no_repr() -> None:
    event = RunStarted(run_id="r", provider="p", model=None, system_prompt="PROMPT", task="t")
    assert "PROMPT" not in repr(event)


def test_a_record_and_a_library_have_short_reprs_and_tables(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={"provider": "scripted"})
    record.event({"type": "text", "text": "hello", "turn": 1})
    record.close("completed", {"turns": 1})
    run = open_run("aaaaaaaa", tmp_path)
    assert repr(run) == "<Run 20260101-000000-aaaaaaaa: completed, scripted, 1 turns, 0 calls>"
    assert list(run.events_df()["text"]) == ["hello"]
    assert len(run.calls_df()) == 0
    assert repr(Library.from_code("tools", "x = 1\n")) == "<Library tools: local code>"


def test_a_result_of_a_session_is_one_short_line() -> None:
    result = ExecutionResult(result_id="e1", status="ok", duration=0.5, text="one\ntwo\n")
    assert repr(result) == "<ExecutionResult e1: ok, 0.50 s: one two>"
    assert repr(replace(result, text="")) == "<ExecutionResult e1: ok, 0.50 s>"
    line = repr(replace(result, text="\x1b[31m" + "a\n" * 5000))
    assert len(line) < 250 and "\n" not in line and "\x1b" not in line


def test_tables_of_an_empty_record_have_columns(tmp_path: Path) -> None:
    RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={}).close("cancelled")
    run = open_run("aaaaaaaa", tmp_path)
    assert len(run.calls_df()[["function", "outcome", "run"]]) == 0
    assert len(run.events_df()[["type", "time", "turn"]]) == 0


def test_what_a_notebook_shows_is_escaped(tmp_path: Path) -> None:
    hostile = "<b onclick=planted()>"
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={"provider": hostile})
    record.close("completed")
    folder = tmp_path / hostile
    folder.mkdir()
    sandbox = Sandbox(SandboxConfig(gpu=None, models=[ModelConfig(name=str(folder))]))
    library = Library(name="tools", files={"tools.py": b"x = 1\n"}, docs=hostile)
    for thing in (Text(text=hostile), open_run("aaaaaaaa", tmp_path), sandbox, library):
        shown: str = getattr(thing, "_repr_html_")()  # noqa: B009 (what IPython does)
        assert hostile not in shown and "&lt;b onclick=planted()&gt;" in shown
