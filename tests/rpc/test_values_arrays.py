"""Arrays, tensors, images and frames on the wire."""

# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import datetime
import io
import json
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from seer.errors import ProtocolError, ResultError
from seer.rpc.values import _arrays
from seer.rpc.values._arrays import RawArray
from seer.rpc.values._codec import decode, encode


def round_trip(value: object, **options: Any) -> Any:
    buffers: list[Any] = []
    text = encode(value, buffers)
    return decode(text, [bytearray(buffer) for buffer in buffers], **options)


def same_array(a: Any, b: Any) -> bool:
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="<")
    | hnp.unsigned_integer_dtypes(endianness="<")
    | hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="<", sizes=(64, 128))
    | hnp.datetime64_dtypes(endianness="<")
    | hnp.timedelta64_dtypes(endianness="<")
    | hnp.unicode_string_dtypes(endianness="<", min_len=1)
    | hnp.byte_string_dtypes(min_len=1)
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(hnp.arrays(dtypes, shapes), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_array_comes_back_the_same(array: Any, fortran: bool) -> None:
    if fortran:
        array = np.asfortranarray(array) if array.ndim else array
    back = round_trip({"a": array, "n": 1})["a"]
    assert same_array(back, array)
    raw = round_trip([array], raw=True)[0]
    assert isinstance(raw, RawArray)
    assert (raw.dtype, raw.shape) == (array.dtype.str, array.shape)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12)[::-2],
        np.broadcast_to(np.float32(1), (2, 3)),
        np.array(3.5),
        np.zeros((0, 3)),
        np.zeros((2, 0), "U4"),
    ],
)
def test_arrays_of_any_layout_arrive_in_order(array: Any) -> None:
    assert same_array(round_trip(array), np.asarray(array))


def test_other_byte_orders_arrive_in_the_native_one() -> None:
    back = round_trip(np.array([1, 2], ">i4"))
    assert back.tolist() == [1, 2]
    assert back.dtype.str == "<i4"


def test_arrays_are_views_of_the_buffers() -> None:
    memory = bytearray(np.zeros(3, "<f4").tobytes())
    array = decode(b'{"$seer":"array","buffer":0,"dtype":"<f4","shape":[3]}', [memory])
    memory[:4] = np.float32(7).tobytes()
    assert array[0] == 7
    array[1] = 5
    frozen = decode(b'{"$seer":"array","buffer":0,"dtype":"<f4","shape":[3]}', [bytes(memory)])
    assert frozen[1] == 5
    assert not frozen.flags.writeable


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [
        (np.float32(1.5), 1.5),
        (np.float64(2.5), 2.5),
        (np.int64(3), 3),
        (np.uint8(4), 4),
        (np.bool_(True), True),
        (np.complex64(1j), 1j),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.longdouble(0.5), 0.5),
    ],
)
def test_numpy_scalars_arrive_as_plain_values(scalar: Any, plain: Any) -> None:
    back = round_trip({"a": [scalar]})["a"][0]
    assert back == plain
    assert type(back) is type(plain)


def test_numpy_times_arrive_as_arrays_without_dimensions() -> None:
    assert round_trip(np.datetime64("2024-01-02", "ns")) == np.datetime64("2024-01-02", "ns")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([object()]), r"array of objects \(dtype=object\)"),
        (np.zeros(2, [("a", "i4")]), "array of dtype"),
        (np.ma.array([1, 2], mask=[False, True]), "masked array"),
        (np.random.default_rng(0), r"is a numpy\.random\.Generator"),
    ],
)
def test_arrays_without_plain_memory_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ResultError, match=rf"result\[0\] is an? .*{message.removeprefix('is a ')}"):
        encode([value], [])


