"""A full disk: finished cells keep their results, and the sweep continues when there is space."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GROWING = """
import resource, sys
from pathlib import Path
from seer.errors import RecordError
from seer.sweeps._journal import Attempt, Journal, kept_attempt, read_journal

folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
journal = Journal(folder)
number = 0
try:
    while True:
        number += 1
        journal.begin("cell", number, 0.0)
        journal.end(Attempt(cell_id="cell", number=number, outcome="done", began=0.0, ended=1.0,
                            values={"text": "x" * 9000}))
except RecordError as error:
    print(error)
journal.close()
ended, unfinished = read_journal(folder)
assert [a.number for a in ended] == list(range(1, number)), "a whole line is missing"
assert (folder / "journal.jsonl").read_bytes().endswith(b"\\n"), "half a line is left"
(left,) = unfinished
kept = kept_attempt(folder, left)
assert kept is not None and kept.number == number and kept.outcome == "done"
"""

FILLING = """
import json, sys
from pathlib import Path
from seer.errors import RecordError
from seer.sweeps import Matrix, read_sweep, run

folder = Path(sys.argv[1])
(folder / "main.py").write_text('''
from pathlib import Path
from seer.sweeps import current_cell, report

with open("began.txt", "a") as file:
    file.write(current_cell().id + chr(10))
if current_cell().repetition == 2 and not Path("emptied").exists():
    with open("noise", "wb", buffering=0) as noise:
        while True:
            noise.write(bytes(4096))
report(score=1.0)
''')
matrix = Matrix(seeds=4)
said = ""
try:
    run(folder / "main.py", matrix, folder=folder / "s", concurrency=1)
except RecordError as error:
    said = str(error)
before = [(a.cell_id, a.outcome) for a in read_sweep(folder / "s").attempts]
(folder / "noise").unlink()
(folder / "emptied").touch()
after = run(folder / "main.py", matrix, folder=folder / "s", concurrency=1)
print(json.dumps({
    "said": said,
    "before": before,
    "done": after.done,
    "began": (folder / "began.txt").read_text().split(),
}))
"""


def test_a_journal_that_cannot_grow_loses_no_result(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROWING, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "journal.jsonl' cannot be written" in done.stdout
    assert "run the same command again to continue" in done.stdout


@pytest.mark.full
def test_a_full_disk_stops_the_sweep_and_what_it_ailed_is_tried_again(tmp_path: Path) -> None:
    how = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mount = 'mount -t tmpfs -o size=1m none "$1" && exec "$0" -c "$2" "$1"'
    done = subprocess.run(
        [*how, "sh", "-c", mount, sys.executable, str(tmp_path), FILLING],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "is full" in found["said"] and "run the same command again to continue" in found["said"]
    assert [outcome for _, outcome in found["before"]] == ["done", "done", "lost"]
    assert found["done"] == 4
    once = [cell for cell, outcome in found["before"] if outcome == "done"]
    assert all(found["began"].count(cell) == 1 for cell in once)
