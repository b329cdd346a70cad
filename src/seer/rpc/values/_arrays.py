"""Arrays, tensors and images on the wire.

Arrays are sent as raw C-ordered memory with a dtype and a shape. A tensor on a GPU is not copied
here: the transport gets a `TensorBuffer`, which copies it directly to its destination. numpy, torch
and PIL are used only for their own values.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ..wire._protocol import RemoteBuffer
from ._pack import TAG, UNKNOWN, Unsendable, known_class

if TYPE_CHECKING:
    from ._pack import Packer, Scrub
    from ._unpack import Unpacker

PLAIN_ARRAY_ITEMS = 100_000
"""The largest array that is written as nested lists, for a peer that reads only JSON."""
MAX_PIXELS = 100_000_000

# Only plain numbers, times and fixed-width text. An object dtype would make raw bytes pointers.
_DTYPE = re.compile(
    r"[|<](?:b1|[iu][1248]|f[248]|f16|c8|c16|c32)|<[mM]8(?:\[\d{0,6}[a-zA-Zμ]{1,7}\])?|[<|][US]\d{1,9}"
)
# Torch's dtypes by name, the width in bytes, and the numpy dtype that holds the same bits.
_TORCH = {
    "bool": (1, "|b1"),
    "uint8": (1, "|u1"),
    "int8": (1, "|i1"),
    "int16": (2, "<i2"),
    "uint16": (2, "<u2"),
    "int32": (4, "<i4"),
    "uint32": (4, "<u4"),
    "int64": (8, "<i8"),
    "uint64": (8, "<u8"),
    "float16": (2, "<f2"),
    "bfloat16": (2, ""),
    "float32": (4, "<f4"),
    "float64": (8, "<f8"),
    "complex64": (8, "<c8"),
    "complex128": (16, "<c16"),
}


class RawArray:
    """An array as received, for readers without numpy.

    Attributes:
        dtype: As numpy writes it (`<f4`); for tensors also `bfloat16`.
        shape: The shape.
        data: The memory, C-ordered.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data

    def __repr__(self) -> str:
        return f"RawArray(dtype={self.dtype!r}, shape={self.shape})"


