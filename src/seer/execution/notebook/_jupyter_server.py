"""The controller's side of a notebook session's Jupyter server: starts it, talks to it, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from seer._redact import register_secrets
from seer._sockets import Acceptor, connect_in_thread
from seer._unix_sockets import listen
from seer.errors import MissingExtraError, SandboxLostError, StartError
from seer.execution._sockets import SocketChannel, connect_path, relay
from seer.execution.notebook._edits import Edit, Notebook
from seer.execution.notebook._file import NotebookFile, checked_notebook
from seer.execution.notebook._jupyter_jail import hand_over, prepare
from seer.providers import Channel

logger = logging.getLogger(__name__)

_NEEDED = ("jupyter_server", "jupyterlab", "jupyter_server_ydoc")
_START_TIME = 60.0
_ANSWER_TIME = 60.0
_SOCKETS = 5
"""A kernel's sockets: shell, iopub, stdin, control, heartbeat."""
_MOST = 256
"""The most connections to one socket at a time; others wait."""
_LINE = 256 * 1024 * 1024
"""The maximum bytes of one message: a whole notebook with the outputs of a person's cells."""
_LOG = 8192
"""The number of bytes at the end of its log that are kept."""
_BROKEN = (
    *(AttributeError, LookupError, RecursionError, TypeError, ValueError),
    asyncio.InvalidStateError,
)
"""The exceptions that a malformed message of the server causes."""

Connect = Callable[[int], Awaitable[Channel]]
OnEvent = Callable[[str], Coroutine[Any, Any, object]]


