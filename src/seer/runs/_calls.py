"""A call of a gate, as records keep it and replays match it."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from seer.errors import CallLostError
from seer.runs._chain import canonical


@dataclass(frozen=True, kw_only=True)
class GateCall:
    """One call, or one refused request, of an interface."""

    interface: str
    caller: str
    function: str
    """The name of the function; `handle.fetch` for a fetch. For any other refused request: its
    path, or empty if the path could not be read."""
    arguments: str | None
    """The JSON text of `[args, kwargs]`. None for a request that was refused before it was read,
    and for a call that was lost with the interface's process and whose arguments were large or had
    arrays."""
    handle: str = ""
    """The handle that was fetched; empty for calls of functions."""
    argument_buffers: tuple[str, ...] = ()
    """Arrays among the arguments, by hash."""
    outcome: str = "ok"
    """`ok`, or the name of the error's class."""
    result: str = ""
    """The JSON text of the answer, error or not."""
    result_buffers: tuple[str, ...] = ()
    """Arrays in the result, by hash."""
    result_digest: str = ""
    source: str = ""
    """The hash of the interface's source."""
    model: str = ""
    """The models behind the interface, each as `name@commit`."""
    call: str = ""
    time: float = 0.0
    """When it was answered; Unix time."""
    queue: float = 0.0
    run: float = 0.0
    gpu: float = 0.0
    """The part of `run` in which the interface's process had a GPU in use."""
    batch: int = 0
    copy: int = 0
    """The number of the interface's copy that ran it; 0 where there are no copies."""
    bytes_in: int = 0
    bytes_out: int = 0
    traceback: str = ""
    """The whole traceback, if the answer does not contain it."""
    tool_call: str = ""
    """In a record: the id of the `ToolCall` event whose code made the call; empty if no tool call
    did. In a line of a gate: the token of that tool call, as the caller sent it."""
    served: int = 0
    """The number of the interface among those of its name that the program served, from 1; 0 in
    records of older versions."""

    @property
    def is_call(self) -> bool:
        """Whether it is a call or a fetch; False for other requests, which were refused."""
        return is_call(self.function)

    @property
    def started(self) -> float:
        """When the gate received it."""
        return self.time - self.run - self.queue

    @property
    def lost(self) -> bool:
        """Whether the process that ran it ended before it was answered."""
        return self.outcome == CallLostError.__name__

    @functools.cached_property
    def key(self) -> str:
        """A hash of the function and its canonical arguments; equal calls have equal keys."""
        return call_key(self.function, self.arguments, self.argument_buffers, handle=self.handle)

    @property
    def address(self) -> str:
        """A hash of code, models, function and arguments; if equal, results are comparable."""
        text = canonical([self.source, self.model, self.key])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def seed(self) -> Any:
        """The keyword argument `seed`, if there is one."""
        try:
            return json.loads(self.arguments or "")[1].get("seed")
        except (ValueError, IndexError, AttributeError, TypeError, KeyError):
            return None

    def to_json(self) -> dict[str, Any]:
        """The call as a line of a record."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: list(getattr(self, name)) for name in _BUFFERS},
            "key": self.key,
            "address": self.address,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "GateCall":
        """Read what `to_json` returns."""
        return cls(
            **{name: data[name] for name in _PLAIN if name in data},
            argument_buffers=tuple(data.get("argument_buffers") or ()),
            result_buffers=tuple(data.get("result_buffers") or ()),
        )

    @classmethod
    def from_gate(
        cls, interface: str, line: Mapping[str, Any], *, model: str = "", served: int = 0
    ) -> "GateCall":
        """Read a line of a gate's own record."""
        refused = bool(line.get("refused"))
        function, handle = str(line.get("function", "")), str(line.get("handle", ""))
        if refused:
            function, handle = _named(str(line.get("request", "")))
        error = line.get("error")
        result = _text(line["result"]) if "result" in line else _error(line["outcome"], error)
        return cls(
            interface=interface,
            caller=str(line.get("caller", "")),
            function=function,
            handle=handle,
            arguments=None if refused or "arguments" not in line else _text(line["arguments"]),
            argument_buffers=_hashes(line.get("argument_buffers")),
            outcome=str(line["outcome"]),
            result=result,
            result_buffers=_hashes(line.get("result_buffers")),
            result_digest=str(line.get("result_digest", "")),
            source=str(line.get("source", "")),
            model=model,
            call=str(line.get("call", "")),
            tool_call=str(line.get("tool_call", "")),
            time=float(line.get("time", 0.0)),
            queue=float(line.get("queue", 0.0)),
            run=float(line.get("run", 0.0)),
            gpu=float(line.get("gpu", 0.0)),
            batch=int(line.get("batch", 0)),
            copy=int(line.get("copy", 0)),
            bytes_in=int(line.get("bytes_in", 0)),
            bytes_out=int(line.get("bytes_out", 0)),
            traceback=str(line.get("traceback", "")),
            served=served,
        )

    def to_gate(self) -> dict[str, Any]:
        """The call as a gate writes it; `from_gate` reads it."""
        line: dict[str, Any] = {name: getattr(self, name) for name in _MEASURED}
        line |= {"result": json.loads(self.result), "result_digest": self.result_digest}
        if self.arguments is None:
            path = f"fetch/{self.handle}" if self.handle else f"call/{self.function}"
            line |= {"refused": True, "request": f"/v1/{path}"}
        else:
            line["arguments"] = json.loads(self.arguments)
        for name in _BUFFERS:
            # A replayed gate finds values by their hash.
            line[name] = [{"sha256": item, "file": item} for item in getattr(self, name)]
        return line


def is_call(function: str) -> bool:
    """Whether a record has calls under this name; see `GateCall.function`."""
    return bool(function) and not function.startswith("/")


_MEASURED = (
    *("caller", "function", "handle", "outcome", "source", "call", "time"),
    *("queue", "run", "gpu", "batch", "copy", "bytes_in", "bytes_out", "traceback", "tool_call"),
)
_BUFFERS = ("argument_buffers", "result_buffers")
_PLAIN = tuple(field.name for field in fields(GateCall) if field.name not in _BUFFERS)


def call_key(function: str, arguments: str | None, buffers: Sequence[str], *, handle: str) -> str:
    """The hash that equal calls share."""
    try:
        form: Any = canonical(json.loads(arguments)) if arguments is not None else None
    except ValueError:
        form = arguments
    text = canonical([function, form, list(buffers), *([handle] if handle else [])])
    return hashlib.sha256(text.encode()).hexdigest()


def _named(path: str) -> tuple[str, str]:
    """The function and the handle that a refused request names."""
    kind, _, name = path.removeprefix("/v1/").partition("/")
    if kind == "fetch":
        return "handle.fetch", name
    return (name if kind == "call" else path), ""


def _text(value: object) -> str:
    """The value as JSON text. The order of keys is kept, because programs print dicts."""
    return json.dumps(value, separators=(",", ":"))


def _error(outcome: object, message: object) -> str:
    return _text({"error": {"type": str(outcome), "message": str(message or outcome)}})


def _hashes(found: object) -> tuple[str, ...]:
    items = cast("list[dict[str, Any]]", found or [])
    return tuple(str(item["sha256"]) for item in items)
