"""Runs Seer's coroutines from blocking code and from any event loop.

All of Seer's asynchronous work runs on one background event loop, in a thread of its own. Blocking
methods submit to it with `run_sync`, and their `a`-prefixed twins with `on_loop` or
`from_any_loop`. So one object can be used both ways, and both work in scripts, in notebooks and
inside a running event loop.

A forked process gets a new background loop. Threads do not survive a fork, and the child must not
touch the parent's loop, because both processes share the descriptor that the loop waits on.
"""

import asyncio
import atexit
import errno
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from seer.errors import HostResourceError, SeerError

P = ParamSpec("P")
T = TypeVar("T")

_SHORTAGES = {
    errno.EMFILE: "this process has no file descriptors left; raise its limit (ulimit -n)",
    errno.ENFILE: "this host has no file descriptors left",
    errno.ENOSPC: "a disk of this host is full; free some space",
    errno.EDQUOT: "this user's disk quota is used up; free some space",
    errno.EROFS: "a file system of this host is read-only; set XDG_CACHE_HOME, XDG_STATE_HOME or "
    "TMPDIR to a folder on another file system",
}

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_of_parents: list[asyncio.AbstractEventLoop] = []
"""Loops of parent processes before a fork. Kept, because garbage collection would close them."""
_caller: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar(
    "seer_calling_loop", default=None
)
_already_told: WeakSet[asyncio.Task[Any]] = WeakSet()
"""Tasks in which `run_sync` has raised a cancellation that asyncio will raise once more."""


def background_loop() -> asyncio.AbstractEventLoop:
    """The background loop, started on first use in a daemon thread.

    Raises:
        HostResourceError: This process has no descriptors left for it.
    """
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            with resources_named():
                _loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_loop.run_forever, name="seer-loop", daemon=True)
            thread.start()
            atexit.register(_end, _loop, thread)
        return _loop


def _forget_parent() -> None:
    """In a forked process: start without a loop, and with a new lock that no thread holds."""
    global _lock, _loop
    _lock = threading.Lock()
    if _loop is not None:
        _of_parents.append(_loop)
        _loop = None


os.register_at_fork(after_in_child=_forget_parent)


def calling_loop() -> asyncio.AbstractEventLoop | None:
    """On the background loop: the event loop of the caller, or None for a blocking call."""
    return _caller.get()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """At exit: cancel the tasks on the loop, and give them two seconds to clean up.

    Python ends a daemon thread wherever it is, and aborts if that is in Rust or C++ code, so the
    loop has to have stopped by then. The wait is long for a busy host; an idle loop stops at once.
    """

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=2.0) if tasks else None
        loop.stop()

    if thread.is_alive():
        asyncio.run_coroutine_threadsafe(cancel_all(), loop)
        thread.join(timeout=30.0)


@contextmanager
def resources_named() -> Generator[None]:
    """Turn an `OSError` that means that this host lacks a resource into a `HostResourceError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SeerError) or error.errno not in _SHORTAGES:
            raise
        typed = HostResourceError(f"{_SHORTAGES[error.errno]} ({error})")
        typed.errno = error.errno  # with a filename too, OSError would replace the message
        raise typed from error


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on the background loop and wait for its result.

    Ctrl-C cancels the coroutine and waits until its clean-up has ended. So does cancelling the task
    that this is called in, which is what Ctrl-C does under `asyncio.run`.

    Raises:
        CancelledError: The caller's task was cancelled meanwhile.
        RuntimeError: The caller is on the background loop itself, which would deadlock.
    """
    loop = background_loop()
    calling = _running_loop()
    if calling is loop:
        coroutine.close()
        raise RuntimeError(
            "a blocking method was called on Seer's own event loop; await its `a`-prefixed twin"
        )
    began, ended = threading.Event(), threading.Event()

    async def guarded() -> T:
        began.set()
        _caller.set(calling)
        try:
            return await coroutine
        finally:
            ended.set()

    task = None if calling is None else asyncio.current_task(calling)
    # A cancelled task may call this in its clean-up, so only later cancellations count.
    before = 0 if task is None else task.cancelling()
    future = asyncio.run_coroutine_threadsafe(guarded(), loop)
    try:
        with resources_named():
            if task is not None:
                _wait_in_task(future, task, before)
            return future.result()
    except (KeyboardInterrupt, asyncio.CancelledError):
        began.wait()  # a coroutine that is cancelled before it begins never sets `ended`
        if future.cancel():
            ended.wait()
        raise


def _wait_in_task(future: Future[Any], task: asyncio.Task[Any], before: int) -> None:
    """Wait until `future` is done, in the thread of a task.

    The task's loop is blocked meanwhile, so this polls for a cancellation of the task.

    Raises:
        CancelledError: The task was cancelled more than `before` times.
    """
    while not wait([future], timeout=0.1).done:
        if task.cancelling() > before:
            _already_told.add(task)
            raise asyncio.CancelledError


async def run_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on `loop`, which need not be the current one, and await its result."""
    if asyncio.get_running_loop() is loop:
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


async def on_loop(coroutine: Coroutine[Any, Any, T], *, settle: bool = False) -> T:
    """Run `coroutine` on the background loop and await its result from any loop.

    Args:
        coroutine: What to run. Cancelling the caller cancels it.
        settle: Whether a cancelled caller waits until the coroutine's clean-up has ended.
    """
    loop = background_loop()
    calling = asyncio.get_running_loop()
    if calling is loop:
        return await coroutine
    task = asyncio.current_task()
    if task is not None and task in _already_told:
        # Let asyncio raise it here; otherwise, it would end a clean-up before that begins.
        _already_told.discard(task)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

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
        with resources_named():
            return await running
    except asyncio.CancelledError:
        if settle:
            await ended.wait()
        raise


def from_any_loop(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorates a coroutine function: its body runs on the background loop; see `on_loop`."""

    @wraps(function)
    async def submitted(*args: P.args, **kwargs: P.kwargs) -> T:
        return await on_loop(function(*args, **kwargs))

    return submitted


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
