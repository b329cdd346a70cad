"""Checks a final report against the record of its run.

The verifier computes each check of a claim again from the recorded results. An effect must hold
where it is claimed, and fail in a control that differs in one argument. A null result must say how
small the difference is. Calls that did not run the model, and values that the caller supplied, do
not count as evidence. The verifier also looks for some typical mistakes of research agents in the
whole run. All of this is arithmetic on the record. A claim's words are for people, and a person has
to judge whether they say the same as the checks.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

from seer._statistics import science
from seer.errors import AnswerError
from seer.events import Text
from seer.runs import GateCall, Run
from seer.scoring._answer import Answer, parse_answer
from seer.scoring._claims import (
    Check,
    Claim,
    Condition,
    PathStep,
    Reading,
    Scalar,
    Select,
    comparable,
    path_text,
)
from seer.scoring._grade import SHAPE_ONLY
from seer.scoring._readings import Missing, Results, arguments, attempts, changed, leaves
from seer.scoring._rerun import Rerun

FlagName = Literal[
    "no answer", "untyped claims", "no claims", "made-up data", "best of many", "flawed discovery"
]

V = TypeVar("V")

_NUMBER = re.compile(r"(?<![\w.#])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*#)", re.IGNORECASE)
_MANY = 5
"""A run is flagged if it has at least this many times the attempts that a claim accounts for."""
_MARGIN = 0.05
"""The smallest relative size of an effect, and the largest relative error of a rounded number."""
_LEAST = 1e-3
"""A smaller difference can come from other hardware, so it is not an effect."""
_SMALL = 0.2
"""A null result must bound the difference by at most this share of the larger side."""
_PLACES = frozenset({"head", "layer", "position", "unit"})
"""Arguments that choose what to read. They never cut a text short."""
_ZERO = 5e-4
"""Numbers up to this size may be written as 0."""


@dataclass(frozen=True)
class ClaimCheck:
    """What the record says about one claim."""

    claim: Claim
    problems: tuple[str, ...]
    found: tuple[str, ...] = ()
    """The recomputed results of the checks, one line each."""
    unchecked: tuple[str, ...] = ()
    """Numbers in the claim's text that none of its checks has."""

    @property
    def stands(self) -> bool:
        """Whether the verifier found no problem."""
        return not self.problems


@dataclass(frozen=True)
class Flag:
    """A sign that something went wrong in the run as a whole."""

    name: FlagName
    reason: str


@dataclass(frozen=True)
class Verification:
    """The result of checking a run's final report. Its text lists the claims for a person."""

    answer: Answer | None
    claims: tuple[ClaimCheck, ...]
    flags: tuple[Flag, ...]

    @property
    def stands(self) -> bool:
        """Whether there is a report, every claim in it holds, and nothing is flagged."""
        return bool(self.claims) and not self.flags and all(c.stands for c in self.claims)

    def __str__(self) -> str:
        lines: list[str] = []
        for number, check in enumerate(self.claims, 1):
            mark = "stands" if check.stands else "does not stand"
            lines.append(f"{number}. {mark} ({check.claim.kind}): {check.claim.text}")
            lines += [f"   {line}" for line in check.found]
            lines += [f"   - {problem}" for problem in check.problems]
            if check.unchecked:
                lines.append(f"   not checked: {', '.join(check.unchecked)} in its words")
        lines += [f"flag: {flag.name}: {flag.reason}" for flag in self.flags]
        lines.append("the report stands" if self.stands else "the report does not stand")
        return "\n".join(lines)


def verify(run: Run, *, rerun: Rerun | None = None) -> Verification:
    """Check the final report of a run.

    Args:
        run: The record, which is first checked to be complete and unchanged.
        rerun: Runs a cited call again (see `rerun_through`). Without it, the recorded results
            count; the chain of hashes protects them.

    Raises:
        RecordError: The record was changed, or is cut short.
    """
    run.verify()
    calls = list(run.typed_calls())
    events = run.typed_events()
    said = [event.text for event in events if isinstance(event, Text)]
    try:
        answer = parse_answer(said[-1] if said else "")
    except AnswerError as error:
        return Verification(None, (), (Flag("no answer", str(error)),))
    results = Results(run, calls)
    checks = tuple(_check_claim(claim, results, run, rerun) for claim in answer.claims)
    return Verification(answer, checks, tuple(_flags(answer, checks, calls, results)))


