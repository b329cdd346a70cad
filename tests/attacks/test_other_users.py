"""Other users of the machine reach no socket, record, token or file of a running Seer."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.attacks.other_user import kinds_below
from tests.execution.readable import copy_environment

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users"),
]
OWNER, OTHER = 64010, 65534
VIEWER = ("latex2mathml", "linkify-it-py", "markdown-it-py", "mdit-py-plugins", "nh3", "pygments",
          "starlette", "uvicorn")  # fmt: skip
HOST = """
import asyncio, json, os, sys
os.umask(0)  # whatever the user's own is, Seer's files are private
from pathlib import Path
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import create_local_session, create_notebook_session
from seer.harness import Call, Scripted, Step, run_agent
from seer.runs import RunIndex
from seer.viewer import Viewer
from seer.workspace import Workspace

async def main():
    Path("tools.py").write_text("@expose\\ndef f(x: int) -> int:\\n    'F.'\\n    return x\\n")
    with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        workspace = Workspace(libraries=[scoped.serve("tools.py")])
        with create_local_session(workspace, "work") as session, Viewer("runs") as viewer:
            session.mcp_config
            call = Call(tool="python", arguments={"code": "import tools\\ntools.f(1)"})
            steps = Scripted([Step(text="private words", calls=(call,)), Step(text="done")])
            async for event in run_agent("a private task", session=session, provider=steps):
                pass
            RunIndex("runs").list()
            state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
            told = {"state": state + "/seer", "viewer": viewer.url}
            if sys.argv[1] == "notebook":
                notebook = create_notebook_session(None, workspace)
                told["jupyter"] = notebook.jupyter_url
            print(json.dumps(told), flush=True)
            sys.stdin.readline()
            if sys.argv[1] == "notebook":
                notebook.close()

asyncio.run(main())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="users-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("starter", ["root", pytest.param("user", marks=pytest.mark.campaign)])
def test_another_user_reaches_nothing(starter: str, place: Path) -> None:
    home = place / "home"
    home.mkdir()
    home.chmod(0o755)  # so that nothing but Seer's own modes protects what is below
    python = sys.executable
    if starter == "user":
        python = str(copy_environment(place / "copy", *VIEWER, "cryptography", "cffi"))
        os.chown(home, OWNER, OWNER)
    (home / "host.py").write_text(HOST)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "SEER_PROVIDER": "local",
        "SEER_PROGRESS": "off",
        "SEER_RUNS": str(home / "runs"),
        "TMPDIR": str(home),
    }
    if starter == "root":
        # Existing packages need not be installed again.
        env["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    else:
        env["LD_LIBRARY_PATH"] = str(place / "copy" / "python" / "lib")
    host = subprocess.Popen(
        [python, "host.py", "notebook" if starter == "root" else "none"],
        cwd=home,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=None if starter == "root" else OWNER,
        group=None if starter == "root" else OWNER,
        extra_groups=None if starter == "root" else [],
    )
    assert host.stdin is not None and host.stdout is not None
    with host:
        try:
            told = json.loads(host.stdout.readline())
            tried = attack(host.pid, place, told)
        finally:
            host.stdin.close()
            host.wait(60)
    assert tried.pop() == "tried"
    assert [line for line in tried if not is_own_folder(line, home)] == []


def is_own_folder(line: str, home: Path) -> bool:
    """Whether it is the user's own working folder, where the user's umask decides the modes."""
    what, _, path = line.rpartition(" ")
    inside = Path(path)
    above_seer = what in ("list", "create in") and inside in (
        *(home, home / "runs", home / "state", home / ".cache", home / "outputs"),
    )
    names = {"work", "workspace", "host.py", "tools.py", "outputs"}
    return above_seer or (inside != home and inside.relative_to(home).parts[0] in names)


def attack(pid: int, place: Path, told: dict[str, str]) -> list[str]:
    """Let another user try everything; returns what succeeded."""
    # The project's own folder may be closed to other users.
    script = place / "other_user.py"
    shutil.copyfile(Path(__file__).with_name("other_user.py"), script)
    script.chmod(0o644)
    tree = psutil.Process(pid)
    servers = [f"{told['viewer'].partition('#')[0]}api/runs"]
    if "jupyter" in told:
        root = told["jupyter"].partition("/lab")[0]
        servers += [f"{root}/api/{name}" for name in ("kernels", "contents", "sessions")]
    paths = kinds_below(str(place / "home"))
    given: dict[str, Any] = {
        "paths": paths,
        "pids": [pid, *(child.pid for child in tree.children(recursive=True))],
        "tokens": [found for url in told.values() for found in re.findall(r"token=(.+)", url)],
        "servers": servers,
    }
    assert given["tokens"]
    assert len([kind for _, kind in paths if kind == "socket"]) >= 4
    done = subprocess.run(
        ["/usr/bin/python3", "-I", str(script)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        cwd="/",
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
