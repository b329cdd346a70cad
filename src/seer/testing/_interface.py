"""Loads an interface file in this process, for tests of the interface.

A call is encoded, decoded and checked against the type hints like an agent's call, but without a
socket. So a test gets what an agent would get, such as the error for a result that cannot be
sent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from seer._sync import run_sync
from seer.errors import ResultError, UnknownFunctionError
from seer.rpc.interface._load import Interface, load
from seer.rpc.interface._schema import Function
from seer.rpc.values._arrays import TensorBuffer
from seer.rpc.values._codec import decode, encode, encode_call
from seer.rpc.values._handles import Handle, HandleTable
from seer.rpc.values._restore import Restorer
from seer.rpc.values._types import TypeDef

Call = tuple[Any, ...] | dict[str, Any]


def _is_handle(value: object) -> bool:
    return isinstance(value, Handle)


def load_interface(
    path: str | Path,
    *,
    models: Mapping[str, str] | None = None,
    hidden: Mapping[str, str] | None = None,
    name: str | None = None,
) -> LoadedInterface:
    """Load an interface file as `serve` would, and call its functions as an agent would.

    Args:
        path: The interface file.
        models: The result of `get_model_path` for each model, such as a folder with a tiny model.
        hidden: The names of hidden models, each with its alias.
        name: The interface's name; by default the file's stem.

    Raises:
        ServeError: The file cannot be served; the message has the line and the reason.
    """
    file = Path(path).resolve()
    return LoadedInterface(load(str(file), name or file.stem, models=models, hidden=hidden))


class LoadedInterface:
    """An interface in this process. Its exposed functions are attributes.

    Attributes:
        module: The module of the file, with everything in it.
        warnings: The warnings that `serve` would give.
    """

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._handles = HandleTable(lambda: sys.maxsize)
        self.module: ModuleType = interface.module
        self.warnings: list[str] = interface.warnings
        types = interface.description.types
        self._restorer = Restorer(
            {name: _builder(definition) for name, definition in types.items()},
            {name: definition.to_json() for name, definition in types.items()},
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._interface.functions})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):  # copy and pickle look these up before `__init__` has run
            raise AttributeError(name)
        function = self._function(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(function, args, kwargs)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = function.doc or None
        return call

    def check_batch(
        self, name: str, calls: Sequence[Call], *, rtol: float = 1e-5, atol: float = 1e-6
    ) -> None:
        """Check that a batched function gives each call the result that it would get alone.

        Args:
            name: The function, exposed with `batch=`.
            calls: The arguments of each call, as a tuple or as a dict by name. Arguments that are
                not batched must be equal in all calls.
            rtol: The relative tolerance for numbers.
            atol: The absolute tolerance for numbers.

        Raises:
            AssertionError: A result in the batch differs from the result of the call alone; the
                message says where.
        """
        function = self._function(name)
        bound = [self._bind(function, *_split(call)) for call in calls]
        together = self._check_one(function, bound)
        for i, one in enumerate(bound):
            (alone,) = self._check_one(function, [one])
            place = _difference(together[i], alone, f"{name}() call {i}: result", rtol, atol)
            assert place is None, place

    def _check_one(
        self, function: Function, calls: list[tuple[list[Any], dict[str, Any]]]
    ) -> list[Any]:
        results = self._call_batch(function, calls)
        if function.is_async:
            results = run_sync(results)
        return self._each(function, results, len(calls))

    def _function(self, name: str) -> Function:
        function = self._interface.functions.get(name)
        if function is None:
            known = ", ".join(self._interface.functions)
            raise UnknownFunctionError(
                f"{name!r} is not exposed; exposed: {known}. Everything else is in `.module`"
            )
        return function

    def _call(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self._bind(function, args, kwargs)
        if function.options.batch > 1:
            results = self._call_batch(function, [arguments])
            if function.is_async:
                return self._await_batch(function, results)
            return self._each(function, results, 1)[0]
        target = cast("Callable[..., Any]", function.target)
        positional, named = arguments
        result = target(*positional, **named)
        if function.is_generator:
            return (
                self._astream(function, result)
                if function.is_async
                else self._stream(function, result)
            )
        return (
            self._await(function, result) if function.is_async else self._received(function, result)
        )

    async def _await(self, function: Function, result: Any) -> Any:
        return self._received(function, await result)

    async def _await_batch(self, function: Function, results: Any) -> Any:
        return self._each(function, await results, 1)[0]

    def _stream(self, function: Function, result: Any) -> Iterator[Any]:
        for item in result:
            yield self._received(function, item)

    async def _astream(self, function: Function, result: Any) -> AsyncIterator[Any]:
        async for item in result:
            yield self._received(function, item)

    def _bind(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        buffers: list[Any] = []
        text = encode_call(function.name, args, kwargs, buffers, extra=self._pack_handle)
        given, named = self._decode(text, buffers)
        return function.bind(given, named)

    def _received(self, function: Function, result: Any) -> Any:
        if function.returns.kind == "handle" and not _is_handle(result):
            return Handle(result)
        buffers: list[Any] = []
        text = encode(result, buffers, function=function.name, extra=self._pack_handle)
        # A caller gets tensors if the type hints say so, and otherwise arrays.
        value = self._decode(text, buffers, torch=_mentions_tensors(function))
        return self._restorer(function.returns.to_json())(value)

    def _pack_handle(self, value: object) -> dict[str, Any] | None:
        return self._handles.add(cast("Handle[Any]", value)) if _is_handle(value) else None

    def _decode(self, text: bytes, buffers: list[Any], *, torch: bool = True) -> Any:
        memory = [
            buffer.copied() if isinstance(buffer, TensorBuffer) else bytearray(memoryview(buffer))
            for buffer in buffers
        ]
        return decode(text, memory, torch=torch, extra={"handle": self._restore_handle})

    def _restore_handle(self, found: dict[str, Any]) -> Handle:
        return self._handles.get(found["id"])

    def _call_batch(self, function: Function, calls: list[tuple[list[Any], dict[str, Any]]]) -> Any:
        """Call the function once for all calls. The result of an async function is awaitable."""
        names = [p.name for p in function.parameters]
        defaults = function.item_defaults
        given = [{**defaults, **dict(zip(names, args, strict=False)), **kw} for args, kw in calls]
        arguments: dict[str, Any] = dict(given[0])
        for parameter in function.parameters:
            if parameter.batched:
                arguments[parameter.name] = [one[parameter.name] for one in given]
        only = [p.name for p in function.parameters if p.kind == "positional_only"]
        positional = [arguments.pop(name) for name in only if name in arguments]
        return cast("Callable[..., Any]", function.target)(*positional, **arguments)

    def _each(self, function: Function, results: Any, count: int) -> list[Any]:
        """The result of each call of a batch, in the form that callers get."""
        if not isinstance(results, (list, tuple)) or len(cast("list[Any]", results)) != count:
            raise ResultError(f"{function.name}() must return a list of {count}, one per call")
        for result in cast("list[Any]", results):
            if isinstance(result, Exception):  # the gate raises it for this call's caller only
                raise result
        return [self._received(function, result) for result in cast("list[Any]", results)]


def _mentions_tensors(function: Function) -> bool:
    """Whether the type hint of a function's result contains a tensor."""
    known: set[str] = set()
    hints = [function.returns]
    for hint in hints:
        for inner in hint.walk():
            if inner.kind == "tensor":
                return True
            if inner.kind == "named" and inner.detail not in known:
                known.add(inner.detail)
                hints.extend(field.hint for field in function.types[inner.detail].fields)
    return False