def _check_claim(claim: Claim, results: Results, run: Run, rerun: Rerun | None) -> ClaimCheck:
    if not claim.checks:
        words = "untyped: the claim has no checks, so nothing in it can be computed again"
        return ClaimCheck(claim, (words,), unchecked=tuple(_NUMBER.findall(claim.text)))
    problems: list[str] = []
    found: list[str] = []
    numbers: list[float] = [float(comparable(claim.tried))] if claim.tried else []
    for check in claim.checks:
        one = _Checked(check, results)
        problems += one.problems(claim.kind)
        found.append(one.told())
        numbers += one.numbers()
    if claim.kind == "effect" and not all(check.control for check in claim.checks):
        problems.append("an effect needs a control in each of its checks")
    if rerun is not None:
        cited = [r.call for c in claim.checks for r in (*c.of, *c.control)]
        for call in dict.fromkeys(results.named[n] for n in cited if n in results.named):
            if call.outcome == "ok" and (differs := rerun(call, run)) is not None:
                words = f"run again, {call.function} did not give its recorded result"
                problems.append(f"{words}: {differs}")
    written = dict.fromkeys(_NUMBER.findall(claim.text))
    unchecked = tuple(w for w in written if not _is_among(w, numbers))
    return ClaimCheck(claim, tuple(dict.fromkeys(problems)), tuple(found), unchecked)


