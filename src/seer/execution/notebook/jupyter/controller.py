"""The connection to the controller over standard input and output: one JSON object per line.

The controller sends edits of the document. The server asks for the notebook's file, which it cannot
reach itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

_LINE = 1 << 30

Message = dict[str, Any]


class ControllerPipe:
    """Sends messages to the controller and receives them. There is one instance."""

    def __init__(self) -> None:
        self.settings: Message = json.loads(sys.stdin.buffer.readline())
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # output of libraries goes to the log
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._requests: asyncio.Queue[Message] = asyncio.Queue()

    def say(self, message: Message) -> None:
        """Send one message."""
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    async def ask(self, request: Message) -> Message:
        """Send a request about the notebook's file, and return the reply.

        Raises:
            OSError: The controller could not read or write the file.
        """
        number = next(self._ids)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self.say({"ask": number, **request})
        message = await reply
        if "error" in message:
            raise OSError(message["error"])
        return message

    async def listen(self) -> None:
        """Receive until the controller is gone."""
        reader = asyncio.StreamReader(limit=_LINE)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message: Message = json.loads(line)
            if "reply" in message:
                reply = self._replies.pop(message["reply"])
                if not reply.done():  # Jupyter cancels a save when the next edit comes
                    reply.set_result(message)
            else:
                self._requests.put_nowait(message)

    async def serve(self, handle: Callable[[Message], Awaitable[Message]]) -> None:
        """Answer the controller's requests one after another, without end."""
        while True:
            request = await self._requests.get()
            self.say({"answer": request["id"], **await handle(request)})
