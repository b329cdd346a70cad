"""Calls of served interfaces into the record of a run, while it runs."""

import asyncio
import errno
import json
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from seer.errors import RecordError, SeerError
from seer.runs._calls import GateCall, blob_of
from seer.runs._record import RunRecord

logger = logging.getLogger(__name__)

LONGEST = 10.0
"""Seconds that the end of a run waits for the last calls to be written down."""
_LARGE = 1 << 20


class RecordedGate(Protocol):
    """What a served interface must offer for its calls to be in the record of a run."""

    @property
    def name(self) -> str:
        """What agents call it."""
        ...

    def about(self) -> Mapping[str, Any]:
        """Plain data for the record: schema, hash of the source, models with their revisions."""
        ...

    async def weights(self) -> Mapping[str, Any]:
        """The hashes of its models' files, by model; may take its time."""
        ...

    def records(self, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The gate's own lines from an offset on, as they come; each with where to go on."""
        ...

    async def flush(self) -> int:
        """Have all calls that were answered written down; the offset of the record's end."""
        ...

    async def read_blob(self, sha256: str) -> bytes:
        """A blob of the gate's record."""
        ...


@dataclass(frozen=True)
class Followed:
    """A gate, and whose calls of it belong into the record."""

    gate: RecordedGate
    wanted: Callable[[str], bool] = lambda caller: True


_taken: "weakref.WeakKeyDictionary[RecordedGate, dict[str, int]]" = weakref.WeakKeyDictionary()
"""Up to which offset of its record the calls of each caller of a gate are in some run's record."""


class CallCollector:
    """Follows gates and writes their calls down."""

    def __init__(
        self, record: RunRecord, *, on_call: Callable[[GateCall], None] = lambda call: None
    ) -> None:
        self._record = record
        self._on_call = on_call
        self._follower: dict[asyncio.Task[None], _Follower] = {}
        self._weights: list[asyncio.Task[None]] = []

    def follow(self, gates: Sequence[Followed]) -> None:
        """Start following; what the gates did before is taken too, unless an earlier run has it."""
        about = {item.gate.name: dict(item.gate.about()) for item in gates}
        if about:
            self._record.update({"interfaces": about})
        for item in gates:
            model = ", ".join(map(_model, about[item.gate.name].get("models") or ()))
            follower = _Follower(item, self._record, self._on_call, model=model)
            self._follower[asyncio.create_task(follower.run())] = follower
            self._weights.append(asyncio.create_task(self._note_weights(item.gate, about)))

    async def stop(self) -> str:
        """Take what is still to come, then stop. Bounded, and safe under cancellation.

        Returns:
            Why calls are missing from the record; empty where none are.
        """
        tasks = [*self._follower, *self._weights]
        if not tasks:
            return ""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(LONGEST):
                ends = [item.finish() for task, item in self._follower.items() if not task.done()]
                await asyncio.gather(*ends)
                await asyncio.wait(self._weights)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5)
        return "; ".join(item.missing for item in self._follower.values() if item.missing)

    async def _note_weights(self, gate: RecordedGate, about: Mapping[str, dict[str, Any]]) -> None:
        if weights := await gate.weights():
            entry = {**about[gate.name], "weights": dict(weights)}
            self._record.update({"interfaces": {gate.name: entry}})


class _Follower:
    """Takes the calls of one gate."""

    def __init__(
        self,
        followed: Followed,
        record: RunRecord,
        on_call: Callable[[GateCall], None],
        *,
        model: str,
    ) -> None:
        self.missing = ""
        self._gate = followed.gate
        self._wanted = followed.wanted
        self._record = record
        self._on_call = on_call
        self._model = model
        self._seen = 0
        self._taken = _taken.setdefault(followed.gate, {})
        self._before = dict(self._taken)
        self._news = asyncio.Event()
        self._kept: dict[str, str] = {}

    async def run(self) -> None:
        """Take calls until cancelled, or until the gate or the record is gone."""
        try:
            async for after, line in self._gate.records():
                caller = str(line.get("caller", ""))
                if after > self._before.get(caller, 0) and self._wanted(caller):
                    await self._take(line)
                    self._taken[caller] = after
                self._seen = after
                self._news.set()
        except RecordError as error:
            self.missing = f"calls of {self._gate.name!r} are missing: {error}"
            logger.error("%s", self.missing)
        except (SeerError, OSError) as error:
            # The sandbox may end before the run does; what was read is in the record.
            logger.info("no more calls of %r are recorded: %s", self._gate.name, error)
        finally:
            self._seen = -1
            self._news.set()

    async def finish(self) -> None:
        """Wait until every call that was answered so far is taken."""
        try:
            end = await self._gate.flush()
        except (SeerError, OSError) as error:
            logger.info("the calls of %r may not all be recorded: %s", self._gate.name, error)
            return
        while 0 <= self._seen < end:
            self._news.clear()
            await self._news.wait()

    async def _take(self, line: dict[str, Any]) -> None:
        for key in ("arguments", "result"):
            # Kept in the line, from where it goes into a blob of the record's own, without secrets.
            if digest := blob_of(line.get(key)):
                line[key] = json.loads(await self._gate.read_blob(digest))
        for key in ("argument_buffers", "result_buffers"):
            buffers: list[dict[str, Any]] = line.get(key) or []
            line[key] = [{**item, "sha256": await self._keep(item["sha256"])} for item in buffers]
        call = GateCall.from_gate(self._gate.name, line, model=self._model)
        self._record.call(call.to_json())
        self._on_call(call)

    async def _keep(self, digest: str) -> str:
        """Have an array in the record; its hash there, which differs where a secret was removed."""
        if digest not in self._kept:
            try:
                data = await self._gate.read_blob(digest)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                # The gate keeps digests only, once its record is too large.
                logger.warning("array %s of %r was not kept", digest[:12], self._gate.name)
                return digest
            if len(data) > _LARGE:
                self._kept[digest] = await asyncio.to_thread(self._record.blob, data)
            else:
                self._kept[digest] = self._record.blob(data)
        return self._kept[digest]


def _model(origin: Mapping[str, Any]) -> str:
    return f"{origin.get('name')}@{origin.get('commit') or origin.get('source')}"
