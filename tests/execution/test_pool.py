"""A pool keeps sessions ready, ends unused ones, and passes failures on."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seer.environment import Sandbox, SandboxConfig
from seer.errors import EndingError, SandboxStateError
from seer.execution import LocalSession, Pool, create_local_session, open_sessions
from seer.workspace import Workspace
from tests.waiting import await_until, wait_until


class Made:
    """Stands for a session."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Makers:
    """Makes sessions, and remembers them all."""

    def __init__(self) -> None:
        self.all: list[Made] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.fails = 0

    def __call__(self) -> Made:
        self.may_go.wait(30)
        if self.fails:
            self.fails -= 1
            raise OSError("no room")
        self.all.append(Made())
        return self.all[-1]


def test_what_is_taken_is_replaced_and_what_is_left_is_ended() -> None:
    make = Makers()
    with Pool(make, size=3) as pool:
        wait_until(lambda: pool.ready == 3, "a full pool")
        taken = {pool.take() for _ in range(5)}
        assert len(taken) == 5
        wait_until(lambda: pool.ready == 3, "a full pool again")
        assert len(make.all) == 8
    assert {made for made in make.all if not made.closed} == taken
    pool.close()
    with pytest.raises(SandboxStateError, match="closed"):
        pool.take()


def test_a_failure_reaches_one_taker_and_the_next_one_tries_again() -> None:
    make = Makers()
    make.fails = 100
    with Pool(make, size=1) as pool:
        with pytest.raises(OSError, match="no room"):
            pool.take()
        assert make.fails == 99, "nothing is tried while nobody asks"
        make.fails = 0
        assert isinstance(pool.take(), Made)


async def test_whoever_gives_up_waiting_leaves_nothing_open() -> None:
    make = Makers()
    make.may_go.clear()
    pool = Pool(make, size=1)
    waiting = asyncio.create_task(pool.atake())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    make.may_go.set()
    await await_until(lambda: len(make.all) >= 1, "the one that was asked for")
    await pool.aclose()
    await await_until(lambda: all(made.closed for made in make.all), "the end of all")


def test_all_are_ended_even_if_one_cannot_be() -> None:
    class Stuck(Made):
        def close(self) -> None:
            super().close()
            raise OSError("stuck")

    made: list[Stuck] = []

    def make() -> Stuck:
        made.append(Stuck())
        return made[-1]

    pool = Pool(make, size=2)
    wait_until(lambda: pool.ready == 2, "a full pool")
    with pytest.raises(EndingError):
        pool.close()
    assert [one.closed for one in made] == [True, True]


def test_a_pool_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="size=0"):
        Pool(Made, size=0)


@pytest.mark.full
def test_real_sessions_wait_with_their_packages_imported(tmp_path: Path) -> None:
    numbers = iter(range(100))
    workspace = Workspace(custom_init_code="import numpy")

    def make() -> LocalSession:
        return create_local_session(workspace, tmp_path / f"work-{next(numbers)}")

    before = len(open_sessions())
    with Pool(make, size=2) as pool:
        first, second = pool.take(), pool.take()
        with first, second:
            assert first.session_id != second.session_id
            assert first.exec("print(numpy.arange(3).sum())").stdout == "3\n"
            first.write_file("mine", b"x")
            assert second.exec("import os; print(os.path.exists('mine'))").stdout == "False\n"
    assert len(open_sessions()) == before


@pytest.mark.full
async def test_real_sandboxes_wait_and_those_that_nobody_took_are_terminated() -> None:
    made: list[Sandbox] = []

    def make() -> Sandbox:
        sandbox = Sandbox(SandboxConfig(gpu=None, provider="local"))
        made.append(sandbox)
        return sandbox.start()

    async with Pool(make, size=2) as pool:
        async with asyncio.timeout(60):
            first, second = await pool.atake(), await pool.atake()
        async with first, second:
            assert first.sandbox_id != second.sandbox_id
            await first.awrite_file("/tmp/mine", b"x")
            assert await second.aexec("ls /tmp") == ""
        await await_until(lambda: len(made) > 2, "others are started for those that were taken")
    for sandbox in made:
        with pytest.raises(SandboxStateError, match="has ended"):
            await sandbox.aexec("true")


ENDS_SOON = """
import asyncio, threading, time
from seer.execution import Pool

ending, may_make = threading.Event(), threading.Event()

class Made:
    def close(self):
        ending.set()
        time.sleep(0.3)
        print("closed", flush=True)

def make():
    may_make.wait()
    return Made()

async def main():
    taking = asyncio.create_task(Pool(make, size=1).atake())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    may_make.set()
    while not ending.is_set():
        await asyncio.sleep(0.01)

# As Seer's own loop, whose threads are daemons too unless they say otherwise.
thread = threading.Thread(target=asyncio.run, args=[main()], daemon=True)
thread.start()
thread.join()
"""


def test_a_program_that_ends_waits_for_the_end_of_what_nobody_took() -> None:
    program = [sys.executable, "-c", ENDS_SOON]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "closed\n"


def test_what_a_taker_gets_after_the_end_of_its_event_loop_is_ended() -> None:
    make = Makers()
    make.may_go.clear()

    async def end_while_taking() -> None:
        taking.append(asyncio.create_task(pool.atake()))
        await asyncio.sleep(0.1)

    taking: list[asyncio.Task[Made]] = []
    with Pool(make, size=1) as pool:
        threading.Timer(0.5, make.may_go.set).start()
        asyncio.run(end_while_taking())
        assert taking[0].cancelled()
    wait_until(lambda: all(made.closed for made in make.all), "the end of all")
