"""A replay that can continue past its record: recorded answers first, then the live interface.

The real sandbox is started, and each caller connects to a replayed socket in front of the real one.
The record answers as long as calls match it. At the first call that differs, all answered calls are
repeated on the live interface in their recorded order, which restores its module state. From then
on, every request goes there. Handles of the record have other ids there, which are replaced.
"""

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seer._transient import TransientFolder
from seer._unix_sockets import connect
from seer.errors import GateError, InterfaceDiedError
from seer.providers import (
    Channel,
    FileStatus,
    Listener,
    Machine,
    Process,
    TerminalSize,
)
from seer.rpc.client._responses import ResponseReader
from seer.rpc.wire._chunks import ChunkReader, split_chunk
from seer.rpc.wire._http import WireError
from seer.rpc.wire._protocol import FRAMES_TYPE, INLINE_ALIGN, Piece, aligned, format_pieces
from seer.runs._calls import GateCall
from seer.runs.replay._budget import stopped_before_it_ran
from seer.runs.replay._gate import Answered, ReplayGate
from seer.runs.replay._machine import GateMaker, connect_to_gate
from seer.runs.replay._match import show
from seer.runs.replay._requests import Asked

_ID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
_HANDLE = re.compile(r'"\$seer":\s*"handle",\s*"id":\s*"([0-9a-f]{32})"')
_STOPPED = frozenset({"BudgetExceededError", "CallCancelledError", "DeadlineExceededError"})
"""Why the recording stopped calls that nothing stops when they are repeated."""


class Takeover:
    """The live side of a replay; see `seer.runs.replay._gate.LiveGate`.

    Args:
        of_replay: Whether the record is that of a replay. It answers at once, so there the times at
            which calls were answered have their order, and the times that they took do not.
    """

    def __init__(self, *, of_replay: bool = False) -> None:
        self._of_replay = of_replay
        self._lock = threading.Lock()
        self._taken_over = False
        self._failed: GateError | None = None
        self._handles: dict[bytes, bytes] = {}
        """The ids of handles in the live interface, by their recorded ids."""
        self._sockets: dict[tuple[str, str], Path] = {}
        self._removed: set[tuple[str, str]] = set()
        """Callers that were removed before the live side took over, each after its interface."""
        self._made: list[tuple[str, str, bytes]] = []
        """The handles in the live interface, each after its interface and its caller."""
        self._gates: list[ReplayGate] = []

    def add_gate(self, gate: ReplayGate) -> None:
        """Add a gate whose calls are repeated when the live side takes over."""
        self._gates.append(gate)

    def add_caller(self, interface: str, caller: str, real: Path) -> None:
        """Note where a caller's real socket is."""
        self._sockets[interface, caller] = real

    def keep_caller(self, interface: str, caller: str) -> bool:
        """Keep a removed caller in the live interface, because its calls may be repeated.

        Returns:
            Whether it must be kept; not after the live interface has taken over.
        """
        with self._lock:
            if not self._taken_over:
                self._removed.add((interface, caller))
            return not self._taken_over

    @property
    def has_taken_over(self) -> bool:
        """Whether the live interface answers."""
        with self._lock:
            return self._taken_over

    @contextlib.contextmanager
    def holding_off(self) -> Generator[bool]:
        """See `LiveGate.holding_off`."""
        with self._lock:
            yield not self._taken_over

    def take_over(self) -> None:
        """Repeat the recorded calls once, then let the live interface answer.

        Raises:
            GateError: It cannot be reached, or a repeated call did not end as recorded. Every later
                attempt fails too, because the calls before were repeated already.
        """
        with self._lock:
            if self._taken_over:
                return
            if self._failed is not None:
                raise self._failed
            try:
                for call, caller, gate in self._played():
                    self._repeat(call, caller, gate)
                self._free()
            except GateError as error:
                self._failed = error
                raise
            self._taken_over = True

    def answer(self, interface: str, caller: str, asked: Asked) -> Answered:
        """The live interface's answer.

        Raises:
            GateError: It cannot be reached.
        """
        request = asked.request
        head = [f"seer-call: {request.call}"] if request.call else []
        if request.deadline is not None:
            head.append(f"seer-deadline: {request.deadline:.6f}")
        if request.free:
            head.append(f"seer-free: {','.join(map(self._present, request.free))}")
        text = self._with_handles(asked.text)
        path = self._present(request.path)
        message = _message(path, head, text, asked.buffers, method=request.method)
        return self._exchange(interface, caller, message)

    def _played(self) -> list[tuple[GateCall, str, ReplayGate]]:
        played: list[tuple[GateCall, str, ReplayGate]] = []
        for gate in self._gates:
            made = [(c, caller) for caller, t in gate.tapes.given().items() for c in t.played]
            # The end of the interface's process discards the effects of earlier calls. The end of a
            # copy does so only for the callers of that copy.
            ends = [call.time for call, _ in made if call.lost and not call.copy]
            played += [
                (call, caller, gate)
                for call, caller in made
                # Refused requests and fetched values change nothing.
                if call.arguments is not None and not call.handle and not call.lost
                if not stopped_before_it_ran(call)
                if self._begin(call) > max(ends, default=0.0)
            ]
        return sorted(played, key=lambda item: self._begin(item[0]))

    def _begin(self, call: GateCall) -> float:
        return call.time if self._of_replay else call.started

    def _repeat(self, call: GateCall, caller: str, gate: ReplayGate) -> None:
        buffers = [gate.blob(item) for item in call.argument_buffers]
        path = f"/v1/call/{call.function}"
        text = (call.arguments or "").encode("utf-8", "surrogatepass")
        message = _message(path, [], self._with_handles(text), buffers)
        answered = self._exchange(call.interface, caller, message)
        before, now = _failure(call.result), _failure(answered.text)
        if before != now and before not in _STOPPED:
            raise GateError(
                "replay: the live interface cannot take over, because a repeated call ended "
                f"differently: {show(call.function, call.arguments or '', call.argument_buffers)} "
                f"{_ended(before)} in the recording, and {_ended(now)} now"
            )
        old, new = (
            [item.encode() for item in _HANDLE.findall(text)]
            for text in (call.result, answered.text)
        )
        self._handles.update(zip(old, new, strict=False))
        self._made += [(call.interface, caller, handle) for handle in new]

    def _free(self) -> None:
        """Free the handles that were freed, or whose callers were removed, before the take-over."""
        for gate in self._gates:
            for caller, handle in gate.freed:
                if (found := self._handles.get(handle.encode())) is not None:
                    self._exchange(gate.name, caller, _message(f"/v1/free/{found.decode()}", []))
        for interface, caller, handle in self._made:
            if (interface, caller) in self._removed:
                self._exchange(interface, caller, _message(f"/v1/free/{handle.decode()}", []))

    def _with_handles(self, text: bytes) -> bytes:
        """The text with the live ids of handles instead of the recorded ones."""
        if not self._handles:
            return text
        return _ID.sub(lambda found: self._handles.get(found[0], found[0]), text)

    def _present(self, text: str) -> str:
        return self._with_handles(text.encode()).decode()

    def _exchange(self, interface: str, caller: str, message: bytes) -> Answered:
        path = self._sockets.get((interface, caller))
        if path is None:
            raise GateError(f"replay: the live {interface!r} does not know the caller {caller!r}")
        try:
            with connect(path) as connected:
                connected.sendall(message)
                return _whole_answer(connected)
        except (OSError, WireError) as error:
            raise InterfaceDiedError(f"replay: the live {interface!r} is gone: {error}") from error


