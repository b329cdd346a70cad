"""Waiting for sockets on an event loop, so that a cancelled wait loses no connection.

`loop.sock_accept` returns the accepted socket in a future, as `asyncio.to_thread` does with a
connected one. A task that is cancelled between the result and its own next step never sees that
socket, so no code closes it. In this module, the task that keeps a connection accepts it itself,
and a socket that a thread connects after its task was cancelled is closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors that mean that this host lacks a resource, perhaps only for a short time."""
_RETRY_DELAY = 1.0


async def readable(waited_for: socket.socket | int) -> None:
    """Wait until a socket or a pipe can be read, or has a connection to accept."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(waited_for, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(waited_for)


def accept_waiting(listener: socket.socket) -> socket.socket | None:
    """Accept a waiting connection; None if there is none. Neither socket blocks."""
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    connection.setblocking(False)
    return connection


async def accept(listener: socket.socket) -> socket.socket:
    """Accept the next connection of a non-blocking listener. The connection does not block."""
    while True:
        try:
            connection = accept_waiting(listener)
        except OSError as error:
            if error.errno not in _SHORT:
                raise
            logger.error("cannot accept a connection; trying again in 1 s: %s", error)
            await asyncio.sleep(_RETRY_DELAY)
            continue
        if connection is not None:
            return connection
        await readable(listener)


async def connect_in_thread(connect: Callable[[], socket.socket]) -> socket.socket:
    """Run `connect` in a thread, because it blocks while the listener accepts nothing."""
    connecting = asyncio.create_task(asyncio.to_thread(connect))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close_result)
        raise


def _close_result(connecting: asyncio.Task[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class Acceptor:
    """Serves each connection of a listener in a task of its own, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], Awaitable[None]],
        *,
        limit: int | None = None,
    ) -> None:
        """Begin to accept.

        Args:
            listener: A listening socket, which now belongs to the acceptor.
            serve: Serves one connection, and closes it.
            limit: How many connections are served at once; further ones wait.
        """
        listener.setblocking(False)
        self._listener = listener
        self._serve = serve
        self._room = asyncio.Semaphore(limit) if limit is not None else None
        self._waiting: dict[asyncio.Task[None], socket.socket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stop listening, and cancel the tasks that serve connections. Can be called twice."""
        tasks = [self._accepting, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            if self._room is not None:
                await self._room.acquire()
            connection = await accept(self._listener)
            task = asyncio.create_task(self._begin(connection))
            self._waiting[task] = connection
            self._tasks.add(task)
            task.add_done_callback(self._done)

    async def _begin(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        del self._waiting[task]
        await self._serve(connection)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._room is not None:
            self._room.release()
        connection = self._waiting.pop(task, None)
        if connection is not None:
            connection.close()  # cancelled before it began
