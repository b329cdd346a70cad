"""The supervisor of one machine, on the host: checks its lease and limits, and ends it.

The controller starts `main` with the arguments `FD ID`; FD is a file with the bencoded settings. It
forks twice. The first process ends at once, so that the keeper is not a child of the controller.
The second process only waits, and cleans up if the keeper is killed (see `reaper`). The third
process is the keeper: it spawns the jail, then accepts controllers on `keeper.sock`.

A controller that holds the machine renews the lease. A machine that no controller holds ends,
unless it was detached.
"""

from __future__ import annotations

import os
import select
import sys
import time

from . import reaper, tree, wire
from .c_modules import accept_from, signal, socket, wake_on
from .connectors import Connector
from .frame_stream import FrameStream
from .jail import spawn_jail
from .pausing import Pause
from .watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .lazy_server import LazyServer
    from .wire import Message

_STDERR_KEPT = 8192
_MOST_CONTROLLERS = 256
_LIFELINE_CLOSED = "the process that held its resources is gone"


def main() -> None:
    """Read the settings, fork a reaper, and supervise the machine until it ends."""
    if os.fork():
        # The controller is then not the keeper's parent, and has no zombie to reap.
        os._exit(0)
    with open(int(sys.argv[1]), "rb") as file:
        settings = wire.decode_message(file.read())
    resources = reaper.MachineResources(settings)
    resources.make_group()
    tree.become_subreaper()
    pid = os.fork()
    if pid:
        reaper.wait(pid, resources, settings)
        os._exit(0)
    Keeper(settings, resources).run()
    # Skip the interpreter's shutdown, which has nothing to do.
    os._exit(0)


