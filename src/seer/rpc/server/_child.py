"""The supervisor's side of a forked process: start it, watch it, kill it, and say how it ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seer.rpc.interface._budget import Budget, Meter, Tally

from ._message_socket import MessageSocket
from ._shared import (
    FETCH_METER,
    FIRST_CALLER,
    FIRST_FUNCTION,
    Shared,
    UnfinishedCall,
)

if TYPE_CHECKING:
    from ._poller import Poller


_TAIL_BYTES = 8192
OVERDUE = "a call ran past its function's timeout and did not stop when told to"
"""Why a process is killed for a call. Only the interface's owner sets timeouts; a caller's deadline
never kills the process."""
STOPPED_FOR = 5.0
"""Seconds after which a stopped process (SIGSTOP) is killed. Its callers would wait forever."""


class Child:
    """One process that the supervisor forked.

    Args:
        epoch: Its id.
        run: Called in the new process; returns its exit status.
        forget: Called in the new process first; closes what only the supervisor uses.

    Attributes:
        epoch: Its id.
        pid: Its process id.
        socket: Messages to and from it.
        stderr: The descriptor from which its standard error is read.
        killed_because: Why the supervisor killed it; empty if it did not.
        poisoned: The CUDA error after which it ended itself; empty if there was none.
    """

    def __init__(
        self, epoch: str, run: Callable[[MessageSocket, str], int], forget: Callable[[], None]
    ) -> None:
        self.epoch = epoch
        self.killed_because = ""
        self.poisoned = ""
        self._stopped_at = 0.0
        self._tail = b""
        self._ooms = _oom_kills()
        ours, theirs = socket.socketpair()
        self.stderr, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                ours.close()
                os.close(self.stderr)
                forget()
                os.dup2(write_end, 2)
                os.close(write_end)
                status = run(MessageSocket(theirs), self.epoch)
            except BaseException:
                import traceback

                os.write(2, traceback.format_exc().encode())
            finally:
                _flush_streams()
                os._exit(status)
        theirs.close()
        os.close(write_end)
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.socket = MessageSocket(ours)

    def watch(
        self,
        poller: Poller,
        hear: Callable[[list[dict[str, Any]]], None],
        ended: Callable[[], None],
    ) -> None:
        """Handle its messages, pass on its standard error, and call `ended` after it has ended.

        Args:
            poller: Reports its events.
            hear: Called with its messages; also with the last ones, before `ended`.
            ended: Called once. It must reap the process.
        """

        def on_message(_events: int) -> None:
            messages = self.socket.receive()
            if messages is None:
                poller.unwatch(self.socket.fileno())
            else:
                # It reads again, and answers each message.
                self.socket.flush()
                hear(messages)

        def on_stderr(_events: int) -> None:
            if not self._forward_stderr():
                poller.unwatch(self.stderr)

        def on_exit(_events: int) -> None:
            hear(self.socket.rest())
            for fd in (self.pidfd, self.socket.fileno(), self.stderr):
                poller.unwatch(fd)
            ended()

        poller.watch(self.pidfd, select.EPOLLIN, on_exit)
        poller.watch(self.socket.fileno(), select.EPOLLIN, on_message)
        poller.watch(self.stderr, select.EPOLLIN, on_stderr)

    def check(self, shared: Shared, now: float) -> None:
        """Kill the process if a call is overdue, or if it has been stopped for too long.

        Also send it the messages for which its socket had no room.
        """
        self.socket.flush()
        if shared.overdue(now):
            self.kill(OVERDUE)
        else:
            self._check_stopped(now)

    def _forward_stderr(self) -> bool:
        """Pass on what it wrote to standard error; False at the end."""
        # A pipe that polls as writable takes 4096 bytes without blocking.
        if not select.select([], [2], [], 0)[1]:
            time.sleep(0.001)
            return True
        data = os.read(self.stderr, 4096)
        if not data:
            return False
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        os.write(2, data)
        return True

    def tail(self, lines: int = 10) -> str:
        """The last lines it wrote to standard error."""
        text = self._tail.decode("utf-8", "replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def _drain_stderr(self) -> None:
        """Pass on what is left after it has ended."""
        while select.select([self.stderr], [], [], 0)[0]:
            if not self._forward_stderr():
                return

    def kill(self, because: str) -> None:
        """Kill the process."""
        if not self.killed_because:
            self.killed_because = because
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _check_stopped(self, now: float) -> None:
        flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            info = os.waitid(os.P_PID, self.pid, flags)
        except ChildProcessError:
            return
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:  # noqa: PTH123 (import time)
                state = file.read().rpartition(b")")[2].split()[0]
        except PermissionError:
            state = b"T"  # a jail that hides processes: only `waitid` is left
        if info is None or state != b"T":
            self._stopped_at = 0.0
        elif not self._stopped_at:
            self._stopped_at = now
        elif now - self._stopped_at > STOPPED_FOR:
            self.kill(f"it was stopped by a signal for {STOPPED_FOR:g} s")

    def leave(self) -> None:
        """In another forked process: close the descriptors that the supervisor has for this one."""
        os.close(self.pidfd)
        os.close(self.stderr)
        self.socket.close()

    def reap(self) -> str:
        """Wait for it to end, close its descriptors, and return in words how it ended."""
        _, status = os.waitpid(self.pid, 0)
        self._drain_stderr()
        os.close(self.pidfd)
        os.close(self.stderr)
        self.socket.close()
        if self.poisoned:
            return f"a CUDA error made the process unusable: {self.poisoned}"
        if self.killed_because:
            return f"it was killed because {self.killed_because}"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"it exited with status {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        ended = f"it was killed by {name}"
        if -code == signal.SIGKILL:
            grown = _oom_kills() > self._ooms
            ended += ", out of memory" if grown else " (most often for lack of memory)"
        return ended


def new_epoch() -> str:
    """An id for an interface process."""
    return os.urandom(8).hex()


def _oom_kills() -> int:
    try:
        with open("/proc/vmstat", "rb") as file:  # noqa: PTH123 (import time)
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        return 0
    return 0


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


class ExitReport:
    """The calls of a process at its end, read before the next process uses the memory.

    Args:
        shared: The memory that the process shared with the supervisor.
        places: The number of each function there.

    Attributes:
        lost: The calls that had not ended, each with its function's name.
    """

    def __init__(self, shared: Shared, places: dict[str, int]) -> None:
        names = {place: name for name, place in places.items()}
        unfinished: list[tuple[UnfinishedCall, str]] = [
            (found, names.get(found.function, "handle.fetch")) for found in shared.unfinished()
        ]
        self._running = [(found, name) for found, name in unfinished if found.since]
        # A call that has just begun may still have its waiting mark too.
        begun = {(found.caller, found.call) for found, _ in self._running}
        self.lost = [
            (found, name)
            for found, name in unfinished
            if found.since or (found.caller, found.call) not in begun
        ]
        self.lost.sort(key=lambda item: item[0].made)
        self._last = [names[place] for place in shared.last() if place in names]
        self._shared = shared
        self._places = places

    def add_to(self, ended: str, output: str) -> str:
        """How the process ended, with what it did last.

        Args:
            ended: How it ended.
            output: Its last output; empty if callers must not see it.
        """
        if self._running:
            names = ", ".join(sorted({f"{name}()" for _, name in self._running}))
            ended += f", while it ran {names}"
        elif self._last:
            names = ", ".join(sorted({f"{function}()" for function in self._last}))
            ended += f", during or after a call of {names}"
        if output:
            ended += f"; its last output was:\n{output}"
        return ended

    def charge(self) -> None:
        """Charge the time of calls that were lost with the process."""
        now = time.monotonic()
        for found, name in self._running:
            if found.noted and not found.paid:
                # It had ended and was already charged.
                continue
            place = self._places.get(name)
            function = FETCH_METER if place is None else FIRST_FUNCTION + place
            meters = (
                self._meter(0),
                self._meter(function),
                self._meter(FIRST_CALLER + found.caller),
            )
            ran = (now - found.since) / found.shared_by
            Tally(meters, 0).charge(max(ran - found.paid, 0.0))

    def _meter(self, index: int) -> Meter:
        return Meter("", Budget(), self._shared.cells, self._shared.meter_base(index))
