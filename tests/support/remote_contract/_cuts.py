"""A connection that breaks and comes back a moment later costs only that moment."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from seer.execution import create_notebook_session
from tests.support.remote_contract._subject import RemoteSubject, equal, expect

logger = logging.getLogger(__name__)

T = TypeVar("T")
_CUTS = 20
_CALLS_BETWEEN = 7


def _while_cut(subject: RemoteSubject, work: Callable[[], T], *, after: float = 0.4) -> T:
    """Do something and break the connection while it is being done."""
    timer = threading.Timer(after, subject.cut)
    timer.start()
    try:
        return work()
    finally:
        timer.join()


def a_command_goes_on_through_a_cut(subject: RemoteSubject) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.1; done"
    sandbox = subject.sandbox  # started before the cut, whichever check comes first
    said = _while_cut(subject, lambda: sandbox.exec(script))
    equal(said.split(), [str(number) for number in range(1, 11)], "the lines of the command")


def a_file_arrives_whole_through_cuts(subject: RemoteSubject) -> None:
    data = hashlib.shake_256(b"contract").digest(24 << 20)
    sandbox = subject.sandbox

    def work() -> bytes:
        sandbox.write_file("cut.bin", data)
        return sandbox.read_file("cut.bin")

    timer = threading.Timer(0.15, subject.cut)
    timer.start()
    found = _while_cut(subject, work, after=0.05)
    timer.join()
    expect(found == data, f"{len(found)} bytes came back, and they are not those that were sent")


def a_call_goes_on_through_a_cut(subject: RemoteSubject) -> None:
    tools = subject.connect()
    marker = int(time.time() * 1000)
    equal(_while_cut(subject, lambda: tools.slow(marker, 1.0)), marker, "the call's result")
    equal(tools.read_log().count(marker), 1, "how often it ran")


def a_notebook_cell_goes_on_through_a_cut(subject: RemoteSubject) -> None:
    session = create_notebook_session(subject.sandbox)
    try:
        session.exec("import time; kept = 41")
        code = "for i in range(8):\n    print(i); time.sleep(0.1)\nprint(kept + 1)"
        result = _while_cut(subject, lambda: session.exec(code))
        equal(result.text.split(), [*map(str, range(8)), "42"], "what the cell printed")
    finally:
        session.close()


def calls_are_neither_lost_nor_repeated_through_many_cuts(subject: RemoteSubject) -> None:
    """Twenty cuts, each after some calls have got through since the last."""
    tools = subject.connect()
    first = int(time.time() * 1000) * 1000
    done = 0
    over = threading.Event()
    progress = threading.Condition()

    def cut_often() -> None:
        for _ in range(_CUTS):
            with progress:
                wanted = done + _CALLS_BETWEEN
                progress.wait_for(lambda wanted=wanted: done >= wanted, timeout=30)
            subject.cut()
        over.set()

    cutting = threading.Thread(target=cut_often)
    began = time.monotonic()
    cutting.start()
    while not over.is_set():
        tools.note(first + done)
        with progress:
            done += 1
            progress.notify_all()
    cutting.join()
    tools.note(first + done)
    log = [number for number in tools.read_log() if number >= first]
    logger.info(
        "%d calls through %d cuts in %.1f s: %d lost, %d repeated",
        done + 1,
        _CUTS,
        time.monotonic() - began,
        done + 1 - len(set(log)),
        len(log) - len(set(log)),
    )
    equal(log, list(range(first, first + done + 1)), "the calls, once each and in order")


CHECKS = (
    a_command_goes_on_through_a_cut,
    a_file_arrives_whole_through_cuts,
    a_call_goes_on_through_a_cut,
    a_notebook_cell_goes_on_through_a_cut,
    calls_are_neither_lost_nor_repeated_through_many_cuts,
)
