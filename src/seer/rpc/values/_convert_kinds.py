"""Converts arguments to the kinds of `_kinds`: arrays, tensors, images, frames, paths, times.

A converter is made for a hint that names the class, so its library is already loaded. No library is
imported here.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ...errors import ProtocolError
from ._convert import Mismatch, open_handle
from ._kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._hints import Hint

    Convert = Callable[[Any], Any]

_NUMBER_KINDS = "biufc"
_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What libraries raise for data that they do not accept."""


def make(hint: Hint, *, plain: bool) -> Convert:
    """The converter for a hint of one of these kinds."""
    inner = BY_NAME[hint.kind].convert()(hint, plain)
    return lambda value: inner(open_handle(value))


def ndarray(hint: Hint, plain: bool) -> Convert:
    """Arrays, of the dtype that the hint names."""
    numpy: Any = sys.modules["numpy"]
    dtype = None if hint.detail is None else numpy.dtype(hint.detail)
    expected = "numpy.ndarray" + (f" of {dtype}" if dtype is not None else "")

    def convert(value: Any) -> Any:
        if not isinstance(value, numpy.ndarray):
            value = _to_array(numpy, value, dtype, expected)
        if dtype is None or value.dtype == dtype:
            return value
        if not numpy.can_cast(value.dtype, dtype, "same_kind"):
            raise Mismatch(expected, value, "the conversion would lose data")
        return value.astype(dtype)

    return convert


def _to_array(numpy: Any, value: Any, dtype: Any, expected: str) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor: Any = value.detach().cpu()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    if type(value) not in (list, tuple, int, float, bool, complex):
        raise Mismatch(expected, value)
    try:
        array = numpy.asarray(value)
        # The numbers of a list have no width, so a narrower type loses nothing.
        if dtype is not None and array.dtype.kind in "iu" and dtype.kind in "iu":
            array = numpy.asarray(value, dtype=dtype)
        elif array.size == 0 and dtype is not None:
            array = array.astype(dtype)
    except _FAILURES as error:
        raise Mismatch(expected, value, str(error)) from None
    if array.dtype.kind not in _NUMBER_KINDS:
        raise Mismatch(expected, value, "the lists hold more than numbers")
    return array


def tensor(hint: Hint, plain: bool) -> Convert:
    """Tensors."""
    torch: Any = sys.modules["torch"]

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value
        numpy: Any = sys.modules.get("numpy")
        try:
            if numpy is not None and isinstance(value, numpy.ndarray):
                return torch.from_numpy(value if value.flags.writeable else value.copy())
            if type(value) in (list, tuple, int, float, bool, complex):
                return torch.tensor(value)
        except _FAILURES as error:
            raise Mismatch("torch.Tensor", value, str(error)) from None
        raise Mismatch("torch.Tensor", value)

    return convert


def image(hint: Hint, plain: bool) -> Convert:
    """Images, from PNG data."""
    image: Any = sys.modules["PIL.Image"]

    def convert(value: Any) -> Any:
        if isinstance(value, image.Image):
            return value
        from ._arrays import open_png
        from ._convert import plain_bytes

        if plain and type(value) is str:
            value = plain_bytes(value)
        if type(value) is not bytes:
            raise Mismatch("an image", value)
        try:
            return open_png(value)
        except ProtocolError as error:
            raise Mismatch("an image", value, str(error)) from None

    return convert


def table(name: str) -> Callable[[Hint, bool], Convert]:
    """Data frames or series, also from columns or records."""

    def maker(hint: Hint, plain: bool) -> Convert:
        cls: Any = getattr(sys.modules["pandas"], name)
        is_series = name == "Series"

        def convert(value: Any) -> Any:
            if isinstance(value, cls):
                return value
            columns = type(value) is dict or hasattr(value, "__array_interface__")
            records = type(value) is list and (is_series or _are_dicts(value))
            if not (columns or records):
                raise Mismatch(f"pandas.{name}", value)
            try:
                return cls(value)
            except _FAILURES as error:
                raise Mismatch(f"pandas.{name}", value, str(error)) from None

        return convert

    return maker


def _are_dicts(value: Any) -> bool:
    return all(type(item) is dict for item in value)


def path(hint: Hint, plain: bool) -> Convert:
    """Paths, from text."""
    pathlib: Any = sys.modules["pathlib"]

    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise Mismatch("a path, as text", value)
        return pathlib.Path(value)

    return convert


def moment(name: str) -> Callable[[Hint, bool], Convert]:
    """Dates or times, also from ISO 8601 text."""

    def maker(hint: Hint, plain: bool) -> Convert:
        cls: Any = getattr(sys.modules["datetime"], name)
        expected = f"datetime.{name} (or ISO 8601 text)"

        def convert(value: Any) -> Any:
            if type(value) is cls:
                return value
            if type(value) is not str:
                raise Mismatch(expected, value)
            try:
                return cls.fromisoformat(value)
            except ValueError as error:
                raise Mismatch(expected, value, str(error)) from None

        return convert

    return maker


def timedelta(hint: Hint, plain: bool) -> Convert:
    """Durations, also from seconds."""
    cls: Any = sys.modules["datetime"].timedelta

    def convert(value: Any) -> Any:
        if type(value) is cls:
            return value
        if type(value) not in (int, float):
            raise Mismatch("datetime.timedelta (or seconds)", value)
        try:
            return cls(seconds=value)
        except (OverflowError, ValueError) as error:
            raise Mismatch("datetime.timedelta (or seconds)", value, str(error)) from None

    return convert
