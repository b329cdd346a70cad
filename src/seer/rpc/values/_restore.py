"""What generated libraries need at run time: results as classes, and arguments without defaults.

The wire carries the plain data of records, enums and named tuples. A generated library has its own
classes for them, and `Restorer` turns results into these by the function's return hint. The server
does not check results against that hint, so a value that does not fit is returned unchanged.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._pack import OMITTED

if TYPE_CHECKING:
    Restore = Callable[[Any], Any]

_ITEMS = {"list": list, "sequence": list, "set": set, "frozenset": frozenset, "tuple_of": tuple}


def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without the placeholders for defaults of the server."""
    for index, value in enumerate(args):
        if value is OMITTED:
            args = args[:index]
            break
    return args, {name: value for name, value in kwargs.items() if value is not OMITTED}


class Restorer:
    """Makes functions that turn plain results into a library's classes.

    Args:
        classes: The library's classes by name.
        definitions: The JSON form of each class's definition (see `TypeDef.to_json`).
    """

    def __init__(self, classes: Mapping[str, Any], definitions: Mapping[str, Any]) -> None:
        self._classes = classes
        self._definitions = definitions
        self._named: dict[str, Restore] = {}

    def __call__(self, hint: Any) -> Restore:
        """The function for a hint, given in its JSON form."""
        tree: dict[str, Any] = {"kind": hint} if isinstance(hint, str) else hint
        kind, hints = tree["kind"], tree.get("args", [])
        if kind == "named":
            return self._lazily(tree["detail"])
        if kind == "union":
            return self._union(hints)
        if kind == "tuple":
            return _tuple([self(inner) for inner in hints])
        if kind in _ITEMS and hints:
            return _items(_ITEMS[kind], self(hints[0]))
        if kind in ("dict", "mapping") and hints:
            return _mapping(self(hints[0]), self(hints[1]))
        return _same

    def _lazily(self, name: str) -> Restore:
        """The function for a class; made on first use, because classes may be recursive."""

        def restore(value: Any) -> Any:
            known = self._named.get(name)
            if known is None:
                known = self._named[name] = self._class(name)
            return known(value)

        return restore

    def _class(self, name: str) -> Restore:
        cls, definition = self._classes[name], self._definitions[name]
        kind: str = definition["kind"]
        if kind == "enum":
            return _enum(cls)
        restorers = {field[0]: self(field[1]) for field in definition["fields"]}
        if kind == "tuple":
            return _named_tuple(cls, list(restorers.values()))

        def restore(value: Any) -> Any:
            if type(value) is not dict or not value.keys() <= restorers.keys():
                return value
            fields = {key: restorers[key](item) for key, item in value.items()}
            return fields if kind == "dict" else _build(cls, fields, value)

        return restore

    def _union(self, hints: list[Any]) -> Restore:
        """The function for a union: the first alternative that changes the value."""
        restorers = [self(hint) for hint in hints]

        def restore(value: Any) -> Any:
            for one in restorers:
                found = one(value)
                if found is not value:
                    return found
            return value

        return restore


def _same(value: Any) -> Any:
    return value


def _items(make: Any, restore_item: Restore) -> Restore:
    def restore(value: Any) -> Any:
        return make(map(restore_item, value)) if type(value) is make else value

    return restore


def _tuple(restorers: list[Restore]) -> Restore:
    def restore(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(restorers):
            return value
        return tuple(one(item) for one, item in zip(restorers, value, strict=True))

    return restore


def _mapping(restore_key: Restore, restore_value: Restore) -> Restore:
    def restore(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {restore_key(key): restore_value(item) for key, item in value.items()}

    return restore


def _enum(cls: Any) -> Restore:
    def restore(value: Any) -> Any:
        try:
            return cls(value)
        except (TypeError, ValueError):
            return value

    return restore


def _named_tuple(cls: Any, restorers: list[Restore]) -> Restore:
    def restore(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(restorers):
            return value
        return cls(*(one(item) for one, item in zip(restorers, value, strict=True)))

    return restore


def _build(cls: Any, fields: dict[str, Any], value: Any) -> Any:
    try:
        return cls(**fields)
    except TypeError:
        return value
