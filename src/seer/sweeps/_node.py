"""What runs in a Ray worker: one attempt on its node.

Sent along with each sweep as it is (by value), so a node needs Ray, and what the program itself
imports. Of the standard library and Ray alone. It yields, in this order: where the program runs,
how it ended, and, where the sweep's folder is not on this node, the attempt's folder in pieces.
"""

import contextlib
import fcntl
import io
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypedDict

from seer.sweeps._trees import Manifest, TooLargeError, all_files, holds, pack, unpack

_PIECE = 8 << 20
_LOOK = 0.2
"""Seconds between looks whether Ray wants this task to end."""
_OLD = 14 * 86400.0
"""Seconds after which the copy of an experiment that nobody runs is removed."""


class Task(TypedDict):
    """One attempt, as the worker needs to know it."""

    order: dict[str, Any]
    """For the guard, with paths as they are where the sweep runs."""
    guard: str
    """The guard's source."""
    folder: str
    """The sweep's folder."""
    token: str
    """What stands in its `token` file: seen here, the folder is the same one."""
    source: str
    """The experiment's folder, with the program somewhere below it."""
    manifest: Manifest
    digest: str
    """Of the manifest: the name of the copy."""
    archive: list[Any]
    """A reference to the packed experiment; none where it is too large to be sent."""
    limit: int


def work(task: Task) -> Iterator[dict[str, Any] | bytes]:
    """Run one attempt; see the module."""
    # Ray asks a task to end by an interrupt, which a cluster that was started in the background of
    # a shell ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ray: Any = sys.modules["ray"]
    node: str = ray.get_runtime_context().get_node_id()
    try:
        source = _experiment(task, ray)
    except TooLargeError as error:
        yield {"refused": str(error), "node": node}
        return
    order = dict(task["order"])
    order["program"] = str(source / Path(order["program"]).relative_to(task["source"]))
    shared = _is_shared(task)
    if not shared:
        # The guard makes it, since the guard removes it.
        order["home"] = str(Path(tempfile.gettempdir(), f"seer-sweep-{secrets.token_hex(6)}"))
        order["remove"] = True
    home = Path(order["home"])
    with _guarded(task["guard"], order) as guard:
        for line in _lines(guard):
            said = json.loads(line)
            yield {**said, "node": node, "files": not shared}
        if shared:
            return
        try:
            yield from _pieces(home, task["limit"])
        except TooLargeError as error:
            _keep(guard)
            yield {"too_large": f"{error}; it is kept on the node, as {str(home)!r}", "node": node}


def _is_shared(task: Task) -> bool:
    try:
        return (Path(task["folder"]) / "token").read_text() == task["token"]
    except OSError:
        return False


def _experiment(task: Task, ray: Any) -> Path:
    """The experiment's folder on this node; the first to need it unpacks it for all."""
    original = Path(task["source"])
    if holds(original, task["manifest"]):
        return original
    if not task["archive"]:
        raise TooLargeError("it is not there, and too large to be sent")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    copies = cache / "seer" / "sweeps"
    copies.mkdir(parents=True, exist_ok=True)
    copy = copies / task["digest"]
    with (copies / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.is_dir():
            for left in copies.glob(".*"):
                # Of one that was killed: whoever makes a copy holds the lock.
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            with tempfile.NamedTemporaryFile(prefix=".", dir=copies) as packed:
                packed.write(ray.get(task["archive"][0]))
                packed.flush()
                unpack(Path(packed.name), copy)
        os.utime(copy)
        _forget(copies)
    return copy


def _forget(copies: Path) -> None:
    for copy in copies.iterdir():
        if copy.is_dir() and copy.stat().st_mtime < time.time() - _OLD:
            shutil.rmtree(copy, ignore_errors=True)


@contextlib.contextmanager
def _guarded(source: str, order: dict[str, Any]) -> Generator["subprocess.Popen[bytes]"]:
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stdout is not None
    try:
        guard.stdin.write(json.dumps(order).encode() + b"\n")
        guard.stdin.flush()
        yield guard
    finally:
        # Ray's request to end comes as an exception; the program gets its time all the same.
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        if guard.wait() < 0 and order["remove"]:
            # It was killed before it could.
            shutil.rmtree(order["home"], ignore_errors=True)
        guard.stdout.close()


def _keep(guard: "subprocess.Popen[bytes]") -> None:
    assert guard.stdin is not None
    guard.stdin.write(b"keep\n")
    guard.stdin.flush()


def _lines(guard: "subprocess.Popen[bytes]") -> Iterator[bytes]:
    """What the guard says, up to how the program ended; nothing more once it is gone."""
    assert guard.stdout is not None
    rest, last = b"", False
    while not last:
        # A read that blocks would keep Ray's request to end waiting.
        if not select.select([guard.stdout], [], [], _LOOK)[0]:
            continue
        data = os.read(guard.stdout.fileno(), 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            last = b'"pid"' not in line
            yield line


def _pieces(home: Path, limit: int) -> Iterator[bytes]:
    with tempfile.TemporaryFile() as packed:
        pack(home, list(all_files(home)), packed, limit=limit)
        packed.seek(0, io.SEEK_SET)
        while piece := packed.read(_PIECE):
            yield piece
