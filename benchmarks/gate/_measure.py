"""The run itself: starts everything, then measures rounds, one contestant after the other.

All servers stay up and idle while one is measured (a signal stops those that are never idle). So a
slow or noisy minute of the machine affects all contestants alike.
"""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from benchmarks.gate import _bare
from benchmarks.gate._adapter import WORKS
from benchmarks.gate._probes import ProbeError, send_signal, set_affinity, tree
from benchmarks.gate._results import Results, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.gate._adapter import Contestant
    from benchmarks.gate._calm import Calm
    from benchmarks.gate._probes import Probe

T = TypeVar("T")

ARRAY_BYTES = 120_000_000
CLIENTS = 64
_CONNECT_S = 60
_TURNS = 4
_SHORT_TURNS = 16


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    rounds: int = 5
    array_rounds: int = 3
    start_rounds: int = 5
    seconds: float = 0.4
    turn_seconds: float = 0.06
    """For small calls in turns; short, because the machine's speed changes within a second."""
    fan_seconds: float = 1.0
    array_seconds: float = 1.2
    array_warm: int = 12
    patience: float = 120.0
    """Total seconds to wait for the machine to be calm."""


QUICK = Plan(
    rounds=1,
    array_rounds=1,
    start_rounds=1,
    seconds=0.15,
    turn_seconds=0.03,
    fan_seconds=0.3,
    array_seconds=0.5,
    array_warm=3,
    patience=5.0,
)


class Stand:
    """A contestant with its server up and its client processes ready."""

    def __init__(self, contestant: Contestant, row: Row) -> None:
        """Start server and clients; note how long a slow starter took."""
        self.contestant = contestant
        self.row = row
        contestant.prepare()
        # Fork from a process that never connected, because many libraries do not survive a fork.
        begin = time.monotonic_ns()
        contestant.serve()
        self.one: Probe = contestant.probe()
        answered = contestant.connect(self.one, timeout=_CONNECT_S)
        if contestant.slow_start:
            row.add("start", (answered - begin) / 1e3)
        self.many: Probe | None = None if "fan" in contestant.lacks else contestant.probe()
        row.gaps.update(contestant.lacks)
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self.contestant.suspend:
            send_signal(self._processes(), number)

    def _processes(self) -> list[int]:
        found = tree(self.contestant.pids()) + self.one.pids()
        return found if self.many is None else found + self.many.pids()

    def _try(self, work: str, measure: Callable[[], None]) -> None:
        if work in self.row.gaps:
            return
        try:
            measure()
        except ProbeError as error:
            self.row.gaps[work] = _reason(error)

    def calls(self, plan: Plan) -> None:
        """One round of everything except arrays and starting."""
        self._signal(signal.SIGCONT)
        for work in ("small", "floats", "take", "fail"):
            self._try(work, lambda work=work: self._calls(work, work, plan))
        self._try("pinned", lambda: self._pinned(plan))
        self._try("fan", lambda: self._fan("fan", plan))
        self._signal(signal.SIGSTOP)

    def turn(self, work: str, plan: Plan) -> None:
        """One more turn of a work, for contestants that differ by little."""
        self._signal(signal.SIGCONT)
        name = f"{work}_turns"
        if work in ("small", "fail"):
            short = replace(plan, seconds=plan.turn_seconds)
            self._try(name, lambda: self._calls(name, work, short))
        elif work == "fan":
            self._try(name, lambda: self._fan(name, plan))
        else:
            self._try(name, lambda: self._array(work, name, plan))
        self._signal(signal.SIGSTOP)

    def arrays(self, plan: Plan) -> None:
        """One round of arrays."""
        self._signal(signal.SIGCONT)
        for work in ("drop", "keep"):
            self._try(work, lambda work=work: self._array(work, work, plan))
        self._signal(signal.SIGSTOP)

    def _calls(self, work: str, function: str, plan: Plan) -> None:
        answer = self.one.ask({"do": "calls", "work": function, "seconds": plan.seconds})
        self.row.add(work, answer["p50"], answer["p99"])
        self.row.add(f"{work}_mean", answer["mean"])

    def _pinned(self, plan: Plan) -> None:
        everywhere = os.sched_getaffinity(0)
        processes = tree(self.contestant.pids()) + self.one.pids()
        set_affinity(processes, {min(everywhere)})
        try:
            self._calls("pinned", "small", plan)
        finally:
            set_affinity(processes, everywhere)

    def _fan(self, name: str, plan: Plan) -> None:
        assert self.many is not None
        command = {"do": "fan", "clients": CLIENTS, "seconds": plan.fan_seconds}
        where = {"address": self.contestant.address, "timeout": _CONNECT_S}
        answer = self.many.ask({**command, **where})
        self.row.add(name, answer["rate"], answer["p99"])

    def _array(self, work: str, name: str, plan: Plan) -> None:
        if work == "keep":
            # A new caller, so that the pool of an earlier round's caller does not help.
            self.contestant.connect(self.one, timeout=_CONNECT_S)
        command = {"do": "array", "nbytes": ARRAY_BYTES, "keep": work == "keep"}
        amount = {"warm": plan.array_warm, "seconds": plan.array_seconds}
        answer = self.one.ask({**command, **amount})
        self.row.add(name, answer["p50"], answer["p99"])
        self.row.add(f"{name}_read", answer["read_p50"])

    def close(self) -> None:
        """End clients and server."""
        self._signal(signal.SIGCONT)
        self.one.close()
        if self.many is not None:
            self.many.close()
        self.contestant.stop()
        self.contestant.close()


