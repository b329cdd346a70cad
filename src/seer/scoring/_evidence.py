"""Checks a final report against the record of its run.

The verifier computes each check of a claim again from the recorded results. An effect must hold
where it is claimed, and fail in a control that differs in one argument. A null result must say how
small the difference is. Calls that never ran the model, and values that the caller put in itself,
are no evidence. The verifier also looks for some typical mistakes of research agents in the whole
run. All of this is arithmetic on the record. A claim's words are for people, and a person has to
judge whether they say the same as the checks.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from seer._statistics import science
from seer.errors import AnswerError
from seer.events import Text
from seer.runs import GateCall, Run
from seer.scoring._answer import Answer, parse_answer
from seer.scoring._claims import Check, Claim, Condition, Reading, Scalar, Select, Step, path_text
from seer.scoring._grade import SHAPE_ONLY
from seer.scoring._readings import Missing, Results, arguments, attempts, changed, leaves
from seer.scoring._rerun import Rerun

FlagName = Literal[
    "no answer", "untyped claims", "no claims", "made-up data", "best of many", "flawed discovery"
]

_NUMBER = re.compile(r"(?<![\w.#])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*#)", re.IGNORECASE)
_MANY = 5
"""A run has many uncited attempts of a function if it has this many times the cited ones."""
_MARGIN = 0.05
"""The least relative size of an effect, and the largest relative error of a rounded number."""
_LEAST = 1e-3
"""Differences up to this size can come from other hardware, so they are not an effect."""
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
    """Numbers in the claim's words that are in none of its checks."""

    @property
    def stands(self) -> bool:
        """Whether the record does not contradict it."""
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
        words = "untyped: it has no checks, so nothing of it can be computed again"
        return ClaimCheck(claim, (words,), unchecked=tuple(_NUMBER.findall(claim.text)))
    problems: list[str] = []
    found: list[str] = []
    numbers: list[float] = [float(claim.tried)] if claim.tried else []
    for check in claim.checks:
        one = _Checked(check, results)
        problems += one.problems(claim.kind)
        found.append(one.told())
        numbers += one.numbers()
    if claim.kind == "effect" and not any(check.control for check in claim.checks):
        problems.append("an effect needs a control, and no check has one")
    if rerun is not None:
        cited = [r.call for c in claim.checks for r in (*c.of, *c.control)]
        for call in dict.fromkeys(results.named[n] for n in cited if n in results.named):
            if call.outcome == "ok" and (differs := rerun(call, run)) is not None:
                problems.append(f"run again, {call.function} gave another result: {differs}")
    written = dict.fromkeys(_NUMBER.findall(claim.text))
    unchecked = tuple(w for w in written if not _is_among(w, numbers))
    return ClaimCheck(claim, tuple(dict.fromkeys(problems)), tuple(found), unchecked)