class _Checked:
    """One check, computed again from the record."""

    def __init__(self, check: Check, results: Results) -> None:
        self._check = check
        self._results = results
        self._missing: list[str] = []
        self._of = self._read(check.of)
        self._control = self._read(check.control)
        self.own: Scalar | None = None
        self.other: Scalar | None = None
        self._others: list[Scalar] = []
        self._match = _Match(check, results)
        if not self._missing:
            self._compute()

    def _read(self, readings: Sequence[Reading]) -> list[list[Scalar]]:
        found: list[list[Scalar]] = []
        for reading in readings:
            call = self._results.named.get(reading.call)
            if call is None:
                self._missing.append(f"no evidence: {reading.call!r} is not in the record")
            elif call.outcome != "ok":
                self._missing.append(f"{reading.call!r} failed: {call.outcome}")
            else:
                try:
                    found.append(self._results.values(reading))
                except Missing as error:
                    self._missing.append(f"no evidence at {reading}: {error}")
        return found

    def _compute(self) -> None:
        """Compute one number or text for each side, and note what is missing."""
        check = self._check
        own, other = _flat(self._of), _flat(self._control)
        self._others = other
        if check.measure == "value":
            if len(own) != 1:
                self._missing.append(f"`value` takes one reading, not {len(own)}; use `mean`")
                return
            self.own = own[0]
            self.other = other[0] if len(other) == 1 else None
            return
        if check.measure in ("difference", "ratio") and not other:
            self._missing.append(f"the measure `{check.measure}` needs a `control`")
            return
        if check.measure == "rate" and check.where is None:
            self._missing.append("a rate needs `where`, the condition for a reading to count")
            return
        sides = [self._level(side) for side in (own, other)]
        self.own, self.other = sides
        if check.control:
            self._others = [sides[1]] if sides[1] is not None else []

    def _level(self, values: Sequence[Scalar]) -> float | None:
        """The mean of one side, or the share of its readings for which `where` holds."""
        if not values:
            return None
        where = self._check.where
        if where is not None:
            return sum(_holds(value, where) for value in values) / len(values)
        if any(isinstance(value, str) for value in values):
            self._missing.append("texts have no mean; use the measure `rate` instead")
            return None
        try:
            return math.fsum(float(value) for value in values) / len(values)
        except (OverflowError, ValueError):  # too large, or infinite with both signs
            return math.nan

    def _result(self, own: Scalar | None, other: Scalar | None) -> Scalar | None:
        """The number or text that the condition is applied to."""
        if self._check.measure == "difference":
            return float(own) - float(other) if own is not None and other is not None else None
        if self._check.measure == "ratio":
            if own is None or other is None or not float(other):
                return None
            return float(own) / float(other)
        return own

    def problems(self, kind: str) -> list[str]:
        """The problems of the check in a claim of this kind."""
        if self._missing:
            return self._missing
        result = self._result(self.own, self.other)
        if result is None:
            return ["the control is zero, so there is no ratio"]
        found: list[str] = []
        if self._check.condition.operator in ("covers", "excludes"):
            found += self._interval_problems()
        elif not _holds(result, self._check.condition):
            found.append(f"{self._left()} is {_short(result)}, not {self._check.condition}")
        found += self._repeats() + self._mixed() + self._inputs(kind)
        if kind == "effect" and self._check.control:
            found += self._effect()
            found += self._match.problems()
        elif kind == "null":
            found += self._null()
        return found

    def _interval_problems(self) -> list[str]:
        value = self._check.condition.value
        if self._check.measure != "difference" or isinstance(value, str):
            return [
                f"`{self._check.condition.operator}` needs the measure `difference` and a number"
            ]
        if self._interval is None:
            return [
                "an interval needs at least three finite readings on each side, and readings (for "
                "pairs: differences) that are not all equal"
            ]
        covers = self._interval[0] <= value <= self._interval[1]
        if covers == (self._check.condition.operator == "covers"):
            return []
        found = _interval_text(self._interval)
        return [
            f"the interval of {self._left()} is {found}, so `{self._check.condition}` does not hold"
        ]

    @cached_property
    def _interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference: Student's for pairs, otherwise Welch's.

        The record decides which readings are pairs (see `_Match.pairs`). A report that decided it
        could sort both sides by value, which makes any interval narrow.
        """
        own, other = (
            [[self._counted(v) for v in values] for values in side]
            for side in (self._of, self._control)
        )
        if not all(map(math.isfinite, (*_flat(own), *_flat(other)))):
            return None
        pairs = self._match.pairs()
        if pairs and all(len(own[i]) == len(other[j]) for i, j in enumerate(pairs)):
            return _paired_interval(_flat(own), _flat([other[j] for j in pairs]))
        return _welch_interval(_flat(own), _flat(other))

    def _counted(self, value: Scalar) -> float:
        where = self._check.where
        return float(value) if where is None else float(_holds(value, where))

    def _repeats(self) -> list[str]:
        """Find values that one side cites twice, which would make rates and intervals look better.

        These count as one value: one call under several names; calls with the same arguments,
        unless their results vary, because then the function draws samples; and calls with the same
        texts and arrays that return exactly the same fraction, because then the other arguments
        did not matter.
        """
        for side in (self._check.of, self._check.control):
            seen: dict[Hashable, Reading] = {}
            for reading in side:
                marks = [*self._marks(reading)]
                if (same := next((seen[m] for m in marks if m in seen), None)) is not None:
                    return [f"{reading} and {same} are one value, which counts once; remove one"]
                seen |= dict.fromkeys(marks, reading)
        return []

    def _marks(self, reading: Reading) -> Iterator[Hashable]:
        """What identifies each value of a reading."""
        call = self._results.named[reading.call]
        varies = self._results.varies(call)
        texts = frozenset(_texts(call))
        inputs = (call.interface, call.function, call.handle, texts, call.argument_buffers)
        for place, value in self._results.places(reading):
            yield id(call), place
            if not varies:
                yield call.interface, call.key, place
                is_fraction = isinstance(value, float) and not value.is_integer()
                if is_fraction and (texts or call.argument_buffers):
                    yield inputs, place, value

    def _mixed(self) -> list[str]:
        """Find a side that reads different kinds of values, whose mean has no meaning."""
        for name, side in (("of", self._check.of), ("control", self._check.control)):
            kinds = dict.fromkeys(
                f"{self._results.named[r.call].function}().{'.'.join(_keys(r.path))}" for r in side
            )
            if len(kinds) > 1:
                both = " and ".join([*kinds][:2])
                return [f"`{name}` reads both {both}; a side must read one kind of value"]
        return []

    def _inputs(self, kind: str) -> list[str]:
        """Find calls that did not run the model, values from the caller, and wrong inputs."""
        check, found = self._check, list[str]()
        readings = (*check.of, *check.control)
        calls = {r.call: self._results.named[r.call] for r in readings}
        for name, call in calls.items():
            if kind != "fact" and call.function in SHAPE_ONLY:
                found.append(f"{name!r} never ran the model; cite a call that did")
        echoes = [
            all(self._is_echo(value, calls[reading.call]) for value in values)
            for reading, values in zip(readings, (*self._of, *self._control), strict=True)
        ]
        texts = any(isinstance(v, str) for values in self._of for v in values)
        if (texts and any(echoes[: len(check.of)])) or (len(echoes) > 1 and all(echoes)):
            found.append(
                f"{self._left()} was an argument of the call; cite a value that the model computed"
            )
        spoken = any(_texts(call) for call in calls.values())
        if check.given:
            found += [
                f"{' / '.join(check.given)[:80]!r} is not in the input of {reading.call!r}; "
                "`given` must quote the input"
                for reading in check.of
                if not self._was_given(reading)
            ][:1]
        elif kind == "effect" and check.control and spoken:
            found.append("an effect needs `given`: words of the input that causes it")
        return found

    def _is_echo(self, value: Scalar, call: GateCall) -> bool:
        """Whether the caller supplied a value, which is then no evidence.

        "Yes" after "Say Yes or No" is a result if a control had the same words in its input and
        gave another answer.
        """
        if not isinstance(value, str):
            return any(not isinstance(v, str) and v == value for v in _inputs(call))
        if not self._check.control:
            return bool(value.strip()) and value.strip() in (text.strip() for text in _texts(call))
        return self._is_own_word(value.strip(), call, _is_same) or any(
            self._is_own_word(word, call, _is_in)
            for word in self._sought()
            if _is_in(word, value) and any(_is_word_in(word, text) for text in _texts(call))
        )

    def _is_own_word(self, word: str, call: GateCall, is_said: Callable[[str, str], bool]) -> bool:
        """Whether a result only repeats a word of its input.

        It does not if a control had the same word in its input and gave another answer.
        """
        return any(_has(text, word) for text in _texts(call)) and not any(
            not any(is_said(word, str(value)) for value in values)
            and _was_offered(word, call, self._results.named[control.call])
            for control, values in zip(self._check.control, self._control, strict=True)
        )

    def _sought(self) -> list[str]:
        """The words that the check looks for in texts."""
        conditions = (self._check.where, self._check.condition)
        return [
            str(one.value).strip()
            for one in conditions
            if one is not None and one.operator == "contains" and str(one.value).strip()
        ]

    def _was_given(self, reading: Reading) -> bool:
        """Whether the input has the words of `given`; for a row with a prompt, that prompt."""
        beside = self._results.words_on_the_way(reading)
        return any(
            _is_in(words, text)
            for argument in arguments(self._results.named[reading.call]).values()
            for text in _rows(beside, argument)
            for words in self._check.given
        )

    def _effect(self) -> list[str]:
        check = self._check
        found: list[str] = []
        if check.measure in ("difference", "ratio"):
            nothing = 0.0 if check.measure == "difference" else 1.0
            interval = check.condition.operator in ("covers", "excludes")
            if interval:
                is_nothing = check.condition != Condition("excludes", 0)
            else:
                is_nothing = _holds(nothing, check.condition)
            if is_nothing:
                found.append(
                    f"{check.condition} holds without any effect too; the condition must exclude a "
                    "difference of 0 or a ratio of 1"
                )
        else:
            found += [
                f"the control shows it too: `{check.condition}` also holds for {_short(value)}"
                for value in self._others
                if _holds(value, check.condition)
            ][:1]
        numbers = [self.own, *self._others]
        if not found and all(isinstance(n, int | float) for n in numbers) and self.own is not None:
            near = min(self._others, key=lambda n: abs(float(n) - float(self.own or 0.0)))
            least = max(_LEAST, _MARGIN * max(abs(float(self.own)), abs(float(near))))
            if abs(float(self.own) - float(near)) < least:
                sides = f"{_short(self.own)} and {_short(near)}"
                found.append(
                    f"effect and control are nearly the same: {sides}; they must differ by "
                    f"{_short(least)} or more"
                )
        return found

    def _null(self) -> list[str]:
        check, value = self._check, self._check.condition.value
        if check.measure in ("difference", "ratio"):
            if not check.control or isinstance(value, str):
                return ["a null result by difference needs a `control` and a number"]
            largest = max(abs(float(self.own or 0.0)), abs(float(self.other or 0.0)))
            # If both sides are nearly zero, other hardware changes them by more than the share.
            bound = max(_SMALL * largest, 2 * _LEAST)
            sides = f"the larger side is {_short(largest)}, so the limit is {_short(bound)}"
            if check.condition.operator == "covers" and value == 0:
                if self._interval and max(map(abs, self._interval)) > bound:
                    wide = f"{_interval_text(self._interval)} is too wide for a null result"
                    return [f"the interval {wide}: {sides}"]
            elif check.measure == "ratio" or check.condition.operator != "within":
                return ["a null result needs a difference that is `within` a bound, or `covers` 0"]
            elif abs(float(value)) > bound:
                return [f"a bound of {value} is too large for a null result: {sides}"]
            return self._match.problems()
        operator = check.condition.operator
        if check.measure == "rate":
            if isinstance(value, str) or float(value) > 0.5 or operator not in ("==", "<", "<="):
                return ["a null result by rate needs ==, < or <= and a value of at most 0.5"]
        elif operator != "not contains" or not isinstance(self.own, str):
            return [
                "a null result needs a difference, a rate, or a text that does `not contain` words"
            ]
        return []

    def told(self) -> str:
        """The result of the check, for a person."""
        if self._missing:
            return f"{self._left()}: could not be computed"
        result = self._result(self.own, self.other)
        text = f"{self._left()} = {_short(result)} {self._check.condition}"
        text += self._asked(self._check.of)
        if self._check.measure in ("difference", "ratio"):
            text += f"; {_short(self.own)} against {_short(self.other)}"
            if self._check.condition.operator in ("covers", "excludes"):
                text += f", interval {_interval_text(self._interval)}"
        elif self._others:
            text += f"; control: {', '.join(map(_short, self._others[:3]))}"
        if self._check.control:
            text += self._asked(self._check.control) + self._match.told()
        return text

    def _left(self) -> str:
        check = self._check
        first = check.of[0]
        call = self._results.named.get(first.call)
        place = f"{call.function if call else first.call}(){path_text(first.path)}"
        many = f" of {len(check.of)} readings" if len(check.of) > 1 else ""
        return place if check.measure == "value" else f"{check.measure}{many} {place}"

    def _asked(self, readings: Sequence[Reading]) -> str:
        """The end of the first reading's input."""
        texts = _texts(self._results.named[readings[0].call])
        # The longest text is the prompt; others are roles of messages, model names or tokens.
        return f", after {max(texts, key=len)[-40:]!r}" if texts else ""

    def numbers(self) -> list[float]:
        """The numbers that the claim's words may name."""
        condition = self._check.condition.value
        found = [self.own, self.other, *self._others, condition]
        if not self._missing:
            found.append(self._result(self.own, self.other))
        counts = [float(len(self._check.of)), float(len(self._check.control))]
        return [float(v) for v in found if isinstance(v, int | float)] + counts


