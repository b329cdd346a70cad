"""One interface that a scoped sandbox serves: start it, open callers, reload and stop it.

This is the controller's side. `seer.rpc.server` runs in the sandbox. An agent's jail gets one
socket per caller and never sees the control socket.
"""

import asyncio
import contextlib
import errno
import json
import logging
import re
import secrets
import signal
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seer._redact import Redactor
from seer.console import say
from seer.console._output import is_watched
from seer.environment.models._provenance import fingerprint
from seer.environment.serving._description import CopyDescription
from seer.environment.serving._request import ServeRequest
from seer.errors import (
    ConfigError,
    InterfaceDiedError,
    ModelError,
    RemoteFileError,
    ServeError,
    visible,
)
from seer.providers import Channel, Machine, Process
from seer.providers.client._interfaces import HostSocket
from seer.rpc._bundles import interface_files
from seer.rpc._control import CallFollow, GateControl
from seer.rpc.interface._budget import Budget
from seer.rpc.interface._load import NO_NETWORK
from seer.rpc.interface._schema import Schema
from seer.workspace._gate import Dependent

logger = logging.getLogger(__name__)

_EXIT_CODE_TIME = 10.0
"""Seconds to wait for the exit code of an interface whose sockets are closed."""

GATE_FILES = "/seer/gate"
"""Where the server's bundle is mounted in a scoped machine."""

_LAST_LINES = 50

_served: Counter[str] = Counter()
"""How many interfaces of each name this process has served."""


class CallerSocket:
    """One caller's socket on this host (a `seer.workspace` gate socket)."""

    def __init__(self, name: str, host_socket: HostSocket, control: GateControl) -> None:
        self.name = name
        self._socket = host_socket
        self._control = control

    @property
    def path(self) -> Path:
        """The Unix socket. Every connection to it acts as this caller."""
        return self._socket.path

    @property
    def address(self) -> str:
        """The address of this socket for the gate's client."""
        return f"frames:path:{self.path}" if self._socket.relayed else f"path:{self.path}"

    async def aclose(self) -> None:
        """End the caller: its calls are cancelled, its handles freed, the socket removed."""
        # If the gate is gone, its callers have already ended.
        with contextlib.suppress(ConnectionError):
            await self._control.remove_caller(self.name)
        await self._socket.close()


