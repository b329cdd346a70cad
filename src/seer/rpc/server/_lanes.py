"""Lanes that are threads, and how a function is interrupted there.

The main lane is the thread that imported the interface. A real-time signal interrupts it, which
also ends a sleep or a blocking read. Functions with `max_concurrency` above one have their own
threads, which can be interrupted only between two bytecodes. Calls wait for a lane in a queue that
is fair between callers: a caller that floods it delays only itself.

A function that imports something is interrupted when the import has ended. An exception inside the
import system can leave its locks held or a package half imported, permanently and for all callers.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Hashable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ._failures import Stopped

if TYPE_CHECKING:
    from types import FrameType

    from ._calls import Call
    from ._execute import Executor


class FairQueue:
    """Jobs of many owners, given out one owner after the other. Safe on any thread.

    Attributes:
        turns: The owners that have jobs, in the order of their turns; read-only.
        count: How many jobs there are; read-only.
    """

    __slots__ = ("_lock", "_queues", "count", "turns")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._queues: dict[Hashable, deque[Any]] = {}
        self.turns: deque[Hashable] = deque()
        self.count = 0

    def put(self, owner: Hashable, job: Any) -> None:
        """Add a job at the end of its owner's queue."""
        with self._lock:
            self.count += 1
            queue = self._queues.get(owner)
            if queue is None:
                self._queues[owner] = deque((job,))
                self.turns.append(owner)
            else:
                queue.append(job)

    def put_call(self, call: Call) -> None:
        """Add a call at the end of its caller's queue; `discard` takes it out again."""
        call.queue = self
        self.put(call.owner, call)

    def pop(self) -> Any:
        """The oldest job of the owner whose turn it is, or None."""
        with self._lock:
            if not self.turns:
                return None
            self.count -= 1
            owner = self.turns.popleft()
            queue = self._queues[owner]
            job = queue.popleft()
            if queue:
                self.turns.append(owner)
            else:
                del self._queues[owner]
            return job

    def discard(self, call: Call) -> None:
        """Remove a call that will not run, if it is still here."""
        with self._lock:
            queue = self._queues.get(call.owner)
            if queue is None or call not in queue:
                return
            self.count -= 1
            queue.remove(call)
            if not queue:
                del self._queues[call.owner]
                self.turns.remove(call.owner)


STOP_SIGNAL = signal.SIGRTMIN + 6
MAX_THREADS = 64
"""Threads of one function."""
LOOK_AGAIN = 0.02
"""Seconds between two checks whether a function still imports something."""
MAX_TASKS = 64
"""Calls of async functions that run at once."""


class MainLane:
    """Runs calls on the main thread, one at a time."""

    def __init__(self) -> None:
        self._ident = get_ident()
        self._inside: Any = None
        """The job whose user code the main thread runs right now."""
        self._stop: Any = None
        signal.signal(STOP_SIGNAL, self._on_signal)

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        stop, self._stop = self._stop, None
        if stop is None or stop is not self._inside:
            return
        importing = outermost_import(frame)
        if importing is None:
            raise Stopped

        def profile(ended: FrameType, event: str, _: object) -> None:
            if ended is importing and event == "return":
                sys.setprofile(None)
                raise Stopped

        # It sees frames return that run already; a trace function would not.
        sys.setprofile(profile)

    def interrupt(self, call: Any) -> None:
        """Interrupt `call` if the main thread runs its user code; called from another thread."""
        if self._inside is call:
            self._stop = call
            signal.pthread_kill(self._ident, STOP_SIGNAL)

    def enter(self, call: Any) -> None:
        """Note that the main thread enters user code for `call`."""
        self._inside = call

    def leave(self, _call: Any) -> None:
        """Note that the main thread has left user code."""
        self._inside = None


class ThreadLanes:
    """Runs the calls of one function on its own threads."""

    def __init__(self, executor: Executor, count: int, name: str) -> None:
        self._executor = executor
        self._queue = FairQueue()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._lock = allocate_lock()
        self._idents: dict[Call, int] = {}
        self._count = count
        for number in range(count):
            threading.Thread(target=self._work, name=f"seer-{name}-{number}", daemon=True).start()

    def submit(self, call: Call) -> None:
        """Queue a call."""
        self._queue.put_call(call)
        self._tokens.put(True)

    def close(self) -> None:
        """End the threads when all queued calls have run."""
        for _ in range(self._count):
            self._tokens.put(False)

    def interrupt(self, call: Call) -> None:
        """Raise in the thread that runs `call`."""
        if not self._try_interrupt(call):
            waiting = threading.Thread(target=self._wait_for_import, args=(call,), daemon=True)
            waiting.start()

    def _wait_for_import(self, call: Call) -> None:
        while not self._try_interrupt(call):
            time.sleep(LOOK_AGAIN)

    def _try_interrupt(self, call: Call) -> bool:
        """Raise in the thread that runs `call`; False if the thread is importing something."""
        with self._lock:
            ident = self._idents.get(call)
            if ident is not None:
                # The thread sees the exception before it can begin an import: that needs the
                # interpreter lock, and a thread that gets the lock checks for exceptions first.
                frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
                if outermost_import(frames.get(ident)) is not None:
                    return False
                _raise_in(ident, Stopped)
        return True

    def enter(self, call: Call) -> None:
        """Note that the calling thread enters user code for `call`."""
        with self._lock:
            self._idents[call] = get_ident()

    def leave(self, call: Call) -> None:
        """Note that the thread has left user code; an interrupt that is too late is undone."""
        with self._lock:
            if self._idents.pop(call, None) is not None and call.cause:
                _raise_in(get_ident(), None)

    def _work(self) -> None:
        while self._tokens.get():
            call = self._queue.pop()
            # A call that was stopped while it waited was removed from the queue.
            if call is not None:
                self._executor.run(call, self._executor.marks.take(), self)


def outermost_import(frame: FrameType | None) -> FrameType | None:
    """The outermost frame of the import system below `frame`; None if it imports nothing."""
    found = None
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            found = frame
        frame = frame.f_back
    return found


def _raise_in(ident: int, kind: type[BaseException] | None) -> None:
    what = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), what)
