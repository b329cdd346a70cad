"""`seer sweep`: the options it accepts, and its output.

It tests the progress line itself, for states that a short sweep does not reach.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import seer.sweeps
from seer.cli import main
from seer.cli._sweep import command, line
from seer.sweeps import Local, Progress, Ray


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """The arguments that every new sweep has."""
    (tmp_path / "main.py").touch()
    (tmp_path / "matrix.toml").write_text("seeds = 2\n")
    return [
        str(tmp_path / "main.py"),
        *("--matrix", str(tmp_path / "matrix.toml"), "--into", str(tmp_path / "s")),
    ]


@pytest.mark.parametrize(
    ("options", "place", "env"),
    [
        ([], Local(), {}),
        (["--on", "ray"], Ray(), {}),
        (
            ["--on", "ray:10.0.0.1:6379", "--gpus", "0.5", "--memory", "2", "--env", "LAB_KEY"],
            Ray(address="10.0.0.1:6379", gpus=0.5, memory=2 << 30),
            {"LAB_KEY": "sesame"},
        ),
        (["--env", "DEPTH=3=4"], Local(), {"DEPTH": "3=4"}),
    ],
)
def test_places_and_variables_reach_the_sweep(
    given: list[str],
    options: list[str],
    place: object,
    env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def taken(*_: object, **arguments: Any) -> None:
        seen.update(arguments)
        raise KeyboardInterrupt

    monkeypatch.setenv("LAB_KEY", "sesame")
    monkeypatch.setattr(seer.sweeps, "run", taken)
    CliRunner().invoke(command, [*given, *options])
    assert (seen["on"], seen["env"]) == (place, env)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpus", "1"], "need --on ray"),
        (["--on", "slurm"], "neither 'here' nor 'ray'"),
        (["--env", "NOT_THERE_AT_ALL"], "is not set here"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: list[str], options: list[str], said: str) -> None:
    done = CliRunner().invoke(command, [*given, *options])
    assert done.exit_code == 2 and said in done.output


def test_what_waits_for_room_is_queued() -> None:
    now = Progress(
        total=200,
        done=112,
        failed=0,
        running=("a", "b", "c"),
        waiting=2,
        concurrency=40,
        cost_usd=8.1,
        budget_usd=None,
        seconds_left=720.0,
        retried=3,
    )
    assert line(now) == (
        "112/200 done, 1 running, 87 queued, 3 retried, $8.10, about 12 min 0 s left"
    )


def test_an_agent_that_cannot_run_is_refused_before_the_first_cell(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("open('ran', 'w')")
    (tmp_path / "m.toml").write_text('agents = ["scripted:nowhere.toml"]\n')
    options = ["--matrix", str(tmp_path / "m.toml"), "--into", str(tmp_path / "s")]
    done = CliRunner().invoke(command, [str(tmp_path / "main.py"), *options])
    assert str(done.exception).startswith("agents='scripted:nowhere.toml': ")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "s").exists()


def test_a_program_that_reports_no_score_is_told_how(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *given]) == 0
    told, log = capsys.readouterr()
    assert "no score" in told and "no result" not in told
    assert len(log.splitlines()) <= 2, "a log gets one line per finished cell"
    assert "2 cells have no score: report one with seer.sweeps.report(score=...)" in told


def test_a_sweep_on_ray_without_ray_leaves_no_folder(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without_ray(name: str) -> ModuleSpec | None:
        return None if name == "ray" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_ray)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", *given, "--on", "ray"]) == 1
    assert not (tmp_path / "s").exists()


def test_scores_of_an_agent_that_did_not_run_are_named(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steps.toml").write_text('[[steps]]\ntext = "hello"\n')
    (tmp_path / "matrix.toml").write_text('agents = ["scripted:steps.toml"]\nseeds = 2\n')
    (tmp_path / "main.py").write_text("from seer.sweeps import report\nreport(score=1.0)\n")
    assert main(["sweep", *given]) == 0
    assert "2 cells name an agent that did not run" in capsys.readouterr().out


def test_ctrl_c_says_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text("")
    (tmp_path / "m.toml").write_text("seeds = 1\n")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seer.sweeps.run", interrupted)
    options = ["--matrix", str(tmp_path / "m.toml"), "--into", str(tmp_path / "s")]
    assert main(["sweep", str(tmp_path / "main.py"), *options]) == 130
    said = capsys.readouterr().err.strip()
    assert said.endswith("the same command continues") and "\n" not in said
