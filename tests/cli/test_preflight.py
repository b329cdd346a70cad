"""`seer run` and `seer sweep` say what is missing before the program starts."""

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from seer.cli import main
from seer.cli._preflight import named_agents

PROGRAM = """
from pathlib import Path
from seer.harness import run_agent

Path("started").touch()
run_agent("x", {}{AGENT})
"""
KEYS = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY")


def program(folder: Path, agent: str = "") -> Path:
    (folder / "main.py").write_text(PROGRAM.replace("{AGENT}", agent))
    return folder


def refused(folder: Path, *arguments: str, **env: str) -> str:
    """The one line that a command prints if it starts no program."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SEER_") and k not in KEYS}
    done = subprocess.run(
        [sys.executable, "-m", "seer", *arguments],
        cwd=folder,
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert not (folder / "started").exists(), "the program was started"
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("source", "agents"),
    [
        ("run_agent('x')", ["claude"]),
        ("async for e in harness.run_agent(task=t, provider='openai'): ...", ["openai"]),
        ("run_agent('x', provider='gemini'); run_agent('y', provider='gemini')", ["gemini"]),
        ("run_agent('x', provider=choose())", []),
        ("run_agent('x', provider='openai', base_url='http://127.0.0.1:8000')", []),
        ("run_agent('x', **options)", []),
        ("this is no Python", []),
        ("x = '\0'", []),
        ("import nothing", []),
    ],
)
def test_the_agents_of_a_program_are_read_from_its_calls(source: str, agents: list[str]) -> None:
    wrapped = f"async def main():\n    {source}\n" if source.startswith("async") else source
    assert named_agents(wrapped) == agents


@pytest.mark.full
def test_a_program_whose_agent_has_no_key_does_not_start(tmp_path: Path) -> None:
    said = refused(program(tmp_path, ", provider='openai'"), "run")
    assert said.startswith("error: provider 'openai' needs a key: set OPENAI_API_KEY")


@pytest.mark.full
def test_an_agent_that_the_environment_names_is_checked(tmp_path: Path) -> None:
    said = refused(program(tmp_path), "run", SEER_AGENT="cluade")
    assert "did you mean 'claude'?" in said


@pytest.mark.full
def test_an_unknown_key_of_a_script_is_named(tmp_path: Path) -> None:
    (tmp_path / "steps.toml").write_text('[[steps]]\ntxt = "x"\n')
    said = refused(program(tmp_path), "run", "--agent", "scripted:steps.toml")
    assert said.startswith("error: --agent='scripted:steps.toml': steps[0]=['txt']: unknown keys")


@pytest.mark.full
def test_a_script_that_is_not_there_is_looked_for_in_the_programs_folder(tmp_path: Path) -> None:
    program(tmp_path)
    said = refused(tmp_path.parent, "run", tmp_path.name, "--agent", "scripted:no.toml")
    assert said.endswith(f"(a relative path starts at the program's folder, {str(tmp_path)!r})")


@pytest.mark.full
def test_a_program_that_sets_its_own_key_starts(tmp_path: Path) -> None:
    program(tmp_path, ", provider='openai'")
    file = tmp_path / "main.py"
    file.write_text("import os\nos.environ['OPENAI_API_KEY'] = 'sk-0'\n" + file.read_text())
    env = {k: v for k, v in os.environ.items() if not k.startswith("SEER_")}
    done = subprocess.run(
        [sys.executable, "-m", "seer", "run"], cwd=tmp_path, env=env, capture_output=True
    )
    assert (tmp_path / "started").exists(), done.stderr


@pytest.mark.full
def test_records_that_cannot_be_written_are_found_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused(program(tmp_path, ", provider='human'"), "run", "--runs", "file/runs")
    assert "records cannot be written to" in said
    assert said.endswith("choose another one with --runs or SEER_RUNS")


@pytest.mark.full
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_disk_without_room_for_records_is_found_first(tmp_path: Path, command: str) -> None:
    program(tmp_path, ", provider='human'")
    (tmp_path / "matrix.toml").write_text("seeds = 2\n")
    (tmp_path / "disk").mkdir()
    arguments = {
        "run": ["run", "--runs", "disk/runs"],
        "sweep": ["sweep", "main.py", "--matrix", "matrix.toml", "--into", "disk/s"],
    }[command]
    how = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mount = 'mount -t tmpfs -o size=1m none disk && exec "$0" "$@"'
    done = subprocess.run(
        [*how, "sh", "-c", mount, sys.executable, "-m", "seer", *arguments],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("SEER_")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: only 1.0 MB are free for records in"), line
    assert done.returncode == 1 and not (tmp_path / "started").exists()


@pytest.mark.full
def test_a_sweep_over_a_model_that_is_not_there_does_not_begin(tmp_path: Path) -> None:
    program(tmp_path, ", provider='human'")
    (tmp_path / "matrix.toml").write_text('models = ["./gemma"]\n')
    said = refused(tmp_path, "sweep", "main.py", "--matrix", "matrix.toml", "--into", "s")
    assert said.startswith("error: model './gemma':") and "is not a folder" in said
    assert not (tmp_path / "s").exists()


@pytest.mark.full
def test_a_sweep_without_agents_of_its_own_checks_the_programs(tmp_path: Path) -> None:
    program(tmp_path)
    (tmp_path / "matrix.toml").write_text("seeds = 2\n")
    said = refused(tmp_path, "sweep", "main.py", "--matrix", "matrix.toml", "--into", "s")
    assert "needs a key" in said or "ANTHROPIC_API_KEY" in said


def test_a_sweep_whose_plots_cannot_be_drawn_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, ", provider='human'")
    (tmp_path / "matrix.toml").write_text("seeds = 2\n")
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec

    def without_matplotlib(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "matplotlib" else find_spec(name, package)

    monkeypatch.setattr("importlib.util.find_spec", without_matplotlib)
    assert main(["sweep", "main.py", "--matrix", "matrix.toml", "--into", "s"]) == 1
    said = capsys.readouterr().err
    assert "matplotlib" in said and "seer-interp[sweeps]" in said
    assert not (tmp_path / "started").exists() and not (tmp_path / "s").exists()
