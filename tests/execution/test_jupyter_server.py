"""A compromised Jupyter server harms only itself, not the controller.

It acts as a hostile server, so it speaks the internal protocol.
"""

import asyncio
import sys
from pathlib import Path

import pytest

from seer.errors import SandboxLostError, StartError
from seer.execution.notebook import _jupyter_server
from seer.execution.notebook._edits import Edit, new_cell
from seer.execution.notebook._file import NotebookFile
from seer.execution.notebook._jupyter_jail import Spawn
from seer.execution.notebook._jupyter_server import JupyterServer
from seer.providers import Channel

pytestmark = pytest.mark.full

READY = "import sys, time; say = lambda text: print(text, flush=True); say('{\"ready\": 1}');"
EDIT = Edit(kind="insert", cell=new_cell("a", "1"))


async def no_kernel(number: int) -> Channel:
    raise SandboxLostError(f"no kernel, no socket {number}")


async def no_event(event: str) -> None:
    raise AssertionError(event)


async def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> tuple[JupyterServer, NotebookFile]:
    def prepare(home: Path, code: Path) -> Spawn:
        argv = (sys.executable, "-I", "-c", program)
        return Spawn(argv=argv, env={}, cwd=home, pass_fds=(), lab="", done=lambda: None)

    monkeypatch.setattr(_jupyter_server, "prepare", prepare)
    monkeypatch.setattr(_jupyter_server, "check_extra", lambda: None)
    monkeypatch.setattr(_jupyter_server, "_ANSWER_TIME", 1.0)
    (tmp_path / "server").mkdir()
    file = NotebookFile(tmp_path / "a.ipynb")
    server = await JupyterServer.start(
        tmp_path / "server", file, key="k", connect=no_kernel, on_event=no_event
    )
    return server, file


@pytest.mark.parametrize(
    "says",
    [
        "say('garbage')",
        "say('[]')",
        "say('{}')",
        "say('5')",
        "say('[' * 100000)",
        "say('{\"ready\": 1}')",
        "say('{\"answer\": []}')",
        "say('{\"ask\": 1}')",
        'say(\'{"ask": 1, "do": "read", "path": "/etc/shadow"}\')',
        'say(\'{"ask": 1, "do": "save", "notebook": {"cells": [5]}}\')',
        "say('x' * (1 << 20)); sys.stdout.close()",
        "pass",
    ],
)
async def test_a_server_that_lies_is_ended_and_the_notebook_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    program = f"{READY} sys.stdin.readline(); sys.stdin.readline(); {says}; time.sleep(600)"
    server, file = await start(tmp_path, monkeypatch, program)
    try:
        before = file.read()
        async with asyncio.timeout(30):
            with pytest.raises(SandboxLostError):
                await server.edit(EDIT)
            with pytest.raises(SandboxLostError):
                await server.read()
        assert not server.is_alive
        assert file.read() == before
    finally:
        await server.close()


async def test_an_answer_that_is_no_notebook_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = '[say(\'{"answer": %d, "notebook": {}}\' % n) for n in range(1, 9)]'
    program = f"{READY} sys.stdin.readline(); sys.stdin.readline(); {answers}; time.sleep(600)"
    server, _ = await start(tmp_path, monkeypatch, program)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(SandboxLostError, match="no notebook"):
                await server.read()
    finally:
        await server.close()


async def test_a_server_that_ends_at_once_tells_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys; sys.exit('x' * 100000 + ' no such module')"
    with pytest.raises(StartError, match="no such module") as caught:
        await start(tmp_path, monkeypatch, program)
    assert len(str(caught.value)) < 10_000
