"""Arguments are checked and converted by their type hints before a function runs."""

# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import collections
import datetime
import enum
import math
import typing
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    cast,
)

import attrs
import msgspec
import numpy as np
import pandas as pd
import pydantic
import pytest
from numpy.typing import NDArray
from PIL import Image
from typing_extensions import TypeAliasType

from seer.errors import ArgumentError
from seer.rpc import Handle
from seer.rpc.interface._schema import Function, Parameter
from seer.rpc.values._annotations import Parser, annotation_note
from seer.rpc.values._hints import Hint, UnsupportedHintError
from seer.rpc.values._types import describe_classes


def function(annotation: Any) -> Function:
    """`f(x: annotation)`."""
    parser = Parser()
    hint = parser.parse(annotation, globals())
    types = describe_classes(parser)
    return Function("f", (Parameter("x", "positional_or_keyword", hint),), Hint("any"), types=types)


def convert(annotation: Any, value: Any, *, plain: bool = False) -> Any:
    return function(annotation).bind([value], {}, plain=plain)[0][0]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"
    ODD = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list[str])
    norm: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")
        self.norm = math.hypot(self.x, self.y)


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list["Tree"])


class Pair(NamedTuple):
    a: int
    b: str = "b"


Untyped: Any = collections.namedtuple("Untyped", "a b")  # pyright: ignore[reportUntypedNamedTuple]


class Options(TypedDict):
    name: str
    size: NotRequired[int]


class Loose(TypedDict, total=False):
    a: int
    b: typing.Required[int]


class Struct(msgspec.Struct):
    size: int
    label: str = msgspec.field(name="theLabel", default="")


class Model(pydantic.BaseModel):
    n: int = pydantic.Field(ge=0, alias="nAlias")
    url: pydantic.HttpUrl | None = None


@attrs.define
class Attrs:
    _n: int
    m: int = 3


UserId = NewType("UserId", int)
T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    value: T


