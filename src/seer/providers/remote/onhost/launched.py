"""Machines that a launcher starts, on a node where only the launcher can put programs.

This is the host's part: start a head with the launcher, and find those that run. The node's is
`node`.
"""

from __future__ import annotations

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from seer._addresses import address
from seer._places import state_dir
from seer.errors import ProviderError
from seer.providers.agent import wire
from seer.providers.remote.onhost import frames

_HEAD = "from seer_remote.head import main; main()"
_STATUS_PATIENCE = 10.0
_ANSWER = "answer.json"


def launch_elsewhere(request: Mapping[str, Any], program: list[str]) -> dict[str, object]:
    """Start a machine through the request's launcher; the answer that its node gives.

    Args:
        request: What was asked for.
        program: The command line that runs `operations.py` with an operation.

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
        with address(folder / "porter.sock") as where:
            listener.bind(where)
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
    archive = str(Path(__file__).parents[4])
    code = f"import sys; sys.path.insert(0, {archive!r}); {_HEAD}"
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
    """The head's answer. The head is stopped if the process that asked goes away."""
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
            with address(folder / "porter.sock") as where:
                probe.connect(where)
        except OSError:
            return False
    return True


def status(session_socket: str) -> dict[str, bool] | None:
    """The state of a machine behind a session server, as listings have it; None if it is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_STATUS_PATIENCE)
        try:
            with address(Path(session_socket)) as where:
                peer.connect(where)
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


def _read_status(peer: socket.socket) -> dict[str, bool] | None:
    splitter, came = frames.Splitter(), b""
    while data := peer.recv(65536):
        for kind, _, payload in splitter.feed(data):
            came += payload if kind == frames.DATA else b""
        if len(came) >= 4 and len(came) >= 4 + int.from_bytes(came[:4], "big"):
            fields = wire.decode_message(came[5:])
            peer.sendall(frames.frame(frames.BYE, 0))
            return {
                "detached": bool(wire.get_int(fields, "detached")),
                "controller_alive": wire.get_int(fields, "holders") > 0,
                "paused": bool(wire.get_int(fields, "paused", 0)),
            }
    return None
