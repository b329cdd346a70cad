"""Records survive their writers: kills at any moment, full disks, several writers at once."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seer.runs import Run, RunIndex
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("killed_program.py")


def check_killed(folder: Path) -> int:
    """Check that a record whose writer was killed is whole; returns the number of its events."""
    run = Run(folder)
    assert run.status == "crashed"
    run.verify()
    events = list(run.events())
    assert [event["seq"] for event in events] == list(range(len(events)))
    torn = (folder / "events.jsonl").read_bytes()
    assert len(events) == torn.count(b"\n")
    return len(events)


def wait_for_events(folder: Path, count: int) -> None:
    events = folder / "events.jsonl"
    wait_until(lambda: events.read_bytes().count(b"\n") >= count, f"event {count}", within=60)


def test_a_run_killed_at_any_moment_leaves_a_readable_record(tmp_path: Path) -> None:
    chosen = random.Random(7)
    programs = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    counts: list[int] = []
    for program in programs:
        assert program.stdout is not None
        with program.stdout:
            folder = Path(program.stdout.readline().strip())
            wait_for_events(folder, chosen.randrange(6, 60))
            program.kill()
            program.wait()
        counts.append(check_killed(folder))
    assert max(counts) > 5, counts
    listed = RunIndex(tmp_path).list()
    assert [run.status for run in listed] == ["crashed"] * 2


FULL_DISK = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
from killed_program import tools, _call
from seer.errors import RecordError
from seer.harness import Scripted, Step, run_agent
from seer.runs import Run

async def main():
    steps = [Step(calls=(_call("large", n), _call("picture", n))) for n in range(1000)]
    run = run_agent("go", {"lab": tools()}, provider=Scripted(steps), record=Path(sys.argv[2]))
    kinds = []
    try:
        async for event in run:
            kinds.append(event.type)
    except RecordError as error:
        print("RecordError", "the disk is full" in str(error))
    print(kinds[-2:])
    record = Run(run.folder)
    record.verify()
    print(len(list(record.events())) > 4, record.status)

asyncio.run(main())
"""


def test_a_full_disk_ends_the_run_with_an_error_and_a_readable_record(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("a small disk can only be mounted by root, with unshare")
    mount = f'mount -t tmpfs -o size=1m none {disk} && exec {sys.executable} -c "$0" "$@"'
    done = subprocess.run(
        [unshare, "--mount", "/bin/sh", "-c", mount, FULL_DISK, str(PROGRAM), str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "RecordError True",
        "['error', 'run_finished']",
        "True error",
    ]


WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
from killed_program import tools, _call
from seer.harness import Scripted, Step, run_agent

async def one(number):
    name = f"{sys.argv[3]} {number}"
    steps = [Step(text=name, calls=(_call("small", number),)), Step(text="done")]
    run = run_agent("go", {"lab": tools()}, provider=Scripted(steps), record=Path(sys.argv[2]),
                    name=name)
    async for _ in run:
        continue

async def main():
    await asyncio.gather(*(one(number) for number in range(10)))

asyncio.run(main())
"""


def running(program: "subprocess.Popen[bytes]") -> bool:
    try:
        program.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_two_programs_write_into_one_folder_while_a_third_lists_it(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(PROGRAM), str(tmp_path), name])
        for name in ("left", "right")
    ]
    index = RunIndex(tmp_path)
    for writer in writers:
        while running(writer):
            assert index.count() <= 20
    assert [writer.returncode for writer in writers] == [0, 0]
    runs = index.list(limit=100)
    assert sorted(run.name for run in runs) == sorted(
        f"{name} {number}" for name in ("left", "right") for number in range(10)
    )
    for run in runs:
        record = Run(tmp_path / run.run_id)
        record.verify()
        texts = [event["text"] for event in record.events() if event["type"] == "text"]
        assert texts == [run.name, "done"]
        assert json.loads((record.folder / "run.json").read_text())["status"] == "completed"