def set_up(contestant: Contestant, row: Row) -> Stand | None:
    """Start a contestant. If it cannot start, all its cells show the reason; the others go on."""
    try:
        return Stand(contestant, row)
    except Exception as error:
        traceback.print_exc()
        row.gaps.update(dict.fromkeys(WORKS, _reason(error)))
        contestant.stop()
        contestant.close()
        return None


def _reason(error: Exception) -> str:
    # Results contain no path of the machine.
    text = re.sub(r"(?:/[\w.@+-]+){2,}", "<path>", str(error)).strip()
    return f"failed: {type(error).__name__}: {text[:200]}"


def run(
    contestants: Sequence[Contestant], plan: Plan, *, calm: Calm, say: Callable[[str], None]
) -> Results:
    """Measure all contestants and the bare floors."""
    results: Results = {
        contestant.name: Row(
            contestant.title, contestant.kind, contestant.validates, contestant.note
        )
        for contestant in contestants
    }
    stands: list[Stand] = []
    try:
        for contestant in contestants:
            say(f"starting {contestant.title}")
            stand = set_up(contestant, results[contestant.name])
            if stand is not None:
                stands.append(stand)
        for number in range(plan.rounds):
            say(f"calls, round {number + 1} of {plan.rounds}")
            for stand in _rotated(stands, number):
                calm.wait()
                stand.calls(plan)
            calm.wait()
            _take_turns(
                stands, ("ours", "ours_recorded"), ("small", "fail"), plan, times=_SHORT_TURNS
            )
            _take_turns(stands, ("ours", "zeromq", "loop"), ("fan",), plan)
        memcpy = results["memcpy"] = Row("floor: one warm memcpy", "floor", False, "numpy copyto")
        for number in range(plan.array_rounds):
            say(f"arrays, round {number + 1} of {plan.array_rounds}")
            calm.wait()
            memcpy.add("drop", _bare.memcpy(ARRAY_BYTES) * 1e6)
            for stand in _rotated(stands, number):
                calm.wait()
                stand.arrays(plan)
            calm.wait()
            _take_turns(stands, ("ours", "ray"), ("drop", "keep"), plan)
    finally:
        for stand in stands:
            stand.close()
    _starts(contestants, plan, results, say)
    return results


def _starts(
    contestants: Sequence[Contestant], plan: Plan, results: Results, say: Callable[[str], None]
) -> None:
    python = results["python"] = Row("floor: python -c pass", "floor", False, "")
    jail = results["jail"] = Row("floor: bare jail's spawn", "floor", False, "bwrap, true")
    starters = [one for one in contestants if not one.slow_start and "start" not in one.lacks]
    for number in range(plan.start_rounds):
        say(f"starts, round {number + 1} of {plan.start_rounds}")
        python.add("start", _bare.bare_python() * 1e6)
        jail.add("start", _bare.bare_jail() * 1e6)
        for contestant in _rotated(starters, number):
            row = results[contestant.name]
            if "start" in row.gaps:
                continue
            contestant.prepare()
            try:
                row.add("start", contestant.first_answer() * 1e6)
            except (ProbeError, OSError) as error:
                row.gaps["start"] = _reason(error)
            finally:
                contestant.close()


def _take_turns(
    stands: Sequence[Stand],
    names: tuple[str, ...],
    works: Sequence[str],
    plan: Plan,
    times: int = _TURNS,
) -> None:
    """Measure contestants that differ by little directly after each other, several times."""
    alike = [stand for stand in stands if stand.contestant.name in names]
    if len(alike) < len(names):
        return
    for again in range(times):
        for stand in _rotated(alike, again):
            for work in works:
                stand.turn(work, plan)


def _rotated(items: Sequence[T], by: int) -> list[T]:
    shift = by % len(items) if items else 0
    return [*items[shift:], *items[:shift]]
