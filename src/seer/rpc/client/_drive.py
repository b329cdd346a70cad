"""Steps: an exchange with the gate, written once for blocking and asynchronous callers.

An exchange is a generator. It does its own sends and reads, and yields a `Wait` where it cannot go
on. A driver waits and resumes it: `drive` blocks the calling thread, `adrive` awaits.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

    _T = TypeVar("_T")
    Steps = Generator["Wait", None, _T]


class Wait:
    """What an exchange waits for: a socket, or only time.

    Attributes:
        seconds: How long it waits for the socket at most, or how long it sleeps.
        fd: The socket's descriptor; -1 to sleep.
        write: Whether it waits to write instead of to read.
    """

    __slots__ = ("fd", "seconds", "write")

    def __init__(self, seconds: float, fd: int = -1, *, write: bool = False) -> None:
        self.seconds = seconds
        self.fd = fd
        self.write = write


def drive(steps: Steps[_T]) -> _T:
    """Run an exchange on the calling thread, and return its result.

    Its sockets block and have their own timeout. So a wait for a socket means that it timed out.
    """
    try:
        wait = next(steps)
        while True:
            try:
                if wait.fd >= 0:
                    raise TimeoutError("the gate has shown no sign of life")
                time.sleep(wait.seconds)
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = next(steps)
    except StopIteration as stop:
        return stop.value


async def adrive(steps: Steps[_T]) -> _T:
    """Run an exchange in the running event loop, and return its result.

    Its sockets do not block.
    """
    import asyncio

    try:
        wait = next(steps)
        while True:
            try:
                if wait.fd < 0:
                    await asyncio.sleep(wait.seconds)
                else:
                    await _ready(asyncio.get_running_loop(), wait)
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = next(steps)
    except StopIteration as stop:
        return stop.value


async def _ready(loop: asyncio.AbstractEventLoop, wait: Wait) -> None:
    """Wait until a socket is ready.

    Raises:
        TimeoutError: It was not ready in time.
    """
    future: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_writer, loop.remove_writer)
        if wait.write
        else (loop.add_reader, loop.remove_reader)
    )
    add(wait.fd, lambda: None if future.done() else future.set_result(None))
    timer = loop.call_later(
        max(wait.seconds, 0.0),
        lambda: None if future.done() else future.set_exception(TimeoutError()),
    )
    try:
        await future
    finally:
        timer.cancel()
        remove(wait.fd)
