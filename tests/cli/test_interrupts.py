"""Ctrl-C on a real terminal of 80 columns: one line on what was kept, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SLOW = '@expose\ndef add(a: int) -> int:\n    """Add one."""\n    return a + 1\n'
WAITING = "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n"
PROGRAM = (
    "import time\n"
    "try:\n    print('waiting', flush=True)\n    time.sleep(600)\n"
    "except KeyboardInterrupt:\n    raise SystemExit(130) from None\n"
)


def interrupted(folder: Path, *arguments: str, at: str, times: int = 1) -> tuple[str, int]:
    """What a command says when Ctrl-C is pressed once it has said `at`, and its exit code."""
    env = {**os.environ, "SEER_RUNS": str(folder / "runs"), "SEER_PROVIDER": "local"}
    spawn: Any = pexpect.spawn
    child = spawn(
        sys.executable,
        ["-m", "seer", *arguments],
        cwd=str(folder),
        env=env,
        dimensions=(24, 80),
        encoding="utf-8",
        timeout=120,
    )
    child.expect_exact(at)
    said = ""
    for _ in range(times):
        child.sendintr()
        child.expect_exact("^C")
        said += child.before
    child.expect(pexpect.EOF)
    child.wait()
    said += child.before
    assert "Traceback" not in said and "never retrieved" not in said
    return said, child.exitstatus


def test_a_check_says_that_nothing_was_kept(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(WAITING + SLOW)
    said, code = interrupted(tmp_path, "-v", "check", "slow.py", at="waiting")
    assert "interrupted: its jail has ended, and nothing was kept; again: seer check" in said
    assert code == 130


def test_a_served_interface_ends_and_says_how_to_serve_again(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(SLOW)
    said, code = interrupted(tmp_path, "serve", "lab.py", at="Ctrl-C ends it.")
    assert "interrupted: the sandbox ends; the same command serves again" in said
    assert code == 0


CELLS = (
    "import time\n"
    "from seer.sweeps import current_cell, report\n"
    "if current_cell().repetition:\n    time.sleep(600)\n"
    "report(score=1.0)\n"
)


def test_a_sweep_says_how_many_cells_are_kept(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(CELLS)
    (tmp_path / "seeds.toml").write_text("seeds = 5\n")
    given = ["sweep", "main.py", "--matrix", "seeds.toml", "--into", "s"]
    said, code = interrupted(tmp_path, *given, at="1/5 done, 2 running")
    last = said.strip().splitlines()[-1]
    assert last == (
        "interrupted: 1 of 5 cells are finished, and kept in s; the same command continues"
    )
    assert code == 130


def test_a_run_says_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)
    said, code = interrupted(tmp_path, "run", at="waiting")
    assert "interrupted: nothing was recorded; again: seer run main.py" in said
    assert code == 130


# Presses Ctrl-C when a module is about to be imported, in the first process that does so.
PRESS = """
import os, signal, sys

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["PRESS_AT"] and not os.path.exists(os.environ["PRESSED"]):
            open(os.environ["PRESSED"], "w").close()
            os.killpg(0, signal.SIGINT)

sys.meta_path.insert(0, Press())
"""
MAIN = """
import asyncio
from seer.harness import Scripted, Step, run_agent

async def main():
    agent = Scripted([Step(text="done")])
    async for event in run_agent("go", tools=False, provider=agent, show=False):
        import colorsys

asyncio.run(main())
"""
COMMANDS = {
    "check": ("check", "interface.py"),
    "run": ("run",),
    "sweep": ("sweep", "main.py", "--matrix", "seeds.toml", "--into", "s"),
    "serve": ("serve", "interface.py"),
    "demo": ("demo",),
    "init": ("init", "new"),
    "view": ("view", "--no-browser"),
    "doctor": ("doctor",),
}
MOMENTS = [
    *((name, module) for name in COMMANDS for module in ("click", f"seer.cli._{name}")),
    *((name, "seer.environment") for name in ("check", "serve")),
    ("doctor", "seer.isolation"),
    ("run", "seer.runs"),
    ("run", "seer._program"),
    ("run", "seer.harness"),
    ("run", "colorsys"),
    ("sweep", "seer.sweeps"),
    ("view", "seer.viewer"),
]


@pytest.mark.parametrize(("name", "module"), MOMENTS, ids=[" ".join(one) for one in MOMENTS])
def test_an_early_interrupt_is_one_line(tmp_path: Path, name: str, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRESS)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "interface.py").write_text(SLOW)
    (tmp_path / "seeds.toml").write_text("seeds = 2\n")
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "PRESS_AT": module,
        "PRESSED": str(tmp_path / "pressed"),
        "SEER_RUNS": str(tmp_path / "runs"),
        "SEER_PROVIDER": "local",
    }
    done = subprocess.run(
        [sys.executable, "-m", "seer", *COMMANDS[name]],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert (tmp_path / "pressed").exists(), "this command does not import that module"
    assert "Traceback" not in done.stderr and "never retrieved" not in done.stderr
    assert done.stderr.count("interrupted") == 1, done.stderr
    assert done.returncode == 130
    assert not (tmp_path / "new").exists()


def test_a_second_interrupt_does_not_disturb_the_ending(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(WAITING + SLOW)
    said, code = interrupted(tmp_path, "-v", "check", "slow.py", at="waiting", times=2)
    assert said.count("interrupted: its jail has ended, and nothing was kept") == 1
    assert code == 130


def test_a_program_that_is_interrupted_twice_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        MAIN.replace("import colorsys", "WAIT").replace(
            "WAIT", "print('waiting', flush=True); await asyncio.sleep(600)"
        )
    )
    said, code = interrupted(tmp_path, "run", at="waiting", times=2)
    assert "interrupted: the record of" in said
    assert code == 130


def test_a_third_interrupt_ends_the_command_at_once(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from seer.cli._interrupts import Presses\n"
        "presses = Presses()\n"
        "presses.command_runs()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('goes on', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('not any more', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("goes on\n", 130)
    assert done.stderr == "interrupted: what is left ends by itself; see `seer ps`\n"
