"""Handles: values that stay on the server, and what a caller holds instead of them."""

from __future__ import annotations

import os

from seer.errors import ArgumentError, HandleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generic

    from typing_extensions import TypeVar

    Kept = TypeVar("Kept", default=Any)

    class _OfSome(Generic[Kept]):
        """`Handle[np.ndarray]` says what is kept, to people and to type checkers."""

else:
    Kept = None

    class _OfSome:
        """The same without `typing`, which is slow to import: `Handle[x]` is `Handle`."""

        __slots__ = ()

        def __class_getitem__(cls, item: object) -> type:
            return cls


MAX_HANDLES = 10_000


class Handle(_OfSome[Kept]):
    """A value that stays where it is (on the GPU) while a caller refers to it.

    A function hinted `-> Handle` may return any value; its caller gets a handle. A parameter hinted
    `Handle` gets this object; one with any other hint gets the value itself. `Handle[np.ndarray]`
    means the same, and tells readers what is kept.

    Attributes:
        value: The value.
    """

    __slots__ = ("value",)
    __seer_handle__ = True

    def __init__(self, value: Kept) -> None:
        self.value = value

    @property
    def dtype(self) -> str | None:
        """The name of the value's dtype, or None where it has none."""
        dtype = getattr(self.value, "dtype", None)
        return None if dtype is None else str(dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The value's shape, or None where it has none."""
        shape = getattr(self.value, "shape", None)
        return None if shape is None else tuple(int(n) for n in shape)

    def __repr__(self) -> str:
        return f"Handle({type(self.value).__name__}, dtype={self.dtype}, shape={self.shape})"


class HandleTable:
    """The values one caller has handles to. Ids are random, and known to this table only."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Handle] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, handle: Handle) -> dict[str, Any]:
        """Keep a value; what the caller gets for it.

        Raises:
            HandleError: The caller holds too many.
        """
        if len(self._values) >= MAX_HANDLES:
            raise HandleError(
                f"this caller already holds {MAX_HANDLES} handles: drop or free() some first"
            )
        identifier = os.urandom(16).hex()
        self._values[identifier] = handle
        shape = handle.shape
        return {
            "$seer": "handle",
            "id": identifier,
            "type": type(handle.value).__name__,
            "dtype": handle.dtype,
            "shape": None if shape is None else list(shape),
        }

    def describe(self, value: object) -> dict[str, Any] | None:
        """What the caller gets for a value, if that is a handle."""
        return self.add(value) if type(value) is Handle else None

    def get(self, identifier: object) -> Handle:
        """The handle with this id.

        Raises:
            HandleError: There is none, or none any more, or it is another caller's.
        """
        found = self._values.get(identifier) if isinstance(identifier, str) else None
        if found is None:
            raise HandleError(
                f"there is no handle {identifier!r} (any more): it was freed, is another caller's,"
                " or the interface was started again since"
            )
        return found

    def restore(self, found: dict[str, Any]) -> Handle:
        """What a reference to a handle in a call's arguments stands for."""
        if set(found) != {"id"}:
            raise ArgumentError("a reference to a handle has an id and nothing else")
        return self.get(found["id"])

    def free(self, identifier: str) -> bool:
        """Let a value go; False if there was none."""
        return self._values.pop(identifier, None) is not None

    def clear(self) -> None:
        """Let all values go."""
        self._values.clear()


def part_of(value: Any, index: list[Any] | None) -> Any:
    """The part of a handle's value that `fetch` asked for.

    Args:
        value: The value.
        index: One entry per axis: a number, `{"slice": [start, stop, step]}`, `"..."` or None
            (for a new axis); None for the whole value.

    Raises:
        ArgumentError: The index is malformed, or the value is not an array, a list or text.
    """
    if index is None:
        return value
    kind: type[Any] = value.__class__
    home = kind.__module__.partition(".")[0]
    if kind not in (list, tuple, str, bytes) and home not in ("numpy", "torch"):
        raise ArgumentError(f"a {kind.__name__} has no parts to fetch; fetch() it whole")
    keys = tuple(map(_key, index))
    try:
        return value[keys if len(keys) != 1 or home in ("numpy", "torch") else keys[0]]
    except (IndexError, TypeError) as error:
        raise ArgumentError(f"fetch: {error}") from None


def _key(item: Any) -> Any:
    if item is None or type(item) is int:
        return item
    if item == "...":
        return ...
    if item.__class__ is dict and item.keys() == {"slice"} and isinstance(item["slice"], list):
        parts: list[Any] = item["slice"]
        if len(parts) == 3 and all(p is None or type(p) is int for p in parts):
            return slice(*parts)
    raise ArgumentError(f"fetch: {item!r} is no index")
