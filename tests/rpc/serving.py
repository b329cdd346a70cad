"""A served interface for tests: a real server process, its callers and its control socket."""

import contextlib
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
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from seer.rpc.client import Gate
from tests import waiting

T = TypeVar("T")

SOON = 60.0
"""Seconds that nothing here takes unless it is broken; what it must not wait for takes longer."""

HOLD = """
    @expose
    def hold(release: str) -> None:
        import os
        import time

        while not os.path.exists(release):
            time.sleep(0.005)
"""
"""Source of a function that keeps the thread of functions until a file is there."""

SLOW = """
    import os
    import time

    folder = os.path.dirname(__file__)
    if os.path.exists(f"{folder}/wait"):
        open(f"{folder}/loading", "w").close()
        while os.path.exists(f"{folder}/wait"):
            time.sleep(0.005)

    @expose
    def small(x: int) -> int:
        return x + 1
"""
"""Source of a file that loads for as long as there is a file `wait` beside it."""


class ControlFailed(Exception):
    """The control socket answered with an error."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status}: {error}")
        self.status = status
        self.error = error


class Served:
    """One interface, served by `python -m seer.rpc.server`."""

    def __init__(self, source: str, **config: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gate-"))
        self.file = self.folder / "interface.py"
        self.write(source)
        callers = config.pop("callers", {"a": {}})
        wrapped: list[str] = config.pop("wrapped", [])
        self.config: dict[str, Any] = {
            "name": "interface",
            "file": str(self.file),
            "control": str(self.folder / "control.sock"),
            "callers": [
                {"name": name, "socket": str(self.socket_path(name)), "budget": budget}
                for name, budget in callers.items()
            ],
            **config,
        }
        path = self.folder / "config.json"
        path.write_text(json.dumps(self.config))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COV_")}
        self.process = subprocess.Popen(
            [*wrapped, sys.executable, "-m", "seer.rpc.server", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=self.folder,
        )
        assert self.process.stdout is not None
        self.announced = json.loads(self.process.stdout.readline())
        self.followed = Path()
        """Where what was followed last is."""
        self._gates: list[Gate] = []

    def write(self, source: str) -> None:
        """Replace the interface file."""
        self.file.write_text(textwrap.dedent(source))

    def socket_path(self, caller: str) -> Path:
        """Where a caller's socket is."""
        return self.folder / f"{caller}.sock"

    def gate(self, caller: str = "a", *, kind: str = "path") -> Gate:
        """A new client of a caller."""
        gate = Gate("interface", f"{kind}:{self.socket_path(caller)}")
        self._gates.append(gate)
        return gate

    def calls(self) -> int:
        """How many calls have no answer yet, over all callers, because each sees only its own."""
        names = [caller["name"] for caller in self.config["callers"]]
        return sum(http(self.socket_path(n), "GET", "/v1/health")["calls"] for n in names)

    def ready(self) -> dict[str, Any]:
        """Wait until it is loaded."""
        return self.control("GET", "/v1/ready")

    def control(
        self, method: str, path: str, value: Mapping[str, Any] | None = None, timeout: float = 60
    ) -> Any:
        """Ask the control socket."""
        return http(self.folder / "control.sock", method, path, value, timeout=timeout)

    def follow(self, *callers: str, prefix: str = "") -> Path:
        """Have the calls of some callers recorded; returns the folder of the follow."""
        asked = {"callers": callers, "prefix": prefix}
        found = self.control("POST", "/v1/follow", asked)["follow"]
        self.followed = Path(self.config["record"]) / found
        return self.followed

    def recorded(self, followed: Path) -> list[dict[str, Any]]:
        """The lines of a follow, once every call that was answered is written down."""
        self.control("POST", f"/v1/flush/{followed.name}")
        files = sorted(followed.glob("*.jsonl"), key=lambda path: int(path.stem))
        data = b"".join(path.read_bytes() for path in files)
        return [json.loads(line) for line in data.decode().split("\n")[:-1]]

    @property
    def pid(self) -> int:
        """The interface's process."""
        return self.control("GET", "/v1/health")["pid"]

    def kill_interface(self, number: int = signal.SIGKILL) -> None:
        """Send the interface's process a signal; for SIGKILL, wait until it is noticed."""
        pid = self.pid
        os.kill(pid, number)
        if number == signal.SIGKILL:
            wait_until(lambda: self.pid != pid)

    def stderr(self, until: str, timeout: float = SOON) -> str:
        """Standard error, read until it contains `until`."""
        assert self.process.stderr is not None
        text = ""
        end = time.monotonic() + timeout
        while until not in text:
            left = end - time.monotonic()
            assert left > 0, f"{until!r} did not come; got {text!r}"
            if select.select([self.process.stderr], [], [], left)[0]:
                text += os.read(self.process.stderr.fileno(), 65536).decode()
        return text

    def close(self) -> None:
        """End it."""
        for gate in self._gates:
            gate.close()
        self.process.terminate()
        try:
            self.process.communicate(timeout=SOON)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        finally:
            shutil.rmtree(self.folder)


@contextlib.contextmanager
def serving(source: str, *, wait: bool = True, **config: Any) -> Generator[Served]:
    """Serve `source` and wait until it is loaded."""
    served = Served(source, **config)
    try:
        if wait:
            served.ready()
        yield served
    finally:
        served.close()


@contextlib.contextmanager
def holding(served: Served) -> Generator[Callable[[int], None]]:
    """While this is open, calls of an interface with `HOLD` wait in their queues.

    Gives a function that waits until the given number of calls wait there.
    """
    release = served.folder / f"release-{secrets.token_hex(4)}"
    gate = served.gate()
    running = threading.Thread(target=gate.call, args=("hold", (str(release),)))

    def until(count: int) -> None:
        wait_until(lambda: served.calls() == count + 1)

    running.start()
    try:
        until(0)
        yield until
        assert running.is_alive()
    finally:
        release.touch()
        running.join(timeout=SOON)


def http(
    path: Path,
    method: str,
    target: str,
    value: Mapping[str, Any] | None = None,
    *,
    timeout: float = 60,
) -> Any:
    """One request by hand, without any of the client's code; the result."""
    body = b"" if value is None else json.dumps(value).encode()
    head = f"{method} {target} HTTP/1.1\r\nhost: gate\r\nconnection: close\r\n"
    if method == "POST":
        head += f"content-length: {len(body)}\r\n"
    status, text = exchange(path, head.encode() + b"\r\n" + body, timeout=timeout)
    found = json.loads(text)
    if status != 200:
        raise ControlFailed(status, found["error"])
    return found["result"]


def exchange(path: Path, message: bytes, *, timeout: float = 60) -> tuple[int, bytes]:
    """Send bytes and read one answer; its status and body."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(timeout)
        connected.connect(str(path))
        connected.sendall(message)
        return read_answer(connected)


def read_answer(connected: socket.socket) -> tuple[int, bytes]:
    """Read one answer that has a content-length; its status and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connected.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
    while len(body) < length:
        more = connected.recv(65536)
        assert more, "closed within the body"
        body += more
    return int(head.split()[1]), body


def run_together(call: Callable[[], T], count: int, *, timeout: float = 60) -> list[T]:
    """Make the same call on several threads at once; all results, or the first error."""
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(call) for _ in range(count)]
        return [future.result(timeout=timeout) for future in futures]


def wait_until(condition: Callable[[], bool], timeout: float = 30) -> None:
    """Wait until it is true."""
    waiting.wait_until(condition, "what was asked for", within=timeout)
