"""A pool of sessions or sandboxes that are started before they are needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

from seer.errors import EndingError, SandboxStateError


class _Session(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class _Sandbox(Protocol):
    def terminate(self) -> None: ...


T = TypeVar("T", bound="_Session | _Sandbox")


class Pool(Generic[T]):
    """Keeps `size` sessions or sandboxes ready, and starts another for each that is taken.

    The caller of `take` owns what it gets and closes it; nothing returns to the pool. A waiting
    session uses as much memory as a working one: about 37 MiB, and the imports of its
    `custom_init_code`.

        workspace = Workspace(custom_init_code="import numpy, pandas")
        with Pool(lambda: create_local_session(workspace), size=8) as pool:
            session = pool.take()
    """

    def __init__(self, make: Callable[[], T], *, size: int) -> None:
        """Begin to fill the pool, in the background.

        Args:
            make: Starts one session or sandbox. Several threads call it at a time.
            size: How many to keep ready.
        """
        if size < 1:
            raise ValueError(f"size={size!r}: a pool keeps at least one ready")
        self._make = make
        self._size = size
        # Starting more at a time would delay each of them.
        self._at_once = min(size, os.cpu_count() or 1)
        self._ready: deque[T] = deque()
        self._starting = 0
        self._error: Exception | None = None
        self._closed = False
        self._changed = threading.Condition()
        with self._changed:
            self._top_up()

    @property
    def ready(self) -> int:
        """How many can be taken without waiting."""
        return len(self._ready)

    def take(self) -> T:
        """Take one, waiting while none is ready.

        Raises:
            SandboxStateError: The pool is closed.
            Exception: `make` raised it; the next `take` tries again.
        """
        with self._changed:
            while not self._ready and not self._closed:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                self._top_up()
                self._changed.wait()
            if self._closed:
                raise SandboxStateError("the pool is closed")
            taken = self._ready.popleft()
            self._top_up()
            return taken

    async def atake(self) -> T:
        """Like `take`."""
        # No task: the end of `asyncio.run` would cancel it, and lose what the thread takes.
        taking = asyncio.get_running_loop().run_in_executor(None, self.take)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The caller is gone, so close what the thread takes.
            taking.add_done_callback(_end_result)
            raise

    def close(self) -> None:
        """End all sessions or sandboxes that were not taken. Closing twice is harmless.

        Raises:
            EndingError: Some could not be ended; all were tried.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._starting == 0)
            left = list(self._ready)
            self._ready.clear()
        if not left:
            return
        failures: list[Exception] = []
        with ThreadPoolExecutor(max_workers=len(left)) as threads:
            for ending in [threads.submit(_end, item) for item in left]:
                error = ending.exception()
                if isinstance(error, Exception):
                    failures.append(error)
        if failures:
            raise EndingError("the pool could not be emptied", failures)

    async def aclose(self) -> None:
        """Like `close`."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _top_up(self) -> None:
        """Start as many as are missing. The caller holds the lock."""
        while (
            not self._closed
            and self._starting < self._at_once
            and len(self._ready) + self._starting < self._size
        ):
            self._starting += 1
            threading.Thread(target=self._start_one, name="seer-pool", daemon=True).start()

    def _start_one(self) -> None:
        made: T | None = None
        error: Exception | None = None
        try:
            made = self._make()
        except Exception as raised:  # the edge of a thread; the next `take` raises it
            error = raised
        with self._changed:
            self._starting -= 1
            if made is not None:
                self._ready.append(made)
                self._error = None
                self._top_up()
            else:
                self._error = error
            self._changed.notify_all()


def _end(item: _Session | _Sandbox) -> None:
    if isinstance(item, _Sandbox):
        item.terminate()
    else:
        item.close()


def _end_result(taking: asyncio.Future[T]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        if taking.exception() is None:
            # No daemon: the program may end now, and this must not be left over.
            threading.Thread(target=_end, args=(taking.result(),), daemon=False).start()
