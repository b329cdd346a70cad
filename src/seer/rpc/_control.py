"""The controller's side of a gate's control socket.

It speaks over whatever reaches the machine: `connect` opens a byte stream to the control socket, as
`Machine.connect` does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from seer.errors import (
    GateBusyError,
    GateError,
    InterfaceDiedError,
    ProtocolError,
    SandboxLostError,
    ServeError,
)

from ._budget import Budget
from .client._responses import Response, ResponseReader
from .client._wire import WireError


class ByteStream(Protocol):
    """What a `providers.Channel` offers; at the end, `read` gives nothing."""

    async def read(self, n: int = 65536) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class GateControl:
    """Asks a gate's supervisor. One connection per request: control is rare.

    Args:
        connect: Opens a stream to the control socket.
    """

    def __init__(self, connect: Callable[[], Awaitable[ByteStream]]) -> None:
        self._connect = connect

    async def ready(self) -> dict[str, Any]:
        """Wait until the interface is loaded; its `schema` (JSON) and `warnings`.

        Raises:
            ServeError: It could not be loaded.
            InterfaceDiedError: It was, and has ended since.
        """
        return await self._ask("GET", "/v1/ready")

    async def health(self) -> dict[str, Any]:
        """State, process id, epoch, number of restarts, how it ended, notes, copies."""
        return await self._ask("GET", "/v1/health")

    async def add_caller(self, name: str, socket: str, *, budget: Budget | None = None) -> None:
        """Make a socket for a caller at the path `socket` in the machine."""
        limits = {} if budget is None else budget.to_json()
        await self._ask("POST", "/v1/callers", {"name": name, "socket": socket, "budget": limits})

    async def remove_caller(self, name: str) -> None:
        """End a caller: its calls, handles and arrays go."""
        await self._ask("POST", f"/v1/remove/{name}")

    async def reload(self) -> dict[str, Any]:
        """Load the interface file again; the new `schema` and `warnings`.

        Raises:
            ServeError: It cannot be served as it is now; what was served before still is.
        """
        return await self._ask("POST", "/v1/reload")

    async def scale(self, replicas: int) -> None:
        """Have another number of copies, and wait until there are as many.

        Raises:
            ServeError: A new copy could not load the interface; those that run go on.
            ProtocolError: The interface is served without a front.
        """
        await self._ask("POST", "/v1/scale", {"replicas": replicas})

    async def used(self) -> dict[str, Any]:
        """What was used so far, by the `interface`, by `functions` and by `callers`."""
        return await self._ask("GET", "/v1/budget")

    async def set_budget(
        self, budget: Budget, *, function: str | None = None, caller: str | None = None
    ) -> None:
        """Replace a budget: of a function, of a caller, or of the whole interface."""
        scope = "function" if function else "caller" if caller else "interface"
        message = {"scope": scope, "name": function or caller or "", "budget": budget.to_json()}
        await self._ask("POST", "/v1/budget", message)

    async def records(self, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The record of calls from a byte offset on, as they are made.

        Yields:
            The offset to continue from, and the record.
        """
        while True:
            found = await self._ask("GET", f"/v1/records/{after}")
            lines: list[str] = found["lines"]
            for line in lines:
                after += len(line.encode("utf-8", "surrogatepass")) + 1
                yield after, json.loads(line)
            after = found["next"]

    async def flush(self) -> int:
        """Have every call that was answered written down; the offset where the record ends."""
        return (await self._ask("POST", "/v1/flush"))["end"]

    async def stop(self) -> None:
        """End the interface and its supervisor."""
        await self._ask("POST", "/v1/stop")

    async def _ask(self, method: str, path: str, value: Mapping[str, Any] | None = None) -> Any:
        body = b"" if value is None else json.dumps(value).encode()
        length = f"content-length: {len(body)}\r\n" if method == "POST" else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: gate\r\nseer-gate: 1\r\n{length}\r\n"
        stream = await self._connect()
        try:
            await stream.write(head.encode() + body)
            response = await self._read(stream)
        finally:
            await stream.close()
        if response.status != 200:
            raise _error(response)
        return json.loads(bytes(response.text))["result"]

    async def _read(self, stream: ByteStream) -> Response:
        reader = ResponseReader()
        while True:
            data = await stream.read()
            if not data:
                raise SandboxLostError("the gate's supervisor ended without an answer")
            try:
                response = reader.feed(data)
            except WireError as error:
                raise ProtocolError(str(error)) from None
            if response is not None:
                return response


def _error(response: Response) -> Exception:
    found: dict[str, Any] = json.loads(bytes(response.text))["error"]
    message = found["message"]
    if found["type"] == "ServeError":
        return ServeError(
            message,
            file=found.get("file", ""),
            line=found.get("line"),
            remote_traceback=found.get("remote_traceback", ""),
        )
    if found["type"] == "InterfaceDiedError":
        return InterfaceDiedError(message)
    if found["type"] == "GateBusyError":
        return GateBusyError(message)
    return ProtocolError(message) if found["type"] == "ProtocolError" else GateError(message)