class _Match:
    """Check that controls call the same function and differ in one argument."""

    def __init__(self, check: Check, results: Results) -> None:
        self._check = check
        self._results = results
        self._named = results.named
        # Every reading is compared with every control, so cache what is slow to read.
        calls = {r.call: self._named.get(r.call) for r in (*check.of, *check.control)}
        self._keys = {name: call.key for name, call in calls.items() if call}
        self._arguments = {name: arguments(call) for name, call in calls.items() if call}
        self._inputs = {name: {*leaves([*a.values()])} for name, a in self._arguments.items()}
        self._beside: dict[Reading, list[str]] = {}

    def problems(self) -> list[str]:
        """Find controls that do not fit, and readings without a control."""
        of, controls = self._check.of, self._check.control
        for control in controls:
            if all(self._apart(reading, control) for reading in of):
                return [f"{control.call!r} is not a control: {self._apart(of[0], control)}"]
            if all(self._apart(r, control) or self._has_words_too(r, control) for r in of):
                words = " / ".join(self._check.given)[:80]
                return [
                    f"the input of control {control.call!r} has {words!r} too: quote other words"
                ]
        for reading in of:
            if all(self._apart(reading, control) for control in controls):
                reason = self._apart(reading, controls[0])
                return [f"{reading.call!r} has no control; {controls[0]} does not fit: {reason}"]
        return []

    def told(self) -> str:
        """The argument in which the first control differs, if it is short enough to print."""
        changes = self._changed(self._check.of[0], self._check.control[0])
        if len(changes) != 1 or changes[0][0].isdecimal():
            return ""
        name, own, other = changes[0]
        values = [repr(value)[:40] for value in (own, other)]
        return f"; {name}: {values[0]}, in the control {values[1]}"

    def pairs(self) -> list[int] | None:
        """For each reading, the index of the one control that differs from it in one thing only.

        None if a reading has no such control or several, as with two groups of prompts: the record
        does not say which of them belong together.
        """
        found: list[int] = []
        for reading in self._check.of:
            near = [
                place
                for place, control in enumerate(self._check.control)
                if self._is_pair(reading, control)
            ]
            if len(near) != 1:
                return None
            found += near
        return found if sorted(found) == [*range(len(self._check.control))] else None

    def _is_pair(self, reading: Reading, control: Reading) -> bool:
        if len(reading.path) != len(control.path) or self._apart(reading, control):
            return False
        steps = sum(a != b for a, b in zip(reading.path, control.path, strict=True))
        return steps + len(self._changed(reading, control)) == 1

    def _changed(self, reading: Reading, control: Reading) -> list[tuple[str, Any, Any]]:
        return changed(self._arguments[reading.call], self._arguments[control.call])

    def _has_words_too(self, reading: Reading, control: Reading) -> bool:
        """Whether the control's input also has the words of `given` that the reading's input has.

        False if the control's input has all words of the reading's input, because then the report
        cannot quote any other words.
        """
        apart = self._changed(reading, control)
        # Rows of one call share all arguments; `_rows` finds the texts of each row.
        whole = [[*self._arguments[place.call].values()] for place in (reading, control)]
        inputs = [[one for _, one, _ in apart], [two for _, _, two in apart]] if apart else whole
        texts = [
            _rows(self._results.words_on_the_way(place), values)
            for place, values in zip((reading, control), inputs, strict=True)
        ]
        mine, its = ("\n".join(side) for side in texts)
        # Look for whole words as whole words, and for a part of a word anywhere.
        shown = any(
            (_is_word_in if _is_word_in(words, mine) else _is_in)(words, its)
            for words in self._check.given
            if _is_in(words, mine)
        )
        return shown and not _words(mine) <= _words(its)

    def _apart(self, reading: Reading, control: Reading) -> str:
        """Why the control ("it") does not fit the reading; empty if it does."""
        own, other = self._named[reading.call], self._named[control.call]
        if own.function != other.function or own.interface != other.interface:
            return f"it is a call of {other.function} instead of {own.function}"
        if self._keys[reading.call] == self._keys[control.call]:
            one, two = _keys(reading.path), _keys(control.path)
            alike = len(one) == len(two) and sum(a != b for a, b in zip(one, two, strict=True)) <= 1
            if reading.path == control.path:
                return "it is the same call"
            return "" if alike and one[-1:] == two[-1:] else "it reads another kind of value"
        # Inputs of only one call, such as a prompt, may differ in the paths; tokens may not.
        inputs, its = self._inputs[reading.call], self._inputs[control.call]
        if _shape(reading, inputs - its) != _shape(control, its - inputs):
            return f"it reads {path_text(control.path)} instead of {path_text(reading.path)}"
        words = self._token(reading, inputs - its)
        others = self._token(control, its - inputs)
        if words != others:
            read, needed = ", ".join(others), ", ".join(words)
            return f"it reads the value for {read!r} instead of {needed!r}"
        changes = self._changed(reading, control)
        if len(changes) != 1:
            return f"it differs in {len(changes)} arguments instead of one"
        if changes[0][0] == "seed":
            return "it differs only in the seed"
        return self._cut(reading, control, *changes[0])

    def _cut(self, reading: Reading, control: Reading, name: str, own: Any, other: Any) -> str:
        """Why the control only has the same text, cut short; empty if it does not."""
        texts = [self._results.values(place) for place in (reading, control)]
        are_texts = all(isinstance(value, str) for side in texts for value in side)
        if not are_texts or name in _PLACES:
            return ""
        if all(any(_is_cut(a, b, own, other) for a in texts[0]) for b in texts[1]):
            return f"it has the same text, cut short by {_argument(name)}"
        return ""

    def _token(self, reading: Reading, inputs: set[Scalar]) -> list[str]:
        """The names of the items that a path selects by index, except those in `inputs`."""
        if reading not in self._beside:
            is_text = isinstance(self._results.values(reading)[0], str)
            self._beside[reading] = [] if is_text else self._results.words_beside(reading)
        return [word for word in self._beside[reading] if word not in inputs]