def test_a_peer_without_frames_gets_arrays_as_lists_within_a_bound() -> None:
    def plain(value: object) -> Any:
        return json.loads(encode(value, [], frames=False))

    assert plain(np.arange(4.0).reshape(2, 2)) == [[0.0, 1.0], [2.0, 3.0]]
    assert plain(np.array([1 + 2j], "c8")) == [[1.0, 2.0]]
    assert plain(np.array(["2024-01-02"], "M8[D]")) == ["2024-01-02"]
    assert plain(np.array([b"ab"])) == ["ab"]
    assert plain(np.float32(0.5)) == 0.5
    with pytest.raises(ResultError, match=r"array of shape \[400, 400\] with 160000 numbers"):
        plain(np.zeros((400, 400)))


@pytest.mark.parametrize(
    "found",
    [
        {"dtype": "O", "shape": [1]},
        {"dtype": "|O", "shape": [1]},
        {"dtype": ">f4", "shape": [2]},
        {"dtype": "<f4,<f4", "shape": [1]},
        {"dtype": "<V8", "shape": [1]},
        {"dtype": 3, "shape": [2]},
        {"dtype": "<f4", "shape": [3]},
        {"dtype": "<f4", "shape": [-1]},
        {"dtype": "<f4", "shape": [True, 2]},
        {"dtype": "<f4", "shape": 2},
        {"dtype": "<f4", "shape": [2**62, 2**62, 4]},
        {"dtype": "<f4", "shape": [1] * 33},
        {"dtype": "<M8[nonsense]", "shape": [1]},
        {"dtype": "<U0", "shape": [2**62]},
    ],
)
def test_arrays_that_do_not_fit_their_buffer_are_a_protocol_error(found: dict[str, Any]) -> None:
    text = json.dumps({"$seer": "array", "buffer": 0, **found}).encode()
    with pytest.raises(ProtocolError):
        decode(text, [b"12345678"])


def test_without_numpy_an_array_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"$seer":"array","buffer":0,"dtype":"<f4","shape":[2]}'
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ProtocolError, match="needs numpy, which is not installed here"):
        decode(text, [b"12345678"])
    raw = decode(text, [b"12345678"], raw=True)
    assert repr(raw) == "RawArray(dtype='<f4', shape=(2,))"
    assert bytes(raw.data) == b"12345678"


# --- images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_images_keep_mode_and_pixels(mode: str) -> None:
    image = (
        Image.new("L", (3, 2), 7).convert(mode) if mode != "I;16" else Image.new(mode, (3, 2), 9)
    )
    back = round_trip({"i": image})["i"]
    assert (back.mode, back.size, back.tobytes()) == (image.mode, image.size, image.tobytes())


def test_images_of_other_modes_are_converted_or_refused() -> None:
    assert round_trip(Image.new("CMYK", (2, 2))).mode == "RGB"
    assert round_trip(Image.new("RGBa", (2, 2))).mode == "RGBA"
    with pytest.raises(ResultError, match="image of mode F; send it as a numpy array"):
        encode(Image.new("F", (2, 2)), [])


def test_images_as_raw_or_plain_are_png() -> None:
    image = Image.new("RGB", (2, 2))
    raw = round_trip(image, raw=True)
    assert raw.startswith(b"\x89PNG")
    assert json.loads(encode(image, [], frames=False)).startswith("iVBOR")


def test_images_that_are_no_png_or_too_large_are_a_protocol_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = b'{"$seer":"image","buffer":0}'
    with pytest.raises(ProtocolError, match="not a PNG"):
        decode(text, [b"GIF89a"])
    jpeg = io.BytesIO()
    Image.new("RGB", (2, 2)).save(jpeg, "JPEG")
    with pytest.raises(ProtocolError, match="not a PNG"):
        decode(text, [jpeg.getvalue()])
    monkeypatch.setattr(_arrays, "MAX_PIXELS", 3)
    with pytest.raises(ProtocolError, match="2 x 2 pixels is too large"):
        round_trip(Image.new("RGB", (2, 2)))


# --- frames ----------------------------------------------------------------------------------


