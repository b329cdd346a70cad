"""The loop of an interface process: timers run at their time."""

import os
import select
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seer.rpc.server._gate import Gate
from seer.rpc.server._loop import Loop
from seer.rpc.server._poller import Poller

SOON = 60


class Observed(Loop):
    """Runs `between` when `wake_at` is read for the n-th time."""

    def __init__(self, due: Callable[[float], None]) -> None:
        self._when = float("inf")
        self.reads_left = 0
        self.between: Callable[[], None] = lambda: None
        super().__init__(next_job=lambda: None, run_job=lambda _job: None, jobs=(), due=due)

    @property
    def wake_at(self) -> float:
        when = self._when
        self.reads_left -= 1
        if self.reads_left == 0:
            self.between()
        return when

    @wake_at.setter
    def wake_at(self, when: float) -> None:
        self._when = when


def idle_loop(due: Callable[[], None]) -> Loop:
    return Loop(next_job=lambda: None, run_job=lambda _: None, jobs=(), due=lambda _now: due())


def look_at_calls(loop: Loop, when: float) -> None:
    """The gate's periodic check of its calls, of which the first is due at `when`."""

    def due(_now: float) -> float:
        return when

    gate = SimpleNamespace(gathers=[SimpleNamespace(due=due)], callers={}, loop=loop)
    Gate.due(cast("Any", gate), time.monotonic())


@pytest.mark.parametrize("read", [1, 2])
def test_the_earlier_of_two_times_that_two_threads_ask_for_at_once_is_kept(read: int) -> None:
    near, far = time.monotonic() + 1000, time.monotonic() + 2000
    loop = Observed(lambda _now: None)
    other = threading.Thread(target=look_at_calls, args=(loop, near))

    def ask_too() -> None:
        other.start()
        other.join(0.2)  # it may have to wait for this thread

    loop.reads_left, loop.between = read, ask_too
    look_at_calls(loop, far)
    other.join(SOON)
    assert loop.wake_at == near


def test_a_time_that_another_thread_asks_for_ends_the_loops_sleep() -> None:
    runs, looked = threading.Event(), threading.Event()
    loop = idle_loop(looked.set)
    loop.wake_by(time.monotonic() + 3600)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        loop.post(runs.set)
        assert runs.wait(SOON)
        loop.wake_by(time.monotonic())
        assert looked.wait(SOON), "the loop slept on"
    finally:
        loop.stop()
        thread.join(SOON)


def poll_once(watch: Callable[[Poller], None]) -> Poller:
    poller = Poller()
    watch(poller)
    poller.step(5)
    return poller


def run_until_replaced(watch: Callable[[Loop], None]) -> Loop:
    loop = idle_loop(lambda: None)
    watch(loop)
    loop.post(loop.stop)  # an event like the others: `run` handles all of them before it returns
    loop.run()
    return loop


@pytest.mark.parametrize("run", [poll_once, run_until_replaced])
def test_a_descriptor_that_is_reused_gets_no_event_of_its_predecessor(
    run: Callable[[Callable[[Any], None]], Poller | Loop],
) -> None:
    heard: list[str] = []
    old: list[tuple[int, int]] = [os.pipe(), os.pipe()]
    new: list[tuple[int, int]] = []

    def watch(poller: Poller | Loop) -> None:
        def replace(_events: int) -> None:
            # Both have an event; the one handled first closes the other and takes its number.
            heard.append("old")
            for read, write in old:
                poller.unwatch(read)
                os.close(write)
                os.close(read)
            new.extend([os.pipe(), os.pipe()])
            assert {read for read, _ in new} & {read for read, _ in old}
            for read, _ in new:
                poller.watch(read, select.EPOLLIN, lambda _: heard.append("new"))

        for read, write in old:
            poller.watch(read, select.EPOLLIN, replace)
            os.write(write, b"x")

    poller = run(watch)
    for pipe in new:
        for fd in pipe:
            os.close(fd)
    poller.epoll.close()
    assert heard == ["old"]