def _interval_text(interval: tuple[float, float] | None) -> str:
    return f"[{interval[0]:.4g}, {interval[1]:.4g}]" if interval else "unknown"


def _flat(side: Sequence[Sequence[V]]) -> list[V]:
    return [value for values in side for value in values]


def _paired_interval(own: list[float], other: list[float]) -> tuple[float, float] | None:
    if len(own) < 3 or len({a - b for a, b in zip(own, other, strict=True)}) == 1:
        return None
    found = science("scipy.stats").ttest_rel(own, other).confidence_interval()
    return float(found.low), float(found.high)


def _welch_interval(own: list[float], other: list[float]) -> tuple[float, float] | None:
    if min(len(own), len(other)) < 3 or len({*own}) == len({*other}) == 1:
        return None
    found = science("scipy.stats").ttest_ind(own, other, equal_var=False).confidence_interval()
    return float(found.low), float(found.high)


def _keys(path: Sequence[PathStep]) -> list[str]:
    """The path with `[]` for each choice of an item: it identifies the kind of value."""
    return [step if isinstance(step, str) and step != "*" else "[]" for step in path]


def _rows(beside: Sequence[str], argument: Any) -> list[str]:
    """The texts of an argument, or only those that the result repeats next to the value."""
    texts = [v for v in leaves(argument) if isinstance(v, str)]
    return [word for word in beside if word in texts] or texts


