"""A vendor's cloud on loopback: a thread with an event loop, and a folder."""

import asyncio
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from seer.errors import SeerError
from tests.support.containers._container import supported
from tests.support.containers.errors import ContainerError
from tests.support.folders import remove_at_end

T = TypeVar("T")
_PATIENCE = 60.0


class LoopbackCloud(ABC):
    """Runs in its own thread while it is entered; everything in it ends with it."""

    vendor: str

    def __init__(self) -> None:
        """Set it up; nothing starts before it is entered."""
        self.folder = Path()
        """Where it keeps everything."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stop = asyncio.Event()

    @abstractmethod
    async def _serve(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Start, call `ready`, wait for `stop`, end everything."""

    def _needs(self) -> str | None:
        """Why it cannot run here; None if it can."""
        return supported()

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            ContainerError: Containers cannot be made here.
        """
        reason = self._needs()
        if reason is not None:
            raise ContainerError(f"a loopback {self.vendor} needs containers: {reason}")
        self.folder = Path(tempfile.mkdtemp(prefix=f"seer-{self.vendor.lower()}-"))
        remove_at_end(self.folder)
        self._thread = threading.Thread(
            target=self._run, name=f"loopback {self.vendor}", daemon=True
        )
        self._thread.start()
        if not self._ready.wait(_PATIENCE) or self._failure is not None:
            self.__exit__(None, None, None)
            raise SeerError(f"the loopback {self.vendor} did not start") from self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it and everything in it."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the cloud's own loop.

        Raises:
            SeerError: The cloud is not running.
        """

        async def calling() -> T:
            return function()

        if self._loop is None:
            raise SeerError(f"the loopback {self.vendor} is not running; enter it first")
        return asyncio.run_coroutine_threadsafe(calling(), self._loop).result(_PATIENCE)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
            self._ready.set()
            raise

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._serve(self._ready.set, self._stop)
