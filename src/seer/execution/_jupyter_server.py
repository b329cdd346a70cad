"""The controller's side of a notebook session's Jupyter server: start it, talk to it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import logging
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from seer.errors import MissingExtraError, SandboxLostError, StartError
from seer.execution._dial import SocketChannel
from seer.execution._notebook_edits import Edit, Notebook
from seer.execution._reverse import relay
from seer.providers import Channel

logger = logging.getLogger(__name__)

_NEEDED = ("jupyter_server", "jupyterlab", "jupyter_server_ydoc")
_START_TIME = 60.0
_SOCKETS = 5
"""A kernel's sockets: shell, iopub, stdin, control, heartbeat."""

Dial = Callable[[int], Awaitable[Channel]]
OnEvent = Callable[[str], Awaitable[object]]


def check_extra() -> None:
    """Raise when what a Jupyter server needs is not installed.

    Raises:
        MissingExtraError: With the command that installs it.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"a notebook in the browser needs {', '.join(missing)}: pip install 'seer[notebook]'"
        )


class JupyterServer:
    """A running server for one notebook and one kernel."""

    def __init__(self, folder: Path, token: str, on_event: OnEvent) -> None:
        self._folder = folder
        self._token = token
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.url = ""

    @classmethod
    async def start(
        cls, folder: Path, notebook: Path, *, key: str, dial: Dial, on_event: OnEvent
    ) -> JupyterServer:
        """Start a server and wait until it answers.

        Args:
            folder: An empty private folder for it.
            notebook: The notebook; its folder is all that the server shows.
            key: The kernel's connection key.
            dial: Connects to one of the kernel's five sockets.
            on_event: Called with `interrupt` and `restart` when the person asks for it.

        Raises:
            MissingExtraError: The extra `notebook` is not installed.
            StartError: It did not start; the message has the end of its log.
        """
        check_extra()
        self = cls(folder, secrets.token_urlsafe(24), on_event)
        try:
            for number in range(1, _SOCKETS + 1):
                await self._offer_socket(number, dial)
            await self._spawn(notebook, key)
            async with asyncio.timeout(_START_TIME):
                port = await self._port
        except (TimeoutError, ConnectionError):
            log = self._log_tail()
            await self.close()
            raise StartError("jupyter", f"the Jupyter server did not start\n{log}") from None
        except BaseException:
            await self.close()
            raise
        self.url = f"http://127.0.0.1:{port}/lab/tree/{notebook.name}?token={self._token}"
        return self

    async def edit(self, edit: Edit) -> None:
        """Apply an edit to the shared document.

        Raises:
            LookupError: The cell is not there any more.
            SandboxLostError: The server is gone.
        """
        await self._ask({"edit": json.loads(edit.to_json())})

    async def read(self) -> Notebook:
        """The shared document as it is now.

        Raises:
            SandboxLostError: The server is gone.
        """
        return (await self._ask({}))["notebook"]

    @property
    def is_alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.returncode is None

    async def close(self) -> None:
        """End the server. Closing twice is harmless."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    async def _offer_socket(self, number: int, dial: Dial) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Through the folder's descriptor, because a socket's address is at most 107 bytes.
            listener.bind(f"/proc/self/fd/{folder}/k-{number}")
        finally:
            os.close(folder)
        listener.listen(16)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._keep(asyncio.create_task(self._accept(listener, number, dial)))

    async def _accept(self, listener: socket.socket, number: int, dial: Dial) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            near = SocketChannel(connection)
            task = asyncio.create_task(self._relay(near, number, dial))
            # Also when the task is cancelled before it has begun.
            task.add_done_callback(lambda _, near=near: near.shut())
            self._keep(task)

    async def _relay(self, near: SocketChannel, number: int, dial: Dial) -> None:
        try:
            far = await dial(number)
        except SandboxLostError:
            await near.close()  # no kernel just now; the server's client tries again by itself
            return
        await relay(near, far)

    async def _spawn(self, notebook: Path, key: str) -> None:
        home = str(self._folder)
        # Jupyter and its libraries leave folders where temporary files are.
        (self._folder / "tmp").mkdir(mode=0o700, exist_ok=True)
        env = {
            "HOME": home,
            "TMPDIR": f"{home}/tmp",
            "PATH": os.environ.get("PATH", os.defpath),
            "JUPYTER_NO_CONFIG": "1",
            "JUPYTER_CONFIG_DIR": f"{home}/config",
            "JUPYTER_DATA_DIR": f"{home}/data",
            "JUPYTER_RUNTIME_DIR": f"{home}/runtime",
            "JUPYTERLAB_SETTINGS_DIR": f"{home}/settings",
            "JUPYTERLAB_WORKSPACES_DIR": f"{home}/workspaces",
            "PYTHONUNBUFFERED": "1",
        }
        with (self._folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "seer.execution._jupyter",
                cwd=self._folder,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=1 << 30,
                start_new_session=True,
            )
        settings = {
            "token": self._token,
            "root": str(notebook.parent),
            "notebook": notebook.name,
            "key": key,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(settings).encode() + b"\n")
        self._keep(asyncio.create_task(self._listen(self._process)))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            message: dict[str, Any] = json.loads(line)
            if "ready" in message:
                self._port.set_result(message["ready"])
            elif "event" in message:
                self._keep(asyncio.ensure_future(self._on_event(message["event"])))
            else:
                answer = self._answers.pop(message["answer"], None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        lost = SandboxLostError("the Jupyter server has ended")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(lost)
        if not self._port.done():
            self._port.set_exception(ConnectionError("it ended"))

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            raise SandboxLostError("the Jupyter server has ended")
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"id": number, **request}).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        message = await answer
        if "missing" in message:
            raise LookupError(message["missing"])
        if "error" in message:
            raise SandboxLostError(f"the Jupyter server failed: {message['error']}")
        return message

    def _keep(self, task: asyncio.Future[Any]) -> None:
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text(errors="replace")[-2000:]
        return ""