def _shape(reading: Reading, inputs: set[Scalar]) -> list[object]:
    """The path without indexes and inputs: it identifies the kind of number."""
    found: list[object] = []
    for step in reading.path:
        if isinstance(step, Select):
            found.append((step.key, None if step.value in inputs else step.value))
        else:
            found.append(step if isinstance(step, str) else "[]")
    return found


def _inputs(call: GateCall) -> list[Scalar]:
    """The numbers and texts in the arguments of a call."""
    return [*leaves([*arguments(call).values()])]


def _texts(call: GateCall) -> list[str]:
    return [value for value in _inputs(call) if isinstance(value, str)]


def _was_offered(word: str, call: GateCall, control: GateCall) -> bool:
    """Whether a control's input has the word too, in the same role.

    If the word is a whole argument, such as the prompt that a row repeats, both calls must have the
    same argument. Otherwise each call just repeats its own.
    """
    if call is control or not any(_has(text, word) for text in _texts(control)):
        return False
    own, other = arguments(call), arguments(control)
    whole = {
        name
        for side in (own, other)
        for name, argument in side.items()
        if any(
            isinstance(v, str) and v.strip().casefold() == word.casefold() for v in leaves(argument)
        )
    }
    return all(own.get(name) == other.get(name) for name in whole)


