"""The provider under test, and helper functions of the checks."""

import asyncio
import contextlib
import dataclasses
import inspect
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from seer.errors import SeerError
from seer.providers import ExecResult, Machine, MachineSpec, Provider

E = TypeVar("E", bound=BaseException)


class Subject:
    """A provider, the specification of its machines, and a machine that most checks share."""

    def __init__(self, provider: Provider, spec: MachineSpec, *, large: int) -> None:
        self.provider = provider
        self.spec = spec
        self.large = large
        """The size in bytes of large files and output."""
        self._shared: Machine | None = None
        self._lock = asyncio.Lock()

    async def machine(self) -> Machine:
        """The shared machine. A check that ends or fills its machine uses `fresh` instead."""
        async with self._lock:
            if self._shared is None:
                self._shared = await self.provider.start(self.spec)
            return self._shared

    @contextlib.asynccontextmanager
    async def fresh(self, **changes: object) -> AsyncGenerator[Machine]:
        """A new machine for one check, which ends with the check."""
        spec = dataclasses.replace(self.spec, **changes)  # pyright: ignore[reportArgumentType]
        machine = await self.provider.start(spec)
        try:
            yield machine
        finally:
            await machine.terminate()

    async def close(self) -> None:
        """End the shared machine."""
        if self._shared is not None:
            await self._shared.terminate()
            self._shared = None

    async def controller(self, code: str, *arguments: str) -> "Controller":
        """Start another controller process that runs `code` with the provider."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _PROLOGUE + code,
            self.provider.name,
            self.spec.isolation,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(os.environ),
        )
        return Controller(process)


Check = Callable[[Subject], Awaitable[None]]


def checks_in(module: Mapping[str, Any]) -> tuple[Check, ...]:
    """The checks of a module: its public coroutine functions, in their order.

    Args:
        module: Its `globals()`.
    """
    return tuple(
        found
        for name, found in module.items()
        if inspect.iscoroutinefunction(found)
        and found.__module__ == module["__name__"]
        and not name.startswith("_")
    )


_PROLOGUE = """
import sys
from seer._sync import run_sync
from seer.providers import MachineSpec, get_provider
provider = get_provider(sys.argv[1])
isolation = sys.argv[2]
arguments = sys.argv[3:]
def say(*words):
    print(*words, flush=True)
"""


class Controller:
    """Another process that controls machines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        """The next line of its output; fails at the end of the output."""
        if self._process.stdout is None:
            raise AssertionError("the controller has no output")
        found = await self._process.stdout.readline()
        expect(bool(found), "the other controller ended without output")
        return found.decode().strip()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def finish(self) -> int:
        """Close its standard input, wait for its end, and return its exit code."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def expect(condition: bool, message: str) -> None:
    """Fail with `message` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def equal(actual: object, wanted: object, what: str) -> None:
    """Fail unless both are equal."""
    expect(actual == wanted, f"{what}: {_short(actual)} instead of {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


async def raises(kind: type[E], awaitable: Awaitable[object], what: str) -> E:
    """Fail unless awaiting raises `kind`; return the error."""
    try:
        result = await awaitable
    except kind as error:
        return error
    except SeerError as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what}: {_short(result)} instead of {kind.__name__}")


async def eventually(
    look: Callable[[], Awaitable[bool]], what: str, *, within: float = 30.0
) -> None:
    """Wait until `look` returns True; fail at the time limit."""
    deadline = time.monotonic() + within
    while not await look():
        expect(time.monotonic() < deadline, f"{what}: not within {within:g} s")
        await asyncio.sleep(0.02)


async def sh(
    machine: Machine,
    script: str,
    *,
    env: Mapping[str, str] | None = None,
    seconds: float | None = 60.0,
) -> ExecResult:
    """Run a shell script in the machine."""
    return await machine.exec(["/bin/sh", "-c", script], env=env, timeout=seconds)


async def python(machine: Machine, code: str, *arguments: str) -> bytes:
    """Run Python in the machine, and fail if it fails."""
    result = await machine.exec([machine.layout.python, "-c", code, *arguments], timeout=120)
    expect(result.exit_code == 0, f"python in the machine failed: {result.stderr.decode()}")
    return result.stdout


async def is_running(machine: Machine, pid: int) -> bool:
    """Whether a process of the machine still runs (a zombie does not)."""
    script = f"kill -0 {pid} 2>/dev/null && ! grep -qs '^State:.Z' /proc/{pid}/status"
    return (await sh(machine, script)).exit_code == 0
