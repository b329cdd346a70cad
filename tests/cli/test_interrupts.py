"""Ctrl-C on a real terminal of 80 columns: one line on what was kept, and no traceback."""

import os
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


def interrupted(folder: Path, *arguments: str, at: str) -> tuple[str, int]:
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
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()
    said: str = child.before
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
