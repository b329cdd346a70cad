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
    """The output of a command when Ctrl-C is pressed after it printed `at`, and its exit code."""
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
    child.sendintr()
    child.expect_exact("^C")
    for _ in range(times - 1):
        said += child.before
        child.sendintr()
        # On a busy machine it may have ended before this press.
        if child.expect_exact(["^C", pexpect.EOF]):
            break
    said += child.before
    if child.after is not pexpect.EOF:
        child.expect(pexpect.EOF)
        said += child.before
    child.wait()
    assert "Traceback" not in said and "never retrieved" not in said
    return said, child.exitstatus


def test_a_check_says_that_nothing_was_kept(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(WAITING + SLOW)
    said, code = interrupted(tmp_path, "-v", "check", "slow.py", at="waiting")
    assert (
        "interrupted: nothing is left running, and nothing was kept; run again with: seer check"
        in said
    )
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
    assert "interrupted: nothing was recorded; run again with: seer run main.py" in said
    assert code == 130


LOADING = """
import asyncio, logging
from seer.environment import SandboxConfig, ScopedSandbox

async def main():
    with ScopedSandbox(SandboxConfig()) as scoped:
        scoped.serve("slow.py")

logging.basicConfig(level=logging.INFO)
asyncio.run(main())
"""


@pytest.mark.timeout(240)  # instead of the 600 seconds that loading takes
def test_a_run_ends_while_its_model_loads(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(WAITING + SLOW)
    (tmp_path / "main.py").write_text(LOADING)
    said, code = interrupted(tmp_path, "run", at="waiting")
    assert "interrupted: nothing was recorded; run again with: seer run main.py" in said
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


def pressed(folder: Path, name: str, module: str) -> subprocess.CompletedProcess[str]:
    """A command during which Ctrl-C is pressed as it imports a module."""
    (folder / "sitecustomize.py").write_text(PRESS)
    env = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PRESS_AT": module,
        "PRESSED": str(folder / "pressed"),
        "SEER_RUNS": str(folder / "runs"),
        "SEER_PROVIDER": "local",
    }
    done = subprocess.run(
        [sys.executable, "-m", "seer", *COMMANDS[name]],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert (folder / "pressed").exists(), "this command does not import that module"
    return done


def test_a_check_that_is_interrupted_before_its_jail_says_that_nothing_was_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "interface.py").write_text('get_model_path("some/model")\n' + SLOW)
    done = pressed(tmp_path, "check", "seer.testing")
    assert done.stderr.strip() == (
        "interrupted: nothing is left running, and nothing was kept; run again with: seer check "
        "interface.py"
    )
    assert done.returncode == 130


@pytest.mark.parametrize(("name", "module"), MOMENTS, ids=[" ".join(one) for one in MOMENTS])
def test_an_early_interrupt_is_one_line(tmp_path: Path, name: str, module: str) -> None:
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "interface.py").write_text(SLOW)
    (tmp_path / "seeds.toml").write_text("seeds = 2\n")
    done = pressed(tmp_path, name, module)
    assert "Traceback" not in done.stderr and "never retrieved" not in done.stderr
    assert done.stderr.count("interrupted") == 1, done.stderr
    assert done.returncode == 130
    assert not (tmp_path / "new").exists()


def test_a_second_interrupt_does_not_disturb_the_ending(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(WAITING + SLOW)
    said, code = interrupted(tmp_path, "-v", "check", "slow.py", at="waiting", times=2)
    assert said.count("interrupted: nothing is left running, and nothing was kept") == 1
    assert code == 130


# The second Ctrl-C comes while the program ends because of the first one.
INTERRUPTED_TWICE = """
        try:
            os.kill(0, signal.SIGINT)
            await asyncio.sleep(600)
        finally:
            os.kill(0, signal.SIGINT)
            await asyncio.sleep(0)
            print("ended", flush=True)
"""


def run_alone(folder: Path, *, timeout: float) -> subprocess.CompletedProcess[str]:
    """`seer run` in a session of its own, whose processes can interrupt each other."""
    return subprocess.run(
        [sys.executable, "-m", "seer", "run"],
        cwd=folder,
        env={**os.environ, "SEER_RUNS": str(folder / "runs"), "SEER_PROVIDER": "local"},
        capture_output=True,
        text=True,
        timeout=timeout,
        start_new_session=True,
    )


def test_a_program_that_is_interrupted_twice_closes_its_record(tmp_path: Path) -> None:
    program = MAIN.replace("import asyncio", "import asyncio, os, signal")
    (tmp_path / "main.py").write_text(
        program.replace("        import colorsys\n", INTERRUPTED_TWICE)
    )
    done = run_alone(tmp_path, timeout=120)
    assert done.stdout == "ended\n"
    assert "Traceback" not in done.stderr
    assert "interrupted: the record of" in done.stderr
    assert done.returncode == 130


def test_many_interrupts_within_a_moment_do_not_hang_a_run(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import os, signal\n"
        "for _ in range(100_000):\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
        "print('done', flush=True)\n"
    )
    done = run_alone(tmp_path, timeout=120)
    assert (done.stdout, done.returncode) == ("done\n", 0)


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
    assert done.stderr == "interrupted: machines that are left end by themselves; see `seer ps`\n"
