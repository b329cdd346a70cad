"""Writes the calls of served interfaces into the record of a run, while it runs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import anyio

from seer.errors import (
    InterfaceDiedError,
    RecordError,
    SandboxPausedError,
    SandboxStateError,
    SeerError,
)
from seer.rpc._control import is_blob
from seer.runs._calls import GateCall
from seer.runs._record import RunRecord
from seer.runs._tool_calls import ToolCalls

logger = logging.getLogger(__name__)

STALLED = 120.0
"""Seconds without progress after which the end of a run no longer waits for its last calls."""
OUTSTANDING = 5.0
"""Seconds that the end of a run waits for calls that have not ended."""
WEIGHTS = 10.0
"""Seconds that the end of a run waits for the hashes of models."""
_PAUSED = 0.2
"""Seconds between two looks at a paused sandbox."""
_LARGE = 1 << 20


class Follow(Protocol):
    """The calls of some callers of a gate; see `seer.rpc._control.CallFollow`."""

    dropped: int
    lost: int
    why: str
    running: Mapping[str, int]

    async def add(self, callers: Sequence[str]) -> int: ...
    def batches(self) -> AsyncIterator[list[tuple[int, dict[str, Any]]]]: ...
    async def read(self, file: int | str) -> bytes: ...
    async def flush(self) -> int: ...
    async def close(self) -> None: ...


class RecordedGate(Protocol):
    """The methods of a served interface whose calls a run records."""

    @property
    def name(self) -> str:
        """What agents call it."""
        ...

    def about(self) -> Mapping[str, Any]:
        """Plain data for the record: schema, hash of the source, models with their revisions."""
        ...

    async def weights(self) -> Mapping[str, Any]:
        """The hashes of its models' files, by model; this can take minutes."""
        ...

    async def follow(self, callers: Sequence[str], *, prefix: str = "") -> Follow:
        """Record the calls of some callers from now on: by name, or by a prefix of their names."""
        ...


@dataclass(frozen=True)
class Followed:
    """A gate, and the callers whose calls belong in the record."""

    gate: RecordedGate
    callers: Callable[[], Sequence[str]]
    """Returns the names of the run's own callers; called when the run begins and ends."""
    prefix: str = ""
    """The prefix of the callers that are the user's own script."""


class CallCollector:
    """Follows gates and records their calls."""

    def __init__(
        self,
        record: RunRecord,
        *,
        on_call: Callable[[GateCall], None] = lambda call: None,
        tool_calls: ToolCalls | None = None,
    ) -> None:
        """Collect calls.

        Args:
            record: Where they are written.
            on_call: Called with each call.
            tool_calls: The run's tool calls, by the tokens that calls of the gate carry.
        """
        self._record = record
        self._tool_calls = tool_calls or ToolCalls()
        self._on_call = on_call
        self._followers: list[_Follower] = []
        self._weights: list[asyncio.Task[None]] = []
        self.failure: RecordError | None = None
        """Why the record takes no more calls; None while it takes them."""

    async def follow(self, gates: Sequence[Followed]) -> None:
        """Start following.

        Earlier calls of the same callers are recorded too, if a gate still holds them and no
        earlier run has taken them.
        """
        about: dict[str, dict[str, Any]] = {}
        for item in gates:
            entry = dict(item.gate.about())
            key = item.gate.name
            if key in about:
                # Of two with one name, each keeps its own entry.
                key = f"{key}#{entry.get('served') or len(about) + 1}"
            about[key] = entry
            follower = _Follower(
                item,
                self._record,
                self._on_call,
                key=key,
                model=", ".join(map(_model, entry.get("models") or ())),
                served=int(entry.get("served") or 0),
                tool_calls=self._tool_calls,
                on_failure=self._failed,
            )
            self._followers.append(follower)
            self._weights.append(asyncio.create_task(self._note_weights(item.gate, key, entry)))
        if about:
            self._record.update(interfaces=about)
        # Wait for all, even if one fails: each may have a follow that `stop` must end.
        begun = await asyncio.gather(
            *(follower.begin() for follower in self._followers), return_exceptions=True
        )
        for problem in begun:
            if problem is not None:
                raise problem

    async def stop(self) -> str:
        """Record the remaining calls, then stop. Always returns, and is safe under cancellation.

        Returns:
            Why calls are missing from the record; empty if none are.
        """
        if not self._followers:
            return ""
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*(follower.finish() for follower in self._followers))
            await asyncio.wait(self._weights, timeout=WEIGHTS)
            for task in self._weights:
                task.cancel()
            await asyncio.wait(self._weights, timeout=5)
        return "; ".join(item.missing for item in self._followers if item.missing)

    async def _note_weights(self, gate: RecordedGate, key: str, about: dict[str, Any]) -> None:
        if weights := await gate.weights():
            try:
                self._record.update(interfaces={key: {**about, "weights": dict(weights)}})
            except RecordError as error:
                self._failed(error)

    def _failed(self, error: RecordError) -> None:
        self.failure = self.failure or error