def _builder(definition: TypeDef) -> Callable[..., Any]:
    """A function that makes an instance of the interface's class from decoded fields."""
    cls = cast("Callable[..., Any]", definition.cls)
    if definition.kind != "record":
        return cls
    accepted = {field.name for field in definition.fields if field.init}

    def build(**fields: Any) -> Any:
        return cls(**{name: value for name, value in fields.items() if name in accepted})

    return build


def _split(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), call) if isinstance(call, dict) else (call, {})


def _difference(a: Any, b: Any, where: str, rtol: float, atol: float) -> str | None:
    """Where two values differ; None if they are equal."""
    a, b = _fields(a), _fields(b)
    if _both(a, b, dict):
        left, right = cast("dict[Any, Any]", a), cast("dict[Any, Any]", b)
        if left.keys() != right.keys():
            return f"{where} has the keys {list(left)} in the batch and {list(right)} alone"
        pairs = [(left[k], right[k], f"{where}[{k!r}]") for k in left]
    elif _both(a, b, (list, tuple)):
        left, right = cast("list[Any]", a), cast("list[Any]", b)
        if len(left) != len(right):
            return f"{where} has {len(left)} items in the batch and {len(right)} alone"
        pairs = [(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(left, right, strict=True))]
    elif hasattr(a, "tolist") and hasattr(b, "tolist"):
        return _difference(a.tolist(), b.tolist(), where, rtol, atol)
    else:
        return None if _close(a, b, rtol, atol) else f"{where} is {a!r} in the batch, {b!r} alone"
    found = (_difference(x, y, place, rtol, atol) for x, y, place in pairs)
    return next((place for place in found if place is not None), None)


def _fields(value: Any) -> Any:
    """The fields of a record as a dict; any other value unchanged."""
    kind: Any = value.__class__
    names = getattr(kind, "__dataclass_fields__", None)
    return value if names is None else {name: getattr(value, name) for name in names}


def _both(a: Any, b: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(a, kind) and isinstance(b, kind)


def _close(a: Any, b: Any, rtol: float, atol: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=rtol, abs_tol=atol) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and bool(a == b)
