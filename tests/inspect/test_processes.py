"""Inspect's own machinery, each part in a separate process.

Inspect replaces `asyncio.run` in its whole process when it evaluates a task, and other tests of the
same process would then leave event loops open.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("evals.py", "full and not campaign"),
        pytest.param("evals.py", "full and campaign", marks=pytest.mark.campaign),
        pytest.param("self_check.py", "full", marks=pytest.mark.campaign),
    ],
)
def test_a_file_passes_in_a_process_of_its_own(file: str, chosen: str) -> None:
    path = Path(__file__).with_name(file)
    # Inspect leaves its own streams open. Some are only found when pytest ends.
    quiet = ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *quiet, "-m", chosen, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