class LiveAfterMachine(Machine):
    """A real machine whose callers get recorded answers first."""

    def __init__(self, real: Machine, make_gate: GateMaker, takeover: Takeover) -> None:
        self.id = real.id
        self.provider = real.provider
        self.layout = real.layout
        self.note = real.note
        self._real = real
        self._make_gate = make_gate
        self._takeover = takeover
        self._folder = TransientFolder("replay")
        self._interfaces: dict[str, ReplayGate] = {}
        self._callers: dict[str, str] = {}
        self._paths: dict[str, Path] = {}

    def path(self, target: str) -> str:
        """See `Machine.path`."""
        return self._real.path(target)

    def socket_path(self, path: str) -> Path | None:
        """The socket that the record serves in front of the real one."""
        real = self._real.socket_path(path)
        caller = self._callers.get(path)
        gate = self._interfaces.get(path.rpartition("/")[0])
        if real is None or caller is None or gate is None:
            return real
        if path not in self._paths:
            front = self._folder.path / f"{len(self._paths)}.sock"
            self._takeover.add_caller(gate.name, caller, real)
            gate.serve_caller(caller, str(front))
            self._paths[path] = front
        return self._paths[path]

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: TerminalSize | None = None,
        user: str | None = None,
    ) -> Process:
        """See `Machine.spawn`."""
        return await self._real.spawn(argv, env=env, cwd=cwd, stdin=stdin, pty=pty, user=user)

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `Machine.read_file`; arrays of calls come from the replayed gate."""
        folder, _, value = path.partition("/record/")
        if value and folder in self._interfaces:
            return self._interfaces[folder].blob(value.rpartition("/")[2])
        return await self._real.read_file(path, offset=offset, length=length)

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """See `Machine.write_file`; notes the interface that will be served."""
        folder, _, name = path.rpartition("/")
        if name == "serve.json":
            interface = str(json.loads(data)["name"])
            gate = self._interfaces[folder] = self._make_gate(interface, Path)
            gate.serve_control(str(self._control(folder)))
        await self._real.write_file(path, data, mode=mode, append=append)

    async def stat(self, path: str, *, follow: bool = True) -> FileStatus:
        """See `Machine.stat`."""
        return await self._real.stat(path, follow=follow)

    async def list_dir(self, path: str) -> list[FileStatus]:
        """See `Machine.list_dir`."""
        return await self._real.list_dir(path)

    async def make_dir(self, path: str, *, mode: int = 0o755) -> None:
        """See `Machine.make_dir`."""
        await self._real.make_dir(path, mode=mode)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `Machine.remove`."""
        await self._real.remove(path, recursive=recursive)

    async def connect(self, address: str | int) -> Channel:
        """See `Machine.connect`; on control sockets, notes which callers are made."""
        channel = await self._real.connect(address)
        folder = address.rpartition("/")[0] if isinstance(address, str) else ""
        if folder in self._interfaces:
            keep = partial(self._takeover.keep_caller, self._interfaces[folder].name)
            return _ControlChannel(channel, self._callers, self._control(folder), keep)
        return channel

    def _control(self, folder: str) -> Path:
        number = list(self._interfaces).index(folder)
        return self._folder.path / f"control-{number}.sock"

    def listen(self, path: str) -> Listener:
        """See `Machine.listen`."""
        return self._real.listen(path)

    async def detach(self) -> None:
        """See `Machine.detach`."""
        await self._real.detach()

    async def terminate(self) -> None:
        """See `Machine.terminate`."""
        for gate in self._interfaces.values():
            gate.close()
        await asyncio.to_thread(self._folder.remove)
        await self._real.terminate()


