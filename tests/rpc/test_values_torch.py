"""Tensors on the wire."""

# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seer.errors import ProtocolError, ResultError
from seer.rpc.values._arrays import RawArray, TensorBuffer
from seer.rpc.values._codec import decode, encode

torch: Any = pytest.importorskip("torch")

INTEGERS = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES = [*INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def round_trip(value: object, **options: Any) -> Any:
    buffers: list[Any] = []
    text = encode(value, buffers)
    return decode(text, [bytearray(buffer) for buffer in buffers], **options)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_tensors_come_back_as_tensors_where_asked(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    tensor = torch.ones(shape).to(dtype)
    back = round_trip({"t": tensor}, torch=True)["t"]
    assert back.dtype is dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_arrive_as_numpy_by_default(name: str) -> None:
    tensor = torch.tensor([1, 0, 1]).to(getattr(torch, name))
    back = round_trip(tensor)
    assert type(back) is np.ndarray
    assert back.dtype.name == ("float32" if name == "bfloat16" else name)
    assert (back == np.array([1, 0, 1])).all()


def test_bfloat16_keeps_every_value_as_float32() -> None:
    tensor = torch.tensor([1.5, -0.0, float("inf"), 3.140625, 1e-30]).to(torch.bfloat16)
    assert round_trip(tensor).tolist() == tensor.float().tolist()


def test_tensors_of_any_layout_and_with_gradients_are_sent() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    assert torch.equal(round_trip(tensor, torch=True), tensor)
    assert torch.equal(round_trip(torch.nn.Parameter(tensor.detach()), torch=True), tensor)
    conjugate = torch.tensor([1 + 2j]).conj()
    assert round_trip(conjugate).tolist() == [1 - 2j]


def test_a_tensor_on_the_cpu_is_not_copied() -> None:
    tensor = torch.zeros(4)
    buffers: list[Any] = []
    encode(tensor, buffers)
    tensor[0] = 1.0
    assert bytes(buffers[0])[:4] == np.float32(1).tobytes()


def test_a_tensor_from_read_only_memory_is_a_copy() -> None:
    buffers: list[Any] = []
    text = encode(torch.ones(3), buffers)
    back = decode(text, [bytes(buffers[0])], torch=True)
    back[0] = 5
    assert back.tolist() == [5, 1, 1]


def test_a_buffer_on_a_device_is_copied_where_it_shall_lie() -> None:
    buffer = TensorBuffer(torch.arange(3.0).to(torch.bfloat16))
    target = bytearray(buffer.nbytes)
    buffer.copy_into(memoryview(target))
    assert torch.frombuffer(target, dtype=torch.bfloat16).tolist() == [0.0, 1.0, 2.0]
    TensorBuffer(torch.zeros(0)).copy_into(memoryview(b""))


def test_a_tensor_on_a_device_is_handed_over_uncopied() -> None:
    class OnDevice(torch.Tensor):
        device = property(lambda self: SimpleNamespace(type="cuda"))

    buffers: list[Any] = []
    encode(torch.arange(4.0).as_subclass(OnDevice), buffers)
    (buffer,) = buffers
    assert isinstance(buffer, TensorBuffer)
    assert buffer.nbytes == 16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(2, 2).to_sparse(), "is a tensor of torch.sparse_coo"),
        (lambda: torch.zeros(2, device="meta"), "is a tensor on the meta device"),
        (lambda: torch.zeros(2).to(torch.float8_e4m3fn), "is a tensor of dtype float8_e4m3fn"),
        (lambda: torch.nn.Linear(1, 1), "is a torch.nn.Linear"),
        (lambda: torch.float32, "is a torch.dtype"),
    ],
)
def test_tensors_without_plain_memory_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ResultError, match=rf"result\['a'\]\[3\] {message}"):
        encode({"a": [1, 2, 3, make()]}, [])


def test_torch_sizes_arrive_as_tuples() -> None:
    assert round_trip(torch.zeros(2, 3).shape) == (2, 3)


def test_a_peer_without_frames_gets_tensors_as_lists() -> None:
    assert json.loads(encode(torch.tensor([[1.5], [2.5]]), [], frames=False)) == [[1.5], [2.5]]
    assert json.loads(encode(torch.tensor([1 + 2j]), [], frames=False)) == [[1.0, 2.0]]
    with pytest.raises(ResultError, match="but plain JSON carries at most"):
        encode(torch.zeros(200_000), [], frames=False)


def test_readers_without_numpy_or_torch_get_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers: list[Any] = []
    text = encode(torch.ones(2, dtype=torch.bfloat16), buffers)
    raw = decode(text, buffers, raw=True)
    assert isinstance(raw, RawArray)
    assert (raw.dtype, raw.shape) == ("bfloat16", (2,))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert decode(text, buffers, torch=True).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", ["float8", 3, "ones", "<f4"])
def test_tensors_of_unknown_dtypes_are_a_protocol_error(dtype: Any) -> None:
    text = json.dumps({"$seer": "torch", "buffer": 0, "dtype": dtype, "shape": [2]}).encode()
    with pytest.raises(ProtocolError, match="tensors of dtype"):
        decode(text, [b"12345678"])


@pytest.mark.full
def test_tensors_are_sent_where_numpy_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(name='numpy')")
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch\n"
        "from seer.rpc.values._codec import decode, encode\n"
        "values = [torch.arange(6.0).reshape(2, 3).T, torch.tensor([True, False]),\n"
        "          torch.tensor([1.5, -2], dtype=torch.bfloat16), torch.zeros(0, 4)]\n"
        "buffers = []\n"
        "text = encode(values, buffers)\n"
        "back = decode(text, [bytearray(b) for b in buffers], torch=True)\n"
        "assert all(torch.equal(a, b) for a, b in zip(values, back, strict=True)), back\n"
        "print(len(buffers))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.split() == ["4"], done.stderr


def test_the_memory_of_a_tensor_outlives_the_tensor() -> None:
    buffers: list[Any] = []
    encode(torch.full((1000,), 7.0), buffers)
    others = [torch.full((1000,), float(i)) for i in range(50)]
    assert np.frombuffer(buffers[0], np.float32).tolist() == [7.0] * 1000
    assert len(others) == 50
