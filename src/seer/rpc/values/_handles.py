"""Handles: values that stay on the server, and the references that callers get."""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Generic

from seer.errors import ArgumentError, HandleError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Kept = TypeVar("Kept", default=Any)

    class _OfSome(Generic[Kept]):
        """`Handle[np.ndarray]` tells readers and type checkers what is kept."""

else:
    Kept = None

    class _OfSome:
        """At run time `Handle[x]` is `Handle`: a sandbox need not have `typing_extensions`."""

        __slots__ = ()

        def __class_getitem__(cls, item: object) -> type:
            return cls


MAX_HANDLES = 10_000
_MAX_PARTS = 10_000


class Handle(_OfSome[Kept]):
    """A value that stays where it is (such as on a GPU) while a caller refers to it.

    A function hinted `-> Handle` may return any value, and its caller gets a handle. A parameter
    hinted `Handle` gets this object. A parameter with any other hint gets the value itself.
    `Handle[np.ndarray]` means the same, and tells readers what is kept.

    Attributes:
        value: The value.
    """

    __slots__ = ("value",)
    __seer_handle__ = True

    def __init__(self, value: Kept) -> None:
        self.value = value

    @property
    def dtype(self) -> str | None:
        """The name of the value's dtype, or None if it has none."""
        dtype = getattr(self.value, "dtype", None)
        return None if dtype is None else str(dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The value's shape, or None if it has none."""
        shape = getattr(self.value, "shape", None)
        return None if shape is None else tuple(int(n) for n in shape)

    def __repr__(self) -> str:
        return f"Handle({type(self.value).__name__}, dtype={self.dtype}, shape={self.shape})"


class HandleTable:
    """The values that one caller has handles to. Ids are random, and valid only in this table.

    Args:
        room: Returns how many more bytes the caller may hold.

    Attributes:
        size: The bytes of all values. Memory that several of them share is counted once.
    """

    __slots__ = ("_lock", "_memory", "_room", "_shares", "_values", "size")

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self._lock = allocate_lock()
        self._values: dict[str, Handle] = {}
        self._memory: dict[str, dict[int, int]] = {}
        """By handle: the memory of its value, as addresses and sizes."""
        self._shares: dict[int, int] = {}
        """How many handles use the memory at an address."""
        self.size = 0

    def add(self, handle: Handle) -> dict[str, Any]:
        """Keep a value, and return the reference for the caller.

        Raises:
            HandleError: The caller holds too many handles, or too much memory.
        """
        if len(self._values) >= MAX_HANDLES:
            raise HandleError(
                f"this caller already holds {MAX_HANDLES} handles: drop or free() some first"
            )
        memory = memory_of(handle.value)
        identifier = os.urandom(16).hex()
        new = sum(size for at, size in memory.items() if at not in self._shares)
        if new > (room := self._room()):
            raise HandleError(
                f"this value has {new} bytes, but its caller may hold {max(room, 0)} more: drop or"
                " free() handles, or have the interface served with a larger caller_memory="
            )
        with self._lock:
            self._values[identifier] = handle
            self._memory[identifier] = memory
            for at, size in memory.items():
                count = self._shares.get(at, 0)
                self._shares[at] = count + 1
                self.size += 0 if count else size
        shape = handle.shape
        return {
            "$seer": "handle",
            "id": identifier,
            "type": type(handle.value).__name__,
            "dtype": handle.dtype,
            "shape": None if shape is None else list(shape),
        }

    def describe(self, value: object) -> dict[str, Any] | None:
        """The reference for the caller if a value is a handle; else None."""
        return self.add(value) if type(value) is Handle else None

    def get(self, identifier: object) -> Handle:
        """The handle with this id.

        Raises:
            HandleError: This caller has no such handle.
        """
        found = self._values.get(identifier) if isinstance(identifier, str) else None
        if found is None:
            raise HandleError(
                f"handle {identifier!r} does not exist: it was freed, it belongs to another caller,"
                " or the interface has restarted since"
            )
        return found

    def restore(self, found: dict[str, Any]) -> Handle:
        """The handle for a reference in a call's arguments."""
        if set(found) != {"id"}:
            raise ArgumentError("a reference to a handle has an id and nothing else")
        return self.get(found["id"])

    def free(self, identifier: str) -> bool:
        """Release a value; False if there was none."""
        return self._drop(identifier)

    def _drop(self, identifier: str) -> bool:
        with self._lock:
            handle = self._values.pop(identifier, None)
            for at, size in self._memory.pop(identifier, {}).items():
                self._shares[at] -= 1
                if not self._shares[at]:
                    del self._shares[at]
                    self.size -= size
        # The value is freed here, outside of the lock, because that may run code of its class.
        return handle is not None

    def clear(self) -> None:
        """Release all values."""
        for identifier in tuple(self._values):
            self._drop(identifier)


def memory_of(value: Any) -> dict[int, int]:
    """The memory that a value uses: addresses and sizes.

    Arrays and tensors in containers and attributes are included, each with the whole memory that it
    is a view of. Models (`torch.nn.Module`) are not: they belong to the interface, even if handles
    refer to them. If a value has very many parts, only the first ones are counted.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting: list[Any] = [value]
    while waiting and len(seen) < _MAX_PARTS:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            if not _count(part, found):
                waiting.extend(_members(part))
    return found


def _count(part: Any, found: dict[int, int]) -> bool:
    """Add the memory of one object; False if its parts must be counted too."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(part, (type, ModuleType, FunctionType)):
        return True
    if torch is not None and isinstance(part, torch.Tensor):
        try:
            storage = part.untyped_storage()
            found[storage.data_ptr() or id(part)] = storage.nbytes()
        except (RuntimeError, NotImplementedError):
            # Sparse tensors and the like have no storage of their own.
            found[id(part)] = part.nbytes
        return True
    if torch is not None and isinstance(part, torch.nn.Module):
        return True
    if numpy is not None and isinstance(part, numpy.ndarray):
        while isinstance(part.base, numpy.ndarray):
            part = part.base
        found[id(part)] = part.nbytes
        return True
    size = getattr(part, "nbytes", None)
    if type(size) is int:
        found[id(part)] = size
        return True
    found[id(part)] = sys.getsizeof(part, 0)
    return False


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    kind: type[Any] = value.__class__
    slots: Any = getattr(kind, "__slots__", ())
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, s, None) for s in slots)]


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
    raise ArgumentError(f"fetch: {item!r} is not an index")
