"""A person in JupyterLab, as the server sees it: REST, and the sockets of kernel and document."""

import asyncio
import json
import urllib.error
import urllib.request
import uuid
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jupyter_ydoc
import pycrdt
from websockets.asyncio.client import ClientConnection, connect

# Their hints are too loose to check against.
crdt: Any = pycrdt
ydoc: Any = jupyter_ydoc


class Person:
    """Speaks to the server behind a notebook session's address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.base = f"http://{parts.netloc}"
        self.sockets = f"ws://{parts.netloc}"
        self.token = parse_qs(parts.query)["token"][0]
        self.notebook = parts.path.rpartition("/")[2]

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """A request; returns the status and the decoded body."""
        return await asyncio.to_thread(self._ask, method, path, body, headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                data = answer.read()
                status = answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None
        try:
            return status, json.loads(data)
        except ValueError:
            return status, None

    async def attach_kernel(self) -> str:
        """Open the notebook's kernel, as opening the notebook does; returns its id."""
        notebook = {"name": "", "path": self.notebook, "type": "notebook"}
        kernel = {**notebook, "kernel": {"name": "python3"}}
        _, session = await self.ask("POST", "/api/sessions", kernel)
        return session["kernel"]["id"]

    async def execute(self, kernel: str, code: str) -> str:
        """Run code in the kernel and return what it printed."""
        message_id = uuid.uuid4().hex
        header = {"msg_id": message_id, "msg_type": "execute_request", "session": "person"}
        message = {
            "channel": "shell",
            "header": {**header, "username": "", "version": "5.3", "date": ""},
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "allow_stdin": False},
        }
        address = f"{self.sockets}/api/kernels/{kernel}/channels?token={self.token}"
        printed = ""
        async with connect(address, max_size=None, open_timeout=60) as channel:
            await channel.send(json.dumps(message))
            async for text in channel:
                answer = json.loads(text)
                if answer["parent_header"].get("msg_id") != message_id:
                    continue
                if answer["msg_type"] == "stream":
                    printed += answer["content"]["text"]
                if answer["content"].get("execution_state") == "idle":
                    return printed
        raise AssertionError("the kernel's channel was closed")

    async def open_document(self) -> "Document":
        """Open the notebook for editing together."""
        path = f"/api/collaboration/session/{self.notebook}"
        _, found = await self.ask("PUT", path, {"format": "json", "type": "notebook"})
        room = f"{found['format']}:{found['type']}:{found['fileId']}"
        address = f"{self.sockets}/api/collaboration/room/{room}"
        query = f"sessionId={found['sessionId']}&token={self.token}"
        return Document(await connect(f"{address}?{query}", max_size=None, open_timeout=60))


class Document:
    """The shared notebook in a person's browser."""

    def __init__(self, channel: ClientConnection) -> None:
        self._channel = channel
        self.notebook: Any = ydoc.YNotebook()
        self._changed = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def __aenter__(self) -> Self:
        await self._channel.send(crdt.create_sync_message(self.notebook.ydoc))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    def sources(self) -> list[str]:
        """The source of every cell."""
        return [cell["source"] for cell in self.notebook.get()["cells"]]

    async def wait_for(self, source: str) -> None:
        """Wait until a cell with this source is there."""
        async with asyncio.timeout(60):
            while source not in self.sources():
                self._changed.clear()
                await self._changed.wait()

    async def add_cell(self, source: str) -> None:
        """Write a cell, as if a person typed it."""
        cell: dict[str, Any] = {
            "cell_type": "code",
            "source": source,
            "metadata": {},
            "outputs": [],
        }
        before = self.notebook.ydoc.get_state()
        self.notebook.append_cell({**cell, "execution_count": None})
        update = self.notebook.ydoc.get_update(before)
        await self._channel.send(crdt.create_update_message(update))

    async def _read(self) -> None:
        async for message in self._channel:
            assert isinstance(message, bytes)
            if message[0] == crdt.YMessageType.SYNC:
                reply = crdt.handle_sync_message(message[1:], self.notebook.ydoc)
                if reply is not None:
                    await self._channel.send(reply)
                self._changed.set()