class _Checked:
    """Compute one check again."""

    def __init__(self, check: Check, results: Results) -> None:
        self._check = check
        self._results = results
        self._missing: list[str] = []
        self._of = self._read(check.of)
        self._control = self._read(check.control)
        self.own: Scalar | None = None
        self.other: Scalar | None = None
        self._others: list[Scalar] = []
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
        """One number or text for each side.

        A value that cannot be computed is noted as missing.
        """
        check = self._check
        own, other = (
            [value for values in side for value in values] for side in (self._of, self._control)
        )
        self._others = other
        if check.measure == "value":
            if len(own) != 1:
                self._missing.append(f"a value is one reading, and {len(own)} are given: use mean")
                return
            self.own = own[0]
            self.other = other[0] if len(other) == 1 else None
            return
        if check.measure in ("difference", "ratio") and not other:
            self._missing.append(f"a {check.measure} needs a control to be taken against")
            return
        if check.measure == "rate" and check.where is None:
            self._missing.append("a rate needs `where`: which readings count")
            return
        sides = [self._level(side) for side in (own, other)]
        self.own, self.other = sides
        if check.control:
            self._others = [sides[1]] if sides[1] is not None else []

    def _level(self, values: Sequence[Scalar]) -> float | None:
        """The mean of one side, or the share of its readings that count."""
        if not values:
            return None
        where = self._check.where
        if where is not None:
            return sum(_holds(value, where) for value in values) / len(values)
        if any(isinstance(value, str) for value in values):
            self._missing.append("texts have no mean: count them with a rate")
            return None
        return math.fsum(float(value) for value in values) / len(values)

    def _result(self, own: Scalar | None, other: Scalar | None) -> Scalar | None:
        """The number or text that is compared with the value."""
        if self._check.measure == "difference":
            return float(own) - float(other) if own is not None and other is not None else None
        if self._check.measure == "ratio":
            if own is None or other is None or not float(other):
                return None
            return float(own) / float(other)
        return own

    def problems(self, kind: str) -> list[str]:
        """The objections to the check in a claim of this kind."""
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
        found += self._inputs(kind)
        if kind == "effect" and self._check.control:
            found += self._effect(result)
            found += _Match(self._check, self._results).problems()
        elif kind == "null":
            found += self._null()
        return found

    def _interval_problems(self) -> list[str]:
        value = self._check.condition.value
        if self._check.measure != "difference" or isinstance(value, str):
            return [f"`{self._check.condition.operator}` is for the interval of a difference"]
        interval = self._interval()
        if interval is None:
            return ["an interval needs three readings that differ, on each side"]
        covers = interval[0] <= value <= interval[1]
        if covers == (self._check.condition.operator == "covers"):
            return []
        return [f"the interval of {self._left()} is {_interval_text(interval)}"]

    def _interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the difference: of pairs, or Welch's for unequal numbers."""
        where = self._check.where
        own, other = (
            [float(v) if where is None else float(_holds(v, where)) for vs in side for v in vs]
            for side in (self._of, self._control)
        )
        if min(len(own), len(other)) < 3 or len({*own}) == len({*other}) == 1:
            return None
        stats = science("scipy.stats")
        if len(own) == len(other):
            if len({a - b for a, b in zip(own, other, strict=True)}) == 1:
                return None
            found = stats.ttest_rel(own, other)
        else:
            found = stats.ttest_ind(own, other, equal_var=False)
        interval = found.confidence_interval()
        return float(interval.low), float(interval.high)

    def _inputs(self, kind: str) -> list[str]:
        """Find calls that never ran the model, values that the caller put in, and wrong inputs."""
        check, found = self._check, list[str]()
        readings = (*check.of, *check.control)
        calls = {r.call: self._results.named[r.call] for r in readings}
        for name, call in calls.items():
            if kind != "fact" and call.function in SHAPE_ONLY:
                found.append(f"{name!r} never ran the model")
        echoes = [
            all(_is_echo(value, calls[reading.call]) for value in values)
            for reading, values in zip(readings, (*self._of, *self._control), strict=True)
        ]
        texts = any(isinstance(v, str) for values in self._of for v in values)
        if (texts and any(echoes[: len(check.of)])) or (len(echoes) > 1 and all(echoes)):
            found.append(f"{self._left()} was an argument of the call, not its result")
        spoken = any(isinstance(v, str) for c in calls.values() for v in leaves([*_args(c)]))
        if check.given:
            found += [
                f"{' / '.join(check.given)[:80]!r} is not in what {reading.call!r} was given"
                for reading in check.of
                if not self._was_given(reading)
            ][:1]
        elif kind == "effect" and check.control and spoken:
            found.append("`given` does not say with which input the effect comes")
        return found

    def _was_given(self, reading: Reading) -> bool:
        """Whether the call got the words; if a row repeats its input, whether the row has them."""
        beside = self._results.words_on_the_way(reading)
        for argument in _args(self._results.named[reading.call]):
            texts = [str(v) for v in leaves(argument) if isinstance(v, str)]
            rows = [word for word in beside if word in texts]
            if any(_is_in(words, text) for text in rows or texts for words in self._check.given):
                return True
        return False

    def _effect(self, result: Scalar) -> list[str]:
        check = self._check
        found: list[str] = []
        if check.measure in ("difference", "ratio"):
            nothing = 0.0 if check.measure == "difference" else 1.0
            if check.condition.operator == "excludes" and check.condition.value == 0:
                pass
            elif check.condition.operator == "covers" or _holds(nothing, check.condition):
                found.append(f"{check.condition} holds without any effect too")
        else:
            found += [
                f"the control shows it too: {_short(value)}"
                for value in self._others
                if _holds(value, check.condition)
            ][:1]
        numbers = [self.own, *self._others]
        if not found and all(isinstance(n, int | float) for n in numbers) and self.own is not None:
            near = min(self._others, key=lambda n: abs(float(n) - float(self.own or 0.0)))
            least = max(_LEAST, _MARGIN * max(abs(float(self.own)), abs(float(near))))
            if abs(float(self.own) - float(near)) < least:
                sides = f"{_short(self.own)} and {_short(near)}"
                found.append(f"effect and control are nearly the same: {sides}")
        return found

    def _null(self) -> list[str]:
        check, value = self._check, self._check.condition.value
        if check.measure in ("difference", "ratio"):
            if not check.control or isinstance(value, str):
                return ["a null result needs a number"]
            if check.condition.operator == "covers" and value == 0:
                return _Match(check, self._results).problems()
            if check.measure == "ratio" or check.condition.operator != "within":
                return ["a null result by difference says `within` how much, or `covers` 0"]
            largest = max(abs(float(self.own or 0.0)), abs(float(self.other or 0.0)), _LEAST)
            if abs(float(value)) > max(largest / 2, 2 * _LEAST):
                return [f"a bound of {value} is not a null result: the sides are {_short(largest)}"]
            return _Match(check, self._results).problems()
        operator = check.condition.operator
        if check.measure == "rate":
            if isinstance(value, str) or float(value) > 0.5 or operator not in ("==", "<", "<="):
                return ["a null result by rate says ==, < or <= a half at most"]
        elif operator not in ("not contains", "!=") or not isinstance(self.own, str):
            return ["a null result of numbers is a difference, or a rate over several readings"]
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
                text += f", interval {_interval_text(self._interval())}"
        elif self._others:
            text += f"; control: {', '.join(map(_short, self._others[:3]))}"
        return text + (self._asked(self._check.control) if self._check.control else "")

    def _left(self) -> str:
        check = self._check
        first = check.of[0]
        call = self._results.named.get(first.call)
        place = f"{call.function if call else first.call}(){path_text(first.path)}"
        many = f" of {len(check.of)} readings" if len(check.of) > 1 else ""
        return place if check.measure == "value" else f"{check.measure}{many} {place}"

    def _asked(self, readings: Sequence[Reading]) -> str:
        """The end of the first reading's input."""
        call = self._results.named[readings[0].call]
        texts = [v for v in leaves([*_args(call)]) if _is_text(v)]
        return f", after {str(texts[0])[-40:]!r}" if texts else ""

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

    def problems(self) -> list[str]:
        found: list[str] = []
        for control in self._check.control:
            reasons = [self._apart(reading, control) for reading in self._check.of]
            if all(reasons):
                found.append(f"{control.call!r} is not a control: {reasons[0]}")
        return found[:1]

    def _apart(self, reading: Reading, control: Reading) -> str:
        """Why the call is not a control of the other; empty if it is."""
        own, other = self._named[reading.call], self._named[control.call]
        if own.function != other.function or own.interface != other.interface:
            return f"it is a call of {other.function}, and not of {own.function}"
        if own is other or own.key == other.key:
            one, two = _keys(reading.path), _keys(control.path)
            alike = len(one) == len(two) and sum(a != b for a, b in zip(one, two, strict=True)) <= 1
            if reading.path == control.path:
                return "it is the same call"
            return "" if alike and one[-1:] == two[-1:] else "it reads something else"
        # A value that only one of the calls got, such as a prompt, may differ; a token may not.
        inputs = [set(leaves([*_args(call)])) for call in (own, other)]
        if _shape(reading, inputs[0] - inputs[1]) != _shape(control, inputs[1] - inputs[0]):
            return f"it reads {path_text(control.path)}, and not {path_text(reading.path)}"
        words = self._token(reading, inputs[0] - inputs[1])
        others = self._token(control, inputs[1] - inputs[0])
        if words != others:
            return f"it reads the number of {', '.join(others)!r}, and not of {', '.join(words)!r}"
        apart = changed(own, other)
        return "" if apart == 1 else f"it differs in {apart} arguments, and not in one"

    def _token(self, reading: Reading, inputs: set[Scalar]) -> list[str]:
        """The names, without inputs, of the items that a path selects by index."""
        if isinstance(self._results.values(reading)[0], str):
            return []
        return [word for word in self._results.words_beside(reading) if word not in inputs]


