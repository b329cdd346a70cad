"""The kinds of values whose class is not a builtin: one row in `KINDS` for each.

A row has all that the gate knows about a kind: the class, how a value is sent and received, how an
argument is converted to it, and its JSON Schema. Hints, the wire format, the generated library
and its types are made from the rows, so a new kind is a new row. Builtin types, containers,
records, enums and handles are not here, because they follow other rules.

No library is imported here: a value or a hint of such a kind has already loaded its library.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._convert import Convert
    from ._hints import Hint
    from ._pack import Packer
    from ._unpack import Unpacker

    Fields = dict[str, Any]

TAG = "$seer"


class Kind:
    """A kind of value.

    Attributes:
        name: Its name in hints.
        module: The module that its class is imported from.
        classes: The names of its class there; hints and generated code use the first.
        pack: Returns the tree to send for a value of this class.
        convert: Returns the function that makes the converter of arguments for a hint of this kind.
        schema: The JSON Schema of a value as plain JSON.
        tag: The tag of its values on the wire; empty if they are plain JSON.
        fields: The fields that a tagged object must have.
        unpack: Makes a value from a tagged object.
        library: Whether the class is from an installed library. Then `pack` also gets the values of
            all other classes of that library, such as numpy's scalars.
        shown: Whether an agent sees such a result as a picture, file or description instead of
            JSON data.
    """

    __slots__ = (
        "classes",
        "convert",
        "fields",
        "library",
        "module",
        "name",
        "pack",
        "schema",
        "shown",
        "tag",
        "unpack",
    )

    def __init__(
        self,
        name: str,
        module: str,
        *classes: str,
        pack: Callable[[Packer, Any, int], Any],
        convert: Callable[[], Callable[[Hint, bool], Convert]],
        schema: dict[str, Any],
        tag: str = "",
        fields: tuple[str, ...] = (),
        unpack: Callable[[Unpacker, Fields], Any] | None = None,
        library: bool = False,
        shown: bool = False,
    ) -> None:
        self.name = name
        self.module = module
        self.classes = classes
        self.pack = pack
        self.convert = convert
        self.schema = schema
        self.tag = tag
        self.fields = frozenset(fields)
        self.unpack = unpack
        self.library = library
        self.shown = shown

    @property
    def text(self) -> str:
        """The class as source text."""
        return f"{self.module}.{self.classes[0]}"

    @property
    def root(self) -> str:
        """The top-level package of the class."""
        return self.module.partition(".")[0]

    def has_class(self, cls: type) -> bool:
        """Whether this is the kind's own class."""
        module = sys.modules.get(self.module)
        return cls.__name__ in self.classes and getattr(module, cls.__name__, None) is cls

    def has(self, value: object) -> bool:
        """Whether a value is an instance of the kind's class; False if its module is not loaded."""
        module = sys.modules.get(self.module)
        return module is not None and any(
            isinstance(value, getattr(module, name)) for name in self.classes
        )


# These modules import others of this folder, or need a library, so they are loaded on first use.


def _arrays() -> Any:
    from . import _arrays

    return _arrays


def _tables() -> Any:
    from . import _tables

    return _tables


def _converters() -> Any:
    from . import _convert

    return _convert


def _pack_array(packer: Packer, value: Any, _depth: int) -> Any:
    return _arrays().pack(packer, value)


def _pack_table(packer: Packer, value: Any, depth: int) -> Any:
    return _tables().pack(packer, value, depth)


def _pack_path(_packer: Packer, value: Any, _depth: int) -> str:
    return str(value)


def _pack_moment(tag: str) -> Callable[[Packer, Any, int], Any]:
    def pack(packer: Packer, value: Any, _depth: int) -> Any:
        text = value.isoformat()
        return {TAG: tag, "value": text} if packer.frames else text

    return pack


def _pack_timedelta(packer: Packer, value: Any, _depth: int) -> Any:
    if not packer.frames:
        return value.total_seconds()
    return {TAG: "timedelta", "value": [value.days, value.seconds, value.microseconds]}


