"""The page that compares two runs finds the same differences as `seer runs diff`."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import seer.viewer
from seer.runs import Run, RunInfo, RunRecord, compare_runs, open_run

STATIC = Path(seer.viewer.__file__).parent / "static" / "data"
PROGRAM = """
import {{ readFileSync }} from "node:fs";
import {{ firstDivergence }} from {module};
const item = ({{ tool, text }}) => ({{
  type: "tool_call",
  event: {{ name: tool, arguments: {{}} }},
  result: {{ content: [{{ type: "text", text }}], is_error: false }},
}});
const pairs = JSON.parse(readFileSync(0, "utf8"));
const same = pairs.map(([tool, before, now]) =>
  firstDivergence([item({{ tool, text: before }})], [item({{ tool, text: now }})]) === -1);
console.log(JSON.stringify(same));
"""
DONE, CELL = "[done in {} s, no output]", "[cell c1]\n"
GOES_ON = "[running; {} s so far. It goes on; get_result(result_id='e7') waits for it.]\n"
PAIRS = [
    ("python", DONE.format(0.01), DONE.format(2.5), True),
    ("lab__python", CELL + DONE.format(1), CELL + DONE.format(2), True),
    ("python", CELL + DONE.format(1), "[cell c2]\n" + DONE.format(1), False),
    ("python", GOES_ON.format(3) + "x", GOES_ON.format(4) + "x", True),
    ("python", GOES_ON.format(3), GOES_ON.format(3).replace("running", "queued"), False),
    ("list_jobs", "e1: running, 3 s\ne2: ok, 10 s", "e1: running, 4 s\ne2: ok, 11 s", True),
    ("lab__list_jobs", "e1: running, 3 s", "e1: running, 4 s", True),
    ("list_jobs", "e1: running, 3 s", "e1: died, 3 s", False),
    ("list_jobs", "e1: running, 3 s", "e2: running, 3 s", False),
    ("python", "[done in 3 s] accuracy run\nx", "[done in 400 s] accuracy run\nx", False),
    ("python", DONE.format(3) + "\nx", DONE.format(400) + "\nx", False),
    ("python", DONE.format(3) + "\n", DONE.format(400) + "\n", False),
    ("python", "x\n" + DONE.format(3), "x\n" + DONE.format(400), False),
    ("python", "e1: loss, 0.93 s", "e1: loss, 0.12 s", False),
    ("python", "[running; 3 s so far]", "[running; 4 s so far]", False),
]


def record(root: Path, name: str, tool: str, text: str) -> Run:
    made = RunRecord.create(root, f"20260101-000000-{name}", meta=RunInfo())
    content = [{"type": "text", "text": text}]
    made.event({"type": "tool_call", "id": "1", "name": tool, "arguments": {}})
    made.event({"type": "tool_result", "id": "1", "name": tool, "content": content})
    made.close("completed")
    return open_run(made.run_id, root)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_and_the_command_leave_out_the_same_seconds(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for file in STATIC.glob("*.js"):
        shutil.copy(file, tmp_path)
    program = tmp_path / "program.js"
    program.write_text(PROGRAM.format(module=json.dumps("./essence.js")))
    ran = subprocess.run(
        ["node", str(program)],
        input=json.dumps([pair[:3] for pair in PAIRS]),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert not ran.returncode, ran.stderr
    page: Any = json.loads(ran.stdout)
    command = [
        compare_runs(
            record(tmp_path, f"{number:04x}aaaa", tool, before),
            record(tmp_path, f"{number:04x}bbbb", tool, now),
        ).equal
        for number, (tool, before, now, _) in enumerate(PAIRS)
    ]
    wanted = [pair[3] for pair in PAIRS]
    wrong = [PAIRS[n] for n, same in enumerate(wanted) if (page[n], command[n]) != (same, same)]
    assert not wrong, (page, command)
