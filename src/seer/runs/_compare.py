"""Where two runs diverge: the first step that differs, and the first call of the gate.

Times, ids, token counts and names of agents, sessions and servers differ between any two runs, so
they are not compared.
"""

import hashlib
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from seer.events import (
    ApprovalGiven,
    ErrorEvent,
    Event,
    LimitReached,
    RunFinished,
    RunStarted,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from seer.runs._blobs import BlobStore, unpack
from seer.runs._calls import GateCall
from seer.runs._chain import canonical, read_chain
from seer.runs._info import RunInfo
from seer.runs._reader import Run
from seer.runs.replay._match import (
    ordinal,
    show,
    without_number,
    without_random,
)

_COMPARED: Mapping[type[Event], tuple[str, ...]] = {
    RunStarted: ("task",),
    UserMessage: ("text",),
    Text: ("text",),
    Thinking: ("text",),
    ToolCall: ("name", "arguments"),
    ToolResult: ("name", "content", "is_error"),
    LimitReached: ("limit",),
    ErrorEvent: ("kind", "message"),
    RunFinished: ("reason",),
}
"""The fields that are compared, by class of event; other events are not compared."""
# `viewer/static/data/essence.js` has the same three, and one test is for both.
_SECONDS = re.compile(
    r"\A((?:\[cell [A-Za-z0-9_-]+\]\n)?\[done in )[0-9.]+( s, no output\])\Z"
    r"|\A(\[(?:queued|running); )[0-9.]+( s so far\. It goes on; get_result\()"
)
"""The run times in results of a session's tools."""
_JOB_SECONDS = re.compile(r"^(e[0-9]+: [a-z_]+, )[0-9.]+( s)$", re.MULTILINE)
"""The same in a list of jobs."""
_JOBS = re.compile(r"(.*__)?list_jobs", re.DOTALL)


def without_seconds(tool: str, text: str) -> str:
    """The text of a tool's result without run times, which differ in every run.

    What code prints stays as it is, even if it looks similar.
    """
    if _JOBS.fullmatch(tool):
        return _JOB_SECONDS.sub(r"\1\2", text)
    return _SECONDS.sub(r"\1\2\3\4", text)


_CALL_ID = re.compile("([0-9a-f]{12}-[0-9]+)")
"""The id of a gate call: the random tag of the process that made it, and a number.

Any character may be next to it, such as the n of an escaped line end, because agents also print
JSON and `repr`. What only looks like an id is not among the calls of the record.
"""


class CallIds:
    """Finds ids of gate calls in the texts of two runs, which differ only by their tags.

    Agents read these ids and cite them. An id of the record equals an id of the other run if both
    have the same number and their tags always occur in the same places.
    """

    def __init__(self, recorded: Run) -> None:
        self._run = recorded
        self._known: set[str] | None = None
        self._now: dict[str, str] = {}
        self._before: dict[str, str] = {}

    def as_recorded(self, before: str, now: str) -> str:
        """A text of the other run with the record's ids.

        Args:
            before: The text in its place in the record.
            now: The text.
        """
        if before == now:
            return now
        recorded, parts = _CALL_ID.split(before), _CALL_ID.split(now)
        if len(recorded) != len(parts):
            return now
        for place in range(1, len(parts), 2):
            if self._same(recorded[place], parts[place]):
                parts[place] = recorded[place]
        return "".join(parts)

    def _same(self, before: str, now: str) -> bool:
        if self._known is None:
            self._known = {str(body.get("call")) for _, body in self._run.lines("calls")}
        tag, _, number = before.partition("-")
        other, _, again = now.partition("-")
        if before not in self._known or number != again:
            return False
        return self._now.setdefault(tag, other) == other and (
            self._before.setdefault(other, tag) == tag
        )


@dataclass(frozen=True)
class Step:
    """One thing that was said or done."""

    position: int
    """The index of the event or call in the record, from 0."""
    type: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class CallDifference:
    """The first calls that differ, of one caller of an interface."""

    interface: str
    callers: tuple[str | None, str | None]
    """What the caller is called in each run; None where it made no call."""
    same: int
    """How many of its calls are the same, from the start."""
    left: Step | None
    """The first call of this run that differs; None if the caller made no further one."""
    right: Step | None


@dataclass(frozen=True)
class Comparison:
    """Where two runs diverge."""

    same: int
    """The number of equal steps from the start."""
    left: Step | None
    """The first step of the left run that differs; None if the run has no further step."""
    right: Step | None
    calls: tuple[int, int]
    """The number of gate calls in each run."""
    call: CallDifference | None = None
    """The first call of the gate that differs."""

    @property
    def equal(self) -> bool:
        """Whether the two runs say and do the same, and make the same calls."""
        return self.left is None and self.right is None and self.call is None


def compare_runs(left: Run, right: Run, *, replayed: bool = False) -> Comparison:
    """Find where two runs diverge.

    A caller's calls are compared in their order: function, arguments, outcome, and the hash of the
    result. Only calls that overlapped in the left run may come in another order, because their
    order was chance.

    Args:
        left: A run.
        right: Another run.
        replayed: Whether the right run is a replay of the left one. Then calls of the user's script
            are not compared: timing decides which of the open runs gets them, and the gates of the
            replay have checked each of them. If the machine of the right run's session ran nothing,
            callers that made no call in it are not compared either.

    Raises:
        RecordError: A record was changed after it was written.
    """
    same = 0
    made = (_Calls(left, scripts=not replayed), _Calls(right, scripts=not replayed))
    calls = (made[0].count, made[1].count)
    call = _first_call(*made, some_silent=replayed and _runs_nothing(right))
    ids = CallIds(left)
    for a, b in itertools.zip_longest(steps(left), steps(right)):
        if a is None or b is None or not _says_the_same(a, b, ids):
            return Comparison(same, a, b, calls, call)
        same += 1
    return Comparison(same, None, None, calls, call)


def unlike(
    info: RunInfo, *, task: str, system_prompt: str, callers: Mapping[str, str]
) -> tuple[bool, ...]:
    """How a recorded run differs from what another one is asked; less is a better match.

    The callers of its session decide in the same order in which they get their recorded calls (see
    `Tapes`): by name, then by kind, then by number.
    """
    forms = (without_number, without_random, ordinal)
    return (
        info.task != task,
        info.system_prompt != system_prompt,
        *(_in_form(form, info.callers) != _in_form(form, callers) for form in forms),
    )


def paired(recorded: Sequence[Run], replayed: Sequence[Run]) -> list[tuple[Run, Run]]:
    """The runs of a program with those of its replay; the best matches first get each other.

    Those that match equally well are paired in their order. The result has the record's order.
    """
    infos = [run.info for run in recorded]
    fits = (
        (
            unlike(
                info,
                task=now.task,
                system_prompt=now.system_prompt,
                callers=now.callers,
            ),
            number,
            place,
        )
        for number, now in enumerate([run.info for run in replayed])
        for place, info in enumerate(infos)
    )
    found: dict[int, int] = {}
    taken: set[int] = set()
    for _, number, place in sorted(fits):
        if place not in found and number not in taken:
            found[place] = number
            taken.add(number)
    return [(recorded[place], replayed[found[place]]) for place in sorted(found)]


def _in_form(
    form: Callable[[str], str | None], callers: Mapping[str, str]
) -> dict[str, str | None]:
    return {interface: form(caller) for interface, caller in callers.items()}


def _runs_nothing(run: Run) -> bool:
    """Whether the machine of the run's session replayed a recorded one, so no code ran on it."""
    machine: Mapping[str, Any] = run.info.jail.get("machine") or {}
    return machine.get("provider") == "replay"


def _says_the_same(left: Step, right: Step, ids: CallIds) -> bool:
    before, now = _compared(left), _compared(right)
    return before == now or canonical(before) == canonical(_as_recorded(before, now, ids))


def _as_recorded(before: Any, now: Any, ids: CallIds) -> Any:
    """A value of the other run with the record's ids in its texts."""
    if isinstance(before, str) and isinstance(now, str):
        return ids.as_recorded(before, now)
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        old = cast("Sequence[Any]", before)
        new = cast("Sequence[Any]", now)
        pairs = itertools.zip_longest(old[: len(new)], new)
        return [_as_recorded(one, other, ids) for one, other in pairs]
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        recorded = cast("Mapping[str, Any]", before)
        made = cast("Mapping[str, Any]", now)
        gone = (name for name in recorded if name not in made)
        names = {name: name if name in recorded else next(gone, name) for name in made}
        return {
            ids.as_recorded(names[name], name): _as_recorded(recorded.get(names[name]), value, ids)
            for name, value in made.items()
        }
    return now


def _compared(step: Step) -> tuple[str, Mapping[str, Any]]:
    fields = step.fields
    if step.type == ToolResult.type:
        blocks: list[dict[str, Any]] = fields["content"]
        tool = fields["name"]
        texts = [block | {"text": without_seconds(tool, block.get("text", ""))} for block in blocks]
        fields = {**fields, "content": texts}
    return step.type, fields


def steps(run: Run) -> Iterator[Step]:
    """What was said and done in a run, in order; the result of a tool call follows the call.

    Tools that are called at once return in any order, and a replay calls them one by one.
    """
    events = list(run.typed_events())
    results = {call: found.result for call, found in answers(events).items()}
    moved = set(results.values())
    for position, event in enumerate(events):
        if position in moved:
            continue
        yield from _step(position, event)
        result = results.get(position)
        if result is not None:
            yield from _step(result, events[result])


def _step(position: int, event: Event) -> Iterator[Step]:
    names = _COMPARED.get(type(event))
    if names is not None:
        data = event.to_json()
        yield Step(position, event.type, {name: data[name] for name in names})


@dataclass
class Answer:
    """What followed a tool call."""

    result: int | None = None
    """Which of the events is its result; None if the record ends before it."""
    approval: ApprovalGiven | None = None


def answers(events: Sequence[Event]) -> dict[int, Answer]:
    """What followed each tool call, by the position of the call among the events.

    The id alone does not tell, because some vendors use ids again in every answer.
    """
    found: dict[int, Answer] = {}
    waiting: dict[str, list[int]] = {}
    for position, event in enumerate(events):
        if isinstance(event, ToolCall):
            found[position] = Answer()
            waiting.setdefault(event.id, []).append(position)
        elif isinstance(event, ApprovalGiven):
            open_calls = (found[call] for call in waiting.get(event.id, ()))
            if asked := next((call for call in open_calls if call.approval is None), None):
                asked.approval = event
        elif isinstance(event, ToolResult) and waiting.get(event.id):
            found[waiting[event.id].pop(0)].result = position
    return found


_HANDLE = re.compile(r'"\$seer": ?"handle"')
_SHOWN = 2000
"""Characters of a result that are shown."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A call as it is compared; its texts are read again where that does not decide."""

    number: int
    offset: int
    function: str
    outcome: str
    known: bool
    """Whether the record has its arguments."""
    key: str
    digest: str
    began: float
    ended: float


class _Calls:
    """The calls of a run, by interface and caller; large values stay in their files.

    Args:
        run: The run.
        scripts: Whether to include the calls of the user's script.
    """

    def __init__(self, run: Run, *, scripts: bool) -> None:
        self.count = 0
        self.own = run.info.callers
        self._interfaces = run.info.interfaces
        self._made: dict[tuple[str, int], dict[str, list[_Made]]] = {}
        self._path = run.folder / "calls.jsonl"
        self._blobs = BlobStore(run.folder / "blobs")
        self._texts: dict[tuple[int, str], str] = {}
        offset = 0
        for line in read_chain(self._path) if self._path.exists() else ():
            body, start, offset = line.body, offset, line.end
            self.count += 1
            function, time = str(body.get("function", "")), float(body.get("time") or 0.0)
            if not function or function.startswith("/"):
                continue  # another request, which was refused
            interface, caller = str(body.get("interface", "")), str(body.get("caller", ""))
            if not scripts and caller.startswith(f"{interface}-in-a-script-"):
                continue
            served = interface, int(body.get("served") or 0)
            self._made.setdefault(served, {}).setdefault(caller, []).append(
                _Made(
                    number=line.number,
                    offset=start,
                    function=function,
                    outcome=str(body.get("outcome", "ok")),
                    known=body.get("arguments") is not None,
                    key=str(body.get("key", "")),
                    digest=str(body.get("result_digest", "")),
                    began=time - float(body.get("run") or 0.0) - float(body.get("queue") or 0.0),
                    ended=time,
                )
            )

    @property
    def interfaces(self) -> list[str]:
        """The names of the interfaces that were called."""
        return list(dict.fromkeys(interface for interface, _ in self._made))

    def numbers(self, interface: str) -> list[int]:
        """The numbers of the run's interfaces of this name, in the order in which they began."""
        known = {
            int(about.get("served") or 0)
            for about in self._interfaces.values()
            if about.get("name") == interface
        }
        return sorted(known | {served for name, served in self._made if name == interface})

    def of(self, interface: str, numbers: Sequence[int]) -> dict[str, list[_Made]]:
        """The calls of the interfaces with this name and these numbers, by caller."""
        found: dict[str, list[_Made]] = {}
        for served in numbers:
            for caller, made in self._made.get((interface, served), {}).items():
                found.setdefault(caller, []).extend(made)
        return found

    def read(self, made: _Made) -> GateCall:
        """The whole call."""
        line = next(read_chain(self._path, verify=False, start=made.offset))
        return GateCall.from_json(unpack(line.body, self._blobs))

    def arguments(self, made: _Made) -> str:
        """The hash of what a call was given, without the ids of handles."""
        found = self._texts.get((made.number, "arguments"))
        if found is None:
            call = self.read(made)
            found = _hash(_without_handles(call.arguments or ""), call.argument_buffers)
            self._texts[made.number, "arguments"] = found
        return found

    def result(self, made: _Made, *, use_digest: bool) -> str:
        """The hash of what a call returned, without ids of handles and without a traceback.

        Args:
            made: The call.
            use_digest: Whether the digest stands for a result without any of these.
        """
        kind = "digest" if use_digest else "result"
        found = self._texts.get((made.number, kind))
        if found is None:
            call, found = self.read(made), made.digest
            if not use_digest or call.outcome != "ok" or _HANDLE.search(call.result):
                found = _hash(_without_handles(call.result), call.result_buffers)
            self._texts[made.number, kind] = found
        return found

    def step(self, made: _Made) -> Step:
        """The call as it is shown."""
        call = self.read(made)
        text = f"{call.function}(...)"
        if call.arguments is not None:
            text = show(call.function, call.arguments, call.argument_buffers)
        fields = {
            "call": text,
            "outcome": call.outcome,
            "result": call.result[:_SHOWN] + "..." * (len(call.result) > _SHOWN),
            "result_digest": call.result_digest,
        }
        return Step(made.number, "gate_call", fields)


def _hash(text: str, buffers: Sequence[str]) -> str:
    return hashlib.sha256(canonical([text, *buffers]).encode()).hexdigest()


def _without_handles(text: str) -> str:
    """JSON text in one form, without what differs in any two runs."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            mapping = cast("dict[str, Any]", value)
            error = {"type", "message"} <= mapping.keys()
            left_out = "id" if mapping.get("$seer") == "handle" else "traceback" if error else None
            return {name: plain(item) for name, item in mapping.items() if name != left_out}
        return value

    try:
        return canonical(plain(json.loads(text)))
    except ValueError:
        return text


def _first_call(left: _Calls, right: _Calls, *, some_silent: bool) -> CallDifference | None:
    """The first caller whose calls differ, and the first of them.

    Args:
        left: The calls of the left run.
        right: The calls of the right run.
        some_silent: Whether callers without any call in the right run are not compared.
    """
    for interface, mine, theirs in _by_interface(left, right):
        own = (left.own.get(interface), right.own.get(interface))
        for callers in _paired(list(mine), list(theirs), own):
            if callers[1] is None and some_silent:
                continue
            one, other = mine.get(callers[0] or "", []), theirs.get(callers[1] or "", [])
            same, a, b = _difference(left, one, right, other)
            if a is not None or b is not None:
                return CallDifference(
                    interface=interface,
                    callers=callers,
                    same=same,
                    left=None if a is None else left.step(a),
                    right=None if b is None else right.step(b),
                )
    return None


def _by_interface(
    left: _Calls, right: _Calls
) -> Iterator[tuple[str, dict[str, list[_Made]], dict[str, list[_Made]]]]:
    """The calls of each interface in both runs, by caller.

    Interfaces of one name are compared in the order of their numbers, which differ between runs.
    They are taken as one if a run is older than the numbers, or has more of them than the other.
    """
    for interface in dict.fromkeys((*left.interfaces, *right.interfaces)):
        mine, theirs = left.numbers(interface), right.numbers(interface)
        parts = [(mine, theirs)]
        if len(mine) == len(theirs) and all((*mine, *theirs)):
            parts = [([one], [other]) for one, other in zip(mine, theirs, strict=True)]
        for one, other in parts:
            yield interface, left.of(interface, one), right.of(interface, other)


def _paired(
    left: list[str], right: list[str], own: tuple[str | None, str | None]
) -> Iterator[tuple[str | None, str | None]]:
    """Each caller of the left run with the same caller of the right run.

    That is the caller of the runs' own session, then the one of the same name, then the one that
    was opened at the same position, then the next one.
    """
    rules: tuple[Callable[[str, str], bool], ...] = (
        lambda one, other: (one, other) == own,
        lambda one, other: one == other,
        lambda one, other: ordinal(one) is not None and ordinal(one) == ordinal(other),
        lambda one, other: True,
    )
    found: dict[str, str] = {}
    free = dict.fromkeys(right)
    for alike in rules:
        for one in left:
            other = None if one in found else next((b for b in free if alike(one, b)), None)
            if other is not None:
                del free[other]
                found[one] = other
    yield from ((one, found.get(one)) for one in left)
    yield from ((None, other) for other in free)


def _difference(
    left: _Calls, one: Sequence[_Made], right: _Calls, other: Sequence[_Made]
) -> tuple[int, _Made | None, _Made | None]:
    """How many calls of a caller are the same, and the first that differ."""
    rest = deque(sorted(one, key=lambda made: made.began))
    # A replay answers at once but records the times that calls took, so only their ends are sure.
    again = sorted(other, key=lambda made: made.ended)
    for same, now in enumerate(again):
        earliest_end = float("inf")
        next_ones: list[tuple[float, int, _Made]] = []
        for index, made in enumerate(rest):
            if made.began > earliest_end:
                break
            next_ones.append((made.ended, index, made))
            earliest_end = min(earliest_end, made.ended)
        # Of equal calls the first to end: what began after its end comes after it.
        next_ones.sort()
        found = next((index for _, index, made in next_ones if _equal(made, now)), None)
        if found is None:
            alike = (index for _, index, made in next_ones if _alike(left, made, right, now))
            found = next(alike, None)
        if found is None:
            return same, rest[0] if rest else None, now
        del rest[found]
    return len(again), rest[0] if rest else None, None


def _equal(one: _Made, other: _Made) -> bool:
    """Whether two calls are the same by what is known without reading their texts."""
    what = (one.function, one.outcome, one.key, one.digest)
    known = bool(one.key and one.digest)
    return known and what == (other.function, other.outcome, other.key, other.digest)


def _alike(left: _Calls, one: _Made, right: _Calls, other: _Made) -> bool:
    if (one.function, one.outcome) != (other.function, other.outcome):
        return False
    digests = bool(one.digest and other.digest)
    return (
        (one.key == other.key and bool(one.key))
        or not (one.known and other.known)
        or left.arguments(one) == right.arguments(other)
    ) and (
        (one.digest == other.digest and digests)
        or left.result(one, use_digest=digests) == right.result(other, use_digest=digests)
    )
