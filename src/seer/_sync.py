"""The one door between blocking code, any event loop, and the async core.

All of Seer's asynchronous work runs on one background loop thread. Blocking methods enter it with
`run_sync`, their `a`-prefixed twins with `on_loop`; so both kinds can be mixed on one object, and
both work in plain scripts, in notebooks and inside a running event loop.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


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


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on the background loop and wait for its result.

    Ctrl-C cancels the coroutine and waits until its clean-up has ended.

    Raises:
        RuntimeError: When called on the background loop itself, which would deadlock.
    """
    loop = background_loop()
    if _running_loop() is loop:
        coroutine.close()
        raise RuntimeError("a blocking method was called on Seer's own loop; await its twin")
    ended = threading.Event()

    async def guarded() -> T:
        try:
            return await coroutine
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(guarded(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        if future.cancel():
            ended.wait()
        raise


async def on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on the background loop and await its result from any loop."""
    loop = background_loop()
    if asyncio.get_running_loop() is loop:
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
