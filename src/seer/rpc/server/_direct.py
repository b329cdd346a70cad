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
from _thread import allocate_lock

from seer.rpc._values import (
    _encode,  # pyright: ignore[reportPrivateUsage]
    decode_plain_call,
)

from ._calls import call_of
from ._execute import PASS_ON, uses_gpu
from ._failures import Stopped
from ._lanes import MAIN_LANE
from ._replies import Reply
from ._shared import turned_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from seer.rpc._wire import Request

    from ._calls import Begun, Call
    from ._connection import Connection
    from ._execute import Executor
    from ._gate import Gate
    from ._lanes import MainLane

_monotonic = time.monotonic
_TURNED_TO = turned_to(MAIN_LANE)


class Direct:
    """Runs usual calls.

    Most of a call (its place among others, who waits for it) matters only to those who look at it
    while it runs, and nobody does before the relief takes over. So it is made only then.

    Args:
        gate: What a call comes from.
        executor: What it has in common with others.
        lane: The main thread's.
    """

    def __init__(self, gate: Gate, executor: Executor, lane: MainLane) -> None:
        self._loop = gate.loop
        self._callers = gate.callers
        self._executor = executor
        self._lane = lane
        self._recorder = executor.recorder
        self._shared = executor.shared
        self._cells = executor.shared.cells
        self._ok = gate.ok
        self._raised = gate.raised
        self._begun: Begun | None = None
        self._call: Call | None = None
        self._making = allocate_lock()
        gate.loop.taken_over = self._show

    def run(self, connection: Connection, request: Request, body: bytes) -> bool:
        """Run a call to its end; False, and nothing done, if it is not one for this way."""
        loop = self._loop
        caller = connection.caller
        identifier = request.call
        entry: Any = request.entry
        tally = caller.tallies.get(entry)
        if (
            tally is None
            or tally.limited
            or not entry.usual
            or loop.jobs
            or not loop.direct
            or identifier in caller.calls
            or identifier in caller.results.known
            or caller.clogged
            or (caller.batch == loop.batch and len(self._callers) > 1)
        ):
            return False
        found = decode_plain_call(body)
        if found is None:
            return False
        args, kwargs = found
        now = _monotonic()
        self._begun = begun = (connection, request, body, identifier, entry, tally, now)
        caller.batch = loop.batch
        place = caller.first_place + entry.place
        if self._recorder is None:
            self._cells[_TURNED_TO] = place
        else:
            self._shared.begin(MAIN_LANE, place, identifier, now)
        lane = self._lane
        serial = loop.enter()
        try:
            try:
                args, kwargs = entry.bind(args, kwargs)
                lane.inside = begun
                if self._call is not None and self._call.cause:
                    raise Stopped
                value = entry.target(*args, **kwargs)
                lane.inside = None
            except BaseException as error:
                # Whatever a function raises, SystemExit too, is its caller's to see.
                self._fail(begun, serial, error)
                return True
        except Stopped as stopped:
            # The signal came between the function's last step and ours.
            self._fail(begun, serial, stopped)
            return True
        ended = _monotonic()
        buffers: list[Any] = []
        try:
            text = b'{"result":%s}' % _encode(value, buffers, True, caller.describe)
        except Exception as error:
            self._finish(serial, self._executor.unsendable(self._made(), error), ended)
            return True
        if buffers:
            self._finish(serial, self._executor.laid_out(self._made(), text, buffers), ended)
        else:
            loop.leave(serial)
            self._answer(begun, self._ok, text, text, ended)
        return True

    def _fail(self, begun: Begun, serial: int, error: BaseException) -> None:
        """Answer a call whose function was not reached, or raised, or was stopped."""
        lane, executor = self._lane, self._executor
        reached = lane.inside is begun or isinstance(error, Stopped)
        lane.inside = None
        ended = _monotonic()
        try:
            if reached:
                reply = executor.raised(error)
            else:
                reply = executor.refusal(executor.misfit(begun[4], error))
        except Exception as fault:
            reply, reached = executor.fault(fault), False
        if not reached:
            self._finish(serial, reply, ended)
            return
        self._loop.leave(serial)
        if self._call is not None and isinstance(error, Stopped):
            reply = executor.failure(self._call, error)
        self._answer(begun, self._raised, reply.text, reply, ended)
        executor.check_poisoned(error)

    def _finish(self, serial: int, reply: Reply, ended: float) -> None:
        """Answer a call by the longer way."""
        try:
            self._executor.finish(self._made(), MAIN_LANE, reply, ended)
        finally:
            self._loop.leave(serial)
            self._begun = self._call = None

    def _made(self) -> Call:
        """What runs, as a call that others can see: to cancel it, to wait for it, to count it."""
        with self._making:
            begun = self._begun
            assert begun is not None
            if self._call is None:
                call = self._call = call_of(begun)
                connection = begun[0]
                call.runner = self
                call.connections.append(connection)
                connection.call = call
                connection.busy = True
                call.owner.calls[call.id] = call
                self._loop.wake_at = min(self._loop.wake_at, call.beat_at)
            return self._call

    def _show(self) -> None:
        if self._begun is not None:
            self._made()

    def interrupt(self, call: Call) -> None:
        """Stop `call` if it runs; from another thread."""
        if self._call is call:
            self._lane.interrupt(self._begun)

    def _answer(
        self, begun: Begun, head: bytes, text: bytes, kept: Reply | bytes, ended: float
    ) -> None:
        """Count a call, send its answer and keep it, record it; as `Executor.settle` does."""
        self._begun = None
        if self._call is not None:
            # Others have seen it, and may wait for it.
            call, self._call = self._call, None
            reply = Reply(200, kept) if isinstance(kept, bytes) else kept
            self._executor.finish(call, MAIN_LANE, reply, ended)
            return
        connection, _, body, identifier, entry, tally, started = begun
        seconds = ended - started
        tally.calls += 1
        tally.seconds += seconds
        tally.size += (size := len(body) + len(text))
        if "torch" in sys.modules and uses_gpu():
            tally.gpu_seconds += seconds
        if tally.calls >= PASS_ON:
            tally.pass_on()
        caller = connection.caller
        with caller.lock:
            caller.results.add(identifier, entry.name, kept, ended)
        if self._recorder is not None:
            # Before the answer: who has it may ask at once for everything that was answered.
            self._shared.end(MAIN_LANE)
            self._recorder.add(begun, kept, ended, seconds, size)
        connection.send_alone(b"%s%d\r\n\r\n%s" % (head, len(text), text))
