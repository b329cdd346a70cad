"""Run one command for one connection: its streams, its signals, and the end of its whole tree.

This code runs in its own process, forked by the steward. The process is the subreaper of everything
that the command starts. If the connection closes before the command has ended, the whole tree is
killed, unless the controller has released the command. If the command ends by itself, its
background processes continue.
"""

from __future__ import annotations

import errno
import os
import select
import time

from . import tree, wire
from .c_modules import signal, wake_on
from .frame_stream import FrameStream
from .jail import close_all_but
from .users import User, become_user, find_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .wire import Message

_KILL_TIMEOUT = 30.0
_HIGH_WATER = 512 * 1024
"""The most bytes of output to buffer for the controller."""
_PIPE_READ = 64 * 1024
_LAST_OUTPUT = 1024 * 1024
"""The most bytes that a pipe can hold. Further output of a background process is dropped."""
_INPUT_LIMIT = 4 * wire.CHUNK
_DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


class CommandContext:
    """The environment, folder and descriptors that all commands of a machine share."""

    def __init__(
        self,
        env: dict[bytes, bytes],
        cwd: bytes,
        connectors: list[int],
        kill_socket: int,
        alive: int,
        agent: int,
    ) -> None:
        self.env = env
        self.cwd = cwd
        self.connectors = connectors
        self.kill_socket = kill_socket
        """The socket on which to ask the keeper to kill processes that the jail cannot see."""
        self.alive = alive
        """A pipe that closes when the machine ends."""
        self.agent = agent
        """The agent's user id, if the machine has several users and this process is its root."""

    def ends(self) -> bool:
        """Whether the machine is ending. Its processes can then no longer fork."""
        poll = select.poll()
        poll.register(self.alive, select.POLLIN)
        return bool(poll.poll(0))


def run(stream: FrameStream, request: Message, context: CommandContext) -> None:
    """Serve an `exec` request until the command has ended or the peer is gone."""
    wake = wake_on(signal.SIGCHLD)
    tree.become_subreaper()
    try:
        command = _Command(stream, request, context)
    except OSError as error:
        if not context.ends():
            stream.fail(error)
        return
    stream.queue_message(wire.OK, pid=command.pid, server=os.getpid())
    try:
        command.serve(wake)
    except BaseException:
        # After any error, the command does not outlive its connection.
        kill_all(context.kill_socket)
        raise
    command.finish(wake)


def kill_all(kill_socket: int) -> dict[int, int]:
    """Kill everything below this process. Returns the wait statuses of its children."""
    if tree.visible():
        return tree.kill_descendants()
    # A jail without its own /proc cannot see its processes, so the keeper outside kills them. The
    # kernel tells the keeper which process sent the request.
    ended: dict[int, int] = {}
    deadline = time.monotonic() + _KILL_TIMEOUT
    while time.monotonic() < deadline:
        os.write(kill_socket, b"K")
        for _ in range(20):
            try:
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    ended[found[0]] = found[1]
            except ChildProcessError:
                return ended
            time.sleep(0.002)
    raise TimeoutError("the keeper did not end this command's processes")


def _environment(
    context: CommandContext, request: Message
) -> tuple[dict[bytes, bytes], User | None]:
    """The environment of a command, and its user if that is not this process's."""
    given = wire.get_env(request, "env")
    if not context.agent:
        return {**context.env, **given}, None
    name = wire.get_bytes(request, "user", b"")
    if not name:
        return {**context.env, **given}, User(context.agent, context.agent)
    user = find_user(name)
    theirs = {b"HOME": user.home, b"USER": user.name, b"LOGNAME": user.name}
    return {**context.env, **theirs, **given}, user


