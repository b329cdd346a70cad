"""Machines that a launcher starts, on a node where only the launcher can put programs.

On the host: start a head with the launcher, and find those that run. On the node: start the machine
as anywhere, with its state on the node's own disk, and carry wires to its porter until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, cast

from seer.errors import ProviderError
from seer.providers._local_record import how_it_ended
from seer.providers._machine import wire
from seer.providers._places import state_dir
from seer.providers._remote import frames
from seer.providers._remote.trunk import NOTE, Trunk

_HEAD = "from seer_remote.head import main; main()"
_STATUS_PATIENCE = 10.0
_ANSWER = "answer.json"

BringUp = Callable[[Mapping[str, Any]], Coroutine[Any, Any, dict[str, object]]]


# --- on the host -------------------------------------------------------------------------------


def launch_elsewhere(request: Mapping[str, Any], program: list[str]) -> dict[str, object]:
    """Start a machine through the request's launcher; the answer that its node gives.

    Args:
        request: What was asked for.
        program: The command line that runs `host.py` with an operation.

    Raises:
        ProviderError: The launcher did not start it.
    """
    folder = _folder() / secrets.token_hex(8)
    folder.mkdir(mode=0o700)
    heard, said = os.pipe()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    file = os.memfd_create("seer-request")
    try:
        os.pwrite(file, json.dumps(request).encode(), 0)
        listener.bind(str(folder / "porter.sock"))
        listener.listen(64)
        head = _spawn_head(request["launcher"], program, listener.fileno(), file, said)
        os.close(said)
        message = _wait_for_answer(heard, head)
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
        listener.close()


def _folder() -> Path:
    folder = state_dir() / "launched"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _spawn_head(
    launcher: list[str], program: list[str], listener: int, request: int, answer: int
) -> subprocess.Popen[bytes]:
    kit = str(Path(__file__).parents[3])
    code = f"import sys; sys.path.insert(0, {kit!r}); {_HEAD}"
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


def _wait_for_answer(heard: int, head: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What the head says; it is stopped if whoever asked goes away meanwhile."""
    poll = select.poll()
    poll.register(heard, select.POLLIN)
    poll.register(sys.stdout.fileno(), 0)
    said = b""
    while True:
        for fd, _ in poll.poll():
            if fd != heard:
                head.send_signal(signal.SIGTERM)
                raise ProviderError("nobody waits for this machine any more")
            data = os.read(heard, 65536)
            if not data:
                return cast("dict[str, Any]", json.loads(said or b'{"error": {"message": "?"}}'))
            said += data


def running() -> list[dict[str, Any]]:
    """The answers of launched machines that still run; what others left is removed."""
    found: list[dict[str, Any]] = []
    for folder in _folder().iterdir():
        try:
            answer = json.loads((folder / _ANSWER).read_text())
        except (OSError, ValueError):
            continue  # it is being launched
        if _is_alive(folder):
            found.append(answer)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def _is_alive(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(folder / "porter.sock"))
        except OSError:
            return False
    return True


def status(porter: str) -> tuple[bool, bool] | None:
    """Whether a machine behind a porter is detached, and whether it is held; None if it is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_STATUS_PATIENCE)
        try:
            peer.connect(porter)
            asked = wire.encode({"op": "status"})
            request = struct.pack(">I", len(asked) + 1) + wire.REQUEST + asked
            token = secrets.token_bytes(frames.TOKEN_BYTES)
            peer.sendall(
                frames.attach(token, received=0, new=True, beat=_STATUS_PATIENCE)
                + frames.frame(frames.OPEN, 1, b"watch")
                + frames.frame(frames.DATA, 1, request)
            )
            return _read_status(peer)
        except (OSError, frames.FrameError, wire.WireError):
            return None


def _read_status(peer: socket.socket) -> tuple[bool, bool] | None:
    splitter, came = frames.Splitter(), b""
    while data := peer.recv(65536):
        for kind, _, payload in splitter.feed(data):
            came += payload if kind == frames.DATA else b""
        if len(came) >= 4 and len(came) >= 4 + int.from_bytes(came[:4], "big"):
            fields = wire.decode_message(came[5:])
            peer.sendall(frames.frame(frames.BYE, 0))
            held = wire.get_int(fields, "holders") > 0
            return bool(wire.get_int(fields, "detached")), held
    return None


# --- on the node -------------------------------------------------------------------------------


def serve_on_node(bring_up: BringUp) -> None:
    """Start the machine that comes in the request, and carry wires to it until it ends."""
    trunk = Trunk(os.dup(0), os.dup(1))
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    first = trunk.receive()
    if first is None:
        return
    base = os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir()
    state = tempfile.mkdtemp(prefix="seer-", dir=base)
    os.environ["XDG_STATE_HOME"] = state
    try:
        answer = asyncio.run(bring_up(json.loads(first[1])))
        trunk.send(NOTE, json.dumps({"ok": answer}).encode())
        _Node(trunk, str(answer["porter"]), str(answer["id"])).run()
    finally:
        shutil.rmtree(state, ignore_errors=True)


class _Node:
    def __init__(self, trunk: Trunk, porter: str, machine_id: str) -> None:
        self._trunk = trunk
        self._porter = porter
        self._id = machine_id
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._keeper.connect(str(Path(porter).with_name("keeper.sock")))

    def run(self) -> None:
        carrying = threading.Thread(target=self._carry, daemon=True)
        carrying.start()
        with contextlib.suppress(OSError):
            while self._keeper.recv(4096):
                continue
        known = how_it_ended(self._id)
        reason = known[0] if known is not None else "its keeper was killed"
        with contextlib.suppress(OSError):
            self._trunk.send(NOTE, json.dumps({"ended": reason}).encode())

    def _carry(self) -> None:
        self._trunk.run(lambda _: None, self._accept)
        # Whoever launched this is gone, so the machine must not stay.
        asked = wire.encode({"op": "terminate", "reason": "its launcher is gone"})
        with contextlib.suppress(OSError):
            self._keeper.sendall(struct.pack(">I", len(asked) + 1) + wire.REQUEST + asked)

    def _accept(self, number: int) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(self._porter)
        except OSError:
            peer.close()
            self._trunk.send(number, b"")
            return
        self._trunk.add(number, peer)
