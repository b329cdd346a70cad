"""Attempts against the parts that a session adds to its jail: libraries, gate, kernel messages.

They need a session with a served interface, so jails alone are not tried with them.
"""

# Which call is made is the point here, so it is spelled out.
# ruff: noqa: PTH101, PTH104, PTH108, PTH109, PTH118, PTH120, PTH123, PTH211
from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from ._attempt import Facts, attempt

_SKIPPED = ("/proc", "/sys", "/dev", "/usr")
_CONTROL = (
    "POST /v1/reload",
    "POST /v1/stop",
    "POST /v1/callers",
    "POST /v1/remove/session",
    "POST /v1/budget",
    "POST /v1/scale",
    "POST /v1/flush",
    "GET /v1/ready",
    "GET /v1/records/0",
)
_WALKS = ("__globals__", "echo.__globals__", "__import__", "os.system", "eval", "..%2fecho", "")


@attempt("session", "Find the interface's source among the files")
def find_interface(facts: Facts) -> str | None:
    mark = _mark(facts)
    for path in _readable_files():
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if mark in file.read(4 << 20):
                return path
    return None


@attempt("session", "Have the gate show the interface's source")
def ask_for_interface(facts: Facts) -> str | None:
    for path in ("schema", "health", "budget", "source", "files/tools.py", "../tools.py"):
        _, answer = ask(f"GET /v1/{path}")
        if _mark(facts) in answer:
            return path
    return None


@attempt("session", "Call a function of the interface that is not exposed")
def call_hidden(facts: Facts) -> str | None:
    status, answer = ask("POST /v1/call/hidden", b'{"args": []}')
    return answer.decode() if status == 200 else None


@attempt("session", "Reach what functions are made of, by its name")
def walk_attributes(facts: Facts) -> str | None:
    for name in _WALKS:
        status, answer = ask(f"POST /v1/call/{name}", b'{"args": ["x"]}')
        if status == 200:
            return f"{name}: {answer[:100]!r}"
    return None


@attempt("session", "Have the gate unpickle, or make an object of a class by its name")
def send_object(facts: Facts) -> str | None:
    bodies: list[Any] = [
        {"args": [{"$seer": "pickle", "data": "gASVCAAAAAAAAABdlC4="}]},
        {"args": [{"$seer": "object", "class": "os.system", "args": ["id"]}]},
        {"args": [{"__class__": "subprocess.Popen", "args": "id"}]},
        {"args": [{"py/object": "os.system"}]},
    ]
    for body in bodies:
        status, answer = ask("POST /v1/call/echo", json.dumps(body).encode())
        if status == 200:
            return answer.decode()[:200]
    return None


@attempt("session", "Reload, stop or read the records of the interface")
def use_control(facts: Facts) -> str | None:
    for request in _CONTROL:
        status, answer = ask(request, b"{}")
        # A caller may read the rest of its own budget, but not change it.
        if status == 200:
            return f"{request}: {answer[:100]!r}"
    return None


@attempt("session", "Get or cancel another session's call")
def take_call(facts: Facts) -> str | None:
    status, answer = ask(f"GET /v1/result/{facts['foreign_call']}")
    if status == 200:
        return answer.decode()
    _, answer = ask(f"POST /v1/cancel/{facts['foreign_call']}", b"{}")
    return "cancelled" if json.loads(answer).get("cancelled") is True else None


@attempt("session", "Get or free a value that another session keeps in the interface")
def take_handle(facts: Facts) -> str | None:
    status, answer = ask(f"POST /v1/fetch/{facts['foreign_handle']}", b"{}")
    if status == 200:
        return answer.decode()
    _, answer = ask(f"POST /v1/free/{facts['foreign_handle']}", b"{}")
    return "freed" if json.loads(answer).get("freed") is True else None


@attempt("session", "Replace the gate's socket by something else")
def replace_gate(facts: Facts) -> str | None:
    kind, _, path = os.environ["SEER_GATE_TOOLS"].partition(":")
    if kind != "path":
        return None  # there is no socket to replace, only a descriptor
    for change in (
        lambda: os.unlink(path),
        lambda: os.rename(path, f"{path}.old"),
        lambda: os.chmod(path, 0),
        lambda: os.symlink("/tmp/mine", f"{path}.link"),
        lambda: socket.socket(socket.AF_UNIX).bind(f"{path}.mine"),
    ):
        with contextlib.suppress(OSError):
            change()
            return "changed"
    return None


