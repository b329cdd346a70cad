"""Calls of served interfaces into the record of a run, while it runs."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio

from seer.errors import SeerError
from seer.runs._calls import GateCall, blob_of, blobs_of
from seer.runs._record import RunRecord

logger = logging.getLogger(__name__)

SETTLE = 0.4
"""Seconds without a new line after which a gate, which writes with a delay, has said all."""
LONGEST = 10.0


class RecordedGate(Protocol):
    """What a served interface must offer for its calls to be in the record of a run."""

    @property
    def name(self) -> str:
        """What agents call it."""
        ...

    def about(self) -> Mapping[str, Any]:
        """Plain data for the record: schema, hash of the source, models with their revisions."""
        ...

    def records(self, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The gate's own lines from an offset on, as they come; and where to go on."""
        ...

    async def read_blob(self, digest: str) -> bytes:
        """A blob of the gate's record."""
        ...


class CallCollector:
    """Follows gates and writes their calls down."""

    def __init__(
        self,
        record: RunRecord,
        *,
        wanted: Callable[[str], bool] = lambda caller: True,
        on_call: Callable[[GateCall], None] = lambda call: None,
    ) -> None:
        self._record = record
        self._wanted = wanted
        self._on_call = on_call
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()

    def follow(self, gates: Sequence[RecordedGate]) -> None:
        """Start following; what the gates did before is taken too."""
        about = {gate.name: dict(gate.about()) for gate in gates}
        if about:
            self._record.update({"interfaces": about})
        self._tasks = [asyncio.create_task(self._follow(gate)) for gate in gates]

    async def stop(self) -> None:
        """Take what is still to come, then stop. Bounded, and safe under cancellation."""
        if not self._tasks:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(LONGEST):
            silent = False
            while not silent:
                self._news.clear()
                silent = True
                with anyio.move_on_after(SETTLE):
                    await self._news.wait()
                    silent = False
        for task in self._tasks:
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait(self._tasks, timeout=5)

    async def _follow(self, gate: RecordedGate) -> None:
        try:
            async for _, line in gate.records():
                if self._wanted(str(line.get("caller", ""))):
                    await self._take(gate, line)
                self._news.set()
        except (SeerError, OSError) as error:
            # The sandbox may end before the run does; what was read is in the record.
            logger.info("no more calls of %r are recorded: %s", gate.name, error)

    async def _take(self, gate: RecordedGate, line: dict[str, Any]) -> None:
        for digest in blobs_of(line):
            data = await gate.read_blob(digest)
            if self._record.blob(data) != digest:
                raise SeerError(f"blob {digest} of {gate.name!r} is not what its name says")
            for key in ("arguments", "result"):
                if blob_of(line.get(key)) == digest:
                    line[key] = json.loads(data)
        call = GateCall.from_gate(gate.name, line)
        self._record.call(call.to_json())
        self._on_call(call)