def now() -> float:
    """Seconds on a clock that also runs while the computer sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Controller:
    def __init__(self, fd: int, *, holds: bool) -> None:
        self.stream = FrameStream(fd)
        self.holds = holds


class Keeper:
    """One machine, from its spawn to its end."""

    def __init__(self, settings: Message, resources: reaper.MachineResources) -> None:
        tree.become_subreaper()
        tree.set_name("seer-keeper")
        self._resources = resources
        self._jail, self._stderr = spawn_jail(settings, resources.group)
        self._proxy = _proxy(wire.get_dict(settings, "proxy"))
        self._alive = wire.get_int(settings, "alive")
        self._first = _Controller(wire.get_int(settings, "control"), holds=True)
        self._controllers = {self._first.stream.fd: self._first}
        self._detached = False
        self._pause = Pause(
            self._jail,
            resources.group,
            folder=wire.get_bytes(settings, "folder"),
            gpu=bool(wire.get_int(settings, "gpu", 0)),
            memory=wire.get_int(settings, "memory", 0) or None,
        )
        self._lease = wire.get_int(settings, "lease_ms") / 1000
        start = self._renewed = self._active = now()
        self._deadline = _after(start, settings, "timeout_ms")
        self._idle = wire.get_int(settings, "idle_ms", 0) / 1000 or None
        self._connectors: dict[int, Connector] = {}
        for connector in wire.get_dict(settings, "connectors").values():
            if isinstance(connector, dict):
                made = Connector(wire.get_int(connector, "fd"), wire.get_bytes(connector, "target"))
                self._connectors[made.fd] = made
        self._kill_socket = socket.socket(fileno=wire.get_int(settings, "kill_socket"))
        self._kill_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._kill_socket.setblocking(False)
        self._watchdog = Watchdog(
            memory=wire.get_int(settings, "memory", 0) or None,
            processes=wire.get_int(settings, "processes", 0) or None,
            disk=wire.get_int(settings, "disk", 0) or None,
            files=wire.get_int(settings, "files", 0) or None,
            writable=wire.get_list(settings, "writable"),
            group=resources.group,
        )
        self._reason: str | None = None
        self._lifeline = wire.get_int(settings, "lifeline", -1)
        if self._lifeline >= 0:
            # The byte tells the other end that the machine exists.
            os.set_blocking(self._lifeline, False)
            try:
                os.write(self._lifeline, b"k")
            except OSError:
                self._reason = _LIFELINE_CLOSED
        self._next_look = start
        self._said = b""
        self._listener = resources.listen()

    def run(self) -> None:
        """Supervise the machine, then end it and clean up."""
        self._wake = wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._collect()
        while self._reason is None:
            self._turn()
        self._finish(self._reason)

    # --- one turn -----------------------------------------------------------------------------

    def _turn(self) -> None:
        poll = select.poll()
        kill_socket = self._kill_socket.fileno()
        for fd in (
            self._wake,
            self._listener.fileno(),
            self._stderr,
            kill_socket,
            self._lifeline,
            self._pause.fd,
        ):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        for fd in self._connectors:
            poll.register(fd, select.POLLIN)
        if self._proxy is not None and self._proxy.fd >= 0:
            poll.register(self._proxy.fd, select.POLLIN)
        for fd, controller in self._controllers.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if controller.stream.unsent else 0))
        ready = {fd for fd, _ in poll.poll(self._wait_ms())}
        if self._wake in ready:
            if bytes([signal.SIGTERM]) in os.read(self._wake, 4096):
                self._end("the keeper was asked to stop (SIGTERM)")
            self._collect()
        if self._stderr in ready:
            self._read_stderr()
        if self._listener.fileno() in ready:
            self._accept()
        if self._proxy is not None and self._proxy.fd in ready:
            self._proxy.start()
        if kill_socket in ready:
            self._serve_kill_request()
        if self._pause.fd in ready:
            self._pause.proceed()
        if self._lifeline in ready:
            self._read_lifeline()
        for fd in [fd for fd in self._connectors if fd in ready]:
            if not self._connectors[fd].answer():
                del self._connectors[fd]
        for fd in [fd for fd in self._controllers if fd in ready]:
            self._serve(self._controllers[fd])
        self._check_deadlines()

    def _wait_ms(self) -> float:
        """Milliseconds until the next deadline or check."""
        due = [self._next_look] if self._watchdog.interval is not None else []
        if not self._detached:
            due.append(self._renewed + self._lease)
        if self._deadline is not None:
            due.append(self._deadline)
        if self._idle is not None and not self._pause.paused:
            due.append(self._active + self._idle)
        left = (min(due) - now()) * 1000 + 1 if due else 60_000
        return min(max(left, 0), 60_000)

    def _check_deadlines(self) -> None:
        moment = now()
        if self._deadline is not None and moment >= self._deadline:
            self._end("its timeout passed")
        elif (
            self._idle is not None
            and not self._pause.paused
            and moment >= self._active + self._idle
        ):
            self._end(f"it was idle for {self._idle:g} s")
        elif not self._detached and not any(c.holds for c in self._controllers.values()):
            self._end("its controller is gone")
        elif not self._detached and moment >= self._renewed + self._lease:
            self._end(f"its controller was silent for longer than the lease of {self._lease:g} s")
        elif self._watchdog.interval is not None and moment >= self._next_look:
            self._check_limits()

    def _check_limits(self) -> None:
        reason = self._watchdog.look(self._jail)
        self._next_look = now() + (self._watchdog.interval or 0)
        if reason is not None:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason

    def _collect(self) -> None:
        ended = tree.reap()
        if self._proxy is not None:
            self._proxy.ended(ended)
        status = ended.get(self._jail)
        if status is None:
            return
        code = os.waitstatus_to_exitcode(status)
        self._read_stderr()
        said = self._said.decode(errors="replace").strip()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        reason = f"its first process ended ({how})" + (f": {said}" if said else "")
        self._end(self._watchdog.out_of_memory() or reason)

    def _read_stderr(self) -> None:
        try:
            data = os.read(self._stderr, 65536) if self._stderr >= 0 else b""
        except BlockingIOError:
            return
        if data:
            self._said = (self._said + data)[-_STDERR_KEPT:]
        elif self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1

    def _serve_kill_request(self) -> None:
        """Kill the descendants of a jailed process that requests it because it cannot see them."""
        try:
            _, extra, _, _ = self._kill_socket.recvmsg(16, socket.CMSG_SPACE(12))
        except OSError:
            return
        for _, _, credentials in extra:
            pid = int.from_bytes(credentials[:4], sys.byteorder)
            # Without namespaces, the jail's first process is the steward, which also sends
            # requests.
            if pid == self._jail or pid in tree.descendants(self._jail):
                tree.kill_tree(pid)

    def _read_lifeline(self) -> None:
        try:
            data = os.read(self._lifeline, 64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(_LIFELINE_CLOSED)
        elif not self._detached:
            self._end("its controller is gone")

    # --- controllers --------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            fd = accept_from(self._listener)
        except OSError:
            return
        if len(self._controllers) >= _MOST_CONTROLLERS:
            os.close(fd)
            return
        self._controllers[fd] = _Controller(fd, holds=False)

    def _serve(self, controller: _Controller) -> None:
        stream = controller.stream
        stream.send()
        stream.receive()
        try:
            while (found := stream.next()) is not None:
                if found[0] != wire.REQUEST:
                    raise wire.WireError(f"unexpected frame of kind {found[0]!r}")
                self._handle(controller, wire.decode_message(found[1]))
        except wire.WireError:
            stream.at_end = True
        if stream.at_end:
            del self._controllers[stream.fd]
            stream.close()

    def _handle(self, controller: _Controller, request: Message) -> None:
        operation = wire.get_bytes(request, "op")
        if operation == b"renew":
            if controller.holds:
                self._renewed = now()
            self._active = max(self._active, now() - wire.get_int(request, "idle_ms") / 1000)
        elif operation == b"hold":
            controller.holds = True
            self._detached = False
            self._renewed = self._active = now()
        elif operation == b"detach":
            self._detached = True
        elif operation in (b"pause", b"resume"):
            self._active = now()
            if operation == b"pause":
                self._pause.pause()
            else:
                self._pause.resume()
        elif operation == b"terminate":
            self._end(wire.get_text(request, "reason", "terminated"))
            return
        elif operation == b"look":
            self._check_limits()
            if self._reason is not None:
                return
        elif operation != b"status":
            raise wire.WireError(f"no operation {operation!r}")
        controller.stream.queue_message(
            wire.OK,
            detached=int(self._detached),
            holders=sum(c.holds for c in self._controllers.values()),
            jail=self._jail,
            paused=int(self._pause.paused),
            moving=int(self._pause.fd >= 0),
            problem=self._pause.problem,
            kept=self._pause.kept,
        )

    # --- the end ------------------------------------------------------------------------------

    def _finish(self, reason: str) -> None:
        # End the jail first, so that controllers are notified only afterwards.
        os.close(self._alive)
        self._resources.kill()
        self._resources.record(reason)
        for controller in self._controllers.values():
            controller.stream.queue_message(wire.ENDED, reason=reason)
        self._resources.remove()


def _proxy(settings: Message) -> LazyServer | None:
    if not settings:
        return None
    from .lazy_server import LazyServer

    listener = wire.get_int(settings, "listener")
    passed = wire.get_ints(settings, "fds")
    return LazyServer(listener, wire.get_list(settings, "argv"), env={}, passed=passed)


def _after(start: float, settings: Message, key: str) -> float | None:
    length = wire.get_int(settings, key, 0)
    return start + length / 1000 if length else None
