"""One IPython kernel in a machine, driven from the controller over its own sockets.

The kernel runs an agent's code: everything that it sends is checked, bounded and treated as text.
"""

import asyncio
import contextlib
import json
import logging
import signal
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from seer.errors import ProtocolError, SandboxLostError, SandboxStateError, StartError
from seer.execution._capture import Capture, tidy
from seer.execution._result import ExecutionError
from seer.execution._sockets import connect_in_machine
from seer.execution.kernel._messages import Message, Signer
from seer.execution.kernel._zmtp import ZmtpConnection
from seer.providers import Machine, Process

logger = logging.getLogger(__name__)

MESSAGE_LIMIT = 16 * 1024 * 1024
"""The largest message in bytes; parsing one must not delay the controller."""
_READY = b"seer-kernel-ready\n"
_LATE = 8
"""The number of ended executions whose threads can still print into their results."""
_SHELL, _IOPUB = "z-1", "z-2"
_MAX_FORMS = 20
_MAX_NAME = 200
"""Characters of a form's or a display's name."""
_MAX_FRAMES = 100
_MAX_TRACEBACK = 100_000
_MAX_MESSAGE = 10_000


class KernelDied(Exception):
    """The kernel is gone; the message says how it ended, if that is known."""


@dataclass
class _Request:
    """An execution in progress."""

    capture: Capture
    done: asyncio.Future[str]
    """Gets the reply's status once the kernel is also idle."""
    status: str | None = None
    idle: bool = False

    def settle(self) -> None:
        if self.status is not None and self.idle and not self.done.done():
            self.done.set_result(self.status)


