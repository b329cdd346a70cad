"""The actor that holds a machine's resources on the node that Ray chose. It is sent there by value.

It listens on the node's address. A client that knows its secret can run a program or connect to a
Unix socket on the node, with one TLS connection for each:

    asks     one line of JSON: {"secret", "run": [argument, ...]} or {"secret", "dial": path}
    answers  one line of JSON: {"ok": true} or {"missing": words}
    dial     from then on the bytes of the socket
    run      frames: kind (1 byte), length (4 bytes), data; see the kinds below

Every program gets one end of a *lifeline*, a socket that the machine's keeper keeps open. If this
process ends for any reason, the lifeline closes and the keeper ends the machine. If the keeper
closes its end, the machine has ended, and this actor ends too. If Ray reports that the last driver
is gone, the actor notifies the keeper, which ends the machine unless it was detached.

Drivers of other Seer versions call the actor's methods by name, so these names must not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib
import json
import os
import signal
import socket
import ssl
import struct
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IN, IN_END, OUT, ERR, EXIT = range(5)
"""Kinds of frames: a program's input and its end; its output; its exit code as text."""
HEAD_BYTES = 5
LIFELINE = "SEER_LIFELINE"
ALONE = b"a"
"""The byte that a keeper receives on its lifeline when no driver is left."""
_HEAD_LIMIT = 1 << 20
_HEAD_PATIENCE = 15.0
_CHUNK = 256 * 1024
_LINGER = 2.0
_END_PATIENCE = 20.0
_MOST_CLIENTS = 512


class Holder:
    """Holds the resources of one machine, and gives access to its node."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Wait for the first driver.

        Args:
            settings: `certificate` and `key` (PEM), `secret`, and `patience`: seconds to wait for
                the first driver.
        """
        self._settings = settings
        self._address: tuple[str, int] | None = None
        self._drivers: set[str] = set()
        self._lines: set[socket.socket] = set()
        self._machine = ""
        self._had_machine = False
        self._clients = 0
        self._leaving = False
        self._ending = False
        self._opening = asyncio.Lock()
        # If the driver dies while this actor waits for resources, it never contacts the actor.
        self._timer = threading.Timer(settings["patience"], self._expire)
        self._timer.daemon = True
        self._timer.start()

    # --- for drivers, through Ray -------------------------------------------------------------

    async def way(self) -> dict[str, Any]:
        """How to contact this actor: its address, certificate and node, and its resources."""
        ray: Any = importlib.import_module("ray")
        async with self._opening:
            if self._address is None:
                self._address = await self._listen(ray.util.get_node_ip_address())
        context: Any = ray.get_runtime_context()
        return {
            "address": self._address,
            "certificate": self._settings["certificate"],
            "secret": self._settings["secret"],
            "node": context.get_node_id(),
            "gpus": [int(gpu) for gpu in ray.get_gpu_ids()],
            "python": sys.executable,
            "machine": self._machine,
            "pid": os.getpid(),
        }

    async def stay(self) -> None:
        """Never return. A process that waits for the result thereby learns when the actor ends."""
        await asyncio.Event().wait()

    async def watch(self, driver: str, life: list[Any]) -> None:
        """Count a driver as alive until Ray reports that it is gone.

        Args:
            driver: The driver's name.
            life: The driver's pending result of `stay`. It belongs to the driver's process. When
                that process dies, Ray reports this to every process that waits for the result.
        """
        ray: Any = importlib.import_module("ray")
        self._timer.cancel()
        self._drivers.add(driver)
        try:
            await life[0]
        except ray.exceptions.RayError:
            pass
        finally:
            self._drivers.discard(driver)
            self._check_lifetime()

    async def born(self, machine: str) -> None:
        """Remember the id of the machine on this node."""
        self._machine = machine

    async def end(self) -> None:
        """End the machine, wait until it is gone, and exit."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_WR)
        self._ending = True
        self._check_lifetime()
        await asyncio.sleep(_END_PATIENCE)
        os._exit(1)

    # --- lifetime -----------------------------------------------------------------------------

    def _check_lifetime(self) -> None:
        if self._ending and not self._lines:
            os._exit(0)
        if self._lines:
            if not self._drivers:
                for line in self._lines:
                    with contextlib.suppress(OSError):
                        line.send(ALONE)
        elif self._had_machine or not self._drivers:
            self._leave()

    def _expire(self) -> None:
        if not self._drivers:
            os._exit(0)

    def _leave(self) -> None:
        """Exit once the answers in transit have arrived. Ray then gets the resources back."""
        self._leaving = True
        if not self._clients:
            os._exit(0)
        asyncio.get_running_loop().call_later(_LINGER, os._exit, 0)

    def _read_lifeline(self, line: socket.socket) -> None:
        """Handle a byte from a keeper, or the end of its lifeline."""
        try:
            data = line.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._had_machine = True
            return
        asyncio.get_running_loop().remove_reader(line)
        self._lines.discard(line)
        line.close()
        if self._had_machine or self._ending:
            self._check_lifetime()

    # --- for controllers ----------------------------------------------------------------------

    async def _listen(self, address: str) -> tuple[str, int]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with _memory_file(self._settings["certificate"] + self._settings["key"]) as path:
            context.load_cert_chain(path)
        server = await asyncio.start_server(
            self._serve_client,
            address,
            0,
            ssl=context,
            ssl_handshake_timeout=_HEAD_PATIENCE,
            limit=_HEAD_LIMIT,
            backlog=512,
        )
        self._server = server
        found: tuple[str, int] = server.sockets[0].getsockname()[:2]
        return found

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._clients >= _MOST_CLIENTS:
            writer.close()
            return
        self._clients += 1
        try:
            async with asyncio.timeout(_HEAD_PATIENCE):
                head: dict[str, Any] = json.loads(await reader.readline())
            known = str(self._settings["secret"]).encode()
            if not hmac.compare_digest(str(head["secret"]).encode(), known):
                return
            if "dial" in head:
                await _dial(str(head["dial"]), writer)
            else:
                await self._run([str(part) for part in head["run"]], reader, writer)
        except (OSError, ValueError, KeyError, TypeError, TimeoutError, EOFError):
            # A peer that is gone or does not follow the protocol gets no answer.
            return
        finally:
            self._clients -= 1
            writer.close()
            if self._leaving:
                self._leave()

    async def _run(
        self, argv: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=_environment() | {LIFELINE: str(theirs.fileno())},
                cwd="/",
                start_new_session=True,
                preexec_fn=_plain_signals,
                limit=_CHUNK,
            )
        except OSError as error:
            ours.close()
            _answer(writer, {"missing": str(error)})
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._lines.add(ours)
        asyncio.get_running_loop().add_reader(ours, self._read_lifeline, ours)
        _answer(writer, {"ok": True})
        await _attend(process, reader, writer)


async def _attend(
    process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Forward a program's streams. If its client disconnects, the program is killed."""
    assert process.stdout is not None and process.stderr is not None

    async def say(kind: int, source: asyncio.StreamReader) -> None:
        while data := await source.read(_CHUNK):
            writer.write(frame(kind, data))
            await writer.drain()

    hearing = asyncio.create_task(_feed(process, reader))
    saying = asyncio.gather(say(OUT, process.stdout), say(ERR, process.stderr))
    try:
        await asyncio.wait({hearing, saying}, return_when=asyncio.FIRST_COMPLETED)
        await saying
        code = str(await process.wait()).encode()
        writer.write(frame(EXIT, code))
        await writer.drain()
    finally:
        hearing.cancel()
        saying.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(hearing, saying, process.wait(), return_exceptions=True)