class _Follower:
    """Takes the calls of one gate."""

    def __init__(
        self,
        followed: Followed,
        record: RunRecord,
        on_call: Callable[[GateCall], None],
        *,
        key: str,
        model: str,
        served: int,
        tool_calls: ToolCalls,
        on_failure: Callable[[RecordError], None],
    ) -> None:
        self._gate = followed.gate
        self._tool_calls = tool_calls
        self._followed = followed
        self._record = record
        self._on_call = on_call
        self._on_failure = on_failure
        self._key = key
        self._model = model
        self._served = served
        self._asked: set[str] = set()
        self._seen = 0
        self._broken = ""
        self._left_out = 0
        self._lost_before = 0
        self._news = asyncio.Event()
        self._kept: dict[str, str] = {}
        self._opening: asyncio.Task[Follow] | None = None
        self._follow: Follow | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def missing(self) -> str:
        """What is missing from the record, and why; empty if nothing is."""
        found: list[str] = []
        follow = self._follow
        if follow is not None and follow.lost:
            found.append(f"{follow.lost} calls could not be recorded ({follow.why})")
        if follow is not None and follow.running:
            names = ", ".join(f"{name} ({count})" for name, count in follow.running.items())
            found.append(f"calls had not ended {OUTSTANDING:g} s after the run: {names}")
        if self._lost_before:
            found.append(
                f"{self._lost_before} calls were made before the gate knew that they belong to the"
                " run"
            )
        if self._left_out:
            found.append(
                f"{self._left_out} items of streams were too large to be recorded, or lost with the"
                " interface"
            )
        if self._broken:
            found.append(self._broken)
        return f"of {self._gate.name!r}: {', '.join(found)}" if found else ""

    async def begin(self) -> None:
        """Ask the gate to record the run's calls, and start to read them."""
        opening = self._gate.follow(self._callers(), prefix=self._followed.prefix)
        self._opening = asyncio.ensure_future(opening)
        # Cancelling the run does not cancel this request, because only its answer says which follow
        # must be ended.
        await asyncio.wait([self._opening])
        try:
            follow = self._follow = self._opening.result()
        except SandboxPausedError as error:
            self._fail(f"the calls cannot be recorded: {error}")
            return
        except (SandboxStateError, InterfaceDiedError) as error:
            # Nothing can call this interface either.
            logger.info("no calls of %r are recorded: %s", self._gate.name, error)
            return
        except (SeerError, OSError) as error:
            self._fail(f"the calls cannot be recorded: {error}")
            return
        self._task = asyncio.create_task(self._run(follow))
        if follow.dropped:
            logger.warning(
                "%d calls of %r were made before this run began and are not in its record: a gate "
                "keeps only the latest of the calls that no run follows. A replay of the whole "
                "program will miss them.",
                follow.dropped,
                self._gate.name,
            )
            self._record.update(calls_before={self._key: follow.dropped})

    async def finish(self) -> None:
        """Record every call that was made until now, then end the follow."""
        if self._opening is None:
            return
        await asyncio.wait([self._opening], timeout=STALLED)
        if not self._opening.done():
            self._opening.cancel()
            return
        if self._opening.exception() is not None:
            return
        follow, task = self._opening.result(), self._task
        if task is None:
            # `begin` was cancelled. The gate may already have moved earlier calls to this follow.
            self._follow = follow
            task = self._task = asyncio.create_task(self._run(follow))
        try:
            await self._take_rest(follow)
        except TimeoutError:
            self._fail(f"the gate sent nothing for {STALLED:g} s")
        except SandboxPausedError as error:
            self._fail(f"the last calls cannot be read: {error}")
        except (SeerError, OSError) as error:
            self._fail(f"the gate ended before its last calls were read: {error}")
        task.cancel()
        await asyncio.wait([task], timeout=5)
        try:
            async with asyncio.timeout(STALLED):
                await follow.close()
        except (SeerError, OSError, TimeoutError) as error:
            logger.info("%r may go on recording for a while: %s", self._gate.name, error)
        if self.missing:
            logger.info("calls are missing from the record: %s", self.missing)

    async def _take_rest(self, follow: Follow) -> None:
        async with asyncio.timeout(STALLED):
            late = self._callers()
            if late and (dropped := await follow.add(late)):
                self._lost_before = dropped
            end = await follow.flush()
        patience = time.monotonic() + OUTSTANDING
        pause = 0.01
        while follow.running and time.monotonic() < patience:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
            async with asyncio.timeout(STALLED):
                end = await follow.flush()
        while not self._broken and self._seen < end:
            self._news.clear()
            async with asyncio.timeout(STALLED):
                await self._news.wait()

    def _is_script(self, caller: str) -> bool:
        prefix = self._followed.prefix
        return bool(prefix) and caller.startswith(prefix)

    def _callers(self) -> list[str]:
        callers = [caller for caller in self._followed.callers() if caller not in self._asked]
        self._asked.update(callers)
        return callers

    def _fail(self, why: str) -> None:
        self._broken = self._broken or why
        self._news.set()

    async def _run(self, follow: Follow) -> None:
        """Take calls until cancelled, or until the gate or the record is gone."""
        try:
            while True:
                try:
                    await self._take_all(follow)
                except SandboxPausedError:
                    # Nothing is lost: the gate holds the calls until it runs again.
                    await asyncio.sleep(_PAUSED)
        except RecordError as error:
            self._fail(str(error))
            self._on_failure(error)
        except (SeerError, OSError) as error:
            self._fail(f"the gate ended before its last calls were read: {error}")

    async def _take_all(self, follow: Follow) -> None:
        async for batch in follow.batches():
            for after, line in batch:
                # The gate sends an interrupted batch again.
                if after > self._seen:
                    await self._take(follow, line)
                    self._seen = after
                    self._news.set()

    async def _take(self, follow: Follow, line: dict[str, Any]) -> None:
        for key in ("arguments", "result"):
            # The line gets the value itself; the record then moves it to its own blob, without
            # secrets.
            if is_blob(line.get(key)):
                reference: dict[str, Any] = line[key]["blob"]
                if "file" in reference:
                    line[key] = json.loads(await follow.read(reference["file"]))
        for key in ("argument_buffers", "result_buffers"):
            buffers: list[dict[str, Any]] = line.get(key) or []
            line[key] = [{**item, "sha256": await self._keep(follow, item)} for item in buffers]
        result = line.get("result")
        if isinstance(result, dict):
            self._left_out += int(cast("dict[str, Any]", result).get("left_out", 0))
        call = GateCall.from_gate(self._gate.name, line, model=self._model, served=self._served)
        # A script's calls belong to no tool call of this run, even if they name one.
        named = "" if self._is_script(call.caller) else self._tool_calls.named(call.tool_call)
        call = replace(call, tool_call=named)
        self._record.call(call.to_json())
        self._on_call(call)

    async def _keep(self, follow: Follow, item: Mapping[str, Any]) -> str:
        """Put an array into the record; returns its hash, which changes if a secret is removed."""
        digest: str = item["sha256"]
        if digest not in self._kept and "file" in item:
            data = await follow.read(item["file"])
            self._news.set()
            if len(data) > _LARGE:
                self._kept[digest] = await asyncio.to_thread(self._record.blob, data)
            else:
                self._kept[digest] = self._record.blob(data)
        # A gate that keeps only digests has no array to read.
        return self._kept.get(digest, digest)


def _model(origin: Mapping[str, Any]) -> str:
    return f"{origin.get('name')}@{origin.get('commit') or origin.get('source')}"
