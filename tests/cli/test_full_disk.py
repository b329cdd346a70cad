"""Records that can no longer be written: one line, an exit code, and what was recorded is kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SEER = [sys.executable, "-m", "seer"]
# Changes its records while the run is in progress.
PROGRAM = """
import asyncio, contextlib, os, shutil
from pathlib import Path
from seer.harness import Scripted, Step, run_agent

RECORDS = Path(os.environ["SEER_RUNS"])

def remove():
    # At one moment: the run writes on.
    shutil.rmtree(RECORDS.rename("removed"), ignore_errors=True)

def fill():
    with contextlib.suppress(OSError):
        (RECORDS / "noise").write_bytes(bytes(shutil.disk_usage(RECORDS).free - 200_000))

async def main():
    # More than the disk holds: the agent may be far ahead of this loop.
    steps = [Step(text="x" * 3000)] * 20_000
    async for event in run_agent("go", tools=False, provider=Scripted(steps), show=False):
        if event.seq == 3:
            DO()

asyncio.run(main())
"""


def write(folder: Path, *, do: str) -> Path:
    (folder / "main.py").write_text(PROGRAM.replace("DO", do))
    return folder


def on_small_disk(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script where `disk` is a file system of 40 MB, which is gone afterwards."""
    (folder / "disk").mkdir()
    how = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mount = "mount -t tmpfs -o size=40m none disk && mkdir disk/runs && . ./script.sh"
    (folder / "script.sh").write_text(script)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SEER_")}
    env |= {"SEER_RUNS": str(folder / "disk" / "runs"), "PY": sys.executable}
    return subprocess.run(
        [*how, "sh", "-c", mount], cwd=folder, env=env, capture_output=True, text=True, timeout=200
    )


needs_small_disk = pytest.mark.skipif(
    shutil.which("unshare") is None, reason="a small disk is mounted with unshare"
)


@needs_small_disk
def test_a_disk_that_fills_up_ends_a_run_with_one_line_and_a_readable_record(
    tmp_path: Path,
) -> None:
    script = r"""
$PY -m seer run; echo "exit code $?"
yes >>disk/runs/noise
$PY -m seer runs list
id=$(ls disk/runs | grep ^2)
$PY -m seer runs show "$id" | tail -n 1
$PY -m seer view --share "$id" -o shared.html
printf '#!/bin/sh\ncp "${1#file://}" page.html; kill -INT $PPID\n' > browser; chmod +x browser
BROWSER="$PWD/browser" $PY -m seer view "$id"
$PY -m seer replay "$id"; echo "exit code of replay $?"
"""
    done = on_small_disk(write(tmp_path, do="fill"), script)
    said = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    (error,) = [line for line in said if "because the disk is full" in line]
    assert error.startswith("error: run ") and "gate calls are kept in" in error
    assert error.endswith("free some space, then start the program again")
    assert any("seer runs show" in line for line in said)
    out = done.stdout.splitlines()
    assert "exit code 1" in out and "exit code of replay 1" in out
    assert any(" error " in line for line in out), "the list does not show the run"
    assert any(line.startswith("the record is in ") for line in out)
    assert (tmp_path / "shared.html").stat().st_size > 1000
    assert "http://127.0.0.1" in (tmp_path / "page.html").read_text()
    refused = [line for line in said if "no record can be made in" in line]
    assert refused and "the disk is full; free some space" in refused[0]


@needs_small_disk
def test_a_plain_program_ends_with_the_same_words(tmp_path: Path) -> None:
    done = on_small_disk(write(tmp_path, do="fill"), "$PY main.py; echo $?")
    assert done.stdout == "1\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith("seer.errors.RecordError: run ")
    assert last.endswith("free some space, then start the program again")


def test_records_that_are_removed_while_they_are_written_end_the_run(tmp_path: Path) -> None:
    write(tmp_path, do="remove")
    env = {k: v for k, v in os.environ.items() if not k.startswith("SEER_")}
    done = subprocess.run(
        [*SEER, "run", "--runs", "records"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    first, second, *more = done.stderr.splitlines()
    assert not more, done.stderr
    assert first.startswith("error: run ")
    assert first.endswith("was removed or renamed; start the program again")
    assert second.startswith("no run was recorded")
    assert done.returncode == 1
    assert not (tmp_path / "records").exists()


def test_a_sweep_whose_folder_is_removed_says_so(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import shutil\nshutil.rmtree('s')\n")
    (tmp_path / "matrix.toml").write_text("seeds = 2\n")
    command = [*SEER, "sweep", "main.py", "--matrix", "matrix.toml", "--into", "s"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: '{tmp_path}/s") and "was removed or renamed" in last