class _ControlChannel(Channel):
    """Forwards a control connection, and notes which caller gets which socket.

    Requests for recorded calls go to the replayed gate, which knows the calls that it answered and
    those that it forwarded. It also removes the callers that the live interface must keep.
    """

    def __init__(
        self, real: Channel, callers: dict[str, str], front: Path, keep: Callable[[str], bool]
    ) -> None:
        self._real = real
        self._callers = callers
        self._front = front
        self._keep = keep

    async def read(self, n: int = 65536) -> bytes:
        return await self._real.read(n)

    async def write(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        if re.match(rb"POST /v1/callers ", head):
            asked = json.loads(body)
            self._callers[str(asked["socket"])] = str(asked["name"])
        elif re.match(rb"POST /v1/(follow|unfollow|records|flush)\b", head) or (
            (removed := re.match(rb"POST /v1/remove/(\S+) ", head))
            and await asyncio.to_thread(self._keep, removed[1].decode())
        ):
            await self._real.close()
            self._real = await connect_to_gate(self._front)
        await self._real.write(data)

    async def close(self) -> None:
        await self._real.close()


def _failure(text: str) -> str:
    """The name of the error in an answer; empty if it has none."""
    try:
        found: Any = json.loads(text)
        error = found.get("error")
        return str(error.get("name") or error["type"]) if error else ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return "GateError"


def _ended(failure: str) -> str:
    return f"failed with {failure}" if failure else "succeeded"


def _message(
    path: str,
    head: Sequence[str],
    text: bytes = b"",
    buffers: Sequence[bytes] = (),
    *,
    method: str = "POST",
) -> bytes:
    """A request with its arrays inline, so that no descriptors are needed."""
    first = f"{method} {path} HTTP/1.1"
    lines = [first, "host: gate", "seer-gate: 1", "seer-accept: frames", *head]
    body = text
    if buffers:
        pieces: list[Piece] = []
        for buffer in buffers:
            start = aligned(len(body), INLINE_ALIGN)
            body = body.ljust(start, b"\0") + buffer
            pieces.append(Piece("i", 0, start, len(buffer)))
        lines += [f"content-type: {FRAMES_TYPE.decode()}", f"seer-json: {len(text)}"]
        lines.append(f"seer-buffers: {format_pieces(pieces).decode()}")
    if method == "POST":
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _whole_answer(connected: socket.socket) -> Answered:
    """Everything up to the end of one answer, streamed or not."""
    reader, raw = ResponseReader(), bytearray()

    def more() -> bytes:
        data = connected.recv(1 << 20)
        if not data:
            raise ConnectionResetError("the gate closed the connection")
        raw.extend(data)
        return data

    response = reader.feed(more())
    while response is None:
        response = reader.feed(more())
    if response.streamed:
        chunks = ChunkReader()
        found = chunks.feed(reader.take_rest())
        while None not in found:
            found += chunks.feed(more())
        items = [chunk for chunk in found if chunk is not None]
        return _streamed(bytes(raw), response.status, items)
    places = [(piece.offset, piece.offset + piece.size) for piece in response.pieces]
    buffers = tuple(bytes(response.body[start:end]) for start, end in places)
    text = bytes(response.text).decode("utf-8", "surrogatepass")
    return Answered(bytes(raw), response.status, text, buffers)


def _streamed(raw: bytes, status: int, chunks: Sequence[bytes]) -> Answered:
    """A stream as gates record it: its items, then how it ended."""
    *items, end = [split_chunk(chunk) for chunk in chunks]
    lines = b",".join(line for line, _ in items)
    text = b'{"stream":[%s],%s' % (lines, end[0][1:])
    buffers = tuple(bytes(view) for _, views in items for view in views)
    return Answered(raw, status, text.decode("utf-8", "surrogatepass"), buffers)
