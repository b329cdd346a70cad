"""Reads values from recorded calls: at a path, and the differences of arguments."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

from seer.errors import RecordError
from seer.rpc.values._arrays import RawArray
from seer.runs import GateCall, Run
from seer.scoring._claims import PathStep, Reading, Scalar, Select, comparable, path_text
from seer.scoring._difference import as_numpy, difference, recorded_result

Place = tuple[str | int, ...]
"""The keys and indexes that lead to one value, however a path writes them."""


class Missing(Exception):
    """A path leads to no usable value; the message says why."""


class Results:
    """The results of a run's calls, each read once."""

    def __init__(self, run: Run, calls: Sequence[GateCall]) -> None:
        """Index the calls by every name that a claim may use."""
        self._run = run
        self._results: dict[int, Any] = {}
        self._alike: dict[tuple[str, str], list[GateCall]] = {}
        self.named: dict[str, GateCall] = {}
        counts: dict[str, int] = {}
        if len({call.interface for call in calls}) > 1:
            # Each interface adds its calls to the record in blocks, so sort them by time.
            calls = sorted(calls, key=lambda call: call.time)
        for call in calls:
            if call.arguments is None:
                continue  # a refused request is not a call of the function
            counts[call.function] = counts.get(call.function, 0) + 1
            self.named[f"{call.function}#{counts[call.function]}"] = call
            if call.call:
                self.named[call.call] = call
            if call.outcome == "ok":
                self._alike.setdefault((call.interface, call.key), []).append(call)

    def values(self, reading: Reading) -> list[Scalar]:
        """The numbers or texts at a path.

        Raises:
            Missing: The path leads nowhere, or to NaN or a value of another type.
        """
        return [value for _, value in self.places(reading)]

    def places(self, reading: Reading) -> list[tuple[Place, Scalar]]:
        """The numbers or texts at a path, each with its place.

        Raises:
            Missing: The path leads nowhere, or to NaN or a value of another type.
        """
        walked = self._walk(self._read(reading), reading.path)
        found = [(place, value) for value, _, place in walked]
        if not found:
            raise Missing("the list is empty")
        for _, value in found:
            if not isinstance(value, str | int | float):
                kind = "a list" if isinstance(value, list | tuple | RawArray) else "an object"
                raise Missing(
                    f"{reading} is {kind}; extend the path to a number or text, or use [*] for all"
                )
            if value != value:
                raise Missing("the value is NaN")
        return found

    def varies(self, call: GateCall) -> bool:
        """Whether the run has another result of the same function with the same arguments.

        If so, the function draws samples, and each call is a new sample.
        """
        first, *others = self._alike[call.interface, call.key]
        try:
            return any(
                difference(self._result(first), self._result(other)) is not None for other in others
            )
        except RecordError:
            return False  # a result that cannot be read shows no difference

    def words_on_the_way(self, reading: Reading) -> list[str]:
        """Texts next to the values along a path, such as the prompt of a row."""
        return [
            word
            for _, above, _ in self._walk(self._read(reading), reading.path)
            for mapping in above
            for word in mapping.values()
            if isinstance(word, str)
        ]

    def words_beside(self, reading: Reading) -> list[str]:
        """Texts of the list items that a path selects by index, such as the token of a score."""
        if len(reading.path) < 2 or not isinstance(reading.path[-2], int):
            return []
        return [
            word
            for _, above, _ in self._walk(self._read(reading), reading.path)
            for mapping in above[-1:]
            for word in mapping.values()
            if isinstance(word, str)
        ]

    def _read(self, reading: Reading) -> Any:
        try:
            return self._result(self.named[reading.call])
        except RecordError as error:
            raise Missing(f"the result of {reading.call!r} cannot be read: {error}") from None

    def _result(self, call: GateCall) -> Any:
        if id(call) not in self._results:
            self._results[id(call)] = recorded_result(self._run, call)
        return self._results[id(call)]

    def _walk(
        self,
        value: Any,
        path: Sequence[PathStep],
        above: tuple[Mapping[str, Any], ...] = (),
        place: Place = (),
    ) -> Iterator[tuple[Any, tuple[Mapping[str, Any], ...], Place]]:
        """Each value at a path, the objects above it, and its place."""
        if not path:
            yield (_scalar(value), above, place)
            return
        step, rest = path[0], path[1:]
        if isinstance(value, RawArray):
            value = as_numpy(value).tolist()
        if isinstance(value, Mapping):
            mapping = cast("Mapping[str, Any]", value)
            if not isinstance(step, str) or step not in mapping:
                raise Missing(f"there is no {_named(step)} among {', '.join(map(str, mapping))}")
            yield from self._walk(mapping[step], rest, (*above, mapping), (*place, step))
        elif isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            for index in _indexes(items, step):
                yield from self._walk(items[index], rest, above, (*place, index))
        else:
            raise Missing(f"there is no {_named(step)} in {str(value)[:60]!r}")


