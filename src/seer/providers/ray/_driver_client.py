"""The controller's client for its driver, the child process that talks to Ray."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

from seer.errors import HostUnsuitableError, ProviderError, SandboxLostError

logger = logging.getLogger(__name__)

_PROGRAM = ("-P", "-m", "seer.providers.ray.driver")
_STDERR_KEPT = 4000
_LINE_LIMIT = 16 << 20
_END_PATIENCE = 30.0
_PATIENT = {
    # A busy machine may take longer than Ray's own limit of 30 s.
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_register_timeout_seconds": "120",
}


class DriverClient:
    """A connection to one cluster."""

    def __init__(self, address: str, process: asyncio.subprocess.Process) -> None:
        self.address = address
        """The cluster's address; empty for a cluster that was started for this process."""
        self._process = process
        self._numbers = 0
        self._answers: dict[int, asyncio.Future[Any]] = {0: asyncio.Future()}
        self._listeners: dict[int, Callable[[Mapping[str, Any]], None]] = {}
        self._lost: dict[str, str] = {}
        self._said = b""
        self._over: ProviderError | None = None
        self._tasks = [
            asyncio.create_task(self._read_answers()),
            asyncio.create_task(self._read_errors()),
        ]

    @classmethod
    async def connect(cls, address: str) -> "DriverClient":
        """Start the child, and wait until it is connected.

        Raises:
            ProviderError: It cannot connect; the message has Ray's reason.
        """
        env = {**_PATIENT, **os.environ}
        env.pop("RAY_ADDRESS", None)
        if not address:
            env.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if "RAY_AUTH_MODE" not in env:
                # No other process uses this cluster, so its token is not stored.
                env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            logger.info("no Ray cluster is named; starting one on this machine")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            limit=_LINE_LIMIT,
            # Only the controller handles Ctrl-C at the terminal, because it needs Ray for the
            # clean-up.
            start_new_session=True,
        )
        driver = cls(address, process)
        try:
            driver._write({"address": address})
            await driver._answers[0]
        except ProviderError as error:
            await driver.close()
            where = f"the Ray cluster at {address}" if address else "a Ray on this machine"
            raise ProviderError(f"{where} cannot be used: {error}") from None
        except BaseException:
            await asyncio.shield(driver.close())
            raise
        return driver

    @property
    def alive(self) -> bool:
        """Whether the driver is still running."""
        return self._over is None

    def lost(self, name: str) -> str | None:
        """Why an actor is gone, according to Ray; None until Ray reports its end."""
        return self._lost.get(name)

    async def ask(
        self,
        operation: str,
        *,
        on_waiting: Callable[[Mapping[str, Any]], None] | None = None,
        **fields: object,
    ) -> Any:
        """Send the driver a request, and return its answer.

        Raises:
            HostUnsuitableError: This cluster cannot meet the request.
            SandboxLostError: The actor has died.
            ProviderError: Ray refuses, or is gone.
        """
        if self._over is not None:
            raise self._over
        self._numbers += 1
        number = self._numbers
        self._answers[number] = asyncio.get_running_loop().create_future()
        if on_waiting is not None:
            self._listeners[number] = on_waiting
        try:
            self._write({"id": number, "op": operation, **fields})
            return await self._answers[number]
        finally:
            self._answers.pop(number, None)
            self._listeners.pop(number, None)

    def _write(self, message: Mapping[str, object]) -> None:
        assert self._process.stdin is not None, "the child was started with this pipe"
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None, "the child was started with this pipe"
        while line := await self._process.stdout.readline():
            message: dict[str, Any] = json.loads(line)
            if "lost" in message:
                self._lost[message["lost"]] = message["reason"]
            elif "waiting" in message:
                listener = self._listeners.get(message["id"])
                if listener is not None:
                    listener(message["waiting"])
            else:
                self._settle(message)
        await asyncio.gather(self._tasks[1], return_exceptions=True)
        words = self._said.decode(errors="replace").strip()[-1000:]
        self._over = ProviderError(
            f"the process that talks to Ray has ended: {words or '(silent)'}"
        )
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._over)

    def _settle(self, message: Mapping[str, Any]) -> None:
        answer = self._answers.get(message["id"])
        if answer is None or answer.done():
            return
        if "error" not in message:
            answer.set_result(message["ok"])
            return
        kinds: dict[str, type[ProviderError | SandboxLostError]] = {
            "lost": SandboxLostError,
            "LookupError": HostUnsuitableError,
            "ValueError": HostUnsuitableError,
        }
        kind = kinds.get(message["kind"], ProviderError)
        answer.set_exception(kind(f"Ray: {message['error']}"))

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None, "the child was started with this pipe"
        while data := await self._process.stderr.read(65536):
            self._said = (self._said + data)[-_STDERR_KEPT:]

    async def close(self) -> None:
        """Disconnect, and stop a Ray that this process started. Closing twice is harmless."""
        assert self._process.stdin is not None, "the child was started with this pipe"
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_PATIENCE):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for answer in self._answers.values():
            if answer.done() and not answer.cancelled():
                answer.exception()
