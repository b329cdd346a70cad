"""Chooses the recorded call that answers a new one.

Each caller must make its calls in their recorded order. Only calls that overlapped in the recording
may come in another order, because their order was chance.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seer.errors import ReplayDivergenceError
from seer.runs._call_values import left_out
from seer.runs._calls import GateCall, call_key


@dataclass(frozen=True)
class Match:
    """A recorded answer."""

    call: GateCall
    line: GateCall | None
    """What the record of the replay gets; None if it has that already."""


@dataclass(frozen=True)
class FirstCall:
    """The first call of a replayed interface."""

    function: str
    arguments: str
    buffers: Sequence[str] = ()
    handle: str = ""


@dataclass
class _Counted:
    """Refused requests that followed each other so fast that the record has only their number."""

    summary: GateCall
    begin: float
    """Before when none of them was made."""
    left: int
    is_told: bool = False


class CallerTape:
    """The recorded calls of one caller, to be consumed."""

    def __init__(self, caller: str, calls: Sequence[GateCall]) -> None:
        self.caller = caller
        self._lock = threading.Lock()
        # Other requests are refused again without the record.
        made = (call for call in calls if call.is_call)
        self.recorded = sorted(made, key=lambda call: call.started)
        self._left = list(self.recorded)
        self._counted: list[_Counted] = []
        for call in sorted(calls, key=lambda call: call.time):
            if count := _counted(call):
                begin = self._counted[-1].summary.time if self._counted else 0.0
                self._counted.append(_Counted(call, begin, count))
        self._refused: dict[tuple[str, str], GateCall] = {}
        """The last call that was refused, by function and handle."""
        self._last_refused: GateCall | None = None
        self.played: list[GateCall] = []
        """The consumed calls, in the order of consumption."""
        self.diverged = False
        """Whether its caller made a call that the record does not answer."""

    @property
    def left(self) -> int:
        """How many recorded calls were not made again."""
        return len(self._left)

    def describe_next(self) -> str:
        """The first recorded call that was not made again, as a person would write it."""
        with self._lock:
            return describe(self._left[0]) if self._left else "no call"

    def match(
        self, function: str, arguments: str, buffers: Sequence[str], *, handle: str = ""
    ) -> Match:
        """The recorded call that answers this one.

        Raises:
            ReplayDivergenceError: No recorded call matches, and the message shows both; or the
                record has only a part of the answer.
        """
        key = call_key(function, arguments, buffers, handle=handle)
        with self._lock:
            index = self._find(function, handle, key)
            if index is not None:
                self._check_complete(self._left[index])
                found = self._left.pop(index)
                self.played.append(found)
                if found.arguments is None and not found.lost:
                    self._refused[function, handle] = self._last_refused = found
                return Match(found, found)
            counted = self._counted_now()
            # A function may have been refused only in the part of which the number is recorded.
            refused = self._refused.get((function, handle), self._last_refused)
            if counted is not None and refused is not None:
                counted.left -= 1
                line = None if counted.is_told else counted.summary
                counted.is_told = True
                return Match(refused, line)
            expected = self._left[0] if self._left else None
        shown = show(function, arguments, buffers)
        wanted = "no more calls"
        if expected is not None:
            wanted = describe(expected)
        elif counted is not None:
            wanted = f"{counted.left} refused requests, of which only the number is recorded"
        number = len(self.played) + 1
        self.diverged = True
        raise ReplayDivergenceError(
            f"call {number} of {self.caller!r} is not the recorded one:\n"
            f"  recorded: {wanted}\n"
            f"  now:      {shown}",
            recorded=wanted if expected is not None else "",
            found=shown,
        )

    def expects(self, call: FirstCall) -> bool:
        """Whether a recorded call answers this one now."""
        key = call_key(call.function, call.arguments, call.buffers, handle=call.handle)
        with self._lock:
            return self._find(call.function, call.handle, key) is not None

    def _find(self, function: str, handle: str, key: str) -> int | None:
        """The position of the recorded call that may come next and fits best."""
        window: list[int] = []
        earliest_end = float("inf")
        for index, recorded in enumerate(self._left):
            if recorded.started > earliest_end:
                break
            window.append(index)
            earliest_end = min(earliest_end, recorded.time)
        equal = [index for index in window if self._left[index].key == key]
        if equal:
            # The one that ended first, because later calls may have begun after its end.
            return min(equal, key=lambda index: self._left[index].time)
        for index in window:
            recorded = self._left[index]
            fits = recorded.function == function and recorded.handle in ("", handle)
            if fits and recorded.arguments is None:
                # Its arguments are not known, so it may be the one.
                return index
        return None

    def _counted_now(self) -> _Counted | None:
        """Requests that may come next, and of which the record has only the number."""
        for item in self._counted:
            if item.left and (not self._left or self._left[0].started >= item.begin):
                return item
        return None

    def _check_complete(self, recorded: GateCall) -> None:
        missing = left_out(recorded)
        if not missing:
            return
        why = "the interface ended meanwhile" if recorded.lost else "they are too large"
        what = describe(recorded)
        self.diverged = True
        raise ReplayDivergenceError(
            f"call {len(self.played) + 1} of {self.caller!r} cannot be replayed, nor can later"
            f" calls: the record lacks {missing} of the items that {what} streamed, because {why}",
            recorded=what,
            found=what,
        )

    def has_again(self, lost: GateCall) -> bool:
        """Whether the record has a retry of a lost call; clients retry idempotent functions."""
        with self._lock:
            return any(
                call.function == lost.function
                and (call.arguments is None or lost.arguments is None or call.key == lost.key)
                for call in self._left
            )


class Tapes:
    """The recorded calls of one interface, by caller.

    Callers are named after sessions and numbered in the order in which they open. Both can differ
    between runs. So a caller without a tape of its name gets one with the same name and another
    number, then one of the same kind of session that the user did not name, then the one of the
    same number. It takes no tape that fits another caller better which waits for its first call.

    Args:
        calls: The recorded calls.
        choose: Gives the recorded calls instead, when the first tape is needed. It gets the callers
            that were opened, the one that needs a tape, and its call; None for the call if none was
            made until the end.
    """

    def __init__(
        self,
        calls: Sequence[GateCall],
        choose: "Callable[[Sequence[str], str, FirstCall | None], Tapes] | None" = None,
    ) -> None:
        by_caller: dict[str, list[GateCall]] = {}
        for call in calls:
            by_caller.setdefault(call.caller, []).append(call)
        self._tapes = {name: CallerTape(name, found) for name, found in by_caller.items()}
        self._choose = choose
        self._given: dict[str, CallerTape] = {}
        self._opened: list[str] = []
        self._lock = threading.Lock()

    def open(self, caller: str) -> None:
        """Note that the replayed program has this caller. It gets a tape with its first call."""
        self._opened.append(caller)

    def tape(self, caller: str, call: FirstCall | None = None) -> CallerTape:
        """The tape for a caller of the replayed program; empty if the record has none.

        Args:
            caller: The caller.
            call: The call for which it needs the tape; None at the end.
        """
        with self._lock:
            if self._choose is not None:
                self._tapes = self._choose(self._opened, caller, call)._tapes
                self._choose = None
            if caller not in self._given:
                self._given[caller] = self._find(caller)
            return self._given[caller]

    def misfit(self, caller: str) -> int:
        """How little a caller's name is like that of a recorded one: from 0, for equal, to 3."""
        if caller in self._tapes:
            return 0
        for worse, form in ((1, without_number), (2, without_random)):
            if any(form(name) == form(caller) for name in self._tapes):
                return worse
        return 3

    def expects(self, opened: Sequence[str], caller: str, call: FirstCall) -> bool:
        """Whether a recorded call answers this one, if these callers have been opened."""
        self._opened = list(opened)
        return self.tape(caller).expects(call)

    def played(self, caller: str) -> list[GateCall]:
        """The recorded calls that were answers for a caller until now."""
        with self._lock:
            tape = self._given.get(caller)
        return [] if tape is None else list(tape.played)

    def given(self) -> dict[str, CallerTape]:
        """The tapes that were handed out, by the caller that has them now."""
        with self._lock:
            return dict(self._given)

    def taking_part(self, prefix: str) -> list[CallerTape]:
        """The tapes of the callers that made calls, or could make them only from the program.

        Other callers may rightly make none: where a whole machine is replayed, no code runs that
        could make them.

        Args:
            prefix: How the names of the program's own callers begin.
        """
        own = [caller for caller in self._opened if caller.startswith(prefix)]
        for caller in own:
            self.tape(caller)
        given = list(self.given().values())
        if self._choose is not None:
            # No call told which calls were recorded for it.
            return given
        # A program that opens no caller of its own any more makes none of its calls.
        return given + [
            tape
            for name, tape in self._tapes.items()
            if name.startswith(prefix) and tape not in given
        ]

    def _find(self, caller: str) -> CallerTape:
        given = [tape.caller for tape in self._given.values()]
        free = [name for name in self._tapes if name not in given]
        waiting = [name for name in self._opened if name != caller and name not in self._given]
        if caller in free:
            return self._tapes[caller]
        number = ordinal(caller)
        for form in (without_number, without_random):
            waits = {(form(name), ordinal(name)) for name in waiting}
            alike = [name for name in free if form(name) == form(caller)]
            fitting = [name for name in alike if ordinal(name) == number]
            fitting += [name for name in alike if (form(name), ordinal(name)) not in waits]
            if fitting:
                return self._tapes[fitting[0]]
            forms = {form for form, _ in waits}
            free = [name for name in free if form(name) not in forms]
        fitting = [name for name in free if number is not None and ordinal(name) == number]
        return self._tapes[fitting[0]] if fitting else CallerTape(caller, ())