def _indexes(items: Sequence[Any], step: PathStep) -> Sequence[int]:
    """Which items a step stands for."""
    if step == "*":
        return range(len(items))
    if isinstance(step, Select):
        for index, item in enumerate(items):
            if isinstance(item, Mapping):
                mapping = cast("Mapping[str, Any]", item)
                if mapping.get(step.key) == step.value:
                    return [index]
        raise Missing(f"there is no {_named(step)} among {len(items)} items")
    if not isinstance(step, int) or not -len(items) <= step < len(items):
        raise Missing(f"there is no {_named(step)} among {len(items)} items")
    return [step % len(items)]


def _scalar(value: Any) -> Any:
    """Turn a zero-dimensional array into a number."""
    if isinstance(value, RawArray) and not value.shape:
        return as_numpy(value).item()
    return comparable(value)


def _named(step: PathStep) -> str:
    return repr(path_text((step,)))


def arguments(call: GateCall) -> dict[str | int, Any]:
    """The arguments by position or name; arrays are replaced by their hashes."""
    sent: tuple[list[Any], dict[str, Any]] = json.loads(call.arguments or "[[],{}]")
    found: dict[str | int, Any] = dict(enumerate(sent[0]))
    found.update(sent[1])
    return {name: _hashed(value, call.argument_buffers) for name, value in found.items()}


def _hashed(value: Any, hashes: Sequence[str]) -> Any:
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        buffer = mapping.get("buffer")
        if "$seer" in mapping and isinstance(buffer, int) and buffer < len(hashes):
            mapping = {**mapping, "buffer": hashes[buffer]}
        return {key: _hashed(item, hashes) for key, item in mapping.items()}
    if isinstance(value, list):
        return [_hashed(item, hashes) for item in cast("list[Any]", value)]
    return value


def changed(
    one: Mapping[str | int, Any], other: Mapping[str | int, Any]
) -> list[tuple[str, Any, Any]]:
    """The arguments of two calls that differ: the name or position, and the value in each.

    An argument that is given by position in one call and by name in the other counts once. A value
    that only one of the calls has is None in the other.
    """
    both = [(str(n), one[n], other[n]) for n in one if n in other and one[n] != other[n]]
    left = [(str(n), one[n]) for n in one if n not in other]
    right = [(str(n), other[n]) for n in other if n not in one]
    apart = zip_longest(left, right)
    return both + [((own or its)[0], own and own[1], its and its[1]) for own, its in apart]


def leaves(value: Any) -> Iterator[Scalar]:
    """The numbers and texts in arguments, without the wire's own fields."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        for key, item in mapping.items():
            if "$seer" not in mapping or key not in ("$seer", "buffer", "dtype", "shape"):
                yield from leaves(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from leaves(item)
    elif isinstance(value, int | float | str):
        yield value


def attempts(call: GateCall) -> int:
    """The number of attempts in a call.

    A call with a list of prompts that returns a list of the same length has one attempt per
    prompt. A call for a number of samples that returns as many texts has one attempt per different
    text.
    """
    given = arguments(call).values()
    lengths = {len(cast("list[Any]", value)) for value in given if isinstance(value, list)}
    answer: Any = json.loads(call.result or "null")
    result = cast("dict[str, Any]", answer).get("result") if isinstance(answer, dict) else answer
    parts = list(cast("dict[str, Any]", result).values()) if isinstance(result, dict) else [result]
    lists = [cast("list[Any]", part) for part in parts if isinstance(part, list)]
    counts = [value for value in given if isinstance(value, int)]
    samples = [
        len({json.dumps(row, sort_keys=True) for row in rows})
        for rows in lists
        if len(rows) in counts and all(_is_text(row) for row in rows)
    ]
    return max((*(lengths & {len(rows) for rows in lists}), *samples), default=1) or 1


def _is_text(row: Any) -> bool:
    """Whether a row of a result is a text that a model wrote."""
    return isinstance(row, dict) and isinstance(cast("dict[str, Any]", row).get("text"), str)
