"""An MCP client made of nothing but bytes and JSON, to test servers against the protocol's text.

It shares no code with the SDK that the servers use, so the SDK's own mistakes show too.
"""

import itertools
import json
import queue
import re
import subprocess
import threading
from collections.abc import Mapping
from typing import Any, Self, cast

PATIENCE = 30.0
ENDED = {"ended": True}


class RawClient:
    """A server's process, spoken to over its standard streams."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        assert entry["type"] == "stdio"
        self.process = subprocess.Popen(
            [entry["command"], *entry["args"]],
            env=dict(entry["env"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ids = itertools.count(1)
        self._came: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> int:
        """End the server as the protocol says: close its input. Returns its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            self.process.stdout.close()

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: object) -> None:
        """Write a message in a line of its own."""
        self.write(json.dumps(message).encode() + b"\n")

    def request(self, method: str, params: object = None) -> int:
        """Send a request; returns its id."""
        number = next(self._ids)
        message: dict[str, object] = {"jsonrpc": "2.0", "id": number, "method": method}
        if params is not None:
            message["params"] = params
        self.send(message)
        return number

    def notify(self, method: str, params: object = None) -> None:
        """Send a notification."""
        message: dict[str, object] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        self.send(message)

    def next(self) -> dict[str, Any]:
        """The next message that the server wrote."""
        return self._came.get(timeout=PATIENCE)

    def ask(self, method: str, params: object = None) -> dict[str, Any]:
        """Send a request and take its answer, which must come next."""
        number = self.request(method, params)
        answer = self.next()
        assert answer["id"] == number, answer
        return answer

    def initialize(self, version: str = "2025-11-25") -> dict[str, Any]:
        """Shake hands; returns the server's result."""
        params = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        result = self.ask("initialize", params)["result"]
        self.notify("notifications/initialized")
        return result

    def call(self, name: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Call a tool and take its result, which must come next."""
        return self.ask("tools/call", {"name": name, "arguments": arguments})["result"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._came.put(check_message(line))
        self._came.put(ENDED)


def check_message(line: bytes) -> dict[str, Any]:
    """Parse a line as a message. A line that breaks the wire's rules is returned as `broken`."""
    try:
        message: object = json.loads(line.decode("utf-8"))
    except ValueError as error:
        return {"broken": f"{error}: {line[:200]!r}"}
    if not isinstance(message, dict) or not line.endswith(b"\n"):
        return {"broken": line[:200]}
    found = cast("dict[str, Any]", message)
    if found.get("jsonrpc") != "2.0":
        return {"broken": found}
    if "method" in found:
        allowed = {"jsonrpc", "id", "method", "params"}
    else:
        allowed = {"jsonrpc", "id", "result" if "result" in found else "error"}
        if not {"jsonrpc", "id"} < set(found):
            return {"broken": found}
    return found if set(found) <= allowed else {"broken": found}


def shown_in(result: Mapping[str, Any]) -> str:
    """The text of a tool's result, without the line that names a notebook's cell."""
    text = "".join(block["text"] for block in result["content"] if block["type"] == "text")
    return re.sub(r"^\[cell \w+\]\n", "", text)