def _unpack_moment(name: str) -> Callable[[Unpacker, Fields], Any]:
    def unpack(_: Unpacker, found: Fields) -> Any:
        import datetime

        return getattr(datetime, name).fromisoformat(found["value"])

    return unpack


def _unpack_timedelta(_: Unpacker, found: Fields) -> Any:
    import datetime

    days, seconds, microseconds = found["value"]
    return datetime.timedelta(days, seconds, microseconds)


_NUMBERS: dict[str, Any] = {
    "anyOf": [{"type": "number"}, {"type": "array"}],
    "description": "an array, as nested lists of numbers",
}

KINDS = (
    Kind(
        "ndarray",
        "numpy",
        "ndarray",
        tag="array",
        fields=("buffer", "dtype", "shape"),
        pack=_pack_array,
        unpack=lambda unpacker, found: _arrays().unpack_array(unpacker, found),
        convert=lambda: _converters().ndarray,
        schema=_NUMBERS,
        library=True,
        shown=True,
    ),
    Kind(
        "tensor",
        "torch",
        "Tensor",
        tag="torch",
        fields=("buffer", "dtype", "shape"),
        pack=_pack_array,
        unpack=lambda unpacker, found: _arrays().unpack_tensor(unpacker, found),
        convert=lambda: _converters().tensor,
        schema=_NUMBERS,
        library=True,
        shown=True,
    ),
    Kind(
        "image",
        "PIL.Image",
        "Image",
        tag="image",
        fields=("buffer",),
        pack=_pack_array,
        unpack=lambda unpacker, found: _arrays().unpack_image(unpacker, found),
        convert=lambda: _converters().image,
        schema={"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
        library=True,
        shown=True,
    ),
    Kind(
        "frame",
        "pandas",
        "DataFrame",
        tag="frame",
        fields=("columns", "index"),
        pack=_pack_table,
        unpack=lambda unpacker, found: _tables().unpack_frame(unpacker, found),
        convert=lambda: _converters().table("DataFrame"),
        schema={"type": "object", "description": "a table: a list of values per column"},
        library=True,
        shown=True,
    ),
    Kind(
        "series",
        "pandas",
        "Series",
        tag="series",
        fields=("column", "index"),
        pack=_pack_table,
        unpack=lambda unpacker, found: _tables().unpack_series(unpacker, found),
        convert=lambda: _converters().table("Series"),
        schema={"type": "array"},
        library=True,
        shown=True,
    ),
    Kind(
        "path",
        "pathlib",
        "Path",
        "PurePath",
        pack=_pack_path,
        convert=lambda: _converters().path,
        schema={"type": "string"},
    ),
    # A datetime is a date too, so its row comes first.
    Kind(
        "datetime",
        "datetime",
        "datetime",
        tag="datetime",
        fields=("value",),
        pack=_pack_moment("datetime"),
        unpack=_unpack_moment("datetime"),
        convert=lambda: _converters().moment("datetime"),
        schema={"type": "string", "format": "date-time"},
    ),
    Kind(
        "date",
        "datetime",
        "date",
        tag="date",
        fields=("value",),
        pack=_pack_moment("date"),
        unpack=_unpack_moment("date"),
        convert=lambda: _converters().moment("date"),
        schema={"type": "string", "format": "date"},
    ),
    Kind(
        "time",
        "datetime",
        "time",
        tag="time",
        fields=("value",),
        pack=_pack_moment("time"),
        unpack=_unpack_moment("time"),
        convert=lambda: _converters().moment("time"),
        schema={"type": "string", "format": "time"},
    ),
    Kind(
        "timedelta",
        "datetime",
        "timedelta",
        tag="timedelta",
        fields=("value",),
        pack=_pack_timedelta,
        unpack=_unpack_timedelta,
        convert=lambda: _converters().timedelta,
        schema={"type": "number", "description": "seconds"},
    ),
)

BY_NAME = {kind.name: kind for kind in KINDS}
