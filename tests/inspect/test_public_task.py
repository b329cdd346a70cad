"""A published Inspect task, unmodified: AgentBench's, whose data is in its wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.campaign, pytest.mark.timeout(600)]

# Without their own dependencies, which Seer's environment has.
PACKAGES = [
    *("inspect-evals==0.26.0", "datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19"),
    *("xxhash==4.1.0", "backoff==2.2.1"),
]


def test_a_public_task_runs_in_a_sandbox(tmp_path: Path) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "seer-tests" / PACKAGES[0].replace("==", "-")
    if not folder.exists():
        made = tmp_path / "packages"
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(made)]
        done = subprocess.run([*install, *PACKAGES], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{PACKAGES[0]} cannot be installed here: {done.stderr.strip()[-300:]}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(made), str(folder)], check=True)
    program = Path(__file__).with_name("public_task.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "logs")],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scored: " in done.stdout
