"""Passes open connections into a jail whose programs may not call `connect`.

A connector is a socket pair. Every process in the jail inherits one end. For each byte that arrives
on the other end, the keeper connects to the connector's target on the host and sends the connected
descriptor back. The jail cannot choose the target.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from .c_modules import socket

_PER_TURN = 16


class Connector:
    """The keeper's end of one socket pair."""

    def __init__(self, fd: int, target: bytes) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._target = target

    @property
    def fd(self) -> int:
        """The descriptor to poll for requests."""
        return self._socket.fileno()

    def answer(self) -> bool:
        """Answer a few of the waiting requests. Returns False once the jail's end is closed."""
        for _ in range(_PER_TURN):
            try:
                if not self._socket.recv(16):
                    return False
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._answer_one()
        return True

    def _answer_one(self) -> None:
        try:
            peer = _connect(self._target)
            try:
                rights = peer.fileno().to_bytes(4, sys.byteorder)
                self._socket.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            finally:
                peer.close()
        except OSError as error:
            self._refuse(error.errno or 0)

    def _refuse(self, number: int) -> None:
        try:
            self._socket.send(b"-%d" % number)
        except OSError:
            return  # The jail is not reading its answers, so only its own requests fail.


def _connect(path: bytes) -> socket.socket:
    # This opens the socket itself and never follows a link.
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), path)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Non-blocking: if the queue is full, the jail gets an error and the keeper continues.
            peer.setblocking(False)
            peer.connect(b"/proc/self/fd/%d" % fd)
            peer.setblocking(True)
        except BaseException:
            peer.close()
            raise
    finally:
        os.close(fd)
    return peer