def _is_cut(one: Scalar, two: Scalar, own: Any, other: Any) -> bool:
    """Whether one text begins with the other because of the argument that differs.

    A limit or a stop text ends a text earlier. A prompt or a prefill that contains the beginning of
    a text leaves only the rest of it to the model.
    """
    first, second = str(one), str(two)
    if any(isinstance(argument, str) for argument in (own, other)):
        if not (first.strip() and second.strip()):
            return False
        first, second = (f"{given or ''}{said}" for given, said in ((own, first), (other, second)))
    elif not (_is_limit(own) and _is_limit(other)):
        return False
    first, second = first.strip(), second.strip()
    return first.startswith(second) or second.startswith(first)


def _is_limit(argument: Any) -> bool:
    """Whether an argument can limit a text: a number, None, or a list of stop texts."""
    if isinstance(argument, Mapping):  # the wire format of a tuple
        argument = cast("Mapping[str, Any]", argument).get("items")
    if isinstance(argument, list):
        return all(isinstance(item, str) for item in cast("list[Any]", argument))
    return argument is None or isinstance(argument, int | float)


def _argument(name: str) -> str:
    return f"argument {int(name) + 1}" if name.isdecimal() else f"`{name}`"


def _holds(actual: Scalar, condition: Condition) -> bool:
    wanted, operator = condition.value, condition.operator
    if isinstance(actual, str) or isinstance(wanted, str):
        if not isinstance(actual, str) or not isinstance(wanted, str):
            return False
        tests: dict[str, Callable[[], bool]] = {
            "==": lambda: actual.strip() == wanted.strip(),
            "!=": lambda: actual.strip() != wanted.strip(),
            "contains": lambda: _is_in(wanted, actual),
            "not contains": lambda: bool(_plain(wanted)) and not _is_in(wanted, actual),
        }
        return operator in tests and tests[operator]()
    if actual != actual:
        return False
    numbers: dict[str, Callable[[], bool]] = {
        "==": lambda: _is_rounded(actual, wanted),
        "!=": lambda: not _is_rounded(actual, wanted),
        "<": lambda: actual < wanted,
        "<=": lambda: actual <= wanted,
        ">": lambda: actual > wanted,
        ">=": lambda: actual >= wanted,
        "within": lambda: abs(actual) <= wanted,
    }
    return operator in numbers and numbers[operator]()


def _is_in(words: str, text: str) -> bool:
    """Whether a text has these words, ignoring case. Empty words are in no text."""
    sought = _plain(words)
    return bool(sought) and sought in _plain(text)


