"""The supervisor of one attempt: starts the program, applies its time limit and ends it.

This is a script that uses only the standard library. It starts quickly, and it outlives the sweep
or the Ray worker that started it. It knows nothing about cells and journals.

Standard input begins with one line of JSON (see `_executor.AttemptSpec.to_supervisor`). The end of
standard input means "stop the program". A line `keep` keeps the folder, if it would be removed
otherwise.
Standard output is `{"pid": ...}` when the program has started, then
`{"code": ..., "timed_out": ...}` when it has ended, or `{"error": ...}` if it could not be started.
"""

import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

_PR_SET_PDEATHSIG = 1

_Event = Literal["ended", "stop"]


def main() -> None:
    """Run the program of the attempt on standard input."""
    requester = _Requester()
    spec: dict[str, Any] = json.loads(requester.spec())
    home = Path(spec["home"])
    try:
        try:
            process = _start(spec, home)
        except OSError as error:
            _say({"error": f"the program could not be started: {error}"})
            return
        _say({"pid": process.pid})
        timed_out = _wait(process, spec, requester.events)
        _say({"code": process.returncode, "timed_out": timed_out})
    finally:
        if spec["remove"]:
            # The requester reads the folder until it closes standard input.
            requester.ended.wait()
            if not requester.keep:
                shutil.rmtree(home, ignore_errors=True)


class _Requester:
    """The process that wrote the spec. A thread waits until it closes standard input."""

    def __init__(self) -> None:
        self.events: queue.Queue[_Event] = queue.Queue()
        self.ended = threading.Event()
        self.keep = False

    def spec(self) -> bytes:
        """Read the first line, then start the thread."""
        # `os.read` instead of `sys.stdin`: Python aborts at exit if a thread holds the lock of the
        # buffered stream.
        data = b""
        while b"\n" not in data:
            more = os.read(0, 1 << 16)
            if not more:
                raise SystemExit("standard input ended before the spec")
            data += more
        line, _, rest = data.partition(b"\n")
        threading.Thread(target=self._read, args=(rest,), daemon=True).start()
        return line

    def _read(self, data: bytes) -> None:
        while more := os.read(0, 1 << 16):
            data += more
        self.keep = b"keep" in data.split(b"\n")
        self.ended.set()
        self.events.put("stop")


def _start(spec: dict[str, Any], home: Path) -> "subprocess.Popen[bytes]":
    program = Path(spec["program"])
    if spec["remove"]:
        home.mkdir(mode=0o700)
    else:
        home.mkdir(parents=True, exist_ok=True)
    inside = {name: str(home / path) for name, path in spec["paths"].items()}
    with (home / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, program.name],
            cwd=program.parent,
            env={**os.environ, **spec["env"], **inside},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_prepare,
        )


def _prepare() -> None:
    """In the program's process: accept interrupts, and end if the supervisor is killed."""
    # Ray's workers block SIGINT and a shell's background jobs ignore it; children inherit both.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(
    process: "subprocess.Popen[bytes]", spec: dict[str, Any], events: "queue.Queue[_Event]"
) -> bool:
    """Wait until the program has ended. Returns whether it ran out of time."""

    def watch() -> None:
        process.wait()
        events.put("ended")

    threading.Thread(target=watch, daemon=True).start()
    timed_out = False
    try:
        event = events.get(timeout=spec["timeout"])
    except queue.Empty:
        event, timed_out = "stop", True
    if event == "stop":
        _stop(process, spec["grace"])
    return timed_out


def _stop(process: "subprocess.Popen[bytes]", grace: float) -> None:
    """Interrupt the program, as Ctrl-C does. After `grace` seconds, kill its process group."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(grace if number == signal.SIGINT else None)
        except subprocess.TimeoutExpired:
            continue
        return


def _say(message: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The requester is gone. The end of standard input reports the same to `_Requester`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
