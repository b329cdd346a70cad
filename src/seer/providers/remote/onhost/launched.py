"""Machines that a launcher starts, on a node where only the launcher can start programs.

The first part runs on the host: it starts a `LauncherBridge` and finds the bridges that run. The
second part runs on the node, as the program that the launcher starts. It starts the machine as on
any host, with its state on the node's disk, and relays connections to its session server until the
machine ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any, cast

from seer._paths import state_dir
from seer._unix_sockets import connect, is_served, listen
from seer.errors import ProviderError
from seer.providers._spec import MachineStatus
from seer.providers.agent import wire
from seer.providers.agent.cleaning import remove_tree
from seer.providers.local._provider import machine_status
from seer.providers.local._record import how_it_ended, parse_record
from seer.providers.remote.onhost import frames
from seer.providers.remote.onhost.launcher_bridge import NOTE, Multiplexer

StartMachine = Callable[[Mapping[str, Any]], Coroutine[Any, Any, dict[str, object]]]

_BRIDGE = "from seer_remote.launcher_bridge import main; main()"
_STATUS_PATIENCE = 10.0
_ANSWER = "answer.json"
_STATE = "seer-node-"


# --- on the host -------------------------------------------------------------------------------


def launch_elsewhere(request: Mapping[str, Any], program: list[str]) -> dict[str, object]:
    """Start a machine through the request's launcher, and return the answer of its node.

    Args:
        request: The controller's request.
        program: The command line that runs an operation of `operations.py`.

    Raises:
        ProviderError: The launcher did not start the machine.
    """
    folder = _folder() / secrets.token_hex(8)
    folder.mkdir(mode=0o700)
    heard, said = os.pipe()
    file = os.memfd_create("seer-request")
    try:
        os.pwrite(file, json.dumps(request).encode(), 0)
        with listen(folder / "porter.sock", 64) as listener:
            bridge = _spawn_bridge(request["launcher"], program, listener.fileno(), file, said)
            os.close(said)
            message = _wait_for_answer(heard, bridge)
        if "error" in message:
            raise ProviderError(str(message["error"]["message"]))
        answer: dict[str, object] = {**message["ok"], "porter": str(folder / "porter.sock")}
        (folder / _ANSWER).write_text(json.dumps(answer))
        return answer
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for fd in (heard, file):
            os.close(fd)


def _folder() -> Path:
    folder = state_dir() / "launched"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _spawn_bridge(
    launcher: list[str], program: list[str], listener: int, request: int, answer: int
) -> subprocess.Popen[bytes]:
    archive = str(Path(__file__).parents[4])
    code = f"import sys; sys.path.insert(0, {archive!r}); {_BRIDGE}"
    numbers = [str(listener), str(request), str(answer), str(state_dir())]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *numbers, *launcher, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        pass_fds=(listener, request, answer),
        start_new_session=True,
    )


def _wait_for_answer(heard: int, bridge: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the bridge's answer. Stops the bridge if the requesting process disconnects."""
    poll = select.poll()
    poll.register(heard, select.POLLIN)
    poll.register(sys.stdout.fileno(), 0)
    said = b""
    while True:
        for fd, _ in poll.poll():
            if fd != heard:
                bridge.send_signal(signal.SIGTERM)
                raise ProviderError("the controller that requested this machine is gone")
            data = os.read(heard, 65536)
            if not data:
                return cast("dict[str, Any]", json.loads(said or b'{"error": {"message": "?"}}'))
            said += data


