"""The environment that `seer demo` makes: what goes into it, when it is used, and how it fails."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import seer
from seer.cli import _demo_environment as demo
from seer.cli._app import run
from seer.errors import HostResourceError, PackageError

ROOT = Path(seer.__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SEER_DEMO_ENVIRONMENT", raising=False)
    return tmp_path


def test_its_packages_are_those_of_the_constraints() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    wanted = Path(demo.__file__).with_name("demo_packages.txt").read_text().splitlines()[1:]
    assert "torch" in {re.split("[=;]", line)[0] for line in wanted}
    assert not [line for line in wanted if line not in pins]
    assert demo._WEIGHTS in (ROOT / "scripts" / "setup").read_text()  # pyright: ignore[reportPrivateUsage]


def installed(monkeypatch: pytest.MonkeyPatch, fails: Sequence[str] = ()) -> list[list[str]]:
    """Stand-ins for the installers: they note their requests, and some of them fail."""
    calls: list[list[str]] = []

    def run(argv: Sequence[str]) -> None:
        calls.append(list(argv))
        if "venv" in argv:
            folder = Path(argv[-1])
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            (folder / "lib" / version / "site-packages").mkdir(parents=True)
            (folder / "bin").mkdir()
            (folder / "bin" / "python3").symlink_to(sys.executable)
        if any(word in argv for word in fails):
            raise PackageError("no such index")

    monkeypatch.setattr(demo, "_run", run)
    monkeypatch.setattr(demo, "_ROOM", 0)  # regardless of what else fills this disk
    monkeypatch.setattr(demo, "_has_gpu", lambda: False)
    return calls


def test_it_takes_torchs_cpu_build_and_sees_the_packages_beside_seer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = installed(monkeypatch)
    python = demo.make()
    assert python == demo.interpreter()
    assert [call[call.index("--torch-backend") + 1] for call in calls[1:]] == ["cpu", "cpu"]
    beside = next((python.parents[1] / "lib").glob("*/site-packages/of_seer.pth")).read_text()
    assert str(Path(click_folder()).absolute()) in beside
    demo.make()
    assert len(calls) == 3, "it was made again"


def click_folder() -> str:
    import click

    return str(Path(click.__file__).parents[1])


def test_without_that_index_it_takes_what_pip_finds_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = installed(monkeypatch, fails=["--torch-backend"])
    demo.make()
    assert [sys.executable, "-m", "pip"] == calls[-1][:3]
    assert "may be several gigabytes" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_pip_shows_its_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    calls = installed(monkeypatch, fails=["--torch-backend"])
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    demo.make()
    assert ("-q" in calls[-1]) is not terminal


def test_an_installation_that_fails_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, fails=["install"])
    with pytest.raises(PackageError, match="no such index"):
        demo.make()
    assert [path.name for path in (cache / "seer" / "demo").iterdir()] == ["lock"]
    assert demo.interpreter() is None


def test_too_little_room_is_said_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = installed(monkeypatch)
    monkeypatch.setattr(demo, "_ROOM", 1 << 60)
    with pytest.raises(HostResourceError, match="XDG_CACHE_HOME"):
        demo.make()
    assert calls == []


@pytest.mark.parametrize("torch_is_here", [True, False])
def test_commands_go_there_only_where_torch_is_missing(
    monkeypatch: pytest.MonkeyPatch, torch_is_here: bool
) -> None:
    installed(monkeypatch)
    python = demo.make()
    monkeypatch.setattr(demo, "has_model_packages", lambda: torch_is_here)
    gone: list[tuple[Path, list[str]]] = []

    def execve(path: Path, argv: list[str], env: dict[str, str]) -> None:
        gone.append((path, argv))
        monkeypatch.setenv("SEER_DEMO_ENVIRONMENT", env["SEER_DEMO_ENVIRONMENT"])

    monkeypatch.setattr(os, "execve", execve)
    demo.go_there(["run", "main.py"])
    demo.go_there(["run", "main.py"])
    expected = [(python, [str(python), "-m", "seer", "run", "main.py"])]
    assert gone == ([] if torch_is_here else expected)


@pytest.mark.parametrize(
    "words", [["run", "--help"], ["replay", "--help"], ["-v", "run", "--help"], ["runs", "--help"]]
)
def test_commands_that_load_models_go_there_also_after_a_general_option(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    gone: list[Sequence[str]] = []
    monkeypatch.setattr(demo, "go_there", gone.append)
    monkeypatch.setattr(sys, "argv", ["seer", *words])
    assert run(None, None) == 0
    assert gone == ([] if "runs" in words else [words])