class Kernel:
    """A running kernel. The caller must run one execution at a time."""

    def __init__(self, process: Process, signer: Signer, folder: str) -> None:
        self.folder = folder
        """The folder in the machine that holds its sockets."""
        self._process = process
        self._signer = signer
        self._shell: ZmtpConnection | None = None
        self._iopub: ZmtpConnection | None = None
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._infos: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._tail = bytearray()
        self._ignored = 0
        self._death: str | None = None
        self._dead = asyncio.Event()

    @classmethod
    async def start(
        cls,
        machine: Machine,
        *,
        folder: str,
        launcher: str,
        path: Sequence[str],
        env: Mapping[str, str],
        signer: Signer,
        patience: float = 120,
    ) -> "Kernel":
        """Start a kernel and wait until it answers.

        Args:
            machine: Where it runs.
            folder: A folder in the machine for its sockets; it must exist.
            launcher: The path of `kernel_main.py` in the machine.
            path: Entries for the front of the kernel's `sys.path`.
            env: Added to its environment.
            signer: Makes and checks the messages.
            patience: Seconds to wait for its first answer.

        Raises:
            StartError: It did not start; the message has what it printed.
            SandboxLostError: The machine is gone.
        """
        # The key goes over standard input, because every user of the host can read arguments.
        settings = json.dumps({"folder": folder, "key": signer.key, "path": list(path)})
        process = await machine.spawn([machine.layout.python, launcher], env=env, stdin=True)
        self = cls(process, signer, folder)
        try:
            async with asyncio.timeout(patience):
                await self._hand_over(settings)
                await self._connect(machine, folder)
        except TimeoutError:
            await self.close()
            raise StartError(
                "kernel", f"no answer from the kernel within {patience:g} s\n{self._printed()}"
            ) from None
        except KernelDied as error:
            await self.close()
            raise StartError("kernel", f"{error}\n{self._printed()}") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def execute(self, code: str, capture: Capture, *, tool_call: str = "") -> str:
        """Run a cell to its end; returns `ok`, `error` or `aborted`.

        Args:
            code: The cell.
            capture: Takes its output.
            tool_call: The tool call that it belongs to; empty for none.

        Raises:
            KernelDied: The kernel ended during the cell, or before it.
        """
        self._check_alive()
        content: dict[str, object] = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        metadata = {"seer_tool_call": tool_call}
        message_id, frames = self._signer.request("execute_request", content, metadata)
        request = _Request(capture, asyncio.get_running_loop().create_future())
        self._requests[message_id] = request
        while len(self._requests) > _LATE:
            self._requests.popitem(last=False)
        assert self._shell is not None
        try:
            await self._shell.send(frames)
        except SandboxLostError:
            await self._wait_for_death()
            self._check_alive()
        return await request.done

    async def interrupt(self) -> None:
        """Send the running cell a keyboard interrupt."""
        with contextlib.suppress(SandboxLostError):
            await self._process.signal(signal.SIGINT)

    @property
    def death(self) -> str | None:
        """How the kernel ended; None while it lives."""
        return self._death

    async def close(self) -> None:
        """Kill the kernel and all it started. Closing twice is harmless."""
        if self._ignored > 1:
            logger.warning("ignored %d messages of the kernel in all", self._ignored)
            self._ignored = 1
        self._die("the kernel was stopped")
        with contextlib.suppress(SandboxLostError):
            await self._process.kill()
            await self._process.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in (self._shell, self._iopub):
            if connection is not None:
                await connection.close()

    async def _hand_over(self, settings: str) -> None:
        try:
            await self._process.write(settings.encode() + b"\n")
            await self._process.close_stdin()
        except SandboxStateError:
            logger.debug("the kernel ended before it had read its settings")

    async def _connect(self, machine: Machine, folder: str) -> None:
        self._spawn(self._watch_output())
        self._spawn(self._watch_exit())
        await self._wait_for(self._ready)
        try:
            self._iopub = await self._open(machine, f"{folder}/{_IOPUB}", "SUB")
            await self._iopub.subscribe()
            self._shell = await self._open(machine, f"{folder}/{_SHELL}", "DEALER")
            self._spawn(self._pump(self._iopub, self._on_iopub))
            self._spawn(self._pump(self._shell, self._on_shell))
            await self._greet()
        except (SandboxLostError, ProtocolError) as error:
            await self._wait_for_death()
            raise KernelDied(self._death or f"cannot speak to the kernel: {error}") from None

    async def _greet(self) -> None:
        """Ask for the kernel's info until it publishes a status for one of the requests.

        The status shows that the subscription is in force, so no output of the first cell is lost.
        """
        assert self._shell is not None
        while True:
            message_id, frames = self._signer.request("kernel_info_request", {})
            event = self._infos[message_id] = asyncio.Event()
            await self._shell.send(frames)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    await self._wait_for(event)
                    self._infos.clear()
                    return

    async def _open(self, machine: Machine, path: str, kind: str) -> ZmtpConnection:
        return await ZmtpConnection.open(
            await connect_in_machine(machine, path), kind, limit=MESSAGE_LIMIT
        )

    async def _pump(self, connection: ZmtpConnection, handle: Callable[[Message], None]) -> None:
        try:
            while True:
                frames = await connection.receive()
                if frames is None:
                    self._too_large()
                    continue
                try:
                    handle(self._signer.read(frames))
                except ProtocolError as error:
                    self._ignore(error)
                if connection.has_more:
                    # A kernel that never stops printing must not block the loop.
                    await asyncio.sleep(0)
        except SandboxLostError:
            await self._wait_for_death()
            self._die("the kernel closed its sockets")
        except ProtocolError as error:
            self._die(f"the kernel broke its protocol: {error}")

    def _ignore(self, error: ProtocolError) -> None:
        """Log the first message that is invalid, and count the others: an agent can send many."""
        if self._ignored == 0:
            logger.warning("ignored a message of the kernel: %s; more are only counted", error)
        self._ignored += 1

    def _on_shell(self, message: Message) -> None:
        request = self._requests.get(message.parent)
        if request is not None and message.kind == "execute_reply":
            status = message.content.get("status")
            request.status = status if isinstance(status, str) else "error"
            request.settle()

    def _on_iopub(self, message: Message) -> None:
        if message.kind == "status":
            idle = message.content.get("execution_state") == "idle"
            if idle and message.parent in self._infos:
                self._infos[message.parent].set()
            request = self._requests.get(message.parent)
            if idle and request is not None:
                request.idle = True
                request.settle()
            return
        request = self._requests.get(message.parent)
        if request is not None:
            publish(message, request.capture)

    def _too_large(self) -> None:
        if self._requests:
            latest = next(reversed(self._requests.values()))
            latest.capture.note(
                f"An output larger than {MESSAGE_LIMIT >> 20} MiB was left out; "
                "save such data to a file instead."
            )

    async def _watch_output(self) -> None:
        """Read what the process prints outside of cells; the last part can explain a crash."""
        with contextlib.suppress(SandboxLostError):
            async for _, data in self._process.output():
                self._tail += data
                del self._tail[:-8192]
                if _READY in self._tail:
                    self._ready.set()
                await asyncio.sleep(0)

    async def _watch_exit(self) -> None:
        try:
            code = await self._process.wait()
        except SandboxLostError as error:
            self._die(f"the machine is gone: {error}")
            return
        self._die(describe_exit("kernel", code))

    async def _wait_for_death(self) -> None:
        """Wait for the process to end, which explains more than a closed socket."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._dead.wait()

    async def _wait_for(self, event: asyncio.Event) -> None:
        """Wait for `event`, or raise when the kernel dies first."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._dead.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not event.is_set():
            self._check_alive()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise KernelDied(self._death)

    def _die(self, how: str) -> None:
        if self._death is not None:
            return
        self._death = how
        self._dead.set()
        for request in self._requests.values():
            if not request.done.done():
                request.done.set_exception(KernelDied(how))

    def _printed(self) -> str:
        return bytes(self._tail).replace(_READY, b"").decode(errors="replace").strip()

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(coroutine))