def launched_machines() -> list[dict[str, Any]]:
    """The answers of running launched machines. Removes the folders of ended ones."""
    found: list[dict[str, Any]] = []
    for folder in _folder().iterdir():
        try:
            answer = json.loads((folder / _ANSWER).read_text())
        except (OSError, ValueError):
            continue  # it is being launched
        if is_served(folder / "porter.sock"):
            found.append(answer)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def launched_status(answer: Mapping[str, Any]) -> MachineStatus | None:
    """The status of a launched machine, for listings; None if the machine is gone."""
    request = wire.message(wire.REQUEST, op="status")
    token = secrets.token_bytes(frames.TOKEN_BYTES)
    try:
        with connect(Path(answer["porter"]), timeout=_STATUS_PATIENCE) as peer:
            peer.sendall(
                frames.attach(token, received=0, new=True, beat=_STATUS_PATIENCE)
                + frames.frame(frames.OPEN, 1, b"watch")
                + frames.frame(frames.DATA, 1, request)
            )
            found = _read_answer(peer)
        return None if found is None else machine_status(parse_record(answer["record"]), found)
    except (OSError, frames.FrameError, wire.WireError):
        return None


def _read_answer(peer: socket.socket) -> wire.Message | None:
    streams, stream = frames.Splitter(), wire.Splitter()
    while data := peer.recv(65536):
        for kind, _, payload in streams.feed(data):
            if kind == frames.DATA:
                stream.feed(payload)
        found = stream.next()
        if found is not None:
            peer.sendall(frames.frame(frames.BYE, 0))
            return wire.decode_message(found[1])
    return None


# --- on the node -------------------------------------------------------------------------------


def serve_on_node(start_machine: StartMachine) -> None:
    """Start the requested machine, and relay connections to it until it ends."""
    multiplexer = Multiplexer(os.dup(0), os.dup(1))
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    first = multiplexer.receive()
    if first is None:
        return
    base = Path(os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir())
    clean_node(base)
    with state_on_node(base) as state:
        os.environ["XDG_STATE_HOME"] = str(state)
        answer = asyncio.run(start_machine(json.loads(first[1])))
        multiplexer.send(NOTE, json.dumps({"ok": answer}).encode())
        _Node(multiplexer, str(answer["porter"]), str(answer["id"])).run()


@contextlib.contextmanager
def state_on_node(base: Path) -> Generator[Path]:
    """A folder for the state of one machine. Its lock is held while it is in use."""
    state = Path(tempfile.mkdtemp(prefix=_STATE, dir=base))
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield state
    finally:
        shutil.rmtree(state, ignore_errors=True)
        os.close(lock)


def clean_node(base: Path) -> None:
    """Remove the folders of jobs whose processes a scheduler killed all at once."""
    for state in base.glob(f"{_STATE}*"):
        # If the lock file is missing, the folder is being created. If the lock is held, it is in
        # use.
        locks = [state / "lock", *state.glob("seer/machines/*/lock")]
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            if state.lstat().st_uid != os.geteuid():
                continue
            for path in locks:
                lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(os.fsencode(state))


class _Node:
    def __init__(self, multiplexer: Multiplexer, session_socket: str, machine_id: str) -> None:
        self._multiplexer = multiplexer
        self._session_socket = Path(session_socket)
        self._id = machine_id
        self._keeper = connect(self._session_socket.with_name("keeper.sock"))

    def run(self) -> None:
        carrying = threading.Thread(target=self._carry, daemon=True)
        carrying.start()
        with contextlib.suppress(OSError):
            while self._keeper.recv(4096):
                continue
        known = how_it_ended(self._id)
        reason = known[0] if known is not None else "its keeper was killed"
        with contextlib.suppress(OSError):
            self._multiplexer.send(NOTE, json.dumps({"ended": reason}).encode())

    def _carry(self) -> None:
        self._multiplexer.run(lambda _: None, self._accept)
        # The launching process is gone, so the machine must end.
        asked = wire.message(wire.REQUEST, op="terminate", reason="its launcher is gone")
        with contextlib.suppress(OSError):
            self._keeper.sendall(asked)

    def _accept(self, number: int) -> None:
        try:
            peer = connect(self._session_socket)
        except OSError:
            self._multiplexer.send(number, b"")
            return
        self._multiplexer.add(number, peer)
