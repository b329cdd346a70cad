"""Lanes: the threads that run functions, and how each is told to stop.

The main lane is the thread that imported the interface. A real-time signal interrupts it, which
also ends a sleep or a blocking read. Functions with `max_concurrency` above one have threads of
their own; those can be interrupted between two bytecodes only.
"""

from __future__ import annotations

import signal
import threading
import time
from _thread import allocate_lock, get_ident
from queue import SimpleQueue

from seer.errors import GateError

from ._calls import Call
from ._failures import Stopped
from ._queue import FairQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._execute import Executor
    from ._streams import Streamer

STOP_SIGNAL = signal.SIGRTMIN + 6
MAIN_LANE = 0
_monotonic = time.monotonic


class MainLane:
    """Runs calls on the main thread, one at a time."""

    def __init__(self, executor: Executor, streamer: Streamer) -> None:
        self._executor = executor
        self._streamer = streamer
        self._ident = get_ident()
        self.inside: Any = None
        """What the main thread is inside of right now, in user code."""
        self._stop: Any = None
        signal.signal(STOP_SIGNAL, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        stop, self._stop = self._stop, None
        if stop is not None and stop is self.inside:
            self.inside = None
            raise Stopped

    def interrupt(self, call: Any) -> None:
        """Stop `call` if the main thread is inside of it; from another thread."""
        if self.inside is call:
            self._stop = call
            signal.pthread_kill(self._ident, STOP_SIGNAL)

    def enter(self, what: Any) -> None:
        """Note that the main thread goes into user code for `what`."""
        self.inside = what

    def leave(self, _what: Any) -> None:
        """Note that it has come out."""
        self.inside = None

    def run(self, job: Any) -> None:
        """Run one call to its end, or another job of the main thread."""
        if type(job) is not Call:
            job.run()
            return
        call: Call = job
        if self._executor.begin(call, MAIN_LANE, self):
            self._run_begun(call)

    def _run_begun(self, call: Call) -> None:
        """Run a call that is marked as running."""
        executor = self._executor
        entry = call.entry
        try:
            try:
                args, kwargs = executor.arguments(call)
            except GateError as error:
                executor.finish(call, MAIN_LANE, executor.refusal(error), _monotonic())
                return
            if entry.streams:
                self._streamer.run(call, MAIN_LANE, self, entry.target(*args, **kwargs))
                return
            try:
                self.inside = call
                if call.cause:
                    raise Stopped
                value = entry.target(*args, **kwargs)
                self.inside = None
            except BaseException as error:
                # Whatever a function raises, SystemExit too, is its caller's to see.
                self.inside = None
                ended = _monotonic()
                executor.finish(call, MAIN_LANE, executor.failure(call, error), ended)
                executor.check_poisoned(error)
                return
            executor.complete(call, MAIN_LANE, value, _monotonic())
        except Stopped as stopped:
            # The signal came between the function's last step and ours.
            executor.finish(call, MAIN_LANE, executor.failure(call, stopped), _monotonic())
        except Exception as error:
            executor.finish(call, MAIN_LANE, executor.fault(error), _monotonic())


class ThreadLanes:
    """Runs the calls of one function on threads of its own."""

    def __init__(self, executor: Executor, streamer: Streamer, first: int, count: int) -> None:
        self._executor = executor
        self._streamer = streamer
        self._queue = FairQueue()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._lock = allocate_lock()
        self._idents: dict[Call, int] = {}
        self._count = count
        for lane in range(first, first + count):
            threading.Thread(
                target=self._work, args=(lane,), name=f"seer-lane-{lane}", daemon=True
            ).start()

    def submit(self, call: Call) -> None:
        """Queue a call."""
        self._queue.put(call.owner, call)
        self._tokens.put(True)

    def close(self) -> None:
        """End the threads once what is queued has run."""
        for _ in range(self._count):
            self._tokens.put(False)

    def interrupt(self, call: Call) -> None:
        """Raise in the thread that runs `call`."""
        with self._lock:
            ident = self._idents.get(call)
            if ident is not None:
                _raise_in(ident, Stopped)

    def enter(self, call: Call | None) -> None:
        """Note that the calling thread goes into user code for `call`."""
        if call is None:
            return
        with self._lock:
            self._idents[call] = get_ident()

    def leave(self, call: Call) -> None:
        """Note that it has come out; an interrupt that came too late is taken back."""
        with self._lock:
            if self._idents.pop(call, None) is not None and call.cause:
                _raise_in(get_ident(), None)

    def _work(self, lane: int) -> None:
        while True:
            if not self._tokens.get():
                return
            call = self._queue.pop()
            try:
                self._run(call, lane)
            except Stopped as stopped:
                # The interrupt came between the function's last step and ours.
                self._executor.finish(
                    call, lane, self._executor.failure(call, stopped), _monotonic()
                )
            except Exception as error:
                self._executor.finish(call, lane, self._executor.fault(error), _monotonic())

    def _run(self, call: Call, lane: int) -> None:
        executor = self._executor
        if not executor.begin(call, lane, self):
            return
        try:
            args, kwargs = executor.arguments(call)
        except GateError as error:
            executor.finish(call, lane, executor.refusal(error), _monotonic())
            return
        entry = call.entry
        if entry.streams:
            self._streamer.run(call, lane, self, entry.target(*args, **kwargs))
            return
        try:
            self.enter(call)
            if call.cause:
                raise Stopped
            value = entry.target(*args, **kwargs)
            self.leave(call)
        except BaseException as error:
            self.leave(call)
            ended = _monotonic()
            executor.finish(call, lane, executor.failure(call, error), ended)
            executor.check_poisoned(error)
            return
        ended = _monotonic()
        executor.complete(call, lane, value, ended)


def _raise_in(ident: int, kind: type[BaseException] | None) -> None:
    import ctypes

    what = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), what)
