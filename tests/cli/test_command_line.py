"""The command line in this process: its output and its exit codes."""

import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import click
import pytest

from seer.cli import main
from seer.cli._app import _COMMANDS, app  # pyright: ignore[reportPrivateUsage]
from seer.cli._check import secrets_in
from seer.cli._machines import Running
from seer.cli._ps import state
from seer.cli._target import Around
from seer.console._output import duration
from seer.errors import SeerError
from seer.harness import Text
from seer.providers import MachineStatus
from seer.providers._label import Label, read_label, write_label
from seer.runs import GateCall, Run, RunRecord, new_run_id, open_run
from tests.viewer.test_share import CREDENTIALS


def new_record(root: Path, task: str) -> RunRecord:
    return RunRecord.create(root, new_run_id(), meta={"provider": "scripted", "task": task})


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two finished runs that differ in the answer."""
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
    light = ("cli", "console", "errors", "_name_conflict")
    assert not [name for name in loaded if name.split(".")[1] not in light]


def all_commands() -> list[str]:
    """Every command as typed, including those of groups; `seer` itself is an empty text."""
    context = click.Context(app)
    names = [""]
    for name in app.list_commands(context):
        names.append(name)
        command = app.get_command(context, name)
        if isinstance(command, click.Group):
            names += [f"{name} {below}" for below in command.list_commands(context)]
    return names


@pytest.mark.parametrize("name", all_commands())
def test_every_command_explains_itself_on_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert f"Usage: seer {name}".rstrip() in said
    assert not [line for line in said.splitlines() if len(line) > 80]
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["", "runs", "organism"])
def test_a_command_without_its_subcommand_shows_its_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*name.split(), "--help"])
    told = capsys.readouterr().out
    assert main(name.split()) == 2
    assert capsys.readouterr().err.rstrip() == told.rstrip()


def test_an_unknown_command_suggests_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    assert "did you mean 'serve'?" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--status", "--order"])
def test_a_value_that_no_listing_knows_is_wrong_usage(
    option: str, records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "list", option, "finished"]) == 2
    said = capsys.readouterr().err
    assert f"Invalid value for '{option}': 'finished'" in said
    assert {"--status": "'completed'", "--order": "created"}[option] in said


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


def test_a_run_is_shown_from_a_part_of_its_id(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_ids(records)[0]
    short = whole.rpartition("-")[2]
    for part in (whole, whole[-8:], short, short[:-1]):
        assert main(["runs", "show", part]) == 0
        assert "It is " in capsys.readouterr().out
    assert main(["runs", "show", "none"]) == 1
    assert "`seer runs list` lists them" in capsys.readouterr().err


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


def test_init_takes_the_name_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-study"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main(["init", "."]) == 0
    assert "my-study: an agent asks" in (folder / "main.py").read_text()
    assert main(["init", "."]) == 1
    assert "NAME='.': already exists and is not empty" in capsys.readouterr().err
    assert main(["init", "/"]) == 1
    assert "NAME='/': " in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--hide", "task"], ["-o", "run.html"]])
def test_view_refuses_options_of_share_without_it(
    options: list[str], records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", *options, run_ids(records)[0], "--no-browser"]) == 2
    assert "need --share RUN" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ps"], ["stop", "--all", "--yes"]])
def test_an_unknown_provider_is_wrong_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--provider", "foo"]) == 2
    said = capsys.readouterr()
    assert "there is no provider 'foo'; there are: local, " in said.err and not said.out


def test_stop_wants_to_know_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop"]) == 2
    assert "name machines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('token = "hf_' + "a" * 30 + '"', ["line 1"]),
        ('x = 1\napi_key = "abc123def"', ["line 2"]),
        *((f"print({text!r})", ["line 1"]) for text in CREDENTIALS),
        ('key = """-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"""', ["line 1"]),
        ('model = get_model_path("hf-internal-testing/tiny-random-gpt2")', []),
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


def test_verify_says_that_there_is_no_report(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", run_ids(records)[0]]) == 3
    assert capsys.readouterr().out.startswith(
        "the final message has no report (a JSON object; see docs/evidence.md)"
    )


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


def test_an_unknown_judge_is_told_all_judges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "rule"]) == 2
    said = capsys.readouterr().err
    assert "'rule'" in said and "provider=" not in said
    assert "rules, words, always, claude" in said


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


@pytest.mark.parametrize("file", ["my-study/main.py", "a b/main.py", ""])
@pytest.mark.parametrize("models", [[], ["model_0"], ["gemma-2-9b", "gpt2"]])
def test_a_label_says_what_a_machine_is_for(
    file: str, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for argv in ([f"/home/me/{file}"], ["/bin/seer", "serve", f"/home/me/{file}", "--detach"]):
        monkeypatch.setattr("sys.argv", argv)
        label = read_label(write_label("scoped", models))
        assert label == Label(kind="scoped", pid=os.getpid(), program=file, models=" ".join(models))
    assert read_label("made by hand") == Label(kind="made by hand")


def test_ps_shows_program_model_pid_and_run_on_80_columns(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = new_record(records, "running")
    pid = os.getpid()
    machines = [
        MachineStatus(
            id=f"sb-{number}123456789abcdef",
            provider="local",
            label=f"{kind} pid {pid} my-study/main.py{model}",
            started_at=time.time() - 600,
            gpu=None,
            detached=False,
            controller_alive=True,
        )
        for number, (kind, model) in enumerate([("scoped", " model_0"), ("session", "")])
    ]

    def running(providers: tuple[str, ...]) -> Running:
        return Running(machines)

    monkeypatch.setattr("seer.cli._ps.running", running)
    try:
        lines = shown_on_80_columns(["ps"])
    finally:
        record.close("cancelled")
    assert not [line for line in lines if len(line) > 80]
    heading, scoped, session = (
        " ".join(line.split()) for line in lines if line.strip() and "──" not in line
    )
    short = record.run_id.rpartition("-")[2]
    assert heading == "id what program model pid run for"
    assert scoped.startswith(f"sb-01234 scoped my-study/main.py model_0 {pid} {short} ")
    assert session.startswith(f"sb-11234 session my-study/main.py - {pid} {short} ")


def test_ps_lists_machines_also_if_the_records_cannot_be_read(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = MachineStatus(
        id="sb-1",
        provider="local",
        label="scoped",
        started_at=0.0,
        gpu=None,
        detached=True,
        controller_alive=False,
    )

    def running(providers: tuple[str, ...]) -> Running:
        return Running([machine])

    def full(*_: object, **__: object) -> NoReturn:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("seer.cli._ps.running", running)
    monkeypatch.setattr("seer.runs.RunIndex.list", full)
    assert main(["ps"]) == 0
    told = capsys.readouterr()
    assert "sb-1" in told.out and "database or disk is full" in told.err


def shown_on_80_columns(arguments: list[str]) -> list[str]:
    """What a command prints on a terminal of 80 columns, without colours."""
    import fcntl
    import pty
    import re
    import struct
    import termios
    from contextlib import redirect_stdout

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with os.fdopen(theirs, "w") as stream, redirect_stdout(stream):
            main(arguments)
        written = b""
        try:
            while piece := screen.read(4096):
                written += piece
        except OSError:  # the other end is closed
            pass
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode()).splitlines()


def test_a_listing_fits_80_columns(records: Path) -> None:
    new_record(records, "a long task " * 30).close("completed")
    lines = shown_on_80_columns(["runs", "list"])
    assert not [line for line in lines if len(line) > 80]
    for run_id in run_ids(records):
        assert any(run_id.rpartition("-")[2] in line for line in lines)


def test_a_folder_of_records_that_does_not_exist_is_an_error_where_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main(["runs", "list", "--runs", str(missing)]) == 2
    assert f"the folder '{missing}' does not exist" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv("SEER_RUNS", str(missing))
    assert main(["runs", "list"]) == 0
    (tmp_path / "sweep.json").touch()
    assert main(["runs", "list", "--runs", str(tmp_path)]) == 0
    assert not missing.exists()


def test_calls_show_whole_ids_functions_and_outcomes_on_80_columns(records: Path) -> None:
    record = new_record(records, "count")
    ids = [f"3f2a9c1b7d4e-{number}" for number in (1, 12345)]
    for call in ids:
        line = {"caller": "local-3f2a9c (local-3f2a9c-1b7d4e)", "function": "next_words_of_a_text"}
        line |= {"call": call, "interface": "tools", "outcome": "error", "bytes_in": 12_345_678}
        line["arguments"] = "[[], {}]"
        record.call({**line, "queue": 1.234, "run": 12.34, "bytes_out": 1_234_567})
    record.close("completed")
    lines = shown_on_80_columns(["runs", "show", record.run_id, "--calls"])
    assert not [line for line in lines if len(line) > 80]
    for call in ids:
        (line,) = (one for one in lines if call in one.split())
        assert line.split()[:3] == [call, "next_words_of_a_text", "error"]
    assert any("not shown" in line and "caller" in line for line in lines)


def test_a_listing_with_costs_and_scores_fits_80_columns(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders: list[Path] = []
    for score in (123456.789, -1.23456e-7, 0.0):
        record = new_record(records, "a long task " * 30)
        record.close("completed", {"cost_usd": 12.345})
        Run(record.folder).set_score(score)
        folders.append(record.folder)
    lines = shown_on_80_columns(["runs", "list"])
    assert not [line for line in lines if len(line) > 80]
    for folder, score in zip(folders, ("1.235e+05", "-1.235e-07", "0"), strict=True):
        (line,) = (one for one in lines if folder.name.rpartition("-")[2] in one)
        assert "completed" in line and "$12.35" in line and line.split()[-1] == score
    assert main(["runs", "show", folders[2].name]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(", score 0")


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
    assert capsys.readouterr().err == f"error: run {run_id} has ended (completed)\n"


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


def test_an_agent_without_a_fork_is_refused(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", run_ids(records)[0], "--agent", "claude"]) == 2
    assert "--agent needs --fork-at" in capsys.readouterr().err


def test_a_misspelt_option_is_not_given_to_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text("open('ran', 'w')")
    assert main(["run", str(tmp_path / "main.py"), "--agnet", "claude"]) == 2
    assert "--agnet" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("agent", ["forked", "replay"])
def test_agents_of_recorded_runs_are_refused_without_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], agent: str
) -> None:
    (tmp_path / "main.py").write_text("open('ran', 'w')")
    assert main(["run", str(tmp_path), "--agent", agent]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: --agent={agent!r}: say which run: {agent}:RUN")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("given", ["nonsense", "python=ask,*=no"])
@pytest.mark.parametrize("where", ["option", "environment"])
def test_what_to_approve_is_checked_before_the_program_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    where: str,
) -> None:
    (tmp_path / "main.py").write_text("open('ran', 'w')")
    if where == "environment":
        monkeypatch.setenv("SEER_APPROVE", given)
    option = ["--approve", given] if where == "option" else []
    assert main(["run", str(tmp_path / "main.py"), *option]) == 1
    assert "must be auto, ask or deny" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_a_program_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run"]) == 2
    assert "there is no main.py here; `seer init NAME` creates one" in capsys.readouterr().err
    assert main(["run", "other.py"]) == 2
    assert "there is no file 'other.py'" in capsys.readouterr().err


def test_the_program_of_a_folder_is_its_main_file(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("raise SystemExit(7)")
    assert main(["run", str(tmp_path)]) == 7


def test_init_quotes_the_command_that_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "a b"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "run it: seer run 'a b'"


def test_a_model_that_is_both_given_and_named_in_the_file_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "interface.py"
    file.write_text('path = get_model_path("acme/model")\n')
    asked: list[tuple[str, ...]] = []

    def started(interface: Path, around: Around, name: str | None) -> NoReturn:
        asked.append(around.models)
        raise SeerError("enough")

    def made(source: str, folder: Path) -> list[str]:
        return ["acme/model", "acme/other"]

    monkeypatch.setattr("seer.cli._check.started", started)
    monkeypatch.setattr("seer.cli._check.stand_ins", made)
    assert main(["check", str(file), "--tiny", "--model", "acme/model"]) == 1
    assert asked == [("acme/model", "acme/other")]


def test_an_interrupt_after_detaching_says_that_the_sandbox_keeps_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "interface.py"
    file.write_text("")
    scoped = SimpleNamespace(sandbox_id="sb-1", detach=lambda: None)

    @contextlib.contextmanager
    def started(*_: object, **__: object) -> Generator[SimpleNamespace]:
        yield SimpleNamespace(scoped=scoped)

    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("seer.cli._serve.started", started)
    monkeypatch.setattr("seer.cli._serve.ways_in", interrupted)
    assert main(["serve", str(file), "--detach"]) == 130
    assert "it keeps running; end it with: seer stop sb-1" in capsys.readouterr().err
