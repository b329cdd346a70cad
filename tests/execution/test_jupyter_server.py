"""A compromised Jupyter server harms only itself, not the controller.

The tests act as a hostile server, or as its controller, so they speak the internal protocol.
"""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from seer.errors import SandboxLostError, StartError
from seer.execution.notebook import _jupyter_server
from seer.execution.notebook._edits import Edit, new_cell
from seer.execution.notebook._file import NotebookFile
from seer.execution.notebook._jupyter_jail import Spawn
from seer.execution.notebook._jupyter_server import JupyterServer
from seer.execution.notebook._session import NotebookStore
from seer.providers import Channel

pytestmark = pytest.mark.full

READY = "import sys, time; say = lambda text: print(text, flush=True); say('{\"ready\": 1}');"
EDIT = Edit(kind="insert", cell=new_cell("a", "1"))


async def no_kernel(number: int) -> Channel:
    raise SandboxLostError(f"no kernel, no socket {number}")


async def no_event(event: str) -> None:
    raise AssertionError(event)


async def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, answer_time: float = 60.0
) -> tuple[JupyterServer, NotebookFile]:
    def prepare(home: Path, code: Path) -> Spawn:
        argv = (sys.executable, "-I", "-c", program)
        return Spawn(argv=argv, env={}, cwd=home, pass_fds=(), lab="", done=lambda: None)

    monkeypatch.setattr(_jupyter_server, "prepare", prepare)
    monkeypatch.setattr(_jupyter_server, "check_extra", lambda: None)
    monkeypatch.setattr(_jupyter_server, "_ANSWER_TIME", answer_time)
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
    server, file = await start(tmp_path, monkeypatch, program, answer_time=1.0)
    try:
        before = file.read()
        async with asyncio.timeout(60):
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
        async with asyncio.timeout(60):
            with pytest.raises(SandboxLostError, match="no valid notebook"):
                await server.read()
    finally:
        await server.close()


@pytest.mark.parametrize("says", ["sys.exit()", 'say(\'{"answer": 1, "error": "no space left"}\')'])
async def test_of_a_server_that_failed_nothing_is_left_and_the_file_has_the_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    program = f"{READY} sys.stdin.readline(); sys.stdin.readline(); {says}; time.sleep(600)"
    server, file = await start(tmp_path, monkeypatch, program)
    store = NotebookStore(file.path)
    store.server = server
    async with asyncio.timeout(60):
        await store.edit(EDIT)
    assert [cell["id"] for cell in (await store.read())["cells"]] == ["a"]
    address = urlsplit(server.url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", address.port or 0)).close()
    assert not server.is_alive


async def test_a_server_that_ends_at_once_tells_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys; sys.exit('x' * 100000 + ' no such module')"
    with pytest.raises(StartError, match="no such module") as caught:
        await start(tmp_path, monkeypatch, program)
    assert len(str(caught.value)) < 10_000


CANCELS = """
import asyncio
from seer.execution.notebook.jupyter.controller import ControllerPipe

async def main():
    controller = ControllerPipe()
    listening = asyncio.create_task(controller.listen())
    saving = asyncio.create_task(controller.ask({"do": "save"}))
    await asyncio.sleep(0)
    saving.cancel()
    await asyncio.wait([saving])
    controller.say({"cancelled": saving.cancelled()})
    asking = asyncio.create_task(controller.ask({"do": "stat"}))
    await asyncio.wait([listening, asking], return_when=asyncio.FIRST_COMPLETED)
    controller.say({"got": asking.result() if asking.done() else repr(listening.exception())})

asyncio.run(main())
"""


def test_a_reply_to_a_cancelled_request_does_not_end_the_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CANCELS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None

        def send(message: dict[str, Any]) -> None:
            assert server.stdin is not None
            server.stdin.write(json.dumps(message) + "\n")
            server.stdin.flush()

        send({})
        lines = (json.loads(line) for line in server.stdout)
        assert next(lines) == {"ask": 1, "do": "save"}
        assert next(lines) == {"cancelled": True}
        assert next(lines) == {"ask": 2, "do": "stat"}
        send({"reply": 1, "modified": 1})
        send({"reply": 2, "modified": 2})
        assert next(lines) == {"got": {"reply": 2, "modified": 2}}