class Served:
    """A served interface (a `seer.workspace` gate)."""

    def __init__(self, request: ServeRequest, machine: Machine, folder: str) -> None:
        self.request = request
        self.control = GateControl(self._connect)
        self._machine = machine
        self.folder = folder
        """Where the interface's sockets and files are, in the machine."""
        self._process: Process | None = None
        self._draining: asyncio.Task[int] | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._on_line: Callable[[str], None] | None = None
        self._callers = 0
        self._mark = ""
        self._listening = asyncio.Event()
        self.dependents: weakref.WeakSet[Dependent] = weakref.WeakSet()
        """Objects whose `owner_ends` is called before the interface ends."""
        self.schema = Schema(request.name, {})
        self.warnings: tuple[str, ...] = ()
        _served[request.name] += 1
        self.number = _served[request.name]
        """Which of the interfaces of this name it is that this process has served, from 1. The
        records of runs tell them apart by it."""

    @classmethod
    async def start(
        cls, request: ServeRequest, machine: Machine, *, on_line: Callable[[str], None]
    ) -> "Served":
        """Load the interface in the machine, and wait until it answers.

        Args:
            request: What to serve.
            machine: A machine with the server's bundle at `GATE_FILES`.
            on_line: Called with each line that the interface prints while it loads.

        Raises:
            ServeError: The interface cannot be served; the message has the file, the line and the
                reason.
        """
        folder = f"{machine.layout.run}/{secrets.token_hex(3)}"
        self = cls(request, machine, folder)
        self._on_line = on_line
        try:
            await self._launch()
            with self._naming_the_users_file():
                found = await self._ready()
            self._learn(found)
            self._check_functions()
        except BaseException:
            if _served[request.name] == self.number:
                # A replay serves only those that could be served.
                _served[request.name] -= 1
            await self.stop()
            raise
        finally:
            self._on_line = None
        return self

    @classmethod
    async def attach(cls, request: ServeRequest, machine: Machine, folder: str) -> "Served":
        """Adopt an interface that another process left running.

        Raises:
            InterfaceDiedError: The interface has ended.
        """
        self = cls(request, machine, folder)
        self._mark = secrets.token_hex(2)
        self._learn(await self.control.ready())
        return self

    async def release(self) -> None:
        """Let the interface outlive this process. It can be used as before."""
        process, self._process = self._process, None
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
        if process is not None:
            await process.release()

    @property
    def hides_model(self) -> bool:
        """See `seer.workspace.Gate`."""
        return bool(self.request.hidden)

    async def open_caller(self, label: str) -> CallerSocket:
        """Make a new caller, with a socket of its own.

        Args:
            label: The prefix of its name in records and listings.
        """
        self._callers += 1
        # The mark makes the name differ from names that an earlier controller gave.
        number = f"{self._callers}-{self._mark}" if self._mark else f"{self._callers}"
        name = f"{re.sub(r'[^A-Za-z0-9_.-]', '-', label)[:60] or 'caller'}-{number}"
        # Short, because tools such as curl accept paths of at most 107 bytes.
        socket = f"{self.folder}/{secrets.token_hex(4)}.sock"
        await self.control.add_caller(name, socket, budget=self.request.caller_budget)
        return CallerSocket(name, await self._machine.reach(socket), self.control)

    def add_dependent(self, dependent: Dependent) -> None:
        """Register an object whose `owner_ends` is called before the interface ends."""
        self.dependents.add(dependent)

    async def reload(self) -> None:
        """Send the current file and load it again. Objects marked with `keep` stay.

        Raises:
            ServeError: The changed file cannot be served; the old version is still served.
        """
        await self._send_file()
        with self._naming_the_users_file():
            found = await self.control.reload()
        self._learn(found)

    async def scale(self, replicas: int) -> None:
        """Change the number of copies, and wait until this many run.

        Raises:
            ServeError: A new copy could not load the interface; the running copies continue.
        """
        with self._naming_the_users_file():
            await self.control.scale(replicas)

    async def copies(self) -> tuple[CopyDescription, ...]:
        """The current copies."""
        found = (await self.control.health())["copies"]
        return tuple(CopyDescription(**copy) for copy in found)

    async def stop(self) -> None:
        """End the interface, unless it was released. Stopping twice is harmless."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)

    # --- for the records of runs ---------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name that agents use."""
        return self.request.name

    def about(self) -> dict[str, Any]:
        """A description as plain data: schema, source, budgets, models and the machine."""
        request = self.request
        return {
            "name": self.name,
            "served": self.number,
            "schema": self.schema.to_json(),
            "source": self.schema.source_hash,
            "file": str(request.file),
            "budget": _limits(request.budget),
            "function_budgets": {k: v.to_json() for k, v in request.function_budgets.items()},
            "caller_budget": _limits(request.caller_budget),
            "models": [asdict(origin) for origin in request.origins],
            "packages": dict(request.packages),
            "machine": self._machine.about(),
        }

    async def weights(self) -> dict[str, Any]:
        """The hashes of its models' files, by model name. Hashing a large model takes time."""
        found: dict[str, Any] = {}
        for origin in self.request.origins:
            try:
                found[origin.name] = await asyncio.to_thread(fingerprint, Path(origin.folder))
            except (ModelError, OSError) as error:
                # The model was prepared on another host, or has been removed.
                found[origin.name] = {"error": str(error)}
        return found

    async def follow(self, callers: Sequence[str], *, prefix: str = "") -> CallFollow:
        """Record the calls of some callers from now on; see `GateControl.follow`."""

        async def read(follow: str, file: int | str) -> bytes:
            return await self._machine.read_file(f"{self.folder}/record/{follow}/blobs/{file}")

        return await self.control.follow(callers, prefix=prefix, read=read)

    async def _launch(self) -> None:
        await self._send_file()
        request = self.request
        config: dict[str, Any] = {
            "name": request.name,
            "file": self._file,
            "control": f"{self.folder}/control.sock",
            "models": dict(request.models),
            "hidden": dict(request.hidden),
            "tracebacks": request.tracebacks,
            "restart": request.restart,
            "caller_memory": request.caller_memory,
            "call_timeout": request.call_timeout,
            "budget": _limits(request.budget),
            "function_budgets": {k: v.to_json() for k, v in request.function_budgets.items()},
            "record": f"{self.folder}/record",
        }
        if request.replicas > 1:
            config["replicas"] = request.replicas
        await self._machine.write_file(f"{self.folder}/serve.json", json.dumps(config).encode())
        self._process = await self._machine.spawn(
            [self._machine.layout.python, "-m", "seer.rpc.server", f"{self.folder}/serve.json"],
            env={
                "PYTHONPATH": self._machine.path(GATE_FILES),
                "PYTHONUNBUFFERED": "1",
                **({} if request.has_network else {NO_NETWORK: "1"}),
            },
        )
        self._draining = asyncio.create_task(self._drain(self._process))

    async def _ready(self) -> dict[str, Any]:
        assert self._draining is not None
        ready = asyncio.create_task(self._until_ready())
        try:
            waited_for = {ready, self._draining}
            done, _ = await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if ready in done:
                return ready.result()
        finally:
            # Also on cancellation, because no other code reads the task's exception.
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
        words = "\n".join(self._last_lines)
        raise ServeError(
            f"the interface's process ended with exit code {self._draining.result()}",
            file=str(self.request.file),
            remote_traceback=words,
        )

    @contextlib.contextmanager
    def _naming_the_users_file(self) -> Generator[None]:
        """Make errors name the file on the user's machine, not its copy in the sandbox."""
        try:
            yield
        except ServeError as error:
            if error.file != self._file:
                raise
            there, here = f"{self.folder}/", f"{self.request.file.parent}/"
            raise ServeError(
                error.message.replace(there, here),
                file=str(self.request.file),
                line=error.line,
                remote_traceback=error.remote_traceback.replace(there, here),
            ) from None

    async def _until_ready(self) -> dict[str, Any]:
        await self._listening.wait()
        return await self.control.ready()

    @property
    def _file(self) -> str:
        return f"{self.folder}/{self.request.file.name}"

    async def _send_file(self) -> None:
        for name, source in (await asyncio.to_thread(interface_files, self.request.file)).items():
            await self._machine.write_file(f"{self.folder}/{name}", source)

    async def _drain(self, process: Process) -> int:
        """Pass on what the interface prints, so that it never waits for a reader."""
        rest = b""
        # The interface may print a secret, and the user may send the log anywhere.
        redact = Redactor().redact
        async for _, data in process.output():
            *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            watched: list[str] = []
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if not self._listening.is_set() and text.startswith('{"seer-gate"'):
                    # The supervisor's first line says that its control socket exists.
                    self._listening.set()
                elif text:
                    text = redact(text)
                    self._last_lines.append(text)
                    logger.info("%s: %s", self.request.name, visible(text))
                    if self._on_line is not None:
                        self._on_line(text)
                    elif is_watched():
                        watched.append(f"{self.request.name}: {text}")
            if watched:
                # In a thread: a stopped terminal must not block Seer.
                await asyncio.to_thread(say, "\n".join(watched), file=sys.stderr, style="dim")
        return await process.wait()

    def _check_functions(self) -> None:
        for name in self.request.function_budgets:
            if name not in self.schema.functions:
                known = ", ".join(self.schema.functions)
                raise ConfigError(
                    "serve(function_budgets=)", name, f"is not exposed; exposed: {known}"
                )

    def _learn(self, found: dict[str, Any]) -> None:
        self.schema = Schema.from_json(found["schema"])
        here = str(self.request.file)
        self.warnings = tuple(text.replace(self._file, here) for text in found["warnings"])
        for warning in self.warnings:
            logger.warning("%s", visible(warning))

    async def how_it_ended(self) -> str:
        """How the interface ended; empty while it runs, loads or restarts.

        Raises:
            SandboxLostError: The sandbox has ended; the message says how.
        """
        try:
            health = await self.control.health()
        except InterfaceDiedError as error:
            return str(error)
        if health["state"] not in ("dead", "failed"):
            return ""
        return f"the interface {self.name!r} is not running: {health['ended']}"

    async def _connect(self) -> Channel:
        try:
            return await self._machine.connect(f"{self.folder}/control.sock")
        except RemoteFileError as error:
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
                raise
        # The interface has ended, or the whole machine has. If the machine has, `stat` raises.
        with contextlib.suppress(RemoteFileError):
            await self._machine.stat(self.folder)
        how = "its processes were killed"
        if self._draining is not None:
            # The exit code comes a moment after the sockets are closed.
            await asyncio.wait([self._draining], timeout=_EXIT_CODE_TIME)
            if self._draining.done():
                code = self._draining.result()
                how = f"its supervisor ended with exit code {code}"
                if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
                    how += " (killed with SIGKILL, most often for lack of memory)"
        raise InterfaceDiedError(f"the interface {self.name!r} is not running: {how}")


