"""The client's handles: references to values that stay on the server."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ...errors import HandleError

if TYPE_CHECKING:
    from ._gate import Gate


class Handle:
    """A value on the server. Pass it to exposed functions, or fetch it, whole or in part.

    The server releases the value when nothing refers to the handle, after `free()`, or when the
    session ends.

    Attributes:
        type: The name of the value's class on the server.
        dtype: Its dtype, or None if it has none.
        shape: Its shape, or None if it has none.
    """

    __slots__ = ("__weakref__", "_finalizer", "_gate", "_id", "dtype", "shape", "type")

    def __init__(self, gate: Gate, found: dict[str, Any]) -> None:
        shape = found["shape"]
        self._gate = gate
        self._id = str(found["id"])
        self.type = str(found["type"])
        self.dtype: str | None = found["dtype"]
        self.shape: tuple[int, ...] | None = None if shape is None else tuple(shape)
        # A finalizer must do no input or output, so the id is noted and sent with a later call.
        self._finalizer = weakref.finalize(self, gate.dropped_handles.append, self._id)
        self._finalizer.atexit = False

    def __class_getitem__(cls, _item: object) -> type[Handle]:
        """`Handle[numpy.ndarray]`, for annotations."""
        return cls

    def fetch(self, index: Any = None) -> Any:
        """The value, or the part of it that `index` selects, as for a numpy array.

        Args:
            index: A number, a slice, `...`, None for all, or a tuple of those; `numpy.s_` helps.

        Raises:
            HandleError: The handle was freed, or the interface was restarted.
        """
        return self._gate.fetch(self.reference(), index)

    def __getitem__(self, index: Any) -> Any:
        return self.fetch(index)

    def free(self) -> None:
        """Release the value now. Freeing twice is harmless."""
        if self._finalizer.detach() is not None:
            self._gate.free(self._id)

    def reference(self) -> str:
        """The id.

        Raises:
            HandleError: The handle was freed.
        """
        if not self._finalizer.alive:
            raise HandleError("this handle was freed, so its value is gone")
        return self._id

    def __repr__(self) -> str:
        state = "" if self._finalizer.alive else ", freed"
        return f"Handle({self.type}, dtype={self.dtype}, shape={self.shape}{state})"


def write_index(index: Any) -> list[Any] | None:
    """An index as JSON.

    Raises:
        TypeError: It has a part that cannot be sent.
    """
    if index is None:
        return None
    if not isinstance(index, tuple):
        return [_write(index)]
    parts: tuple[Any, ...] = index  # pyright: ignore[reportUnknownVariableType]
    return [_write(part) for part in parts]


def _write(part: Any) -> Any:
    if part is None:
        return None
    if part is ...:
        return "..."
    if part.__class__ is slice:
        ends = (part.start, part.stop, part.step)
        return {"slice": [None if end is None else int(end) for end in ends]}
    if hasattr(part, "__index__"):
        return part.__index__()
    raise TypeError(f"an index is a number, a slice, ... or None, not {part!r}")
