"""The address of a gate, and how to connect to it.

`path:/run/seer/gates/tools.sock` is a Unix socket to connect to. `fd:N` is a connector: a connected
descriptor that hands out connections, for jails whose programs may not connect themselves. The
client writes a byte to it and gets a connected socket back.
"""

from __future__ import annotations

import errno
import os
import socket
import time

from ...errors import GateBusyError, InterfaceDiedError, ProtocolError
from ..wire._descriptors import LOST, received
from ..wire._protocol import CANNOT_PASS

PREFIX = "SEER_GATE_"
_ATTEMPTS = 20
_BUSY = {b"-%d" % number: number for number in (errno.EAGAIN, *CANNOT_PASS)}
"""Error numbers, by the answer of a connector that cannot make or pass a connection just now."""


def from_environment(name: str) -> str:
    """The address of the interface `name` in this session's environment.

    Raises:
        ProtocolError: The environment has none.
    """
    key = PREFIX + name.upper()
    address = os.environ.get(key, "")
    if not address:
        raise ProtocolError(
            f"the environment has no {key}: {name!r} is not served to this process, or the process"
            " was started without the environment of its session"
        )
    return address


def connect(address: str) -> socket.socket:
    """A new connection to the gate at `address`.

    Raises:
        ProtocolError: The address has no known form.
        InterfaceDiedError: Nothing listens there any more.
        GateBusyError: This process or the gate lacks descriptors or memory.
    """
    kind, _, rest = address.partition(":")
    try:
        if kind == "path" and rest:
            return _connect_path(rest)
        if kind == "fd" and rest.isdigit():
            return _through_connector(int(rest))
    except OSError as error:
        if error.errno not in CANNOT_PASS:
            raise
        raise _busy(error.errno) from None
    raise ProtocolError(f"the gate's address {address!r} is neither path:... nor fd:N")


def _busy(number: int | None) -> GateBusyError:
    why = os.strerror(number or errno.EAGAIN)
    return GateBusyError(f"no connection to the gate could be made just now: {why}")


def _connect_path(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        try:
            connected.connect(path)
        except OSError as error:
            if "too long" not in str(error):
                raise
            # An address may have 107 bytes. A path through a descriptor of its folder is short.
            folder, name = os.path.split(path)
            fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connected.connect(f"/proc/self/fd/{fd}/{name}")
            finally:
                os.close(fd)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connected.close()
        raise InterfaceDiedError(
            f"nothing listens at the gate {path!r} any more ({error.strerror}): the interface or"
            " the sandbox that served it has ended"
        ) from None
    except BaseException:
        connected.close()
        raise
    return connected


def _through_connector(fd: int) -> socket.socket:
    try:
        connector = socket.socket(fileno=os.dup(fd))
    except OSError as error:
        if error.errno in CANNOT_PASS:
            raise
        raise InterfaceDiedError(
            f"the gate's connector, descriptor {fd}, is not open in this process"
            f" ({error.strerror}): start programs with close_fds=False, or call from the session's"
            " main process"
        ) from None
    note = b""
    try:
        connector.setblocking(True)
        for attempt in range(_ATTEMPTS):
            connector.send(b"c")
            note, ancillary, flags, _ = connector.recvmsg(16, socket.CMSG_SPACE(4))
            for descriptor in received(ancillary):
                return socket.socket(fileno=descriptor)
            if flags & LOST:
                raise _busy(errno.EMFILE)
            if note not in _BUSY:
                break
            # The gate's queue of new connections is full, or it lacks descriptors.
            time.sleep(0.01 * attempt)
    except OSError as error:
        raise InterfaceDiedError(f"the gate's connector is closed ({error.strerror})") from None
    finally:
        connector.close()
    if note in _BUSY:
        raise _busy(_BUSY[note])
    if not note:
        raise InterfaceDiedError("the gate's connector is closed: the sandbox has ended")
    raise InterfaceDiedError(
        f"the gate's connector opened no connection ({note.decode('ascii', 'replace')}): the"
        " interface or the sandbox that served it has ended"
    )
