"""The first process in a machine: accepts connections and serves each from a fork of itself.

It inherits the listening socket. It has no secrets beyond those that its commands get too. It
trusts every request, because only the controller can reach it. When the keeper ends, the steward
kills everything that it started, and exits.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from . import commands, files, relays, tree, wire
from .c_modules import accept_from, signal, socket, wake_on
from .commands import CommandContext
from .frame_stream import FrameStream
from .relays import Listeners
from .users import User, become_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .lazy_server import LazyServer
    from .wire import Message


def main() -> None:
    """Serve until the keeper is gone. The argument is a descriptor with the settings."""
    os.umask(0o022)
    with open(int(sys.argv[1]), "rb") as file:
        settings = wire.decode_message(file.read())
    tree.hide_from_peers()
    tree.become_subreaper()
    Steward(settings).run()


class Steward:
    """The accepting process."""

    def __init__(self, settings: Message) -> None:
        connectors = wire.get_ints(settings, "connectors")
        env = wire.get_env(settings, "env")
        kill_socket = wire.get_int(settings, "kill_socket")
        self._alive = wire.get_int(settings, "alive")
        agent = wire.get_int(settings, "agent", 0)
        self._context = CommandContext(
            env, wire.get_bytes(settings, "cwd"), connectors, kill_socket, self._alive, agent
        )
        self._servers: set[int] = set()
        self._listener = socket.socket(fileno=wire.get_int(settings, "listen"))
        self._ready = wire.get_int(settings, "ready")
        for fd in (self._listener.fileno(), self._alive, self._ready, kill_socket):
            os.set_inheritable(fd, False)
        self._listeners = Listeners()
        self._forwarder = _forwarder(wire.get_dict(settings, "forward"), env, agent)

    def run(self) -> None:
        self._listener.setblocking(False)
        wake = wake_on(signal.SIGCHLD)
        for fd in self._context.connectors:
            os.set_inheritable(fd, True)
        os.write(self._ready, b"%d" % wire.VERSION)
        os.close(self._ready)
        while True:
            poll = select.poll()
            for fd in (wake, self._listener.fileno(), self._alive, self._listeners.fd):
                poll.register(fd, select.POLLIN)
            if self._forwarder is not None and self._forwarder.fd >= 0:
                poll.register(self._forwarder.fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if self._forwarder is not None and self._forwarder.fd in ready:
                self._forwarder.start()
            if self._alive in ready:
                commands.kill_all(self._context.kill_socket)
                return
            if wake in ready:
                os.read(wake, 4096)
                self._collect()
            # This comes before new connections, because one of them may accept on a socket just
            # bound.
            if self._listeners.fd in ready:
                self._listeners.update()
            if self._listener.fileno() in ready:
                self._accept()

    def _collect(self) -> None:
        ended: dict[int, int] = {}
        for pid, status in tree.reap(stopped=True).items():
            if not os.WIFSTOPPED(status):
                ended[pid] = status
            elif pid in self._servers:
                # The only reason to stop a server is to escape a timeout.
                os.kill(pid, signal.SIGKILL)
        self._forget_ended(ended)

    def _forget_ended(self, ended: dict[int, int]) -> None:
        if self._forwarder is not None:
            self._forwarder.ended(ended)
        killed = False
        for pid, status in ended.items():
            if pid in self._servers:
                self._servers.discard(pid)
                killed = killed or os.WIFSIGNALED(status)
        if not killed:
            return
        # The command of a killed server is now an orphan. All orphans are killed, so that a command
        # cannot outlive its connection by killing its server.
        if tree.visible():
            kept = {self._forwarder.pid} if self._forwarder is not None else set[int]()
            self._forget_ended(tree.kill_descendants(spare=self._servers | kept))
        else:
            self._forget_ended(commands.kill_all(self._context.kill_socket))

    def _accept(self) -> None:
        try:
            fd = accept_from(self._listener)
        except OSError:
            return
        try:
            pid = os.fork()
        except OSError as error:
            # Report the error from here, because the machine can start no more processes.
            if not self._context.ends():
                FrameStream(fd).fail(error)
            os.close(fd)
            return
        if pid:
            self._servers.add(pid)
            os.close(fd)
            return
        status = 1
        try:
            self._listener.close()
            signal.set_wakeup_fd(-1)
            serve(FrameStream(fd), self._context, self._listeners, self._servers)
            status = 0
        finally:
            os._exit(status)


def _forwarder(settings: Message, env: dict[bytes, bytes], agent: int) -> LazyServer | None:
    """The on-demand server that makes the proxy reachable on the machine's loopback."""
    if not settings:
        return None
    from .lazy_server import LazyServer

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", wire.get_int(settings, "port")))
    listener.listen(512)
    fd = listener.detach()
    argv = [*wire.get_list(settings, "argv"), b"%d" % fd]
    return LazyServer(fd, argv, env=env, passed=[], user=agent)


def serve(
    stream: FrameStream,
    context: CommandContext,
    listeners: Listeners,
    servers: set[int],
) -> None:
    """Serve one connection, which carries one operation."""
    path = b""
    try:
        request = stream.wait_request()
        if request is None:
            return
        operation = wire.get_bytes(request, "op")
        if operation == b"exec":
            commands.run(stream, request, context)
            return
        if context.agent and operation != b"abort":
            become_user(User(context.agent, context.agent))
        if operation == b"connect":
            relays.connect(stream, request, context.cwd)
            return
        if operation == b"abort":
            _abort(stream, wire.get_int(request, "server"), servers)
            return
        path = os.path.join(context.cwd, wire.get_bytes(request, "path"))
        if b"\0" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if operation == b"listen":
            relays.listen(stream, path, listeners)
        elif operation == b"accept":
            relays.accept(stream, path, listeners)
        elif operation in files.OPERATIONS:
            files.OPERATIONS[operation](stream, request, path)
        else:
            raise wire.WireError(f"no operation {operation!r}")
        stream.flush()
    except wire.WireError as error:
        stream.fail(OSError(errno.EPROTO, f"protocol error: {error}"))
    except OSError as error:
        stream.fail(error, path)
    except Exception as error:  # at the edge of a process, the controller gets every error
        words = f"the steward failed: {type(error).__name__}: {error}"
        stream.fail(OSError(errno.EIO, words), path)


def _abort(stream: FrameStream, server: int, servers: set[int]) -> None:
    """Kill the process that serves another connection, for a client that gets no answer."""
    if server not in servers:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    os.kill(server, signal.SIGKILL)
    stream.queue(wire.OK)
    stream.flush()
