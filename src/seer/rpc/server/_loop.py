"""The event loop of the interface process: which thread watches sockets and which runs functions.

Functions that run one at a time run on the main thread, the one that imported the module. While it
is free, it also watches the sockets, so a short call needs no change of threads. A second thread,
the relief, checks it every few milliseconds. If the main thread is busy in a function, the relief
takes over the sockets, so that health, budget and cancel requests are answered at once. It returns
them with the next call that finds the main thread free. While nothing runs, the relief sleeps. The
thread that watches the sockets is the leading thread.

This module knows descriptors and callables. It does not know HTTP, callers or values.
"""

from __future__ import annotations

import os
import select
import threading
import time
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Sized
from functools import partial
from typing import Any

from seer.rpc.wire._polling import BriefPolling

from ._poller import Poller

TAKE_OVER = 0.005
"""Seconds that a function runs before the relief takes over the sockets."""
PARK_AFTER = 20
"""Checks of an idle main thread after which the relief goes to sleep."""
SLICE = 0.002
"""Seconds that the main thread runs queued calls before it looks at the sockets again."""

_monotonic = time.monotonic


class Loop(Poller):
    """Sockets, timers and the main thread's work.

    Args:
        next_job: Returns the next job of the main thread, or None; called on the main thread.
        run_job: Runs a job on the main thread; must not raise.
        jobs: True if there is a job; read by the leading thread.
        due: Called on the leading thread when `wake_at` has passed; it sets `wake_at` again.
    """

    def __init__(
        self,
        *,
        next_job: Callable[[], Any],
        run_job: Callable[[Any], None],
        jobs: Sized,
        due: Callable[[float], None],
    ) -> None:
        super().__init__()
        self.batch = 0
        """Counts the batches of events; two events of one batch see the same number."""
        self.wake_at = float("inf")
        """When `due` must be called (monotonic); lowered by `wake_by`."""
        self._wake_lock = allocate_lock()
        self._leader = get_ident()
        self._next_job = next_job
        self._run_job = run_job
        self.jobs = jobs
        """True while the main thread has something to run."""
        self._due = due
        self._lock = allocate_lock()
        self._main_leads = True
        self._main_waits = False
        self._main_wake = allocate_lock()
        self._main_wake.acquire()
        self._running = 0
        self._serial = 0
        self._claim = 0
        self.direct = False
        """Whether a call that is read now can run at once, because the main thread reads it."""
        self._parked = True
        self._park = allocate_lock()
        self._park.acquire()
        self._stopping = False
        self.abandoned = False
        """Whether this process was forked by a function, so this loop does not run."""
        self._alone = False
        self._last = -1
        self._polling = BriefPolling(partial(self.epoll.poll, 0, 64))
        self._posted: deque[Callable[[], None]] = deque()
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._doorbell, select.EPOLLIN, self._on_doorbell)

    def descriptors(self) -> list[int]:
        """All descriptors that it watches, and its own."""
        return [*self.handlers, self.epoll.fileno()]

    def post(self, action: Callable[[], None]) -> None:
        """Let the leading thread call `action` soon; may be called on any thread."""
        self._posted.append(action)
        os.eventfd_write(self._doorbell, 1)

    def wake_by(self, when: float) -> None:
        """Let `due` be called at `when` or earlier; may be called on any thread.

        Anything that `due` must see has to be set before this is called.
        """
        if when >= self.wake_at:
            return
        with self._wake_lock:
            if when >= self.wake_at:
                return
            self.wake_at = when
        if get_ident() != self._leader:
            self.ring()

    def ring(self) -> None:
        """Make the leading thread look at jobs and timers again; may be called on any thread."""
        os.eventfd_write(self._doorbell, 1)

    def stop(self) -> None:
        """Make `run` return after the job that is running."""
        self._stopping = True
        self.ring()
        with self._lock:
            if self._main_waits:
                self._main_waits = False
                self._main_wake.release()

    def _on_doorbell(self, _events: int) -> None:
        os.eventfd_read(self._doorbell)
        while self._posted:
            self._posted.popleft()()

    def _step(self, *, block: bool) -> None:
        """Wait for events, or only poll, and handle them; on the leading thread."""
        if block:
            timeout = self.wake_at - _monotonic()
            timeout = None if timeout == float("inf") else max(timeout, 0.0)
        else:
            timeout = 0.0
        handlers = self.handlers
        added = self.added
        added.clear()
        # With several callers at once, polling would take time from those that have work to do.
        found = self._polling.events() if block and self._alone else []
        if not found:
            found = self.epoll.poll(timeout, 64)
        if found:
            self._alone = len(found) == 1 and found[0][0] == self._last
            self._last = found[0][0]
        led = self._main_leads
        self.batch += 1
        self.direct = led
        for fd, events in found:
            handler = handlers.get(fd)
            if handler is not None and fd not in added:
                handler(events)
                if led and not self._main_leads:
                    # A function ran here and took long, so the relief has the sockets. It gets the
                    # other events too.
                    return
        self.direct = False
        now = _monotonic()
        if now >= self.wake_at:
            with self._wake_lock:
                self.wake_at = float("inf")
            # `due` checks everything that has a time, so it misses nothing that was set before.
            self._due(now)

    def run(self) -> None:
        """Serve on the calling thread, the process's main one, until `stop`."""
        threading.Thread(target=self._relieve, name="seer-relief", daemon=True).start()
        main = get_ident()
        while not self._stopping:
            if self._main_leads:
                self._leader = main
                self._step(block=not self.jobs)
                if self.jobs:
                    self._work(_monotonic() + SLICE)
            else:
                self._work(float("inf"))
                with self._lock:
                    if self._main_leads or self.jobs or self._stopping:
                        continue
                    self._main_waits = True
                self._main_wake.acquire()

    def _work(self, until: float) -> None:
        """Run jobs until there are none, `until` has passed or the relief has the sockets."""
        led = self._main_leads
        while not self._stopping:
            job = self._next_job()
            if job is None:
                return
            serial = self.enter()
            self._run_job(job)
            self.leave(serial)
            self.direct = False
            if (led and not self._main_leads) or _monotonic() > until:
                return

    def run_now(self, job: Any) -> bool:
        """Run a job at once, if none waits and this is the main thread."""
        if self.jobs or not self.direct:
            return False
        serial = self.enter()
        self._run_job(job)
        self.leave(serial)
        return True

    def enter(self) -> int:
        """Note, for the relief, that a function begins on the main thread.

        Usually this takes no lock. Each side first announces what it does, and then looks at what
        the other has announced. So at least one of them notices, and takes the lock.
        """
        self._serial = self._running = serial = self._serial + 1
        if self._parked:
            self._unpark()
        return serial

    def leave(self, serial: int) -> None:
        """Note that the function has ended; `serial` is what `enter` returned."""
        self._running = 0
        if self._claim == serial:
            with self._lock:
                pass
        self.direct = self._main_leads

    def _unpark(self) -> None:
        with self._lock:
            if self._parked:
                self._parked = False
                self._park.release()

    def _relieve(self) -> None:
        """Run the relief: watch the main thread, lead while it is busy, sleep when it is idle."""
        seen = 0
        idle = 0
        while not self._stopping:
            time.sleep(TAKE_OVER)
            with self._lock:
                if self._running == seen != 0:
                    self._claim = seen
                    if self._running == seen and self._main_leads:
                        self._main_leads = False
                idle = idle + 1 if self._serial == seen else 0
                seen = self._serial
                leads = not self._main_leads
                if not leads and idle > PARK_AFTER and not self._running:
                    self._parked = True
                    if self._serial != seen:
                        self._parked = False
                parked = self._parked
            if leads:
                self._lead()
                idle = 0
            elif parked:
                self._park.acquire()
                idle = 0

    def _lead(self) -> None:
        """Handle events until there is a job and the main thread waits for one."""
        self._leader = get_ident()
        while not self._stopping:
            with self._lock:
                if self._main_waits and self.jobs:
                    self._main_leads = True
                    self._main_waits = False
                    self._main_wake.release()
                    return
            self._step(block=True)