def check_extra() -> None:
    """Raise if a package that the Jupyter server needs is not installed.

    Raises:
        MissingExtraError: With the command that installs it.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"a notebook in the browser needs {', '.join(missing)}: "
            "pip install 'seer-interp[notebook]'"
        )


class JupyterServer:
    """A running server for one notebook and one kernel."""

    def __init__(self, folder: Path, file: NotebookFile, on_event: OnEvent) -> None:
        self._home, self._code = folder / "home", folder / "code"
        self._file = file
        self._token = secrets.token_urlsafe(24)
        register_secrets([self._token])  # a URL that is pasted into a prompt would be recorded
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._acceptors: list[Acceptor] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._logging: asyncio.Task[None] | None = None
        self._log = bytearray()
        self._event: asyncio.Task[object] | None = None
        self._over = False
        self.url = ""

    @classmethod
    async def start(
        cls, folder: Path, file: NotebookFile, *, key: str, connect: Connect, on_event: OnEvent
    ) -> JupyterServer:
        """Start a server and wait until it answers.

        Args:
            folder: An empty private folder for it.
            file: The notebook, the only file that the server shows.
            key: The kernel's connection key.
            connect: Connects to one of the kernel's five sockets.
            on_event: Called with `interrupt` or `restart` when the person asks for it.

        Raises:
            MissingExtraError: The extra `notebook` is not installed.
            StartError: It did not start; the message has the end of its log.
        """
        check_extra()
        self = cls(folder, file, on_event)
        for part in (self._home, self._code):
            part.mkdir(mode=0o700)
        try:
            for number in range(1, _SOCKETS + 1):
                self._offer(self._kernel_socket(number), lambda number=number: connect(number))
            web = socket.create_server(("127.0.0.1", 0), backlog=128)
            port: int = web.getsockname()[1]
            self._offer(web, self._dial_server)
            await self._spawn(key)
            async with asyncio.timeout(_START_TIME):
                await self._ready
        except (TimeoutError, ConnectionError):
            await self.close()
            log = bytes(self._log).decode(errors="replace")
            raise StartError("jupyter", f"the Jupyter server did not start\n{log}") from None
        except BaseException:
            await self.close()
            raise
        self.url = f"http://127.0.0.1:{port}/lab/tree/{file.path.name}?token={self._token}"
        return self

    async def edit(self, edit: Edit) -> None:
        """Apply an edit to the shared document.

        Raises:
            LookupError: The cell no longer exists.
            SandboxLostError: The server is gone.
        """
        await self._ask({"edit": vars(edit)})

    async def read(self) -> Notebook:
        """The shared document as it is now.

        Raises:
            SandboxLostError: The server is gone.
        """
        try:
            return checked_notebook((await self._ask({})).get("notebook"))
        except ValueError as error:
            raise await self._lose(f"sent no valid notebook: {error}") from None

    @property
    def is_alive(self) -> bool:
        """Whether the server runs and answers."""
        return not self._over and self._process is not None and self._process.returncode is None

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
        if self._logging is not None:
            # Read its last output. Without the timeout, a process that it left behind could keep
            # this waiting, because it holds the pipe open.
            await asyncio.wait({self._logging}, timeout=1)
        # A person's event can lead here; its task must not cancel itself.
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for acceptor in self._acceptors:
            await acceptor.close()

    def _kernel_socket(self, number: int) -> socket.socket:
        listener = listen(self._home / f"k-{number}", 16)
        hand_over(self._home / f"k-{number}")
        return listener

    def _offer(self, listener: socket.socket, reach: Callable[[], Awaitable[Channel]]) -> None:
        """Relay connections to the socket that `reach` connects to."""
        self._acceptors.append(Acceptor(listener, partial(_relay, reach), limit=_MOST))

    async def _dial_server(self) -> Channel:
        # Resolved beneath the folder, because the server can write to the folder.
        connect = partial(connect_path, self._home / "http")
        return SocketChannel(await connect_in_thread(connect))

    async def _spawn(self, key: str) -> None:
        spawn = await asyncio.to_thread(prepare, self._home, self._code)
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *spawn.argv,
                cwd=spawn.cwd,
                env=spawn.env,
                pass_fds=spawn.pass_fds,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE,
                start_new_session=True,
            )
        finally:
            spawn.done()
        self._listening = asyncio.create_task(self._listen(process))
        self._keep(self._listening)
        self._logging = asyncio.create_task(self._read_log(process))
        self._keep(self._logging)
        settings = {"token": self._token, "key": key, "lab": spawn.lab}
        await self._send({**settings, "notebook": self._file.path.name})

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(_LOG):
            self._log += data
            del self._log[:-_LOG]
            await asyncio.sleep(0)  # a server that never stops logging must not block the loop

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Receive until the server ends or sends a malformed message."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                await self._receive(json.loads(line))
        except _BROKEN as error:
            # The server reads what a hostile kernel sends, so it may be compromised.
            self._end(f"it broke its protocol: {error!r}")
        finally:
            self._over = True
            lost = SandboxLostError("the Jupyter server has ended")
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(lost)
            if not self._ready.done():
                self._ready.set_exception(ConnectionError("it ended"))

    def _end(self, why: str) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            logger.error("killing the Jupyter server: %s", why)
            self._process.kill()
        self._over = True

    async def _receive(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set_result(None)
        elif "event" in message:
            if self._event is None or self._event.done():
                self._event = asyncio.create_task(self._on_event(message["event"]))
                self._keep(self._event)
        elif "ask" in message:
            await self._reply(message)
        else:
            answer = self._answers.pop(message["answer"], None)
            if answer is not None and not answer.done():
                answer.set_result(message)
        await asyncio.sleep(0)

    async def _reply(self, request: dict[str, Any]) -> None:
        """Read or write the notebook's file for the server, which cannot reach it."""
        try:
            reply = await asyncio.to_thread(_serve_file, self._file, request)
        except OSError as error:
            logger.warning("the notebook's file %s failed: %s", self._file.path, error)
            reply = {"error": str(error)}
        await self._send({"reply": request["ask"], **reply})

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self.is_alive:
            raise await self._lose("has ended")
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_ANSWER_TIME):
                await self._send({"id": number, **request})
                message = await answer
        except TimeoutError:
            raise await self._lose(f"gave no answer within {_ANSWER_TIME:g} s") from None
        finally:
            self._answers.pop(number, None)
        if "missing" in message:
            raise LookupError(message["missing"])
        if "error" in message:
            raise await self._lose(f"failed: {message['error']}")
        return message

    async def _lose(self, why: str) -> SandboxLostError:
        """End the server, and return the error that says why.

        The server's last requests may still be in the pipe. This waits until they are handled, so
        that a save among them does not overwrite what the caller writes to the file next.
        """
        self._end(f"it {why}")
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=_ANSWER_TIME)
        return SandboxLostError(f"the Jupyter server {why}")

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _relay(reach: Callable[[], Awaitable[Channel]], connection: socket.socket) -> None:
    near = SocketChannel(connection)
    try:
        far = await reach()
    except (SandboxLostError, OSError):
        return  # no kernel runs now; the server's client retries
    else:
        await relay(near, far)
    finally:
        await near.close()


def _serve_file(file: NotebookFile, request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "stat":
            return {"modified": file.modified()}
        case "load":
            # The time is read first, so that a file that changes in between is loaded again.
            modified = file.modified()
            return {"modified": modified, "notebook": file.read()}
        case "save":
            file.replace(checked_notebook(request["notebook"]))
            return {"modified": file.modified()}
        case unknown:
            raise ValueError(f"the Jupyter server asked for {unknown!r}")
