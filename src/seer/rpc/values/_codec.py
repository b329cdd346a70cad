"""Values on the wire: any sendable value as JSON text plus raw buffers, and back.

`encode` writes UTF-8 JSON. A value that JSON cannot express exactly becomes an object with a
`"$seer"` field, which names a tag (`tuple`, `dict`, `set`, `bytes`, `floats`, `array`, ...). Bulk
data (arrays, tensors, bytes, long lists of numbers) is appended to `buffers` as raw memory, and the
JSON refers to it by index. Floats come back exactly, even NaN and infinities. Strings may contain
lone surrogates, and integers have no bound. `decode` reads data of a possibly hostile peer: it
looks up no class by a name from the wire, and everything that `encode` would not write is a
`ProtocolError`.

This module knows no functions, hints or sockets. It runs in sandboxes and in agents' jails, where
its package has another name, so it needs only the standard library and uses relative imports.
`MODULES` lists the modules that such a copy needs.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import (
    ArgumentError,
    ProtocolError,
    ResultError,
)
from ._pack import (
    LEAVES,
    LONG_LIST,
    MANY_NUMBERS,
    MAX_DEPTH,
    NUMBERS,
    STRINGS,
    TAG,
    Packer,
    Unsendable,
    pack_huge_ints,
    warn_many_numbers,
)
from ._unpack import Unpacker, deeper_than

if TYPE_CHECKING:
    from ._pack import AnyBuffer, Extra, Scrub
    from ._unpack import Restorers

MODULES = ("_arrays", "_kinds", "_pack", "_restore", "_tables", "_unpack", "_codec")

_NODES = LEAVES | {list, dict}
_RESULT = len('{"result":')


class DecodeLimits:
    """The limits of what `decode` accepts.

    Attributes:
        text_bytes: The length of the JSON text.
        depth: How deep containers may be nested.
    """

    __slots__ = ("depth", "text_bytes")

    def __init__(self, *, text_bytes: int = 256 << 20, depth: int = MAX_DEPTH + 2) -> None:
        self.text_bytes = text_bytes
        self.depth = depth


DEFAULT_LIMITS = DecodeLimits()


def encode(
    value: object,
    buffers: list[AnyBuffer],
    *,
    frames: bool = True,
    function: str = "",
    extra: Extra | None = None,
    scrub: Scrub | None = None,
) -> bytes:
    """Write `value` as JSON text, and its bulk data to `buffers`.

    Args:
        value: Any sendable value.
        buffers: Raw memory is appended here: C-contiguous objects with the buffer protocol, or
            `TensorBuffer`s for memory of a GPU.
        frames: False for a peer that reads only plain JSON: arrays become nested lists (within a
            bound), bytes become base64 text, tuples and sets become lists, and nothing is appended
            to `buffers`.
        function: The function whose result this is, for the error.
        extra: Called first for a value of a type that JSON lacks; returns its tagged object, or
            None if it does not know the type.
        scrub: Applied to bytes, and to the items of arrays of text, before they are written.

    Raises:
        ResultError: A part cannot be sent. The message has its path and type, and `buffers` is
            unchanged.
    """
    before = len(buffers)
    try:
        return _encode(value, buffers, frames, extra, scrub)
    except Unsendable as problem:
        del buffers[before:]
        raise unsendable_result(problem, function) from None


def unsendable_result(problem: Unsendable, function: str) -> ResultError:
    """The error for a result with a part that cannot be sent."""
    which = f"{function}() returned a value that cannot be sent: " if function else ""
    return ResultError(f"{which}result{''.join(problem.path)} {problem.what}")


def encode_call(
    function: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    buffers: list[AnyBuffer],
    *,
    extra: Extra | None = None,
) -> bytes:
    """Write a call's arguments as the JSON of `[args, kwargs]`.

    Raises:
        ArgumentError: An argument cannot be sent. The message has its path and type.
    """
    before = len(buffers)
    if not kwargs and LEAVES.issuperset(map(type, args)):
        # Most calls end here: this check costs less than the general one.
        return _write([list(args), {}])
    try:
        return _encode([list(args), dict(kwargs)], buffers, True, extra)
    except Unsendable as problem:
        del buffers[before:]
        where, inner = problem.path[1][1:-1], "".join(problem.path[2:])
        name = f"argument {int(where) + 1}" if problem.path[0] == "[0]" else f"argument {where}"
        raise ArgumentError(f"{function}() was not called: {name}{inner} {problem.what}") from None


def decode(
    text: bytes | bytearray | memoryview,
    buffers: Sequence[Any] = (),
    *,
    limits: DecodeLimits = DEFAULT_LIMITS,
    torch: bool = False,
    raw: bool = False,
    extra: Restorers | None = None,
) -> Any:
    """Read what `encode` wrote.

    Args:
        text: The JSON text.
        buffers: The raw buffers, as objects with the buffer protocol. Arrays are views of them, and
            writable if the buffer is.
        limits: The limits of what is accepted.
        torch: Whether tensors come back as `torch.Tensor`s, if torch can be imported. Otherwise
            they are numpy arrays, with `bfloat16` as float32.
        raw: Whether arrays and tensors come back as `RawArray` (dtype, shape, memory), so that
            numpy is not needed, and images as their PNG bytes.
        extra: Makes the values of tags that are not known here.

    Raises:
        ProtocolError: The text is not what `encode` writes, or breaks a limit.
    """
    size = len(text)
    if size > limits.text_bytes:
        raise ProtocolError(f"a value of {size} bytes of JSON; the limit is {limits.text_bytes}")
    try:
        string = (
            text.decode("utf-8", "surrogatepass")
            if isinstance(text, bytes)  # twice as fast as the other branch
            else str(text, "utf-8", "surrogatepass")
        )
        # If a peer writes the tag with escapes, the object stays a dict.
        if TAG in string:
            value = Unpacker(buffers, torch=torch, raw=raw, extra=extra).read(string)
        else:
            value = parse_json(string)
    except ProtocolError:
        raise
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a value of the gate's wire format: {error}") from None
    if string.count("[") + string.count("{") > limits.depth and deeper_than(value, limits.depth):
        raise ProtocolError(f"a value nested deeper than {limits.depth} levels")
    return value


def decode_result(text: bytes, *, torch: bool, extra: Restorers) -> Any:
    """`decode(text)["result"]` for a text without buffers; faster for short texts."""
    # A text this short cannot be nested too deeply.
    if len(text) <= MAX_DEPTH:
        try:
            string = text.decode()
            value, end = _scan(string, _RESULT)
        except (ValueError, StopIteration):
            return decode(text, torch=torch, extra=extra)["result"]
        if string[:_RESULT] == '{"result":' and string[end:] == "}" and TAG not in string:
            return value
    return decode(text, torch=torch, extra=extra)["result"]


def decode_plain_call(text: bytes) -> tuple[list[Any], dict[str, Any]] | None:
    """Decode the arguments of a usual call faster; None if `decode` must read or refuse them.

    The text must be shorter than `DEFAULT_LIMITS.text_bytes`.
    """
    try:
        string = text.decode()
        value, end = _scan(string, 0)
        if end != len(string) or TAG in string:
            return None
        args, kwargs = value
    except (ValueError, TypeError, StopIteration, RecursionError):
        return None
    if args.__class__ is not list or kwargs.__class__ is not dict or value.__class__ is not list:
        return None
    if end > DEFAULT_LIMITS.depth and string.count("[") + string.count("{") > DEFAULT_LIMITS.depth:
        return None
    return value


def parse_json(string: str) -> Any:
    """A faster `json.loads` for usual text; unusual text goes to `json.loads` itself."""
    try:
        value, end = _scan(string, 0)
    except StopIteration:
        return json.loads(string)
    return value if end == len(string) else json.loads(string)


def _encode(
    value: Any,
    buffers: list[AnyBuffer],
    frames: bool,
    extra: Extra | None,
    scrub: Scrub | None = None,
) -> bytes:
    if not (frames and (type(value) in LEAVES or _is_plain(value, MAX_DEPTH))):
        value = Packer(buffers, frames, extra, scrub).pack(value, MAX_DEPTH)
    return _write(value)


def _write(value: Any) -> bytes:
    """The JSON of a value that JSON can hold."""
    try:
        text = write_json(value)
    except ValueError:
        # An integer above Python's limit of digits. The buffers that were added stay valid.
        text = write_json(pack_huge_ints(value))
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    if len(data) > 2 * MANY_NUMBERS and data.count(b",") > MANY_NUMBERS:
        warn_many_numbers()
    return data


def _is_plain(value: Any, depth: int) -> bool:
    """Whether the C encoder alone writes `value` so that the same value is read back."""
    kind: Any = type(value)
    if kind is dict:
        if not STRINGS.issuperset(map(type, value)) or TAG in value:
            return False
        items: Any = value.values()
    elif kind is list:
        if len(value) >= LONG_LIST and type(value[0]) in NUMBERS:
            return False
        items = value
    else:
        return kind in LEAVES
    if LEAVES.issuperset(map(type, items)):
        return depth > 0
    if depth <= 0 or not _NODES.issuperset(map(type, items)):
        return False
    for item in items:
        kind = type(item)
        if (kind is dict or kind is list) and not _is_plain(item, depth - 1):
            return False
    return True


def _make_dump(make_encoder: Any) -> Callable[[Any], str]:
    """The C encoder, made once. `json.dumps` makes one per call, which takes half its time."""
    encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
    if make_encoder is None:
        return encoder.encode
    quote = getattr(json.encoder, "encode_basestring")  # noqa: B009 (not in the type stubs)
    write = make_encoder(None, encoder.default, quote, None, ":", ",", False, False, True)
    join = "".join
    return lambda value: join(write(value, 0))


write_json = _make_dump(getattr(json.encoder, "c_make_encoder", None))
"""Writes plain data as compact JSON."""
_scan: Callable[[str, int], tuple[Any, int]] = getattr(json.JSONDecoder(), "scan_once")  # noqa: B009