def publish(message: Message, capture: Capture) -> None:
    """Add a message that the kernel publishes while a cell runs to the cell's output.

    Every type is checked; a message that breaks the protocol is ignored.
    """
    content = message.content
    match message.kind:
        case "stream":
            text = content.get("text")
            if isinstance(text, str):
                capture.stream("stderr" if content.get("name") == "stderr" else "stdout", text)
        case "display_data":
            capture.rich(_forms(content), display_id=_display_id(content))
        case "execute_result":
            capture.rich(_forms(content), is_result=True, display_id=_display_id(content))
        case "update_display_data":
            capture.update(_forms(content), _display_id(content))
        case "error":
            capture.fail(_error(content))
        case "clear_output":
            capture.clear()
        case "execute_input":
            count = content.get("execution_count")
            if isinstance(count, int):
                capture.execution_count = count
        case _:
            pass


def _forms(content: Mapping[str, object]) -> dict[str, str]:
    data = _dict(content.get("data"))
    forms: dict[str, str] = {}
    for mime, value in list(data.items())[:_MAX_FORMS]:
        if len(mime) > _MAX_NAME:
            continue
        if isinstance(value, str):
            forms[mime] = value
        elif isinstance(value, list):
            pieces = cast("list[object]", value)
            if all(isinstance(piece, str) for piece in pieces):
                forms[mime] = "".join(cast("list[str]", pieces))
        elif isinstance(value, dict):
            forms[mime] = json.dumps(value)
    return forms


def _display_id(content: Mapping[str, object]) -> str:
    value = _dict(content.get("transient")).get("display_id")
    return value if isinstance(value, str) and len(value) <= _MAX_NAME else ""


def _error(content: Mapping[str, object]) -> ExecutionError:
    name, message = content.get("ename"), content.get("evalue")
    lines = content.get("traceback")
    frames = cast("list[object]", lines)[:_MAX_FRAMES] if isinstance(lines, list) else []
    text = "\n".join(frame for frame in frames if isinstance(frame, str))
    return ExecutionError(
        name=tidy(name[:200]) if isinstance(name, str) else "Error",
        message=tidy(message[:_MAX_MESSAGE]) if isinstance(message, str) else "",
        traceback=tidy(text[-_MAX_TRACEBACK:]).strip("\n"),
    )


def _dict(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def describe_exit(what: str, code: int) -> str:
    """A sentence about how a process ended."""
    if code >= 0:
        return f"the {what} exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return f"the {what} was killed (SIGKILL), most likely for using too much memory"
    return f"the {what} was ended by {name}"
