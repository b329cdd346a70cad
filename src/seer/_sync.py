"""The one door between blocking code, any event loop, and the async core.

All of Seer's asynchronous work runs on one background loop thread. Blocking methods enter it with
`run_sync`, their `a`-prefixed twins with `on_loop`; so both kinds can be mixed on one object, and
both work in plain scripts, in notebooks and inside a running event loop.

A fork gets a background loop of its own: threads do not survive a fork, and the parent's loop must
not be touched, because both processes share the descriptor that it waits on.
"""

import asyncio
import atexit
import errno
import os
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from seer.errors import HostResourceError, SeerError

T = TypeVar("T")

_LACKS = {
    errno.EMFILE: "this process has no file descriptor left; raise its limit (ulimit -n)",
    errno.ENFILE: "this host has no file descriptor left",
    errno.ENOSPC: "a disk of this host is full; make room on it",
    errno.EDQUOT: "this user's disk quota is used up; make room",
    errno.EROFS: "a file system of this host cannot be written; set XDG_CACHE_HOME, XDG_STATE_HOME "
    "or TMPDIR to a folder on another",
}

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_of_parents: list[asyncio.AbstractEventLoop] = []
"""Loops of the processes that this one was forked from; kept, because collecting one closes it."""
_caller: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar(
    "seer_calling_loop", default=None
)


def background_loop() -> asyncio.AbstractEventLoop:
    """The background loop, started on first use in a daemon thread."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_loop.run_forever, name="seer-loop", daemon=True)
            thread.start()
            atexit.register(_end, _loop, thread)
        return _loop


def _forget_parent() -> None:
    """In a fork: begin without a loop. The parent's may have held the lock."""
    global _lock, _loop
    _lock = threading.Lock()
    if _loop is not None:
        _of_parents.append(_loop)
        _loop = None


os.register_at_fork(after_in_child=_forget_parent)


def calling_loop() -> asyncio.AbstractEventLoop | None:
    """On the background loop: the event loop in which the running call was made, if in one."""
    return _caller.get()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """At the end of the process: let what still runs on the loop end in order, for a moment."""

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=2.0) if tasks else None
        loop.stop()

    if thread.is_alive():
        asyncio.run_coroutine_threadsafe(cancel_all(), loop)
        thread.join(timeout=3.0)


@contextmanager
def _resources_named() -> Generator[None]:
    """Raise a lack of this host's resources as what it is, wherever in Seer it showed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SeerError) or error.errno not in _LACKS:
            raise
        typed = HostResourceError(f"{_LACKS[error.errno]} ({error})")
        typed.errno = error.errno  # with a filename too, OSError would replace the message
        raise typed from error


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on the background loop and wait for its result.

    Ctrl-C cancels the coroutine and waits until its clean-up has ended.

    Raises:
        RuntimeError: When called on the background loop itself, which would deadlock.
    """
    loop = background_loop()
    calling = _running_loop()
    if calling is loop:
        coroutine.close()
        raise RuntimeError("a blocking method was called on Seer's own loop; await its twin")
    ended = threading.Event()

    async def guarded() -> T:
        _caller.set(calling)
        try:
            return await coroutine
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(guarded(), loop)
    try:
        with _resources_named():
            return future.result()
    except KeyboardInterrupt:
        if future.cancel():
            ended.wait()
        raise


async def on_loop(coroutine: Coroutine[Any, Any, T], *, settle: bool = False) -> T:
    """Run `coroutine` on the background loop and await its result from any loop.

    Args:
        coroutine: What to run. Cancelling the caller cancels it.
        settle: Whether a caller that is cancelled waits until the coroutine's clean-up has ended.
    """
    loop = background_loop()
    calling = asyncio.get_running_loop()
    if calling is loop:
        return await coroutine

    ended = asyncio.Event()

    async def called() -> T:
        _caller.set(calling)
        try:
            return await coroutine
        finally:
            with suppress(RuntimeError):  # the calling loop has been closed
                calling.call_soon_threadsafe(ended.set)

    running = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), loop))
    try:
        with _resources_named():
            return await running
    except asyncio.CancelledError:
        if settle:
            await ended.wait()
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
