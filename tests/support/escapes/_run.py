"""Run attempts inside a jail, each in a process of its own, and say how each ended."""

# Which call is made is the point here, so it is spelled out.
# ruff: noqa: PTH123
from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ._attempt import ATTEMPTS, Facts

_PATIENCE = 25.0


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended."""

    name: str
    escaped: bool
    detail: str
    """The evidence, or what refused it."""


def run(names: Iterable[str], facts: Facts) -> list[Outcome]:
    """Try each named attempt here, in a child process, and collect how they ended."""
    return [_try(name, facts) for name in names]


def main(arguments: list[str]) -> int:
    """`FACTS_FILE [NAME...]`: try the attempts and print one JSON line for each."""
    with open(arguments[0], encoding="utf-8") as file:
        facts: Facts = json.load(file)
    for outcome in run(arguments[1:] or list(ATTEMPTS), facts):
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    sys.stdout.flush()
    return 0


def _try(name: str, facts: Facts) -> Outcome:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _report(name, facts, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    status = _wait(pid)
    try:
        answer = os.read(reader, 65536)
    except BlockingIOError:
        answer = b""
    os.close(reader)
    if answer:
        escaped, detail = json.loads(answer)
        return Outcome(name, escaped, detail)
    if os.WIFSIGNALED(status):
        return Outcome(name, False, f"ended by {signal.Signals(os.WTERMSIG(status)).name}")
    return Outcome(name, False, "ended without an answer")


def _report(name: str, facts: Facts, writer: int) -> None:
    try:
        evidence = ATTEMPTS[name].function(facts)
        answer = (True, evidence) if evidence else (False, "found nothing")
    except BaseException as error:
        answer = (False, f"{type(error).__name__}: {error}")
    os.write(writer, json.dumps((answer[0], answer[1][:2000])).encode())
    os._exit(0)


def _wait(pid: int) -> int:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]