class _Command:
    def __init__(self, stream: FrameStream, request: Message, context: CommandContext) -> None:
        argv = wire.get_list(request, "argv")
        if not argv:
            raise wire.WireError("'argv' is empty")
        env, user = _environment(context, request)
        cwd = os.path.join(context.cwd, wire.get_bytes(request, "cwd", context.cwd))
        self._stream = stream
        self._kill_socket = context.kill_socket
        self._terminal = wire.get_list(request, "pty") if "pty" in request else None
        self._stdin = -1
        self._waiting = bytearray()
        self._stdin_ends = False
        self._outputs: dict[int, bytes] = {}
        self._status: int | None = None
        self._released = False
        streams = self._make_streams(keep_stdin=bool(wire.get_int(request, "stdin", 0)))
        try:
            self.pid = _launch(
                lambda report: _become(
                    argv,
                    env,
                    cwd,
                    streams=streams,
                    connectors=context.connectors,
                    tty=self._terminal is not None,
                    user=user,
                    report=report,
                )
            )
        finally:
            for fd in set(streams):
                os.close(fd)

    def _make_streams(self, *, keep_stdin: bool) -> tuple[int, int, int]:
        if self._terminal is not None:
            ours, theirs = _open_terminal()
            os.set_blocking(ours, False)
            self._outputs[ours] = wire.STDOUT
            self._stdin = os.dup(ours)
            self._resize(self._terminal)
            return theirs, theirs, theirs
        if keep_stdin:
            stdin, self._stdin = os.pipe()
            os.set_blocking(self._stdin, False)
        else:
            stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        ends = [stdin]
        for kind in (wire.STDOUT, wire.STDERR):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self._outputs[reading] = kind
            ends.append(writing)
        return ends[0], ends[1], ends[2]

    def _resize(self, size: list[bytes]) -> None:
        import fcntl
        import termios

        if len(size) != 2 or not all(part.isdigit() for part in size):
            raise wire.WireError(f"not the size of a terminal: {size!r}")
        rows, columns = (min(max(int(part[:5]), 1), 9999) for part in size)
        packed = b"".join(n.to_bytes(2, "little") for n in (rows, columns, 0, 0))
        fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, packed)

    # --- the loop ---------------------------------------------------------------------------

    def serve(self, wake: int) -> None:
        """Forward the streams, signals and kill requests until the command has ended."""
        self._handle_frames()  # what arrived together with the request
        while self._status is None:
            ready = self._poll(wake)
            if wake in ready:
                os.read(wake, 4096)
                self._note_ended(tree.reap())
            for fd in [fd for fd in self._outputs if fd in ready]:
                self._forward(fd)
            if self._stdin in ready:
                self._feed()
            if self._stream.fd in ready:
                self._stream.send()
                self._stream.receive()
                self._handle_frames()
            if self._stream.at_end and self._status is None and not self._released:
                self._kill()

    def _poll(self, wake: int) -> set[int]:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        events = 0 if self._stream.at_end else select.POLLIN
        if self._stream.unsent:
            events |= select.POLLOUT
        if events:
            poll.register(self._stream.fd, events)
        if self._stream.unsent < _HIGH_WATER:
            for fd in self._outputs:
                poll.register(fd, select.POLLIN)
        if self._stdin >= 0 and self._waiting:
            poll.register(self._stdin, select.POLLOUT)
        return {fd for fd, _ in poll.poll()}

    def _handle_frames(self) -> None:
        while (found := self._stream.next()) is not None:
            kind, payload = found
            if kind == wire.STDIN:
                self._waiting += payload
                if len(self._waiting) > _INPUT_LIMIT:
                    raise wire.WireError("the input exceeds its credit")
                self._feed()
            elif kind == wire.STDIN_END:
                self._stdin_ends = True
                self._feed()
            elif kind == wire.SIGNAL:
                self._signal(wire.get_int(wire.decode_message(payload), "number"))
            elif kind == wire.RESIZE:
                size = wire.get_list(wire.decode_message(payload), "size")
                if self._terminal is not None and self._stdin >= 0:
                    self._resize(size)
            elif kind == wire.RELEASE:
                self._released = True
                self._stream.queue(wire.RELEASE)
            elif kind == wire.KILL:
                self._kill()
                return
            else:
                raise wire.WireError(f"unexpected frame of kind {kind!r}")

    def _feed(self) -> None:
        taken = len(self._waiting)
        if self._stdin >= 0 and self._waiting:
            try:
                taken = os.write(self._stdin, self._waiting)
            except BlockingIOError:
                taken = 0
            except OSError:
                self._close_stdin()
        del self._waiting[:taken]
        if taken:
            self._stream.queue_message(wire.CREDIT, bytes=taken)
        if self._stdin_ends and not self._waiting and self._stdin >= 0:
            if self._terminal is not None:
                self._stdin_ends = False
                self._waiting += b"\x04"
                return self._feed()
            self._close_stdin()

    def _close_stdin(self) -> None:
        os.close(self._stdin)
        self._stdin = -1

    def _forward(self, fd: int) -> bool:
        """Forward one read. Returns False if there is nothing more to read now."""
        try:
            data = os.read(fd, _PIPE_READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            del self._outputs[fd]
            os.close(fd)
            return False
        if not self._stream.at_end:
            self._stream.queue(self._outputs[fd], data)
        return True

    def _signal(self, number: int) -> None:
        if not 1 <= number <= 64:
            raise wire.WireError(f"no signal has the number {number}")
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def _kill(self) -> None:
        self._note_ended(kill_all(self._kill_socket))

    def _note_ended(self, ended: dict[int, int]) -> None:
        if self.pid in ended:
            self._status = ended[self.pid]

    def finish(self, wake: int) -> None:
        """Forward the rest of the output, report the exit code, and stay as long as needed."""
        for fd in list(self._outputs):
            for _ in range(_LAST_OUTPUT // _PIPE_READ):
                if not self._forward(fd):
                    break
                self._stream.flush()
        status = 0 if self._status is None else self._status
        self._stream.queue_message(wire.EXIT, code=os.waitstatus_to_exitcode(status))
        self._stream.flush()
        # A background process may still write to these pipes. SIGPIPE would kill it if they had no
        # reader, so this process reads until the last writer is gone. It also reads input that is
        # still in transit: closing earlier would reset the connection, and the reset could overtake
        # the exit message.
        self._drain(wake)

    def _drain(self, wake: int) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        left = set[int]() if self._stream.at_end else {self._stream.fd}
        if self._terminal is None:
            left.update(self._outputs)
        for fd in left:
            poll.register(fd, select.POLLIN)
        while left:
            for fd, _ in poll.poll():
                try:
                    if os.read(fd, _PIPE_READ):
                        continue
                except BlockingIOError:
                    continue
                except ConnectionResetError:
                    self._stream.at_end = True
                poll.unregister(fd)
                left.discard(fd)
            tree.reap()


# --- fork and exec, as `subprocess` would, without its import -------------------------------------


def _open_terminal() -> tuple[int, int]:
    try:
        return os.openpty()
    except PermissionError as error:
        raise PermissionError(
            error.errno,
            "no terminal: a landlock jail that an ordinary user starts has none; use bubblewrap",
        ) from error


def _launch(become: Callable[[int], None]) -> int:
    """Fork and exec. Raises the child's own OSError if that fails.

    Args:
        become: Called in the child, with the pipe on which to report an error. Never returns.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        become(writing)
    os.close(writing)
    with open(reading, "rb") as report:
        failure = report.read()
    if not failure:
        return pid
    os.waitpid(pid, 0)
    number, _, path = failure.partition(b" ")
    raise OSError(int(number), os.strerror(int(number)), path)


def _become(
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: bytes,
    *,
    streams: tuple[int, int, int],
    connectors: list[int],
    tty: bool,
    user: User | None,
    report: int,
) -> None:
    """In the forked child: become the command, or report the error. Never returns."""
    path = b""
    try:
        os.setsid()
        if tty:
            import fcntl
            import termios

            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
        # Python ignores the first two, and an ignored signal stays ignored across exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for target, source in enumerate(streams):
            os.dup2(source, target, inheritable=True)
        close_all_but({report, *connectors})
        if user is not None:
            become_user(user)
        path = cwd
        os.chdir(cwd)
        path = argv[0]
        _exec(argv, env)
    except OSError as error:
        os.write(report, b"%d %s" % (error.errno or 0, path))
    finally:
        os._exit(127)


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    refused: OSError | None = None
    for folder in env.get(b"PATH", _DEFAULT_PATH).split(b":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
