"""One attempt on a node of a Ray cluster. This module runs in a Ray worker.

The sweep sends this module by value, so a node needs only Ray and the program's own imports. It
uses only the standard library and Ray. `work` yields, in this order: where the program runs, how it
ended, and, if the sweep's folder is not on this node, the attempt's folder in pieces.
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

from seer.sweeps._archive import Manifest, TooLargeError, all_files, matches, pack, unpack

_PIECE = 8 << 20
_POLL_INTERVAL = 0.2
"""Seconds between checks whether Ray wants this task to end."""
_UNUSED_AGE = 14 * 86400.0
"""Seconds without use after which a copy of an experiment is removed."""


class Task(TypedDict):
    """What the worker needs to know about one attempt."""

    spec: dict[str, Any]
    """For the supervisor, with the paths of the machine that runs the sweep."""
    supervisor: str
    """The supervisor's source."""
    folder: str
    """The sweep's folder."""
    token: str
    """The content of the folder's `token` file. A node that reads the same shares the folder."""
    source: str
    """The experiment's folder, with the program somewhere below it."""
    manifest: Manifest
    digest: str
    """The hash of the manifest, which names the copy."""
    archive: list[Any]
    """A reference to the packed experiment; empty if it is too large to be sent."""
    limit: int


def work(task: Task) -> Iterator[dict[str, Any] | bytes]:
    """Run one attempt. The module's docstring says what this yields."""
    # Ray ends a task by an interrupt. A cluster that a shell started in the background ignores
    # interrupts, so the handler is set again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ray: Any = sys.modules["ray"]
    node: str = ray.get_runtime_context().get_node_id()
    try:
        source = _experiment(task, ray)
    except TooLargeError as error:
        yield {"refused": str(error), "node": node}
        return
    spec = dict(task["spec"])
    spec["program"] = str(source / Path(spec["program"]).relative_to(task["source"]))
    shared = _is_shared(task)
    if not shared:
        # The supervisor makes this folder, because it also removes it.
        spec["home"] = str(Path(tempfile.gettempdir(), f"seer-sweep-{secrets.token_hex(6)}"))
        spec["remove"] = True
    home = Path(spec["home"])
    with _supervised(task["supervisor"], spec) as supervisor:
        for line in _lines(supervisor):
            yield {**json.loads(line), "node": node}
        if shared:
            return
        try:
            yield from _pieces(home, task["limit"])
        except TooLargeError as error:
            _keep(supervisor)
            yield {"too_large": f"{error}; it stays on the node in {str(home)!r}", "node": node}


def _is_shared(task: Task) -> bool:
    try:
        return (Path(task["folder"]) / "token").read_text() == task["token"]
    except OSError:
        return False


def _experiment(task: Task, ray: Any) -> Path:
    """The experiment's folder on this node. The first task that needs a copy unpacks it."""
    original = Path(task["source"])
    if matches(original, task["manifest"]):
        return original
    if not task["archive"]:
        raise TooLargeError("the node does not have it, and it is too large to be sent")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    copies = cache / "seer" / "sweeps"
    copies.mkdir(parents=True, exist_ok=True)
    copy = copies / task["digest"]
    with (copies / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.is_dir():
            for left in copies.glob(".*"):
                # A killed task left this, because a task that is unpacking holds the lock.
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            with tempfile.NamedTemporaryFile(prefix=".", dir=copies) as packed:
                packed.write(ray.get(task["archive"][0]))
                packed.flush()
                unpack(Path(packed.name), copy)
        os.utime(copy)
        _remove_unused(copies)
    return copy


def _remove_unused(copies: Path) -> None:
    for copy in copies.iterdir():
        if copy.is_dir() and copy.stat().st_mtime < time.time() - _UNUSED_AGE:
            shutil.rmtree(copy, ignore_errors=True)


@contextlib.contextmanager
def _supervised(source: str, spec: dict[str, Any]) -> Generator["subprocess.Popen[bytes]"]:
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert supervisor.stdin is not None and supervisor.stdout is not None
    try:
        supervisor.stdin.write(json.dumps(spec).encode() + b"\n")
        supervisor.stdin.flush()
        yield supervisor
    finally:
        # Ray's request to end arrives as an exception; the program still gets its grace period.
        with contextlib.suppress(BrokenPipeError):
            supervisor.stdin.close()
        if supervisor.wait() < 0 and spec["remove"]:
            # The supervisor was killed before it could remove the folder.
            shutil.rmtree(spec["home"], ignore_errors=True)
        supervisor.stdout.close()


def _keep(supervisor: "subprocess.Popen[bytes]") -> None:
    assert supervisor.stdin is not None
    supervisor.stdin.write(b"keep\n")
    supervisor.stdin.flush()


def _lines(supervisor: "subprocess.Popen[bytes]") -> Iterator[bytes]:
    """The supervisor's messages, up to the one that says how the program ended."""
    assert supervisor.stdout is not None
    rest, last = b"", False
    while not last:
        # A read that blocks would delay Ray's request to end.
        if not select.select([supervisor.stdout], [], [], _POLL_INTERVAL)[0]:
            continue
        data = os.read(supervisor.stdout.fileno(), 65536)
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