NAN = float("nan")
ACCEPTED: list[tuple[Any, Any, Any]] = [
    (str, "a", "a"),
    (int, 3, 3),
    (float, 3, 3.0),
    (float, 2.5, 2.5),
    (float, NAN, NAN),
    (float, math.inf, math.inf),
    (bool, True, True),
    (None, None, None),
    (bytes, b"a", b"a"),
    (complex, 1, 1 + 0j),
    (complex, 1j, 1j),
    (dict[str, complex], {"a": 1j, "b": 2}, {"a": 1j, "b": 2 + 0j}),
    (Any, object, object),
    (object, [1], [1]),
    (typing.LiteralString, "a", "a"),
    (list, (1, "a"), [1, "a"]),
    (list[int], [1, 2], [1, 2]),
    (list[float], [1, 2.5], [1.0, 2.5]),
    (list[float], [1.5] * 100, [1.5] * 100),
    (list[float], [1.5] * 100 + [1], [1.5] * 100 + [1.0]),
    (list[list[int]], ((1,), [2]), [[1], [2]]),
    (list[int], np.array([1, 2]), [1, 2]),
    (typing.List[int], [1], [1]),  # noqa: UP006
    (typing.List, [1], [1]),  # noqa: UP006
    (MutableSequence[int], (1,), [1]),
    (Sequence[int], (1,), (1,)),
    (Sequence[int], [1], [1]),
    (Sequence[float], (1,), (1.0,)),
    (Sequence, [1], [1]),
    (tuple, [1, 2], (1, 2)),
    (typing.Tuple, [1, 2], (1, 2)),  # noqa: UP006
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[()], [], ()),
    (set[int], [1, 1], {1}),
    (set, {1}, {1}),
    (frozenset[str], ["a"], frozenset({"a"})),
    (AbstractSet[str], {"a"}, frozenset({"a"})),
    (MutableSet[str], ["a"], {"a"}),
    (dict, {1: 2}, {1: 2}),
    (dict[str, Any], {"a": object}, {"a": object}),
    (dict[str, float], {"a": 1}, {"a": 1.0}),
    (dict[int, list[int]], {1: (2,)}, {1: [2]}),
    (dict[Any, int], {None: 2}, {None: 2}),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (MutableMapping[str, int], {"a": 1}, {"a": 1}),
    (Optional[int], None, None),  # noqa: UP045
    (int | None, 3, 3),
    (float | None, 3, 3.0),
    (typing.Union[int, str, None], "a", "a"),  # noqa: UP007
    (int | list[int] | None, (1,), [1]),
    (list[int] | dict[str, int], {"a": 1}, {"a": 1}),
    (Literal["a", 1, None, b"x"], b"x", b"x"),
    (Literal[Color.RED], "red", "red"),
    (Color, "red", Color.RED),
    (Color, "BLUE", Color.BLUE),
    (Color, (1, 2), Color.ODD),
    (Color, Color.RED, Color.RED),
    (Level, 2, Level.HIGH),
    (Point, {"x": 3, "y": 4.0, "norm": 0.0}, Point(3.0, 4.0)),
    (Point, Point(1.0), Point(1.0)),
    (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    (Pair, [1], Pair(1)),
    (Pair, (1, "c"), Pair(1, "c")),
    (Pair, {"a": 1}, Pair(1)),
    (Untyped, [1, "x"], Untyped(1, "x")),
    (Options, {"name": "a"}, {"name": "a"}),
    (Options, {"name": "a", "size": 3}, {"name": "a", "size": 3}),
    (Loose, {"b": 1}, {"b": 1}),
    (Struct, {"size": 3, "label": "x"}, Struct(3, "x")),
    (Struct, Struct(1), Struct(1)),
    (Model, {"n": 3}, Model(nAlias=3)),
    (Model, Model(nAlias=1), Model(nAlias=1)),
    (Annotated[int, "note"], 3, 3),
    (UserId, 3, 3),
    (Path, "/a/b", Path("/a/b")),
    (datetime.datetime, "2024-01-02T03:04:05", datetime.datetime(2024, 1, 2, 3, 4, 5)),
    (datetime.datetime, datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 2)),
    (datetime.date, "2024-01-02", datetime.date(2024, 1, 2)),
    (datetime.time, "03:04", datetime.time(3, 4)),
    (datetime.timedelta, 1.5, datetime.timedelta(seconds=1.5)),
    (datetime.timedelta, datetime.timedelta(1), datetime.timedelta(1)),
    ("list[int]", [1], [1]),
    (list["Point"], [{"x": 1}], [Point(1.0)]),
    (int, Handle(3), 3),
    (float, Handle(3), 3.0),
    (list[int], Handle([3]), [3]),
    (Any, Handle(3), 3),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), ACCEPTED)
def test_fitting_values_are_converted(annotation: Any, value: Any, expected: Any) -> None:
    got = convert(annotation, value)
    assert type(got) is type(expected)
    assert got == expected or (got != got and expected != expected)