def _counted(call: GateCall) -> int:
    """How many refused requests a line of a record stands for; 0 for other lines."""
    found = None if call.function else re.search(r'"(\d+) more requests were refused', call.result)
    return int(found[1]) if found else 0


def describe(call: GateCall) -> str:
    """A recorded call as a person would write it."""
    if call.arguments is not None:
        return show(call.function, call.arguments, call.argument_buffers)
    if call.lost:
        return (
            f"{call.function}(...), which was lost with the interface; its arguments were too large"
            " to be recorded"
        )
    return f"{call.function}(...), which was refused"


def show(function: str, arguments: str, buffers: Sequence[str]) -> str:
    """A call as a person would write it."""
    try:
        args, kwargs = json.loads(arguments)
        parts = [json.dumps(value) for value in args]
        parts += [f"{name}={json.dumps(value)}" for name, value in kwargs.items()]
        text = ", ".join(parts)
    except (ValueError, TypeError, AttributeError):
        text = arguments
    if len(text) > 2000:
        text = f"{text[:2000]}... ({len(text)} characters)"
    arrays = f" with arrays {', '.join(item[:12] for item in buffers)}" if buffers else ""
    return f"{function}({text}){arrays}"


# The suffix distinguishes the callers of this controller from those of an earlier controller.
_NUMBER = re.compile(r"-(\d+)(?:-[0-9a-f]{4})?$")
_RANDOM = re.compile(r"-[0-9a-f]{6}$")
"""The end of the name of a session that the user did not name."""


def ordinal(caller: str) -> str | None:
    """The position of a caller among its gate's callers; None if its name has no number."""
    found = _NUMBER.search(caller)
    return found[1] if found else None


def without_number(caller: str) -> str:
    """The name of a caller without its number among its gate's callers."""
    return _NUMBER.sub("", caller)


def without_random(caller: str) -> str:
    """The name without its number, and without the random part that some names have."""
    return _RANDOM.sub("-*", without_number(caller))
