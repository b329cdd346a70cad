"""The command line in this process: its output and its exit codes."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from seer.cli import main
from seer.cli._app import _COMMANDS  # pyright: ignore[reportPrivateUsage]
from seer.cli._check import secrets_in
from seer.cli._ps import duration, state
from seer.harness import Text
from seer.providers import MachineStatus
from seer.runs import GateCall, RunRecord, new_run_id, open_run


def new_record(root: Path, task: str) -> RunRecord:
    return RunRecord.create(root, new_run_id(), meta={"provider": "scripted", "task": task})


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two finished runs that part at the answer."""
    root = tmp_path / "runs"
    monkeypatch.setenv("SEER_RUNS", str(root))
    for answer in ("blue", "green"):
        record = new_record(root, f"colour? {answer}")
        started = {"type": "run_started", "provider": "scripted", "model": None, "task": "colour?"}
        record.event({**started, "run_id": record.run_id, "system_prompt": ""})
        record.event({"type": "text", "text": f"It is {answer}."})
        record.close("completed")
    return root


def run_ids(root: Path) -> list[str]:
    return sorted(folder.name for folder in root.iterdir() if folder.is_dir())


def test_help_lists_every_command_without_importing_any() -> None:
    code = (
        "import sys; from seer.cli import main; code = main(['--help']);"
        "print([m for m in sys.modules if m.startswith('seer.')], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in _COMMANDS)
    loaded = eval(done.stderr)
    light = ("cli", "console", "errors", "_clash")
    assert not [name for name in loaded if name.split(".")[1] not in light]


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_explains_itself_on_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage: seer " + name in said
    assert not [line for line in said.splitlines() if len(line) > 80]


def test_an_unknown_command_suggests_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    assert "did you mean 'serve'?" in capsys.readouterr().err


def test_a_failure_is_one_line_and_exit_code_1(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "show", "nowhere"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: no run 'nowhere'")
    assert shown.err.count("\n") == 1


def test_runs_are_listed_as_a_table_and_as_json(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "list"]) == 0
    assert "colour? green" in capsys.readouterr().out
    assert main(["runs", "list", "--search", "blue", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["task"] for run in found] == ["colour? blue"]
    assert main(["runs", "list", "--status", "splendid"]) == 1


def test_a_run_is_shown_from_a_part_of_its_id(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_ids(records)[0]
    assert main(["runs", "show", whole[-8:]]) == 0
    assert "It is " in capsys.readouterr().out


def test_diff_shows_where_runs_part(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = run_ids(records)
    assert main(["runs", "diff", left, left]) == 0
    assert main(["runs", "diff", left, right]) == 3
    shown = capsys.readouterr().out
    assert "1 steps are the same, then:" in shown
    assert "< event 1: text" in shown and "> event 1: text" in shown


def test_delete_asks_and_removes(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    first, second = run_ids(records)
    assert main(["runs", "delete", first]) == 130  # no answer on standard input
    assert run_ids(records) == [first, second]
    assert main(["runs", "delete", first, "--yes"]) == 0
    assert run_ids(records) == [second]


def test_a_running_run_is_not_deleted(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = new_record(records, "goes on")
    try:
        assert main(["runs", "delete", record.run_id, "--yes"]) == 1
        assert "is running" in capsys.readouterr().err
        assert open_run(record.run_id, records).status == "running"
    finally:
        record.close("completed")


def test_init_writes_an_experiment_and_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-study"
    assert main(["init", str(folder)]) == 0
    assert "my-study: an agent asks" in (folder / "main.py").read_text()
    (folder / "main.py").write_text("mine")
    assert main(["init", str(folder)]) == 1
    assert (folder / "main.py").read_text() == "mine"
    assert main(["init", str(tmp_path / "..." / "*")]) == 1


def test_stop_wants_to_know_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop"]) == 2
    assert "name machines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('token = "hf_' + "a" * 30 + '"', ["line 1"]),
        ('x = 1\napi_key = "abc123def"', ["line 2"]),
        ('api_key = os.environ["KEY"]\ntoken = ""\npassword = "<yours>"', []),
        ('tokenizer = "gpt2"\nsecretary = "Ann"', []),
        ('DB_PASSWD = "hunter2hunter2"\npassphrase = "opensesame"', ["line 1", "line 2"]),
        ('sort_key = "score"\ntoken = "the first word"\npad_token = "<|endoftext|>"', []),
        ("def broken(:\n  key = 'sk-" + "b" * 30 + "'", ["line 2"]),
    ],
)
def test_secrets_in_a_source_are_noticed_and_not_repeated(source: str, lines: list[str]) -> None:
    found = secrets_in(source)
    assert [doubt.replace(":", "").split(" ")[1] for doubt in found] == [
        line.split(" ")[1] for line in lines
    ]
    assert not any("hf_a" in doubt or "abc123" in doubt or "sk-b" in doubt for doubt in found)


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(s) for s in (-1, 59.9, 61, 3700, 90000)] == [
        *("0 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"),
    ]


def test_verify_checks_claims_against_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = {
        "text": "it says Yes with 0.91",
        "checks": [
            {
                "call": "ask#1",
                "path": "score",
                "given": "with",
                "operator": ">",
                "value": 0.5,
                "control": {"call": "ask#2", "path": "score"},
            }
        ],
    }
    record = new_record(tmp_path, "what does it hide?")
    for question, score in (("with", 0.9123), ("without", 0.1)):
        arguments = json.dumps([[question], {}])
        call = GateCall(interface="t", caller="a", function="ask", arguments=arguments)
        record.call(replace(call, result=json.dumps({"result": {"score": score}})).to_json())
    answer = json.dumps({"found": True, "answer": {}, "claims": [claim]})
    record.event(Text(text=answer).to_json())
    record.close("completed")
    assert main(["verify", record.run_id, "--runs", str(tmp_path)]) == 0
    assert "the report stands" in capsys.readouterr().out
    invented = new_record(tmp_path, "what does it hide?")
    invented.event(Text(text=answer).to_json())
    invented.close("completed")
    assert main(["verify", invented.run_id, "--runs", str(tmp_path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["stands"] is False


def test_judge_measures_one_that_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "always"]) == 0
    assert "kappa 0.00" in capsys.readouterr().out
    assert main(["judge", "words", "--limit", "50", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answers"] == 50 and 0 < told["low"] < told["kappa"] < told["high"] <= 1.1


def test_ps_says_who_holds_a_machine_and_whether_it_is_paused() -> None:
    def line(**fields: bool) -> str:
        held = {"detached": False, "controller_alive": True, **fields}
        made = MachineStatus(
            id="sb-1", provider="local", label="x", started_at=0.0, gpu=None, **held
        )
        return state(made)

    assert (line(), line(paused=True)) == ("held", "paused, held")
    assert line(detached=True, paused=True) == "paused, detached"
    assert line(controller_alive=False).startswith("orphan")


def test_a_listing_shows_short_ids_that_open_and_where_runs_come_from(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = run_ids(records)
    for run_id, more in ((first, {"fork_of": [second, 3]}), (second, {"replay_of": f"/x/{first}"})):
        file = records / run_id / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    assert main(["runs", "list"]) == 0
    listed = capsys.readouterr().out
    short = {run_id: run_id.rpartition("-")[2] for run_id in (first, second)}
    assert f"{short[first]} is a fork of {short[second]} at turn 3" in listed
    assert f"{short[second]} is a replay of {short[first]}" in listed
    assert first not in listed
    assert main(["runs", "show", short[first]]) == 0


def test_a_run_that_goes_on_is_listed_with_what_it_has_done(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = new_record(records, "running")
    record.event({"type": "tool_call", "turn": 3, "id": "a", "name": "python", "arguments": {}})
    try:
        assert main(["runs", "list", "--json", "--status", "running"]) == 0
    finally:
        record.close("cancelled")
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["turns"], found["tool_calls"], found["calls"]) == (3, 1, 0)


def test_the_runs_of_a_sweep_are_listed_by_its_folder(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "sweep.json").write_text("{}")
    (sweep / "runs").symlink_to(records)
    assert main(["runs", "list", "--runs", str(sweep), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    "command", [["stop"], ["stop", "--conclude"], ["limits", "--turns", "3"], ["say", "hello"]]
)
def test_a_run_that_has_ended_cannot_be_changed(
    records: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    run_id = run_ids(records)[0]
    assert main(["runs", command[0], run_id, *command[1:]]) == 1
    assert "has ended" in capsys.readouterr().err


def test_runs_are_completed(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = run_ids(records)[0]
    words = [f"seer runs show {run_id[:10]}", "seer view ", "seer replay "]
    for line in words:
        done = subprocess.run(
            [sys.executable, "-c", "from seer.cli import main; main()"],
            env={
                **os.environ,
                "_SEER_COMPLETE": "bash_complete",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(line.split(" ")) - 1),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"plain,{run_id}" in done.stdout


def test_an_unknown_agent_is_refused_before_the_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text("open('ran', 'w')")
    assert main(["run", str(tmp_path / "main.py"), "--agent", "cluade"]) == 1
    assert "did you mean 'claude'?" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