REFUSED: list[tuple[Any, Any, str]] = [
    (str, 3, r"expected str, got int \(3\)"),
    (int, "3", r"expected int, got str \('3'\)"),
    (int, True, r"expected int, got bool \(True\)"),
    (int, 3.0, r"expected int, got float \(3.0\)"),
    (int, None, "expected int, got None"),
    (float, True, "expected float, got bool"),
    (float, "1.5", "expected float, got str"),
    (float, 10**400, "too large for a float"),
    (bool, 1, "expected bool, got int"),
    (None, 0, "expected None, got int"),
    (bytes, "YQ==", "expected bytes, got str"),
    (complex, "1j", "expected complex, got str"),
    (complex, 10**400, "too large for a float"),
    (complex, [1, 2], "expected complex, got list"),
    (list[int], "abc", r"expected list\[int\], got str"),
    (list[int], {1}, r"expected list\[int\], got set"),
    (list[int], [1, "2"], r"'x'\[1\]: expected int, got str \('2'\)"),
    (list[float], [1.5] * 100 + ["a"], r"'x'\[100\]: expected float, got str"),
    (list[int], np.array(3), "expected list"),
    (set[Any], [[1]], "unhashable"),
    (tuple[int, str], [1], "it has 1 items, not 2"),
    (tuple[int, str], [1, 2], r"'x'\[1\]: expected str, got int"),
    (tuple[int, str], "ab", r"expected tuple\[int, str\], got str"),
    (dict, [1], "expected dict, got list"),
    (dict[str, int], [1], r"expected dict\[str, int\]"),
    (dict[str, int], {"a": "b"}, r"'x'\['a'\]: expected int, got str"),
    (dict[str, int], {1: 2}, "expected a key that is str, got int"),
    (int | None, "a", r"expected int \| None, got str"),
    (int | list[int], ["a"], r"'x'\[0\]: expected int, got str"),
    (Point | Pair, {"x": -1}, "expected Point | Pair, got dict .*: x is negative"),
    (Literal["a", "b"], "c", r"expected one of 'a', 'b', got str \('c'\)"),
    (Literal[1], True, "expected one of 1, got bool"),
    (Literal[1], [1], "expected one of 1, got list"),
    (Color, "green", r"expected Color \('red', 'blue', \(1, 2\)\), got str \('green'\)"),
    (Color, [1], "expected Color"),
    (Color, np.zeros(2), "expected Color"),
    (Level, True, "expected Level"),
    (Point, {"y": 1}, "the field 'x' is missing"),
    (Point, {"x": 1, "z": 1}, "there is no field 'z'"),
    (Point, {"x": 1, 2: 1}, "there is no field 2"),
    (Point, {"x": "a"}, r"'x'\.x: expected float, got str"),
    (Point, {"x": -1}, "expected Point, got dict .*: x is negative"),
    (Point, [1], r"expected Point \(fields: x, y, tags, norm\), got list"),
    (Tree, {"name": "a", "children": [{"name": 3}]}, r"'x'\.children\[0\]\.name: expected str"),
    (Pair, [1, "a", 2], "it has 3 items, not 1 to 2"),
    (Pair, [], r"expected Pair, got list \(\[\]\): it has 0 items, not 1 to 2"),
    (Untyped, [1], r"got list \(\[1\]\): it has 1 items, not 2"),
    (Pair, "a", "expected Pair"),
    (Options, {}, "the field 'name' is missing"),
    (Loose, {"a": 1}, "the field 'b' is missing"),
    (Struct, {"size": "a"}, "Expected `int`, got `str`"),
    (Struct, {"size": 1, "theLabel": "a"}, "there is no field 'theLabel'"),
    (Struct, [1], "expected Struct, got list"),
    (Model, {"n": -1}, "greater than or equal to 0"),
    (Path, 3, "expected a path, as text, got int"),
    (datetime.date, "soon", "Invalid isoformat"),
    (datetime.date, 3, r"expected datetime.date \(or ISO 8601 text\), got int"),
    (datetime.timedelta, "1", r"expected datetime.timedelta \(or seconds\)"),
    (datetime.timedelta, 1e300, "timedelta"),
    (Handle, 3, "expected a Handle, got int"),
    (str, list(range(100)), "got list of length 100"),
    (str, [10**5000], "got list .it cannot be shown: ValueError"),
    (str, np.zeros((2, 3)), r"got numpy.ndarray of shape \(2, 3\) and dtype float64"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED)
def test_values_that_do_not_fit_are_refused_with_the_reason(
    annotation: Any, value: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=rf"^f\(\) parameter .*{message}"):
        convert(annotation, value)


PLAIN: list[tuple[Any, Any, Any]] = [
    (bytes, "AP8=", b"\x00\xff"),
    (bytes, b"a", b"a"),
    (dict[str, bytes], {"a": b"x", "b": "eA=="}, {"a": b"x", "b": b"x"}),
    (int, 3.0, 3),
    (int, 3, 3),
    (complex, [1, 2.5], 1 + 2.5j),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (dict[float, str], {"1.5": "a", 2.5: "b"}, {1.5: "a", 2.5: "b"}),
    (list[int], [1, 2.0], [1, 2]),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), PLAIN)