@attempt("session", "Change a library, or put a module beside it")
def change_library(facts: Facts) -> str | None:
    module = importlib.import_module("tools")
    path = str(module.__file__)
    folder = os.path.dirname(path)
    for target, flags in (
        (path, os.O_WRONLY | os.O_APPEND),
        (path, os.O_WRONLY | os.O_TRUNC),
        (os.path.join(folder, "planted.py"), os.O_WRONLY | os.O_CREAT),
        (os.path.join(folder, "sitecustomize.py"), os.O_WRONLY | os.O_CREAT),
    ):
        with contextlib.suppress(OSError):
            os.close(os.open(target, flags, 0o644))
            return target
    with contextlib.suppress(OSError):
        os.rename(path, f"{path}.old")
        return "renamed"
    return None


@attempt("session", "Find a token, key or password in the environment")
def find_token(facts: Facts) -> str | None:
    words = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")
    found = [name for name in os.environ if any(word in name.upper() for word in words)]
    return ", ".join(found) or None


@attempt("session", "Show itself the output of others by forged kernel messages", in_kernel=True)
def forge_parents(facts: Facts) -> str | None:
    for parent in ({}, {"msg_id": "e1"}, {"msg_id": "0" * 32}, {"msg_id": ["x"]}):
        _forge("stream", b'{"name": "stdout", "text": "forged"}', parent)
    return None


@attempt("session", "Disturb the controller with malformed kernel messages", in_kernel=True)
def forge_content(facts: Facts) -> str | None:
    for kind in ("stream", "error", "display_data", "status", "execute_input", "comm_open"):
        for raw in (b"[]", b"{", b'{"data": 5, "text": {}}', b"\xff", b'{"text": "\\ud800"}'):
            _forge(kind, raw, None)
    return None


@attempt("session", "Speak for the kernel without its key", in_kernel=True)
def forge_signature(facts: Facts) -> str | None:
    _forge("stream", b'{"name": "stdout", "text": "unsigned"}', None, key=b"0" * 64)
    return None


def _forge(kind: str, raw: bytes, parent: dict[str, Any] | None, *, key: bytes = b"") -> None:
    """Publish a message as the kernel that this code runs in."""
    ipython: Any = importlib.import_module("IPython")
    kernel = ipython.get_ipython().kernel
    signer = kernel.session
    header = kernel.get_parent()["header"] if parent is None else parent
    parts = [
        json.dumps(signer.msg_header(kind), default=str).encode(),
        json.dumps(header, default=str).encode(),
        b"{}",
        raw,
    ]
    signature = key or signer.sign(parts)
    kernel.iopub_thread.send_multipart([b"topic", b"<IDS|MSG>", signature, *parts])


def ask(request: str, body: bytes = b"", *, call: str = "") -> tuple[int, bytes]:
    """A request to the gate, written by hand, perhaps with an id; its status and body."""
    with _connect(os.environ["SEER_GATE_TOOLS"]) as gate:
        gate.settimeout(10)
        lines = [f"{request} HTTP/1.1", f"content-length: {len(body)}", "connection: close"]
        lines += [f"seer-call: {call}"] if call else []
        gate.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += _more(gate)
        top, _, rest = answer.partition(b"\r\n\r\n")
        length = 0
        for line in top.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        while len(rest) < length:
            rest += _more(gate)
    return int(top.split()[1]), rest


def _more(gate: socket.socket) -> bytes:
    data = gate.recv(65536)
    if not data:
        raise ConnectionError("the gate hung up")
    return data


def _connect(address: str) -> socket.socket:
    kind, _, rest = address.partition(":")
    if kind == "path":
        gate = socket.socket(socket.AF_UNIX)
        gate.connect(rest)
        return gate
    with socket.socket(fileno=os.dup(int(rest))) as connector:
        connector.setblocking(True)
        connector.send(b"c")
        _, fds, _, _ = socket.recv_fds(connector, 16, 1)
    return socket.socket(fileno=fds[0])


def _mark(facts: Facts) -> bytes:
    return facts["source_mark"][::-1].encode()


def _readable_files() -> Iterator[str]:
    skipped = (*_SKIPPED, sys.prefix, sys.base_prefix)
    roots = ["/", *sys.path, os.getcwd(), os.path.dirname(os.getcwd())]
    for root in roots:
        if root.startswith(skipped):
            continue
        for folder, names, files in os.walk(root):
            names[:] = [n for n in names if not os.path.join(folder, n).startswith(skipped)]
            yield from (os.path.join(folder, name) for name in files)