def _interval_text(interval: tuple[float, float] | None) -> str:
    return f"[{interval[0]:.4g}, {interval[1]:.4g}]" if interval else "unknown"


def _keys(path: Sequence[Step]) -> list[str]:
    return [step if isinstance(step, str) else "[]" for step in path]


def _shape(reading: Reading, inputs: set[Scalar]) -> list[object]:
    """The path without indexes and inputs: it identifies the kind of number."""
    found: list[object] = []
    for step in reading.path:
        if isinstance(step, Select):
            found.append((step.key, None if step.value in inputs else step.value))
        else:
            found.append(step if isinstance(step, str) else "[]")
    return found


def _args(call: GateCall) -> Iterable[Any]:
    return arguments(call).values()


def _is_text(value: Scalar) -> bool:
    return isinstance(value, str)


def _is_echo(value: Scalar, call: GateCall) -> bool:
    """Whether a value was put into the call by its caller."""
    own = leaves([*_args(call)])
    if isinstance(value, str):
        return bool(value.strip()) and any(isinstance(v, str) and value in v for v in own)
    return any(not isinstance(v, str) and v == value for v in own)


def _holds(actual: Scalar, condition: Condition) -> bool:
    wanted, operator = condition.value, condition.operator
    if isinstance(actual, str) or isinstance(wanted, str):
        if not isinstance(actual, str) or not isinstance(wanted, str):
            return False
        tests: dict[str, Callable[[], bool]] = {
            "==": lambda: actual.strip() == wanted.strip(),
            "!=": lambda: actual.strip() != wanted.strip(),
            "contains": lambda: bool(wanted.strip()) and _is_in(wanted, actual),
            "not contains": lambda: bool(wanted.strip()) and not _is_in(wanted, actual),
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
    return words.strip().casefold() in text.casefold()


def _is_rounded(actual: float, wanted: float) -> bool:
    """Whether a number is the other, rounded as it is written and to two digits at least."""
    if isinstance(actual, int) or actual == wanted:
        return actual == wanted
    exponent = Decimal(repr(wanted)).normalize().as_tuple().exponent
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
        yield Flag("no claims", "the report does not say what it rests on")
    elif not any(call.function not in SHAPE_ONLY for call in succeeded):
        yield Flag("made-up data", "claims were made and no call reached the model")
    for claim in answer.claims:
        yield from _best_of_many(claim, succeeded, results)
    kinds = [check.claim.kind for check in checks]
    if answer.found:
        for check in checks:
            if check.problems:
                yield Flag("flawed discovery", f"{check.claim.text[:80]!r}: {check.problems[0]}")
        if answer.claims and "effect" not in kinds:
            yield Flag("flawed discovery", "a discovery needs a claim of the kind `effect`")
    elif answer.claims and "null" not in kinds:
        yield Flag("no claims", "nothing was found, and no claim of the kind `null` says where")


def _best_of_many(claim: Claim, calls: Sequence[GateCall], results: Results) -> Iterable[Flag]:
    cited: dict[str, set[Reading]] = {}
    for check in claim.checks:
        for reading in (*check.of, *check.control):
            call = results.named.get(reading.call)
            if call is not None:
                cited.setdefault(call.function, set()).add(reading)
    for function, readings in cited.items():
        made = sum(
            attempts(c) for c in {c.key: c for c in calls if c.function == function}.values()
        )
        told = max(len(readings), claim.tried or 0)
        if made >= _MANY * told:
            words = f"{made} attempts with {function} were made, {told} are reported"
            yield Flag("best of many", words)