def _limits(budget: Budget | None) -> dict[str, float]:
    return {} if budget is None else budget.to_json()


# --- interfaces of a detached sandbox -----------------------------------------------------------
# A file in the machine, next to the gates' sockets, lists them. An agent cannot reach the files of
# a scoped machine, so the list is as trustworthy as the interfaces themselves.


@dataclass(frozen=True)
class _Entry:
    """One entry of the list."""

    folder: str
    request: dict[str, Any]


async def release_interfaces(machine: Machine, served: Sequence[Served]) -> None:
    """Let interfaces outlive this process, and list them in the machine."""
    entries = [{"folder": item.folder, "request": item.request.to_json()} for item in served]
    await machine.write_file(_list_file(machine), json.dumps(entries).encode())
    for item in served:
        await item.release()


async def find_interfaces(machine: Machine) -> dict[str, Served]:
    """The interfaces that an earlier controller left running in the machine, by name.

    The result is empty if the machine was never detached: its controller then still holds the
    interfaces. An interface that has ended is left out with a warning, because the sandbox is still
    usable.
    """
    from pydantic import TypeAdapter

    try:
        text = await machine.read_file(_list_file(machine))
    except RemoteFileError as error:
        if error.errno == errno.ENOENT:
            return {}
        raise
    found: dict[str, Served] = {}
    for entry in TypeAdapter(list[_Entry]).validate_json(text):
        request = ServeRequest.from_json(entry.request)
        try:
            found[request.name] = await Served.attach(request, machine, entry.folder)
        except (InterfaceDiedError, RemoteFileError) as error:
            logger.warning("%s is no longer served: %s", request.name, error)
    return found


def _list_file(machine: Machine) -> str:
    return f"{machine.layout.run}/interfaces.json"