class TensorBuffer(RemoteBuffer):
    """A tensor's memory that is still on a device.

    Attributes:
        nbytes: How many bytes it has.
        tensor: The tensor, contiguous.
    """

    __slots__ = ("nbytes", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.nbytes: int = tensor.numel() * tensor.element_size()

    def copy_into(self, target: memoryview) -> None:
        """Copy the memory to `target`, which is writable and has `nbytes` bytes."""
        if not self.nbytes:
            return
        torch = sys.modules["torch"]
        flat = self.tensor.reshape(-1).view(torch.uint8)
        torch.frombuffer(target, dtype=torch.uint8).copy_(flat)


# --- sending ---------------------------------------------------------------------------------


def pack(packer: Packer, value: Any) -> Any:
    """The tree for an array, a numpy scalar, a tensor or an image; `UNKNOWN` for others."""
    if isinstance(value, known_class("numpy", "ndarray")):
        return _pack_array(packer, value)
    if isinstance(value, known_class("numpy", "generic")):
        return _pack_scalar(packer, value)
    if isinstance(value, known_class("torch", "Tensor")):
        return _pack_tensor(packer, value)
    if isinstance(value, known_class("PIL.Image", "Image")):
        return _pack_image(packer, value)
    return UNKNOWN


def _pack_array(packer: Packer, array: Any) -> Any:
    dtype: str = array.dtype.str
    if dtype.startswith(">"):
        array = array.astype(array.dtype.newbyteorder("<"))
        dtype = array.dtype.str
    if not _DTYPE.fullmatch(dtype):
        if array.dtype.hasobject:
            raise Unsendable("is an array of objects (dtype=object), which has no raw memory")
        raise Unsendable(f"is an array of dtype {array.dtype}, which cannot be sent")
    if isinstance(array, sys.modules["numpy"].ma.MaskedArray):
        raise Unsendable("is a masked array; send `.filled(...)`, or data and mask separately")
    shape = list(array.shape)
    if packer.scrub is not None and array.dtype.kind in "SU":
        array = _scrubbed(packer.scrub, array)
        dtype = array.dtype.str
    if not packer.frames:
        _check_plain(array.size, shape)
        return _plain_list(array)
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    return {TAG: "array", "buffer": packer.add(_memory(array)), "dtype": dtype, "shape": shape}


def _scrubbed(scrub: Scrub, array: Any) -> Any:
    """An array of texts after scrubbing, with the width that the scrubbed texts need."""
    items = [scrub(item) for item in array.ravel().tolist()]
    return sys.modules["numpy"].array(items, dtype=array.dtype.kind).reshape(array.shape)


def _memory(array: Any) -> Any:
    if not array.nbytes:
        return b""
    return memoryview(array.reshape(-1).view("u1"))


def _plain_list(array: Any) -> Any:
    if array.dtype.kind == "c":
        return array.view(array.real.dtype).reshape(*array.shape, 2).tolist()
    if array.dtype.kind in "mMS":
        return array.astype(str).tolist()
    return array.tolist()


def _check_plain(size: int, shape: list[int]) -> None:
    if size > PLAIN_ARRAY_ITEMS:
        raise Unsendable(
            f"is an array of shape {shape} with {size} numbers, but plain JSON carries at most "
            f"{PLAIN_ARRAY_ITEMS}; ask for a part of it, or use a client that reads frames"
        )


def _pack_scalar(packer: Packer, scalar: Any) -> Any:
    kind = scalar.dtype.kind
    if kind in "biufcSU":
        # Not `item`, which returns numpy's own type for long doubles.
        exact = {"b": bool, "i": int, "u": int, "f": float, "c": complex, "S": bytes, "U": str}
        return packer.pack(exact[kind](scalar), 1)
    return _pack_array(packer, sys.modules["numpy"].asarray(scalar))


def _pack_tensor(packer: Packer, tensor: Any) -> Any:
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TORCH:
        raise Unsendable(f"is a tensor of dtype {name}, which cannot be sent; convert it first")
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        what = "on the meta device" if tensor.device.type == "meta" else f"of {tensor.layout}"
        raise Unsendable(f"is a tensor {what}, which has no memory that could be sent")
    shape = list(tensor.shape)
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not packer.frames:
        _check_plain(tensor.numel(), shape)
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        return tensor.tolist()
    on_cpu = tensor.device.type == "cpu"
    buffer = _tensor_memory(tensor) if on_cpu else TensorBuffer(tensor)
    return {TAG: "torch", "buffer": packer.add(buffer), "dtype": name, "shape": shape}


def _tensor_memory(tensor: Any) -> Any:
    """The memory of a contiguous tensor on the CPU; without numpy, which may not be installed."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return b""
    import ctypes

    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.tensor = tensor  # a view of the memory keeps it alive
    return memoryview(memory).cast("B")


def _pack_image(packer: Packer, image: Any) -> Any:
    import io

    if image.mode in ("F", "I;16B", "I;16L"):
        raise Unsendable(f"is an image of mode {image.mode}; send it as a numpy array")
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"):
        image = image.convert("RGBA" if image.mode in ("La", "RGBa", "PA") else "RGB")
    out = io.BytesIO()
    image.save(out, format="PNG", compress_level=1)
    if not packer.frames:
        return packer.pack(out.getvalue(), 1)
    return {TAG: "image", "buffer": packer.add(out.getvalue())}


# --- receiving -------------------------------------------------------------------------------


def unpack_array(unpacker: Unpacker, found: dict[str, Any]) -> Any:
    """The array of a tagged object, as a view of its buffer."""
    dtype, shape, data = found["dtype"], _shape(found), unpacker.buffer(found["buffer"])
    if type(dtype) is not str or not _DTYPE.fullmatch(dtype):
        raise ProtocolError(f"arrays of dtype {dtype!r} are not accepted")
    if unpacker.raw:
        _check_size(shape, int(re.sub(r"\[.*|\D", "", dtype)) * (4 if "U" in dtype else 1), data)
        return RawArray(dtype, shape, data)
    return _numpy_array(_import("numpy"), dtype, shape, data)


def unpack_tensor(unpacker: Unpacker, found: dict[str, Any]) -> Any:
    """The tensor of a tagged object: a torch tensor if requested, else a numpy array."""
    name, shape, data = found["dtype"], _shape(found), unpacker.buffer(found["buffer"])
    if type(name) is not str or name not in _TORCH:
        raise ProtocolError(f"tensors of dtype {name!r} are not accepted")
    width, dtype = _TORCH[name]
    _check_size(shape, width, data)
    if unpacker.raw:
        return RawArray(dtype or name, shape, data)
    if unpacker.torch and (torch := _import("torch", optional=True)) is not None:
        return _torch_tensor(torch, getattr(torch, name), shape, data)
    numpy = _import("numpy")
    if dtype:
        return _numpy_array(numpy, dtype, shape, data)
    # bfloat16 is the upper half of a float32, so widening it is exact.
    bits = _numpy_array(numpy, "<u2", shape, data).astype("<u4") << 16
    return bits.view("<f4")


def unpack_image(unpacker: Unpacker, found: dict[str, Any]) -> Any:
    """The image of a tagged object; PNG is the only format that is read."""
    data = bytes(unpacker.buffer(found["buffer"]))
    if unpacker.raw:
        return data
    _import("PIL")
    return open_png(data)


def open_png(data: bytes) -> Any:
    """Decode a PNG of bounded size.

    Raises:
        ProtocolError: It is not a PNG, or too large.
    """
    import io

    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=["PNG"])
        if image.width * image.height > MAX_PIXELS:
            raise ProtocolError(f"an image of {image.width} x {image.height} pixels is too large")
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise ProtocolError(f"not a PNG image: {error}") from None
    return image


def _shape(found: dict[str, Any]) -> tuple[int, ...]:
    shape = found["shape"]
    if not is_list(shape) or not all(type(n) is int and n >= 0 for n in shape):
        raise ProtocolError(f"shape {shape!r} is not a list of sizes")
    if len(shape) > 32:
        raise ProtocolError("an array of more than 32 dimensions")
    return tuple(shape)


def is_list(value: Any) -> bool:
    """Whether a value is exactly a list. Unlike `type(value) is list`, it narrows no type."""
    return type(value) is list


def _check_size(shape: tuple[int, ...], width: int, data: memoryview) -> None:
    needed = width
    for size in shape:
        needed *= size
    if needed != len(data):
        raise ProtocolError(f"shape {list(shape)} needs {needed} bytes, but {len(data)} came")


def _numpy_array(numpy: Any, dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    kind = numpy.dtype(dtype)
    _check_size(shape, kind.itemsize, data)
    if not len(data):
        return numpy.empty(shape, dtype=kind)
    return numpy.ndarray(shape, dtype=kind, buffer=data)


def _torch_tensor(torch: Any, dtype: Any, shape: tuple[int, ...], data: memoryview) -> Any:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    if data.readonly:
        # torch has no read-only tensors, and writing to shared memory would be undefined.
        data = memoryview(bytearray(data))
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _import(name: str, *, optional: bool = False) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        if optional:
            return None
        raise ProtocolError(
            f"the value needs {name}, which is not installed here; install it, or send lists"
        ) from None