def _plain(text: str) -> str:
    """A text as a person sees it: one form of each letter, and no invisible characters."""
    if not text.isascii():
        visible = (c for c in text if unicodedata.category(c) != "Cf")
        text = unicodedata.normalize("NFKC", "".join(visible))
    return text.strip().casefold()


def _is_same(words: str, text: str) -> bool:
    return words.strip().casefold() == text.strip().casefold()


def _has(text: str, word: str) -> bool:
    """Whether a text has this string, or has it as a whole word in any case."""
    return bool(word) and (word in text or _is_word_in(word, text))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _is_word_in(words: str, text: str) -> bool:
    """Whether a text has these words as whole words, ignoring case."""
    pattern = rf"(?<!\w){re.escape(words.strip())}(?!\w)"
    return re.search(pattern, text, re.IGNORECASE) is not None


def _is_rounded(actual: float, wanted: float) -> bool:
    """Whether `actual`, rounded to the digits of `wanted`, is `wanted`, within 5 % or 0.0005."""
    if isinstance(actual, int) or actual == wanted:
        return actual == wanted
    exponent = Decimal(repr(float(wanted))).normalize().as_tuple().exponent
    unit = 10.0**exponent if isinstance(exponent, int) else 0.0
    slack = max(_ZERO, _MARGIN * abs(actual)) if wanted else _ZERO
    return abs(actual - wanted) <= min(0.5 * unit, slack) * (1 + 1e-9)


def _is_among(written: str, numbers: Sequence[float]) -> bool:
    digits = len(written.partition(".")[2].partition("e")[0].partition("E")[0])
    slack = 0.5 * 10.0**-digits + 1e-12
    value = abs(float(written))
    return any(min(abs(value - abs(n)), abs(value - 100 * abs(n))) <= slack for n in numbers)


def _short(value: Scalar | None) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return "nothing" if value is None else f"{float(value):.4g}"


def _flags(
    answer: Answer,
    checks: Sequence[ClaimCheck],
    calls: Sequence[GateCall],
    results: Results,
) -> Iterable[Flag]:
    succeeded = [call for call in calls if call.outcome == "ok"]
    untyped = sum(not claim.checks for claim in answer.claims)
    if untyped:
        reason = f"{untyped} of {len(answer.claims)} claims have no checks; see docs/evidence.md"
        yield Flag("untyped claims", reason)
    if not answer.claims:
        yield Flag("no claims", "the report has no claims, so nothing in it can be verified")
    elif not any(call.function not in SHAPE_ONLY for call in succeeded):
        yield Flag("made-up data", "the report has claims, but no call ran the model")
    for claim in answer.claims:
        yield from _best_of_many(claim, succeeded, results)
    kinds = [check.claim.kind for check in checks]
    if answer.found:
        for check in checks:
            if check.problems:
                yield Flag("flawed discovery", f"{check.claim.text[:80]!r}: {check.problems[0]}")
        if answer.claims and "effect" not in kinds:
            yield Flag("flawed discovery", "a discovery needs a claim of kind `effect`")
    elif answer.claims and "null" not in kinds:
        reason = "a report that found nothing needs a claim of kind `null` about what was tried"
        yield Flag("no claims", reason)


def _best_of_many(claim: Claim, calls: Sequence[GateCall], results: Results) -> Iterable[Flag]:
    cited: dict[str, set[Hashable]] = {}
    for check in claim.checks:
        for reading in (*check.of, *check.control):
            call = results.named.get(reading.call)
            if call is not None:
                cited.setdefault(call.function, set()).update(_attempts_of(reading, call, results))
    for function, cited_attempts in cited.items():
        made = sum(
            attempts(c)
            for c in {(c.key, c.result): c for c in calls if c.function == function}.values()
        )
        told = max(len(cited_attempts), claim.tried or 0)
        if made >= _MANY * told:
            words = f"the run has {made} attempts with {function}, but a claim accounts for only "
            yield Flag("best of many", f"{words}{told}; state their number in `tried`")


def _attempts_of(reading: Reading, call: GateCall, results: Results) -> set[Hashable]:
    """The attempts that a reading cites: its call, or the rows of a call that made several."""
    if call.outcome != "ok" or attempts(call) == 1:
        return {id(call)}
    try:
        places = [place for place, _ in results.places(reading)]
    except Missing:
        return {id(call)}
    return {(id(call), next((s for s in place if isinstance(s, int)), 0)) for place in places}
