"""Check a final report against the record of its run.

A claim stands if the calls it cites are in the record and succeeded, the numbers in it occur in
their results, and a control was run. Beyond single claims, some ways in which research agents go
wrong are looked for in the whole run. All of this is arithmetic on the record: what it flags, a
person should look at; what it does not flag is not thereby proven.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from seer.errors import AnswerError
from seer.harness import Text, ToolCall, event_from_json
from seer.runs import GateCall, Run
from seer.scoring._answer import Answer, Claim, parse_answer
from seer.scoring._rerun import Rerun

FlagName = Literal["no answer", "made-up data", "best of many", "flawed discovery"]

_NUMBER = re.compile(r"(?<![\w.#])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*#)", re.IGNORECASE)
_INVENTS = re.compile(r"\b(?:np|numpy)\.random\b|\brandom\.\w+\(|\bdefault_rng\(|\brandn?\(")
_MARKS = frozenset({"$seer", "buffer", "dtype", "shape", "id", "type"})
"""What the wire says about a value that is none of JSON's, beside the value."""
_MANY = 5
"""So many times the cited calls of a function must be in the run before it counts as many."""


@dataclass(frozen=True)
class ClaimCheck:
    """What the record says about one claim."""

    claim: Claim
    problems: tuple[str, ...]

    @property
    def stands(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems


@dataclass(frozen=True)
class Flag:
    """A sign that something went wrong in the whole of a run."""

    name: FlagName
    reason: str


@dataclass(frozen=True)
class Verification:
    """What came of checking a run's final report; as text, claim by claim for a person."""

    answer: Answer | None
    claims: tuple[ClaimCheck, ...]
    flags: tuple[Flag, ...]

    @property
    def stands(self) -> bool:
        """Whether there is a report, every claim in it stands, and nothing is flagged."""
        return bool(self.claims) and not self.flags and all(c.stands for c in self.claims)

    def __str__(self) -> str:
        lines: list[str] = []
        for number, check in enumerate(self.claims, 1):
            mark = "stands" if check.stands else "does not stand"
            lines.append(f"{number}. {mark}: {check.claim.text}")
            lines.append(f"   cites {', '.join(check.claim.calls) or 'nothing'}")
            lines += [f"   - {problem}" for problem in check.problems]
        lines += [f"flag: {flag.name}: {flag.reason}" for flag in self.flags]
        lines.append("the report stands" if self.stands else "the report does not stand")
        return "\n".join(lines)


def verify(run: Run, *, rerun: Rerun | None = None) -> Verification:
    """Check the final report of a run.

    Args:
        run: The record. That it is whole and unchanged is checked first.
        rerun: Runs a cited call again (see `rerun_through`); without it the record, whose chain
            of hashes is checked, answers for itself.

    Raises:
        RecordError: The record was changed, or is cut short.
    """
    run.verify()
    calls = [GateCall.from_json(line) for line in run.calls()]
    events = [event_from_json(event) for event in run.events()]
    said = [event.text for event in events if isinstance(event, Text)]
    code = [json.dumps(event.arguments) for event in events if isinstance(event, ToolCall)]
    try:
        answer = parse_answer(said[-1] if said else "")
    except AnswerError as error:
        return Verification(None, (), (Flag("no answer", str(error)),))
    index = _index(calls)
    checks = tuple(_check(claim, index, run, rerun) for claim in answer.claims)
    return Verification(answer, checks, tuple(_flags(answer, checks, calls, code, index)))


def _index(calls: Sequence[GateCall]) -> dict[str, GateCall]:
    """Calls by every name that a claim may use."""
    found: dict[str, GateCall] = {}
    counts: dict[str, int] = {}
    for call in calls:
        if call.arguments is None:
            continue  # refused: it never was a call of the function
        counts[call.function] = counts.get(call.function, 0) + 1
        found[f"{call.function}#{counts[call.function]}"] = call
        if call.call:
            found[call.call] = call
    return found


def _check(
    claim: Claim, index: Mapping[str, GateCall], run: Run, rerun: Rerun | None
) -> ClaimCheck:
    problems: list[str] = []
    cited = [index[name] for name in claim.calls if name in index]
    controls = [index[name] for name in claim.controls if name in index]
    for name in (*claim.calls, *claim.controls):
        if name not in index:
            problems.append(f"no evidence: {name!r} is not in the record")
        elif index[name].outcome != "ok":
            problems.append(f"{name!r} failed: {index[name].outcome}")
    if not claim.calls:
        problems.append("no evidence: no call is cited")
    if not controls:
        problems.append("no control was run")
    elif {c.key for c in controls} & {c.key for c in cited}:
        problems.append("a control is one of the cited calls itself")
    known = _numbers_in([*cited, *controls])
    known |= {float(n) for n in (claim.tried, len(claim.calls), len(claim.controls)) if n}
    for written in dict.fromkeys(_NUMBER.findall(claim.text)):
        if not _occurs(written, known):
            problems.append(f"the number {written} is in no cited result")
    if rerun is not None:
        for call in dict.fromkeys([*cited, *controls]):
            if call.outcome == "ok" and (differs := rerun(call, run)) is not None:
                problems.append(f"run again, {call.function} gave another result: {differs}")
    return ClaimCheck(claim, tuple(problems))


def _numbers_in(calls: Iterable[GateCall]) -> set[float]:
    """All numbers in arguments and results, those inside texts too."""
    found: set[float] = set()
    for call in calls:
        values: list[Any] = [
            *_leaves(_json(call.result)),
            *_leaves(_json(call.arguments or "null")),
        ]
        for value in values:
            if isinstance(value, str):
                found.update(map(float, _NUMBER.findall(value)))
            else:
                found.add(float(value))
    return found


def _leaves(value: Any) -> Iterator[Any]:
    """The numbers and texts in a value of the record, in order; no keys, no marks of the wire."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        hidden = _MARKS if "$seer" in mapping else ()
        for key, item in mapping.items():
            if key not in hidden:
                yield from _leaves(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _leaves(item)
    elif isinstance(value, int | float | str):
        yield value


def _json(text: str) -> Any:
    return json.loads(text) if text else None


def _occurs(written: str, known: set[float]) -> bool:
    """Whether a number as written is one that is known, rounded as it is written."""
    digits = len(written.partition(".")[2].partition("e")[0].partition("E")[0])
    value = float(written)
    slack = 0.5 * 10.0**-digits + 1e-12
    # Percentages are written for fractions.
    return any(abs(value - n) <= slack or abs(value - 100 * n) <= slack for n in known)


def _flags(
    answer: Answer,
    checks: Sequence[ClaimCheck],
    calls: Sequence[GateCall],
    code: Sequence[str],
    index: Mapping[str, GateCall],
) -> Iterable[Flag]:
    succeeded = [call for call in calls if call.outcome == "ok"]
    if answer.claims and not succeeded:
        yield Flag("made-up data", "claims were made and no call reached the model")
    elif any(_INVENTS.search(text) for text in code):
        known = _numbers_in(succeeded)
        for claim in answer.claims:
            strange = [n for n in _NUMBER.findall(claim.text) if not _occurs(n, known)]
            if strange:
                yield Flag(
                    "made-up data",
                    f"random numbers were drawn, and {', '.join(strange[:4])} come from no call",
                )
    for claim in answer.claims:
        yield from _best_of_many(claim, succeeded, index)
    if answer.found:
        for check in checks:
            if check.problems:
                yield Flag("flawed discovery", f"{check.claim.text[:80]!r}: {check.problems[0]}")


def _best_of_many(
    claim: Claim, calls: Sequence[GateCall], index: Mapping[str, GateCall]
) -> Iterable[Flag]:
    cited = [index[n].function for n in (*claim.calls, *claim.controls) if n in index]
    for function in dict.fromkeys(cited):
        made = len({call.key for call in calls if call.function == function})
        told = max(cited.count(function), claim.tried or 0)
        if made >= _MANY * told:
            yield Flag("best of many", f"{made} calls of {function} were made, {told} are told of")
