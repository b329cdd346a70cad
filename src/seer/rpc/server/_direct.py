"""The usual call by the shortest way: read, run and answered on the main thread, in one go.

A small call spends most of its time on the way to its function and back. This way is for what
needs nothing more: a function of the main thread, arguments and a result that are plain JSON, no
deadline, no limit on budgets, nobody waiting before it. Anything else is left to the gate and its
lanes, also when it shows only halfway. What others may see of the call (to cancel it, to count it,
to ask for its result again) is the same either way.
"""

from __future__ import annotations

import sys
import time

from seer.rpc._values import _encode  # pyright: ignore[reportPrivateUsage]
from seer.rpc.client._wire import RAISED

from ._calls import DONE, RUNNING, SMALL, Call
from ._execute import PASS_ON, uses_gpu
from ._lanes import MAIN_LANE
from ._replies import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from seer.rpc._wire import Request

    from ._connection import Connection
    from ._entries import Entry
    from ._execute import Executor
    from ._gate import Gate
    from ._lanes import MainLane

_monotonic = time.monotonic


class Direct:
    """Runs usual calls.

    Args:
        gate: What a call comes from.
        executor: What it has in common with others.
        lane: The main thread's.
    """

    def __init__(self, gate: Gate, executor: Executor, lane: MainLane) -> None:
        self._gate = gate
        self._loop = gate.loop
        self._executor = executor
        self._lane = lane
        self._recorder = executor.recorder
        self._blind = executor.scrubber is not None
        self._shared = executor.shared
        self._ok = gate.ok
        self._raised = gate.raised

    def run(
        self, connection: Connection, request: Request, body: bytes | bytearray, entry: Entry
    ) -> bool:
        """Run a call to its end; False, and nothing done, if it is not one for this way."""
        loop = self._loop
        caller = connection.caller
        identifier = request.call
        tally = caller.tallies.get(entry)
        if (
            not (request.usual and entry.usual and loop.direct)
            or loop.jobs
            or tally is None
            or tally.limited
            or request.epoch != self._gate.epoch
            or identifier in caller.calls
            or identifier in caller.results.known
            or caller.clogged
            or (caller.batch == loop.batch and len(self._gate.callers) > 1)
            or self._blind
            or request.length > SMALL
        ):
            return False
        now = _monotonic()
        call = Call(caller, entry, request, tally, now)
        call.body = body
        call.state = RUNNING
        call.runner = self._lane
        call.started_at = now
        call.connections.append(connection)
        connection.call = call
        caller.calls[identifier] = call
        caller.batch = loop.batch
        self._shared.enter(MAIN_LANE, caller.index, entry.place)
        if self._recorder is not None:
            self._shared.begin(MAIN_LANE, identifier, now)
        if call.beat_at < loop.wake_at:
            loop.wake_at = call.beat_at
        serial = loop.enter()
        self._lane.run_begun(call, self)
        loop.leave(serial)
        return True

    def complete(self, call: Call, value: Any, ended: float) -> None:
        """Answer with what the function gave."""
        buffers: list[Any] = []
        try:
            text = _encode(value, buffers, True, call.owner.describe)
        except Exception:  # the longer way finds out what is wrong, and says so
            buffers.append(b"")
            text = b""
        if buffers or call.tally.limited:
            executor = self._executor
            executor.finish(call, MAIN_LANE, executor.result(call, value), ended)
            return
        text = b'{"result":%s}' % text
        self._answer(call, self._ok, text, text, ended)

    def failed(self, call: Call, error: BaseException, ended: float) -> None:
        """Answer with what the function raised."""
        executor = self._executor
        reply = executor.failure(call, error)
        if reply.status != RAISED or call.tally.limited:
            executor.finish(call, MAIN_LANE, reply, ended)
            return
        self._answer(call, self._raised, reply.text, reply, ended)

    def _answer(
        self, call: Call, head: bytes, text: bytes, kept: Reply | bytes, ended: float
    ) -> None:
        """Count a call, send its answer and keep it, record it; as `Executor.settle` does."""
        seconds = ended - call.started_at
        tally = call.tally
        tally.calls += 1
        tally.seconds += seconds
        tally.size += call.bytes_in + len(text)
        if "torch" in sys.modules and uses_gpu():
            tally.gpu_seconds += seconds
        if tally.calls >= PASS_ON:
            tally.pass_on()
        self._finish(call, b"%s%d\r\n\r\n%s" % (head, len(text), text), kept, ended)
        if self._recorder is not None:
            self._shared.end(MAIN_LANE)
            self._recorder.add(call, kept, ended, seconds)

    def _finish(self, call: Call, answer: bytes, kept: Reply | bytes, now: float) -> None:
        """Send the answer and keep it, as `Gate.finish` does."""
        owner = call.owner
        with owner.lock:
            if call.state == DONE:
                return
            call.state = DONE
            del owner.calls[call.id]
            waiting, call.connections = call.connections, []
            owner.results.add(call.id, call.entry.name, kept, now)
        for connection in waiting:
            connection.busy = False
            connection.call = None
            if connection.closing:
                reply = Reply(200, kept) if isinstance(kept, bytes) else kept
                self._gate.send_reply(connection, reply)
            else:
                connection.send(answer)
