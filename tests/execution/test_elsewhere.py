"""Saved notebooks in other programs, and kernels of other versions in sessions.

It writes notebooks as sessions do, without starting a session for each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seer.execution
from seer.execution import create_notebook_session

pytestmark = pytest.mark.full

KERNEL = Path(seer.execution.__file__).parent / "_inside" / "kernel_main.py"
BROKEN = """
import threading
import ipykernel.kernelapp

def broken(self, context):
    threading.Thread(target=threading.Event().wait).start()
    raise TypeError("this version is another one")

ipykernel.kernelapp.IPKernelApp.init_iopub = broken
"""


def settings(folder: Path) -> str:
    return json.dumps({"folder": str(folder), "key": "k", "path": []}) + "\n"


def test_a_kernel_that_cannot_come_up_ends_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    folder = tmp_path / "kernel"
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, str(KERNEL)],
        input=settings(folder),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "TypeError: this version is another one" in ended.stderr


def test_a_saved_notebook_runs_and_converts_with_plain_jupyter(tmp_path: Path) -> None:
    with create_notebook_session(
        notebook_dir=tmp_path / "notes", workspace_dir=tmp_path / "work"
    ) as session:
        session.add_cell("print(6 * 7)")
        path = session.notebook_path
    for arguments in (["--to", "notebook", "--execute", "--inplace"], ["--to", "script"]):
        subprocess.run(
            [sys.executable, "-m", "nbconvert", *arguments, str(path)],
            env={**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path)},
            capture_output=True,
            timeout=120,
            check=True,
        )
    (cell,) = json.loads(path.read_text())["cells"]
    assert cell["outputs"][0]["text"] in ("42\n", ["42\n"])
    assert "print(6 * 7)" in path.with_suffix(".py").read_text()


TALK = """
import os, subprocess, sys
from jupyter_client import BlockingKernelClient
folder = sys.argv[1]
os.chdir(folder)
client = BlockingKernelClient(connection_file="connection.json")
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=60)
reply = client.execute_interactive("import ipykernel; print(ipykernel.__version__)", timeout=60,
                                   allow_stdin=False)
print(reply["content"]["status"])
client.stop_channels()
"""


@pytest.mark.campaign
@pytest.mark.parametrize("version", ["6.29.5", "6.30.1"])
def test_an_older_kernel_comes_up_and_runs_cells(tmp_path: Path, version: str) -> None:
    site, folder = tmp_path / "site", tmp_path / "kernel"
    folder.mkdir()
    install = ["-m", "pip", "install", "-q", "--target", str(site), f"ipykernel=={version}"]
    subprocess.run([sys.executable, *install], check=True, capture_output=True, timeout=300)
    kernel = subprocess.Popen(
        [sys.executable, str(KERNEL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    try:
        assert kernel.stdin is not None and kernel.stdout is not None
        kernel.stdin.write(settings(folder).encode())
        kernel.stdin.flush()
        assert kernel.stdout.readline() == b"seer-kernel-ready\n"
        talk = [sys.executable, "-c", TALK, str(folder)]
        said = subprocess.run(talk, capture_output=True, text=True, timeout=120, check=True)
        assert said.stdout.split() == [version, "ok"]
    finally:
        kernel.kill()
        kernel.communicate()
