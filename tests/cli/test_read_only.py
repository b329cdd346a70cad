"""Records in a folder that cannot be written to can be listed, shown, viewed and shared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seer.runs import RunRecord, new_run_id

pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]

LOOK = """
import subprocess, sys, urllib.request
from pathlib import Path

root, run, target = sys.argv[1:]
try:
    (Path(root) / "new").touch()
    raise SystemExit("the folder can be written to")
except OSError:
    pass
seer = [sys.executable, "-m", "seer"]
for command in (["runs", "list"], ["runs", "show", run], ["view", "--share", run, "-o", target]):
    done = subprocess.run([*seer, *command, "--runs", root], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, (command, done.stderr)
    assert command[0] == "view" or "green" in done.stdout or "colour" in done.stdout, done.stdout
command = [*seer, "view", run, "--no-browser", "--runs", root]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as page:
    try:
        address = next(line.strip() for line in page.stdout if "http://" in line)
        base, _, token = address.partition("#token=")
        token = token.partition("&")[0]
        for path in ("api/runs", f"api/runs/{run}"):
            request = urllib.request.Request(base.partition("?")[0].rstrip("/") + "/" + path)
            request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert run in answer.read().decode()
    finally:
        page.terminate()
assert Path(target).stat().st_size > 10_000
"""


def test_a_read_only_folder_is_listed_and_viewed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    record = RunRecord.create(root, new_run_id(), meta={"provider": "scripted", "task": "colour?"})
    started = {"type": "run_started", "provider": "scripted", "model": None, "task": "colour?"}
    record.event({**started, "run_id": record.run_id, "system_prompt": ""})
    record.event({"type": "text", "text": "It is green."})
    record.close("completed")
    look = [sys.executable, "-c", LOOK, str(root), record.run_id, str(tmp_path / "run.html")]
    if os.geteuid() == 0:
        # Root may write to any folder but one of a filesystem that is mounted so.
        mount = f'mount --bind {root} {root} && mount -o remount,ro,bind {root} && exec "$0" "$@"'
        look = ["unshare", "--mount", "/bin/sh", "-c", mount, *look]
    else:
        root.chmod(0o555)
    done = subprocess.run(look, capture_output=True, text=True, timeout=180)
    root.chmod(0o755)
    assert done.returncode == 0, done.stdout + done.stderr