def test_peers_with_json_only_may_write_what_json_can(
    annotation: Any, value: Any, expected: Any
) -> None:
    got = convert(annotation, value, plain=True)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (bytes, "not base64!", r"expected bytes \(as base64 text\), got str"),
        (bytes, 3, "expected bytes"),
        (int, 3.5, "expected int, got float"),
        (complex, ["a", "b"], "expected float"),
        (dict[int, str], {"a": "b"}, "expected a key that is a number"),
    ],
)
def test_plain_values_are_checked_too(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        convert(annotation, value, plain=True)


def test_classes_made_by_attrs_are_built() -> None:
    assert convert(Attrs, {"_n": 4}) == Attrs(4)
    with pytest.raises(ArgumentError, match="the field '_n' is missing"):
        convert(Attrs, {})


# --- arrays and the like ---------------------------------------------------------------------


def test_arrays_are_converted_without_loss() -> None:
    array = np.arange(3.0)
    assert convert(np.ndarray, array) is array
    assert convert(NDArray[np.float32], array).dtype == np.float32
    assert convert(NDArray[np.float32], [[1, 2], [3, 4.5]]).tolist() == [[1, 2], [3, 4.5]]
    assert convert(NDArray[np.int8], [1, 2]).dtype == np.int8
    assert convert(NDArray[np.float32], []).dtype == np.float32
    assert convert(NDArray[Any], [1]).dtype.kind == "i"
    assert convert(NDArray[np.floating[Any]], array) is array
    assert convert(NDArray[np.str_], np.array(["a"])).tolist() == ["a"]
    assert convert(np.ndarray, 3.5).shape == ()


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (np.ndarray, "abc", "expected numpy.ndarray, got str"),
        (np.ndarray, ["a"], "the lists hold values that are not numbers"),
        (np.ndarray, [[1], [1, 2]], "inhomogeneous"),
        (NDArray[np.int64], [1.5], "the conversion would lose"),
        (NDArray[np.int8], [1000], "out of bounds"),
        (NDArray[np.float32], np.array(["a"]), "expected numpy.ndarray of float32"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        convert(annotation, value)


def test_images_are_accepted_as_images_or_png() -> None:
    import base64
    import io

    image = Image.new("RGB", (2, 3))
    png = io.BytesIO()
    image.save(png, "PNG")
    assert convert(Image.Image, image) is image
    assert convert(Image.Image, png.getvalue()).size == (2, 3)
    assert convert(Image.Image, base64.b64encode(png.getvalue()).decode(), plain=True).size == (
        2,
        3,
    )
    with pytest.raises(ArgumentError, match="expected an image, got str"):
        convert(Image.Image, "iVBOR")
    with pytest.raises(ArgumentError, match="not a PNG"):
        convert(Image.Image, b"GIF")


def test_frames_are_accepted_as_frames_or_their_data() -> None:
    frame = pd.DataFrame({"a": [1]})
    assert convert(pd.DataFrame, frame) is frame
    assert convert(pd.DataFrame, {"a": [1]}).equals(frame)
    assert convert(pd.DataFrame, [{"a": 1}]).equals(frame)
    assert convert(pd.Series, [1, 2]).tolist() == [1, 2]
    assert convert(pd.Series, np.array([1, 2])).tolist() == [1, 2]
    with pytest.raises(ArgumentError, match="expected pandas.DataFrame, got list"):
        convert(pd.DataFrame, [[1], [2]])
    with pytest.raises(ArgumentError, match="expected pandas.DataFrame, got str"):
        convert(pd.DataFrame, "a")
    with pytest.raises(ArgumentError, match="expected pandas.DataFrame"):
        convert(pd.DataFrame, {"a": [1], "b": [1, 2]})


def test_tensors_are_made_from_arrays_and_lists() -> None:
    torch: Any = pytest.importorskip("torch")
    tensor = torch.zeros(2)
    assert convert(torch.Tensor, tensor) is tensor
    assert convert(torch.Tensor, np.zeros(2, "f4")).dtype is torch.float32
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    assert convert(torch.Tensor, frozen).tolist() == [0, 0]
    assert convert(torch.Tensor, [[1, 2]]).shape == (1, 2)
    assert convert(np.ndarray, tensor).tolist() == [0, 0]
    assert convert(np.ndarray, tensor.to(torch.bfloat16)).dtype == np.float32
    for wrong, message in [("a", "got str"), ([[1], [1, 2]], "length"), (np.array(["a"]), "str")]:
        with pytest.raises(ArgumentError, match=f"expected torch.Tensor.*{message}"):
            convert(torch.Tensor, wrong)


def test_generic_frames_are_hinted_as_such() -> None:
    alias = type("Alias", (), {"__origin__": pd.Series, "__args__": (int,)})()
    assert str(Parser().parse(alias, {})) == "pandas.Series"


def test_handles_are_passed_where_asked_for() -> None:
    handle = Handle(3)
    assert convert(Handle, handle) is handle
    assert convert(Handle[np.ndarray], handle) is handle


# --- binding ---------------------------------------------------------------------------------


def bind(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    integer = Hint("int")
    parameters = (
        Parameter("a", "positional_only", integer),
        Parameter("b", "positional_or_keyword", Hint("float")),
        Parameter("c", "positional_or_keyword", Hint("str"), default="'c'"),
        Parameter("k", "keyword_only", integer),
        Parameter("o", "keyword_only", integer, default="1"),
    )
    return Function("f", parameters, integer).bind(args, kwargs)


def test_arguments_are_bound_as_python_binds_them() -> None:
    assert bind([1, 2], {"k": 3}) == ([1, 2.0], {"k": 3})
    assert bind([1], {"b": 2, "k": 3, "c": "x"}) == ([1], {"b": 2.0, "k": 3, "c": "x"})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ([], {"k": 1}, "needs an argument for 'a'"),
        ([1], {"k": 1}, "needs an argument for 'b'"),
        ([1, 2], {}, "needs an argument for 'k'"),
        ([1, 2, "c", 4], {"k": 1}, "takes 3 positional arguments, but 4 were given"),
        ([1, 2], {"k": 1, "z": 1}, "has no parameter 'z'; it takes a, b, c, k, o"),
        ([1, 2], {"k": 1, "b": 1}, "got two values for 'b'"),
        ([], {"a": 1, "b": 1, "k": 1}, "takes 'a' by position only"),
        ([1, 2], {"k": "1"}, "parameter 'k': expected int, got str"),
    ],
)
def test_calls_that_python_would_refuse_are_refused(
    args: list[Any], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=rf"^f\(\) {message}"):
        bind(args, kwargs)


def test_a_function_without_parameters_says_so() -> None:
    with pytest.raises(ArgumentError, match="takes 0 positional arguments, but 1 were given"):
        Function("f", (), Hint("any")).bind([1], {})
    with pytest.raises(ArgumentError, match="it takes no arguments"):
        Function("f", (), Hint("any")).bind([], {"a": 1})


def test_starred_parameters_check_each_argument() -> None:
    parameters = (
        Parameter("a", "positional_or_keyword", Hint("int")),
        Parameter("rest", "var_positional", Hint("float")),
        Parameter("more", "var_keyword", Hint("int")),
    )
    f = Function("f", parameters, Hint("any"))
    assert f.bind([1, 2, 3.5], {"x": 4}) == ([1, 2.0, 3.5], {"x": 4})
    with pytest.raises(ArgumentError, match=r"parameter '\*rest\[1\]': expected float"):
        f.bind([1, 2, "a"], {})
    with pytest.raises(ArgumentError, match="parameter 'x': expected int"):
        f.bind([1], {"x": "a"})


def test_arguments_nested_too_deeply_are_an_error() -> None:
    value: Any = {"name": "x"}
    for _ in range(2000):
        value = {"name": "x", "children": [value]}
    with pytest.raises(ArgumentError, match="nested too deeply"):
        convert(Tree, value)


# --- what is no hint -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (T, "cannot be checked"),
        (Box[int], "cannot be checked"),
        (typing.Callable[[int], int], "cannot be checked"),
        (type[int], "cannot be checked"),
        (typing.Pattern[str], "cannot be checked"),
        (Literal[Color.ODD], r"Literal\[\(1, 2\)\] is not a literal value"),
        (NDArray[np.object_], "arrays of objects"),
        (np.float32, "numpy.float32 is a class the gate cannot build"),
        ("Nowhere", "'Nowhere' cannot be resolved"),
        ("1 +", "cannot be resolved"),
        (3, "3 cannot be checked"),
        ([int], "cannot be checked"),
    ],
)
def test_unsupported_hints_are_refused(annotation: Any, message: str) -> None:
    with pytest.raises(UnsupportedHintError, match=message):
        Parser().parse(annotation, {})