async def _feed(process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> None:
    assert process.stdin is not None
    try:
        while True:
            kind, length = read_head(await reader.readexactly(HEAD_BYTES))
            if kind == IN_END:
                process.stdin.close()
                continue
            data = await reader.readexactly(length)
            # The program may end before it has read its input.
            with contextlib.suppress(ConnectionError):
                process.stdin.write(data)
                await process.stdin.drain()
    except (asyncio.IncompleteReadError, OSError):
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _dial(path: str, writer: asyncio.StreamWriter) -> None:
    folder, name = os.path.split(path)
    try:
        inside = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        try:
            # Use the folder's descriptor, because a socket's address may have at most 107 bytes.
            _, far = await asyncio.open_unix_connection(f"/proc/self/fd/{inside}/{name}")
        finally:
            os.close(inside)
    except OSError as error:
        _answer(writer, {"missing": str(error)})
        return
    _answer(writer, {"ok": True})
    near_way, far_way = Splice(writer.transport), Splice(far.transport)
    near_way.other, far_way.other = far_way, near_way
    writer.transport.set_protocol(near_way)
    far.transport.set_protocol(far_way)
    await asyncio.gather(near_way.over.wait(), far_way.over.wait())


class Splice(asyncio.Protocol):
    """One end of two joined streams."""

    other: Splice

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self.other._transport.write(data)

    def eof_received(self) -> bool:
        """TLS has no half-closed connections, so both directions end."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other stream too."""
        self.over.set()
        self.other._transport.close()

    def pause_writing(self) -> None:
        """Stop reading from the other side while this one cannot write."""
        with contextlib.suppress(RuntimeError):
            self.other._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading from the other side."""
        with contextlib.suppress(RuntimeError):
            self.other._transport.resume_reading()


def frame(kind: int, data: bytes = b"") -> bytes:
    """Make a frame of a program's streams."""
    return struct.pack(">BI", kind, len(data)) + data


def read_head(head: bytes) -> tuple[int, int]:
    """The kind and length of a frame, from its first `HEAD_BYTES`."""
    kind, length = struct.unpack(">BI", head)
    return kind, length


def _answer(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def _environment() -> dict[str, str]:
    """The worker's environment without Ray's variables, which include its token."""
    dropped = ("RAY_", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _plain_signals() -> None:
    """In a new program: restore the default handling of signals, which Ray's workers change."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _memory_file(text: str) -> Any:
    fd = os.memfd_create("seer-certificate")
    try:
        os.write(fd, text.encode())
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def how_it_ended(root: str, machine: str) -> str | None:
    """How a machine ended, according to its node's record. Runs as a task on the node."""
    path = os.path.expanduser(root or "~/.seer") + "/state/seer/ended.jsonl"  # noqa: PTH111
    found = None
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("id") == machine:
                    found = str(entry.get("reason"))
    return found
