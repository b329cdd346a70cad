"""Values keep their type and every bit over the wire."""

# pyright: reportPrivateUsage=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false

import contextlib
import datetime
import enum
import json
import math
import struct
import warnings
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer.errors import ArgumentError, ProtocolError, ResultError
from seer.rpc.values import _codec as _values
from seer.rpc.values import _pack, _unpack
from seer.rpc.values._codec import DecodeLimits, decode, encode, encode_call


def round_trip(value: object, **options: Any) -> Any:
    buffers: list[Any] = []
    text = encode(value, buffers)
    return decode(text, [bytes(buffer) for buffer in buffers], **options)


def same(a: Any, b: Any) -> bool:
    """Equal with exact types, NaN equal to itself, -0.0 unequal to 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b


anything_in_text = st.text(st.characters(exclude_categories=()))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | anything_in_text
    | st.binary()
    | st.complex_numbers()
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
)
keys = st.none() | st.booleans() | st.integers() | anything_in_text | st.binary()
keys |= st.tuples(st.integers(), anything_in_text)
nested = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.dictionaries(st.sampled_from(["$seer", "items", "a"]), inner)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=20,
)


@given(nested)
@settings(max_examples=80, deadline=None)
def test_any_nested_value_comes_back_the_same(value: Any) -> None:
    assert same(round_trip(value), value)


@given(st.lists(st.floats(), min_size=64, max_size=200))
@settings(deadline=None)
def test_long_lists_of_floats_keep_every_bit(value: list[float]) -> None:
    back = round_trip({"x": value})["x"]
    assert struct.pack(f"<{len(value)}d", *back) == struct.pack(f"<{len(value)}d", *value)


@given(st.lists(st.integers() | st.booleans() | st.floats(), min_size=60, max_size=100))
@settings(deadline=None)
def test_long_mixed_lists_keep_each_type(value: list[Any]) -> None:
    assert same(round_trip(value), value)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(64, 200))
@settings(deadline=None)
def test_long_lists_of_ints_travel_as_raw_memory(number: int, count: int) -> None:
    buffers: list[Any] = []
    text = encode([number] * count, buffers)
    assert len(buffers) == 1
    assert decode(text, buffers) == [number] * count


def test_long_lists_work_where_numpy_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pack.sys, "modules", {})
    assert round_trip([1.5, math.inf] * 40) == [1.5, math.inf] * 40


@pytest.mark.parametrize("odd", [True, 1, "x", None, 2**70, object])
def test_one_odd_item_keeps_a_long_list_out_of_raw_memory(odd: Any) -> None:
    if odd is object:
        with pytest.raises(ResultError, match=r"result\[70\] is a object"):
            encode([1.0] * 70 + [object()], [])
        return
    for number in (1.0, 1):
        value = [number] * 70 + [odd]
        assert same(round_trip(value), value)


def test_long_lists_of_other_things_stay_lists() -> None:
    value = ["a"] * 70 + [(1,)]
    assert same(round_trip(value), value)


def test_integers_beyond_pythons_digit_limit_survive() -> None:
    value = {"a": [10**6000, -(10**5000)], "b": (2**20000,), "c": {1: 10**5000}}
    assert round_trip(value) == value


def test_two_surrogates_in_a_row_are_not_merged_into_one_character() -> None:
    assert round_trip("\ud83d\ude00") == "\ud83d\ude00"
    assert round_trip("\U0001f600") == "\U0001f600"


def test_a_plain_value_is_plain_json() -> None:
    value = {"layers": 12, "name": "gpt", "list": [1, 2.5, None, True], "inner": {"x": []}}
    buffers: list[Any] = []
    assert json.loads(encode(value, buffers)) == value
    assert buffers == []


def test_nan_and_infinities_survive() -> None:
    back = round_trip([math.nan, math.inf, -math.inf, -0.0])
    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, back[3]) == -1


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    pass


class Pair(NamedTuple):
    a: int
    b: str


@dataclass
class Point:
    x: float
    tags: list[str] = field(default_factory=list[str])
    color: Color = Color.RED


@dataclass(frozen=True)
class Fixed:
    n: int


class Struct(msgspec.Struct):
    n: int


class Model(pydantic.BaseModel):
    n: int
    inner: Struct | None = None

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (Text("hi"), "hi"),
        (Point(1.5, ["a"]), {"x": 1.5, "tags": ["a"], "color": "red"}),
        (Pair(1, "b"), (1, "b")),
        (Struct(3), {"n": 3}),
        (Model(n=4, inner=Struct(5)), {"n": 4, "inner": {"n": 5}}),
        (PurePosixPath("/a/b"), "/a/b"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
    ],
)
def test_records_and_enums_arrive_as_their_plain_data(value: object, plain: object) -> None:
    back = round_trip(value)
    assert back == plain
    assert type(back) is type(plain)


def test_attrs_classes_arrive_as_their_plain_data() -> None:
    class Attrs:
        __attrs_attrs__ = (type("A", (), {"name": "n"}),)
        n = 3

    assert round_trip(Attrs()) == {"n": 3}


def test_a_dataclass_without_one_of_its_attributes_is_an_error() -> None:
    point = Point(1.0)
    del point.tags
    with pytest.raises(ResultError, match=r"result\[0\] is a .*Point without all of its fields: "):
        encode([point], [])


def test_extra_fields_of_a_pydantic_model_are_sent() -> None:
    class Open(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        a: int

    assert round_trip(Open.model_validate({"a": 1, "b": 2})) == {"a": 1, "b": 2}


def test_subclasses_of_numbers_arrive_as_plain_numbers() -> None:
    class Metres(float):
        pass

    class Count(int):
        pass

    assert same(round_trip([Metres(1.5), Count(3)]), [1.5, 3])


class Opaque:
    def __repr__(self) -> str:
        return "x" * 500


class Waits:
    def __await__(self) -> Any: ...


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, 2, 3, Opaque()]}, r'result\["a"\]\[3\] is a .*Opaque, which cannot be sent'),
        ({"a": {5: (1, Opaque())}}, r'result\["a"\]\[5\]\[1\] is a '),
        (Opaque(), r"result is a .*Opaque.* `-> Handle`"),
        ({Opaque: 1}, r"result\[<class .*\] has a key that is a type"),
        ((n for n in [1]), "make the function itself a generator"),
        ({"a": {1: 2}.keys()}, "turn it into a list"),
        (Waits(), "await it in the function"),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_path(value: object, message: str) -> None:
    buffers: list[Any] = [b"before"]
    with pytest.raises(ResultError, match=message.replace('\\["a"\\]', r"\['a'\]")):
        encode([b"bulk", value][1:][0], buffers)
    with pytest.raises(ResultError, match=r"^probe\(\) returned a value that cannot be sent: "):
        encode((b"bulk", value), buffers, function="probe")
    assert buffers == [b"before"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {Fixed(1): 2}}, r"result\['a'\]\[.*\] has a key that is a .*Fixed, whose fields"),
        ({(1, Fixed(1)): 2}, "has a key that is a tuple, whose fields arrive as a dict"),
        ([{Fixed(1)}], r"result\[0\] has an item that is a .*Fixed, whose fields"),
        (frozenset({(1, (2, Fixed(1)))}), "result has an item that is a tuple"),
    ],
)
def test_records_are_neither_keys_nor_in_sets(value: object, message: str) -> None:
    with pytest.raises(ResultError, match=message):
        encode(value, [], function="f")


def test_hashable_values_are_keys_and_in_sets() -> None:
    value = {(1, (2.5, None)): {frozenset({1, b"x"}), "y"}, Color.RED: {1j}, frozenset(): {(1,)}}
    assert round_trip(value) == {
        (1, (2.5, None)): {frozenset({1, b"x"}), "y"},
        "red": {1j},
        frozenset(): {(1,)},
    }


def test_a_value_that_contains_itself_is_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ResultError, match="or contains itself"):
        encode(loop, [])
    record: dict[str, Any] = {}
    record["me"] = (record,)
    with pytest.raises(ResultError, match="or contains itself"):
        encode(record, [])


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"a": v}, lambda v: (v,)])
def test_the_deepest_value_that_is_sent_is_also_read(wrap: Any) -> None:
    value: Any = "x"
    for _ in range(100):
        value = wrap(value)
    assert round_trip(value) == value
    with pytest.raises(ResultError, match="deeper than 100"):
        encode(wrap(value), [])


def test_arguments_that_cannot_be_sent_are_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"^f\(\) was not called: argument 2\[0\] is a .*Opaque"
    ):
        encode_call("f", (1, [Opaque()]), {}, [])
    with pytest.raises(ArgumentError, match=r"^f\(\) was not called: argument 'x' is a .*Opaque"):
        encode_call("f", (), {"x": Opaque()}, [])
    assert decode(encode_call("f", (1, "a"), {"x": 2}, [])) == [[1, "a"], {"x": 2}]


def test_extra_values_are_packed_and_restored_by_their_owner() -> None:
    def pack(value: object) -> dict[str, Any] | None:
        return {"$seer": "handle", "id": "7"} if isinstance(value, Opaque) else None

    text = encode({"h": Opaque(), "t": (1,)}, [], extra=pack)
    assert decode(text, extra={"handle": lambda d: ("got", d["id"])}) == {
        "h": ("got", "7"),
        "t": (1,),
    }
    with pytest.raises(ProtocolError, match="unknown tag 'handle'"):
        decode(text)


# --- plain JSON ------------------------------------------------------------------------------


def test_a_peer_without_frames_gets_readable_json() -> None:
    value = {
        "tuple": (1, 2),
        "set": {3},
        "bytes": b"\x00\xff",
        "complex": 1 + 2j,
        "when": datetime.date(2024, 1, 2),
        "took": datetime.timedelta(seconds=1.5),
        "long": [1.5] * 100,
        "keys": {1: "a", None: "b", (1, 2): "c", "s": "d", Color.RED: "e"},
        "$seer": 1,
    }
    buffers: list[Any] = []
    plain = json.loads(encode(value, buffers, frames=False))
    assert buffers == []
    assert plain == {
        "tuple": [1, 2],
        "set": [3],
        "bytes": "AP8=",
        "complex": [1.0, 2.0],
        "when": "2024-01-02",
        "took": 1.5,
        "long": [1.5] * 100,
        "keys": {"1": "a", "null": "b", "[1, 2]": "c", "s": "d", "red": "e"},
        "$seer": 1,
    }


def test_two_keys_that_are_one_in_plain_json_are_an_error() -> None:
    with pytest.raises(ResultError, match="second value under the plain JSON key '1'"):
        encode({1: "a", "1": "b"}, [], frames=False)


# --- what a hostile peer may send ------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nope",
        b"{",
        b"1 2",
        b"\xff",
        b'"\xc3"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 200 + b"]" * 200,
        b"9" * 5000,
        b'{"$seer":"object","type":"os.system"}',
        b'{"$seer":["list"]}',
        b'{"$seer":null}',
        b'{"$seer":"tuple"}',
        b'{"$seer":"tuple","items":{}}',
        b'{"$seer":"tuple","items":[],"more":1}',
        b'{"$seer":"set","items":[[]]}',
        b'{"$seer":"dict","items":[1]}',
        b'{"$seer":"dict","items":[[1,2,3]]}',
        b'{"$seer":"dict","items":[[[],2]]}',
        b'{"$seer":"bytes","buffer":0}',
        b'{"$seer":"bytes","buffer":-1}',
        b'{"$seer":"bytes","buffer":true}',
        b'{"$seer":"bytes","buffer":"0"}',
        b'{"$seer":"complex","value":[1]}',
        b'{"$seer":"complex","value":[1,2]}',
        b'{"$seer":"complex","value":["1","2"]}',
        b'{"$seer":"int","hex":12}',
        b'{"$seer":"int","hex":"zz"}',
        b'{"$seer":"datetime","value":"soon"}',
        b'{"$seer":"datetime","value":3}',
        b'{"$seer":"timedelta","value":[1]}',
        b'{"$seer":"timedelta","value":[1e300,0,0]}',
        b'{"$seer":"timedelta","value":["1",0,0]}',
    ],
)
def test_malformed_text_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(text)


def test_numbers_of_a_broken_length_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="7 bytes are not a whole number"):
        decode(b'{"$seer":"floats","buffer":0}', [b"1234567"])
    assert decode(b'{"$seer":"floats","buffer":0}', [b""]) == []


def test_buffers_of_any_layout_are_read_as_bytes() -> None:
    numbers = memoryview(struct.pack("<2d", 1.5, 2.5)).cast("d")
    assert decode(b'{"$seer":"floats","buffer":0}', [numbers]) == [1.5, 2.5]


def test_limits_on_size_and_depth_are_kept() -> None:
    with pytest.raises(ProtocolError, match="a value of 12 bytes of JSON; the limit is 10"):
        decode(b'"0123456789"', limits=DecodeLimits(text_bytes=10))
    shallow = DecodeLimits(depth=2)
    assert decode(b"[[],[1]]", limits=shallow) == [[], [1]]
    tagged = b'[{"$seer":"tuple","items":[[1]]}]'
    for deep in (b"[[[]]]", b'{"a":{"b":{"c":[]}}}', tagged):
        with pytest.raises(ProtocolError, match="deeper than 2"):
            decode(deep, limits=shallow)
    keys = (
        b'{"$seer":"dict","items":[[{"$seer":"tuple","items":[{"$seer":"tuple","items":[1]}]},2]]}'
    )
    with pytest.raises(ProtocolError, match="deeper than 2"):
        decode(keys, limits=shallow)


def test_brackets_in_text_are_no_depth() -> None:
    text = "[{" * 200
    assert round_trip(text) == text


def test_white_space_around_json_is_accepted() -> None:
    assert decode(b' \n{"a": 1}\n') == {"a": 1}
    assert decode(memoryview(b'{"a": 1}\n')) == {"a": 1}


def test_an_escaped_tag_is_only_an_odd_key() -> None:
    assert decode(b'{"\\u0024seer":"tuple","items":[]}') == {"$seer": "tuple", "items": []}


@given(st.binary(max_size=200))
@settings(max_examples=80, deadline=None)
def test_random_bytes_decode_or_are_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(data, [data])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
tags = st.sampled_from([*sorted(_unpack._KNOWN), "nope"])
names = st.sampled_from(
    ["items", "value", "buffer", "dtype", "shape", "hex", "columns", "index", "column"]
)
hostile = st.builds(
    lambda tag, fields: {"$seer": tag, **fields},
    tags,
    st.dictionaries(names, json_values | st.sampled_from([0, 1, "<f4", [2], [], "float32"])),
)


@given(hostile, st.binary(max_size=64))
@settings(max_examples=100, deadline=None)
def test_random_tagged_objects_decode_or_are_a_protocol_error(value: Any, data: bytes) -> None:
    for torch in (False, True):
        with contextlib.suppress(ProtocolError):
            decode(json.dumps([value]).encode(), [data, b"\0" * 8], torch=torch)


# --- the rest --------------------------------------------------------------------------------


def test_many_numbers_in_lists_are_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pack, "_warned", False)
    monkeypatch.setattr(_pack, "MANY_NUMBERS", 1000)
    monkeypatch.setattr(_values, "MANY_NUMBERS", 1000)
    with pytest.warns(UserWarning, match="an array .* is many times faster"):
        encode([[1, "x"]] * 2000, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode([1.5] * 2000, [])
    monkeypatch.setattr(_pack, "_warned", False)
    with pytest.warns(UserWarning, match="sent as a list"):
        encode([[1.5] * 100] * 20, [])


def test_values_are_written_alike_without_the_c_encoder() -> None:
    slow = _values._make_dump(None)
    value = {"a": [1, 2.5, None, math.inf], "é": "\ud800"}
    assert slow(value) == _values.write_json(value)
