"""Beside one attempt: start the program, hold its time, end it with whoever ordered it.

A script of its own, of the standard library alone, so that it starts in a moment and outlives the
sweep or the Ray worker that started it. It knows nothing of cells and journals.

Standard input: one line of JSON, the order (see `_place.Order.to_guard`). After that it is a
lifeline: its end means "stop the program". A line `keep` leaves a folder that would be removed.
Standard output: `{"pid": ...}` once the program runs, `{"code": ..., "timed_out": ...}` once it has
ended, or `{"error": ...}` where it could not be started.
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
    """Carry out the order that stands on standard input."""
    lifeline = _Lifeline()
    order: dict[str, Any] = json.loads(lifeline.order())
    home = Path(order["home"])
    try:
        try:
            process = _start(order, home)
        except OSError as error:
            _say({"error": f"the program could not be started: {error}"})
            return
        _say({"pid": process.pid})
        timed_out = _wait(process, order, lifeline.events)
        _say({"code": process.returncode, "timed_out": timed_out})
    finally:
        if order["remove"]:
            # Whoever ordered the attempt reads the folder until it lets go of the lifeline.
            lifeline.ended.wait()
            if not lifeline.keep:
                shutil.rmtree(home, ignore_errors=True)


class _Lifeline:
    """Who ordered this, as a thread that reads until there is nobody any more."""

    def __init__(self) -> None:
        self.events: queue.Queue[_Event] = queue.Queue()
        self.ended = threading.Event()
        self.keep = False

    def order(self) -> bytes:
        """The first line; from then on the thread reads."""
        # Without Python's own buffer: its lock, held by a thread at the end, would be fatal.
        data = b""
        while b"\n" not in data:
            more = os.read(0, 1 << 16)
            if not more:
                raise SystemExit("there was no order")
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


def _start(order: dict[str, Any], home: Path) -> "subprocess.Popen[bytes]":
    program = Path(order["program"])
    if order["remove"]:
        home.mkdir(mode=0o700)
    else:
        home.mkdir(parents=True, exist_ok=True)
    inside = {name: str(home / path) for name, path in order["paths"].items()}
    with (home / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, program.name],
            cwd=program.parent,
            env={**os.environ, **order["env"], **inside},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_prepare,
        )


def _prepare() -> None:
    """In the program's process: hear interrupts; should this guard itself be killed, go too."""
    # Ray's workers block them, jobs in the background of a shell ignore them, and both hand it on.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(
    process: "subprocess.Popen[bytes]", order: dict[str, Any], events: "queue.Queue[_Event]"
) -> bool:
    """Until the program has ended; whether that was for want of time."""

    def watch() -> None:
        process.wait()
        events.put("ended")

    threading.Thread(target=watch, daemon=True).start()
    timed_out = False
    try:
        what = events.get(timeout=order["timeout"])
    except queue.Empty:
        what, timed_out = "stop", True
    if what == "stop":
        _stop(process, order["grace"])
    return timed_out


def _stop(process: "subprocess.Popen[bytes]", grace: float) -> None:
    """Ask the program to end, as Ctrl-C does; past its grace, kill it and what it started."""
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
        # Nobody is left to hear it; the lifeline tells the same.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