def test_unsupported_hints_of_keys_are_refused() -> None:
    parser = Parser()
    make: Any = TypedDict
    parser.parse(make("Bad", {"a": type}), {})
    with pytest.raises(UnsupportedHintError, match="key 'a' of Bad: type is a class"):
        describe_classes(parser)


def test_classes_of_one_name_get_names_of_their_own() -> None:
    first = dataclass(type("Same", (), {"__annotations__": {"a": int}}))
    second = dataclass(type("Same", (), {"__annotations__": {"b": first}}))
    parser = Parser()
    assert [str(parser.parse(cls, {})) for cls in (first, second, first)] == [
        "Same",
        "Same2",
        "Same",
    ]


def test_type_aliases_are_followed() -> None:
    make: Any = TypeAliasType
    alias = make("alias", list[int])
    assert str(Parser().parse(alias, {})) == "list[int]"
    u: Any = TypeVar("u")
    t, dict_of, list_of = cast("Any", T), cast("Any", dict), cast("Any", list)
    swapped = make("swapped", dict_of[u, list_of[t]], type_params=(t, u))
    assert str(Parser().parse(swapped[int, str], {})) == "dict[str, list[int]]"
    with pytest.raises(UnsupportedHintError, match="cannot be checked"):
        Parser().parse(swapped, {})
    constant = make("constant", int, type_params=(t,))
    assert str(Parser().parse(constant[str], {})) == "int"


def test_notes_of_annotations_are_found() -> None:
    assert annotation_note(Annotated[int, 3, "which layer"]) == "which layer"
    assert annotation_note(Annotated[int, pydantic.Field(description="d")]) == "d"
    assert annotation_note(int) == ""


def test_hints_survive_json_and_compare_by_what_they_say() -> None:
    annotation = dict[
        str, list[Point | None] | Literal["a", b"b"] | tuple[int, ...] | NDArray[np.int8]
    ]
    hint = Parser().parse(annotation, {})
    again = Hint.from_json(hint.to_json())
    assert again == hint
    assert hash(again) == hash(hint)
    assert str(again) == str(hint)
    assert hint != Hint("any")
    assert repr(Hint("int")) == "Hint(int)"
    with pytest.raises(ValueError, match="unknown kind of hint 'code'"):
        Hint.from_json("code")
    with pytest.raises(ValueError, match="is not a name"):
        Hint.from_json({"kind": "named", "detail": "x; import os"})
