"""The controller's side of a gate's control socket.

`connect` opens a byte stream to the control socket, as `Machine.connect` does, so it works for
machines of all providers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from seer.errors import ProtocolError, SandboxLostError, ServeError

from .client._errors import error_from
from .client._responses import Response, ResponseReader
from .interface._budget import Budget
from .wire._protocol import WireError


class ByteStream(Protocol):
    """The part of `providers.Channel` that is used here. At the end, `read` returns no bytes."""

    async def read(self, n: int = 65536) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class GateControl:
    """Sends requests to a gate's supervisor, each over a new connection, because they are rare.

    Args:
        connect: Opens a stream to the control socket.
    """

    def __init__(self, connect: Callable[[], Awaitable[ByteStream]]) -> None:
        self._connect = connect

    async def ready(self) -> dict[str, Any]:
        """Wait until the interface is loaded, and return its `schema` (JSON) and `warnings`.

        Raises:
            ServeError: It could not be loaded.
            InterfaceDiedError: It was loaded, and has ended since.
        """
        return await self._ask("GET", "/v1/ready")

    async def health(self) -> dict[str, Any]:
        """State, process id, epoch, number of restarts, how it last ended, notes, copies."""
        return await self._ask("GET", "/v1/health")

    async def add_caller(self, name: str, socket: str, *, budget: Budget | None = None) -> None:
        """Make a socket for a caller at the path `socket` in the machine."""
        limits = {} if budget is None else budget.to_json()
        await self._ask("POST", "/v1/callers", {"name": name, "socket": socket, "budget": limits})

    async def remove_caller(self, name: str) -> None:
        """Remove a caller with its calls, handles and arrays."""
        await self._ask("POST", f"/v1/remove/{name}")

    async def reload(self) -> dict[str, Any]:
        """Load the interface file again, and return the new `schema` and `warnings`.

        Raises:
            ServeError: The file cannot be served. The gate continues to serve what it had loaded.
        """
        return await self._ask("POST", "/v1/reload")

    async def scale(self, replicas: int) -> None:
        """Change the number of copies, and wait until it is reached.

        Raises:
            ServeError: A new copy could not load the interface. The other copies continue.
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

    async def follow(
        self,
        callers: Sequence[str],
        *,
        prefix: str,
        read: Callable[[str, int | str], Awaitable[bytes]],
    ) -> CallFollow:
        """Record the calls of some callers from now on, for one reader.

        Args:
            callers: Their names.
            prefix: Callers whose names begin with this are followed too; empty for none.
            read: Reads a large value, given the follow's id and the number of its file.
        """
        found = await self._ask("POST", "/v1/follow", {"callers": list(callers), "prefix": prefix})
        return CallFollow(self._ask, found["follow"], dropped=found["dropped"], read=read)

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


class CallFollow:
    """The calls of some callers of a gate, for one reader. The gate removes what was read.

    Attributes:
        dropped: How many calls that were made before the follow the gate no longer has.
        lost: How many calls since then could not be recorded.
        why: Why the last of them could not be recorded.
        running: How many calls of each function had not ended at the last `flush`.
    """

    def __init__(
        self,
        ask: Callable[[str, str, Mapping[str, Any] | None], Awaitable[Any]],
        identifier: str,
        *,
        dropped: int,
        read: Callable[[str, int | str], Awaitable[bytes]],
    ) -> None:
        self.dropped = dropped
        self.lost = 0
        self.why = ""
        self.running: dict[str, int] = {}
        self._after = 0
        self._files: list[int | str] = []
        self._ask = ask
        self._id = identifier
        self._read = read

    async def add(self, callers: Sequence[str]) -> int:
        """Follow more callers, and return how many of their calls the gate no longer has."""
        found = await self._ask("POST", f"/v1/follow/{self._id}", {"callers": list(callers)})
        return found["dropped"]

    async def batches(self) -> AsyncIterator[list[tuple[int, dict[str, Any]]]]:
        """The lines of calls as they are made, each with the offset of its end.

        Asking for the next batch tells the gate that the last one was taken, with its large values.
        A batch may be empty if calls were lost. After an error, a new iterator continues.
        """
        while True:
            position = {"after": self._after, "files": self._files, "lost": self.lost}
            found = await self._ask("POST", f"/v1/records/{self._id}", position)
            self.lost, self.why = found["lost"], found["why"]
            batch: list[tuple[int, dict[str, Any]]] = []
            after, files = self._after, list[int | str]()
            for line in found["lines"]:
                after += len(line.encode("utf-8", "surrogatepass")) + 1
                record: dict[str, Any] = json.loads(line)
                files += _files(record)
                batch.append((after, record))
            yield batch
            self._after, self._files = after, files

    async def read(self, file: int | str) -> bytes:
        """A large value of a line in the current batch, by the number of its file."""
        return await self._read(self._id, file)

    async def flush(self) -> int:
        """Let the gate write every answered call, and return the offset where the lines then end.

        Calls that are made after the first flush are not part of the follow.
        """
        found = await self._ask("POST", f"/v1/flush/{self._id}", {"last": True})
        self.lost, self.why = found["lost"], found["why"]
        # A gate of an earlier version does not send it.
        self.running = found.get("running", {})
        return found["end"]

    async def close(self) -> None:
        """End the follow; the gate removes what was not read."""
        await self._ask("POST", f"/v1/unfollow/{self._id}", None)


def _files(record: Mapping[str, Any]) -> list[int | str]:
    """The numbers of the files that a line refers to."""
    texts = (record.get("arguments"), record.get("result"))
    found: list[Any] = [text["blob"] for text in texts if text is not None and is_blob(text)]
    for key in ("argument_buffers", "result_buffers"):
        found += record.get(key) or []
    return [item["file"] for item in found if "file" in item]


def is_blob(value: object) -> bool:
    """Whether a value of a line refers to a large text."""
    return isinstance(value, dict) and list(cast("dict[str, Any]", value)) == ["blob"]


def _error(response: Response) -> Exception:
    found: dict[str, Any] = json.loads(bytes(response.text))["error"]
    if found["type"] != "ServeError":
        return error_from(response.text)
    return ServeError(
        found["message"],
        file=found.get("file", ""),
        line=found.get("line"),
        remote_traceback=found.get("remote_traceback", ""),
    )
