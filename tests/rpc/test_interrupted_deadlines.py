"""An interrupt at any moment leaves no deadline behind. This needs no help of a kernel.

It tests the client's module itself: a call would tell only that some deadline has passed.
"""

import asyncio
import contextvars
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from seer.rpc.client import deadline
from seer.rpc.client._deadline import current


def block() -> None:
    with deadline(60):
        assert current()


def nested() -> None:
    with deadline(60):
        block()
        assert current()


def failing() -> None:
    with suppress(ValueError), deadline(60):
        raise ValueError


def interrupted(work: Callable[[], None], moment: int) -> bool:
    """Interrupt `work` at one of its moments, counted from 1; False if it has not so many.

    These are the beginnings of Python functions and the ends of C functions. The handlers of
    signals run then and at the end of each turn of a loop, and at no other moments.
    """
    left = moment
    codes = {function.__code__ for function in (block, nested, failing)}

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        if frame.f_code.co_filename.endswith("_deadline.py") or frame.f_code in codes:
            left -= event in {"call", "c_return"}
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    try:
        sys.setprofile(count)
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("work", [block, nested, failing])
def test_an_interrupt_at_any_moment_leaves_no_deadline_behind(work: Callable[[], None]) -> None:
    moments = 0
    assert current() == 0.0
    while interrupted(work, moments + 1):
        moments += 1
        assert current() == 0.0, moments
    assert moments > 10
    assert current() == 0.0


@contextmanager
def alarms() -> Generator[Callable[[float], None]]:
    """Gives a function that has this process interrupted after some seconds."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_real_interrupts_leave_no_deadline_behind() -> None:
    came = 0
    with alarms() as alarm:
        for number in range(2000):
            try:
                alarm(0.00002 + number % 50 * 0.000002)
                for _ in range(2000):
                    with deadline(60):
                        pass
            except KeyboardInterrupt:
                came += 1
            assert current() == 0.0, number
    assert came > 1000


def test_an_interrupted_inner_block_leaves_the_outer_deadline() -> None:
    with deadline(50):
        outer = current()
        for moment in range(1, 100):
            if not interrupted(block, moment):
                break
            assert current() == outer
        with deadline(10):
            assert current() < outer
        assert current() == outer


def test_a_deadline_can_be_used_again_but_not_within_its_block() -> None:
    again = deadline(60)
    for _ in range(2):
        with again:
            assert current()
            with pytest.raises(RuntimeError, match="entered already"), again:
                pass
            assert current()
        assert current() == 0.0


def test_a_deadline_ends_with_its_block_for_tasks_too() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def inside_and_after() -> list[float]:
        found = current()
        begun.set()
        await left.wait()
        return [found, current()]

    async def main() -> None:
        with deadline(60):
            until = current()
            task = asyncio.create_task(inside_and_after())
            await begun.wait()
        left.set()
        assert await task == [until, 0.0]

    again = deadline(60)
    with again:
        pass
    # It copies this context.
    asyncio.run(main())


def test_blocks_that_do_not_end_in_their_order_leave_nothing_behind() -> None:
    first, second = deadline(60), deadline(30)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert current()
    second.__exit__(None, None, None)
    assert current() == 0.0


def test_a_thread_has_no_deadline_of_another() -> None:
    found: list[float] = []
    with deadline(60):
        context = contextvars.Context()
        thread = threading.Thread(target=context.run, args=(lambda: found.append(current()),))
        thread.start()
        thread.join()
    assert found == [0.0]
