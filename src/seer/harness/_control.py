"""Other processes control a running run through a socket in the folder of its record.

Only the user can open the folder and the socket. The peer's user is checked as well, and no jail
can see the socket. A request is one line of JSON, and so is the answer. The requests correspond to
methods of `AgentRun`: stop, conclude, send a message, change limits, approve a tool call.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

from seer._unix_sockets import connect, listen, peer_credentials, serve
from seer.errors import ConfigError, RunControlError, SeerError
from seer.runs import Run

logger = logging.getLogger(__name__)

NAME = "control.sock"
LONGEST = 256 * 1024
_PATIENCE = 5.0

Action = Literal["stop", "conclude", "message", "limits", "approve"]


@asynccontextmanager
async def control_socket(
    folder: Path | None, act: Callable[[Mapping[str, Any]], None]
) -> AsyncGenerator[None, None]:
    """Listen in `folder` during the block; `act` executes a request or raises a `SeerError`."""
    try:
        listener = None if folder is None else listen(folder / NAME, 16, mode=0o600)
    except OSError as error:
        # Not every file system supports sockets, and a run works without this one.
        logger.warning("the run cannot be controlled from outside: %s", error)
        listener = None
    if folder is None or listener is None:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                reply = _handle(writer.get_extra_info("socket"), await reader.readline(), act)
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError) as error:
            logger.info("a request to control the run was not answered: %s", error)
        finally:
            writer.close()

    server = await serve(answer, listener, limit=LONGEST)
    try:
        yield
    finally:
        server.close()
        (folder / NAME).unlink(missing_ok=True)


def control_run(
    folder: Path,
    action: Action,
    *,
    text: str | None = None,
    limits: Mapping[str, Any] | None = None,
    call: str | None = None,
    approved: bool = False,
) -> None:
    """Control a running run of this process or of another process of the same user.

    Args:
        folder: The folder of its record.
        action: `stop` ends it at once. `conclude` closes the tools and gives the agent a last turn.
            `message` sends `text` to the agent after its answer. `limits` changes the named limits.
            `approve` decides about a waiting tool call.
        text: The message, or the reason why a call is not approved.
        limits: Limits by the names of `Limits`; None lifts one.
        call: The id of the call.
        approved: Whether the call may be made.

    Raises:
        ConfigError: The arguments do not fit the action, or a limit is invalid.
        RunControlError: The run has ended, or does not answer.
    """
    if action == "message" and (not isinstance(text, str) or not text.strip()):
        raise ConfigError("text", text, "must be a message that is not empty")
    if action == "limits" and not isinstance(limits, Mapping):
        raise ConfigError("limits", limits, "must map names of limits to values")
    if action == "approve" and (not isinstance(call, str) or approved not in {True, False}):
        raise ConfigError("call", call, "must be the id of a call; approved must be True or False")
    request = {
        "action": action,
        "text": text,
        "limits": limits and dict(limits),
        "call": call,
        "approved": approved,
    }
    line = json.dumps(request).encode() + b"\n"
    if len(line) > LONGEST:
        raise ConfigError("text", f"{len(line)} bytes", f"must be at most {LONGEST} bytes")
    try:
        with connect(folder / NAME, timeout=_PATIENCE) as client:
            client.sendall(line)
            reply = json.loads(client.makefile("rb").readline(LONGEST))
    except (OSError, ValueError) as error:
        if (folder / "run.json").is_file() and (status := Run(folder).status) != "running":
            raise RunControlError(f"run {folder.name} has ended ({status})") from error
        raise RunControlError(
            f"could not reach run {folder.name}; its process may hang: {error}"
        ) from error
    if problem := reply.get("error"):
        raise RunControlError(f"run {folder.name} refused the request: {problem}")


def _handle(
    peer: socket.socket, line: bytes, act: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    if peer_credentials(peer)[1] not in {os.getuid(), 0}:
        return {"error": "only the user who started a run may control it"}
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            return {"error": "a request is a JSON object"}
        act(cast("dict[str, Any]", request))
    except (ValueError, RecursionError, SeerError) as error:
        return {"error": str(error)}
    return {"ok": True}
