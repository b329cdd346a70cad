"""Tests of several workers take turns: many at a time, or one alone."""

import fcntl
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.turns import turn
from tests.waiting import wait_until

PATIENCE = 30.0


class _Worker:
    """A thread that waits for a turn, and holds it until the test ends it."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        self.has_turn = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(folder, alone))
        self._thread.start()

    def _run(self, folder: Path, alone: bool) -> None:
        with turn(folder, alone=alone):
            self.has_turn.set()
            self._end.wait()

    def end(self) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def worker(folder: Path, *, alone: bool = False) -> Generator[_Worker]:
    made = _Worker(folder, alone=alone)
    try:
        yield made
    finally:
        made.end()


def someone_waits(folder: Path) -> bool:
    with (folder / "gate").open("rb") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_many_have_a_turn_at_the_same_time(tmp_path: Path) -> None:
    with worker(tmp_path) as one, worker(tmp_path) as two:
        assert one.has_turn.wait(PATIENCE)
        assert two.has_turn.wait(PATIENCE)


def test_a_turn_alone_waits_for_those_before_it_and_not_for_those_after_it(tmp_path: Path) -> None:
    with ExitStack() as workers:
        before = workers.enter_context(worker(tmp_path))
        assert before.has_turn.wait(PATIENCE)
        alone = workers.enter_context(worker(tmp_path, alone=True))
        wait_until(lambda: someone_waits(tmp_path), "a worker waits for a turn alone")
        after = workers.enter_context(worker(tmp_path))
        assert not alone.has_turn.is_set()
        before.end()
        assert alone.has_turn.wait(PATIENCE)
        assert not after.has_turn.is_set()
        alone.end()
        assert after.has_turn.wait(PATIENCE)
