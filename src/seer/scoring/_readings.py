"""Reads values from recorded calls: at a path, and the differences of arguments."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from seer.errors import RecordError
from seer.rpc.values._arrays import RawArray
from seer.runs import GateCall, Run
from seer.runs._call_values import result_of
from seer.scoring._claims import Reading, Scalar, Select, Step, path_text
from seer.scoring._difference import RecordedHandle, as_numpy


class Missing(Exception):
    """A path does not exist; the message says where it ends."""


class Results:
    """The results of a run's calls, each read once."""

    def __init__(self, run: Run, calls: Sequence[GateCall]) -> None:
        """Index the calls by every name that a claim may use."""
        self._run = run
        self._results: dict[int, Any] = {}
        self.named: dict[str, GateCall] = {}
        counts: dict[str, int] = {}
        for call in calls:
            if call.arguments is None:
                continue  # a refused request is not a call of the function
            counts[call.function] = counts.get(call.function, 0) + 1
            self.named[f"{call.function}#{counts[call.function]}"] = call
            if call.call:
                self.named[call.call] = call

    def values(self, reading: Reading) -> list[Scalar]:
        """The numbers or texts at a path.

        Raises:
            Missing: There is nothing there, or a value of another type.
        """
        found = [value for value, _ in self._walk(self._result(reading), reading.path)]
        for value in found:
            if not isinstance(value, str | int | float):
                kind = "a list" if isinstance(value, list | tuple | RawArray) else "an object"
                raise Missing(
                    f"{reading} is {kind}; go on to a number or a text, or to [*] for all items"
                )
        return cast("list[Scalar]", found)

    def words_on_the_way(self, reading: Reading) -> list[str]:
        """Texts next to the values along a path, such as the prompt of a row."""
        return [
            word
            for _, above in self._walk(self._result(reading), reading.path)
            for mapping in above
            for word in mapping.values()
            if isinstance(word, str)
        ]

    def words_beside(self, reading: Reading) -> list[str]:
        """Texts of the list item that a path selects by index, such as the token of a score."""
        if len(reading.path) < 2 or not isinstance(reading.path[-2], int):
            return []
        ((_, above),) = self._walk(self._result(reading), reading.path)
        return [word for word in above[-1].values() if isinstance(word, str)]

    def _result(self, reading: Reading) -> Any:
        call = self.named[reading.call]
        if id(call) not in self._results:
            try:
                value = result_of(
                    self._run, call, raw=True, handle=lambda about: RecordedHandle(**about)
                )
            except RecordError as error:
                raise Missing(f"the result of {reading.call!r} cannot be read: {error}") from None
            self._results[id(call)] = value
        return self._results[id(call)]

    def _walk(
        self, value: Any, path: Sequence[Step], above: tuple[Mapping[str, Any], ...] = ()
    ) -> Iterator[tuple[Any, tuple[Mapping[str, Any], ...]]]:
        if not path:
            yield (_scalar(value), above)
            return
        step, rest = path[0], path[1:]
        if isinstance(value, RawArray):
            value = as_numpy(value).tolist()
        if isinstance(value, Mapping):
            mapping = cast("Mapping[str, Any]", value)
            if not isinstance(step, str) or step not in mapping:
                raise Missing(f"there is no {_named(step)} among {', '.join(map(str, mapping))}")
            yield from self._walk(mapping[step], rest, (*above, mapping))
        elif isinstance(value, list | tuple):
            for item in _items(cast("list[Any]", value), step):
                yield from self._walk(item, rest, above)
        else:
            raise Missing(f"there is no {_named(step)} in {str(value)[:60]!r}")


def _items(items: Sequence[Any], step: Step) -> list[Any]:
    if step == "*":
        return list(items)
    if isinstance(step, Select):
        mappings = [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]
        found = [item for item in mappings if item.get(step.key) == step.value]
        if not found:
            raise Missing(f"there is no {_named(step)} among {len(items)} items")
        return found[:1]
    if not isinstance(step, int) or not -len(items) <= step < len(items):
        raise Missing(f"there is no {_named(step)} among {len(items)} items")
    return [items[step]]


def _scalar(value: Any) -> Any:
    """Turn arrays without axes into numbers."""
    return as_numpy(value).item() if isinstance(value, RawArray) and not value.shape else value


def _named(step: Step) -> str:
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


def changed(first: GateCall, second: GateCall) -> int:
    """The number of arguments that differ.

    An argument that is given by position in one call and by name in the other counts once.
    """
    one, other = arguments(first), arguments(second)
    both = sum(one[name] != other[name] for name in one.keys() & other.keys())
    return both + max(len(one.keys() - other.keys()), len(other.keys() - one.keys()))


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
    """The number of attempts in a call: a list of prompts that returns a list of rows has many."""
    lengths = {
        len(cast("list[Any]", value))
        for value in arguments(call).values()
        if isinstance(value, list)
    }
    answer: Any = json.loads(call.result or "null")
    result = cast("dict[str, Any]", answer).get("result") if isinstance(answer, dict) else answer
    parts = list(cast("dict[str, Any]", result).values()) if isinstance(result, dict) else [result]
    rows = {len(cast("list[Any]", part)) for part in parts if isinstance(part, list)}
    return max(lengths & rows, default=1) or 1