FRAMES = [
    pd.DataFrame({"a": [1, 2], "b": [1.5, None], "c": ["x", None], "d": [True, False]}),
    pd.DataFrame({"a": [1]}, index=pd.Index(["r"], name="rows")),
    pd.DataFrame({("a", 1): [1], ("b", 2): [2]}),
    pd.DataFrame([[1, 2]], columns=["a", "a"]),
    pd.DataFrame(index=pd.RangeIndex(3)),
    pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([(1, "x"), (2, "y")])),
    pd.DataFrame({"a": [1]}, index=pd.RangeIndex(1, name="n")),
    pd.DataFrame({"t": pd.to_datetime(["2024-01-02"]), "d": pd.to_timedelta([5], unit="s")}),
    pd.DataFrame({"t": pd.to_datetime(["2024-01-02", None]).tz_localize("Europe/Berlin")}),
    pd.DataFrame({"c": pd.Categorical(["u", "v", "u"])}),
    pd.DataFrame({"i": pd.array([1, None], dtype="Int64"), "s": pd.array(["a", None], "string")}),
    pd.DataFrame({"o": pd.Series([[1], {"a": 2}], dtype=object)}),
]


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_come_back_the_same(frame: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(round_trip([frame])[0], frame)


def test_series_and_indexes_come_back() -> None:
    series = pd.Series([1.5, 2.5], index=["a", "b"], name="s")
    pd.testing.assert_series_equal(round_trip(series), series)
    assert round_trip(pd.Index([1, 2])) == [1, 2]
    assert round_trip(pd.array([1, None], dtype="Int64")) == [1, None]


def test_single_values_of_pandas_arrive_as_plain_ones() -> None:
    moment = pd.Timestamp("2024-01-02T03:04:05")
    assert round_trip(moment) == moment.to_pydatetime()
    assert json.loads(encode(moment, [], frames=False)) == "2024-01-02T03:04:05"
    assert round_trip(pd.Timedelta(seconds=5)) == datetime.timedelta(seconds=5)
    assert round_trip([pd.NA, pd.NaT]) == [None, None]


def test_frames_for_plain_json_are_lists_per_column() -> None:
    def plain(value: object) -> Any:
        return json.loads(encode(value, [], frames=False))

    assert plain(pd.DataFrame({"a": [1, 2], 3: ["x", None]})) == {"a": [1, 2], "3": ["x", None]}
    assert plain(pd.Series([1, 2])) == [1, 2]
    with pytest.raises(ResultError, match="duplicate column names"):
        plain(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_frames_with_columns_that_cannot_be_sent_name_the_column() -> None:
    with pytest.raises(ResultError, match=r"result\['p'\] has the dtype period\[D\]"):
        encode(pd.DataFrame({"p": pd.period_range("2024", periods=1, freq="D")}), [])
    with pytest.raises(ResultError, match=r"result\['o'\]\[0\] is a object"):
        encode(pd.DataFrame({"o": pd.Series([object()], dtype=object)}), [])
    with pytest.raises(ResultError, match=r"is a pandas\..*Period"):
        encode(pd.Period("2024"), [])


@pytest.mark.parametrize(
    "found",
    [
        {"$seer": "frame", "columns": 3, "index": 1},
        {"$seer": "frame", "columns": [[1, 2]], "index": 1},
        {"$seer": "frame", "columns": [["a", "os.system", []]], "index": 1},
        {"$seer": "frame", "columns": [["a", 3, []]], "index": 1},
        {"$seer": "frame", "columns": [["a", None, [1]], ["b", None, [1, 2]]], "index": 1},
        {"$seer": "frame", "columns": [], "index": []},
        {"$seer": "series", "column": 3, "index": 1},
        {"$seer": "series", "column": ["a", "Int64", ["x"]], "index": 1},
    ],
)
def test_malformed_frames_are_a_protocol_error(found: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        decode(json.dumps(found).encode())


def test_frames_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [encode(FRAMES[1], buffers := []), encode(FRAMES[1]["a"], more := [])]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ProtocolError, match="pandas is not installed"):
        decode(texts[0], buffers)
    raw = decode(texts[0], buffers, raw=True)
    assert raw["columns"][0][0] == "a"
    assert decode(texts[1], more, raw=True)["column"][0] == "a"
