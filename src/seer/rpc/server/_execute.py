"""Running one call: arguments in, function, result out. What all lanes have in common.

`Executor` decodes and checks arguments, turns results and exceptions into replies, and does the
accounting. Which thread calls the function, and how it is interrupted there, is the lanes' part.
"""

from __future__ import annotations

import sys
import time

from seer.errors import (
    ArgumentError,
    GateError,
    ProtocolError,
    ResultError,
)
from seer.rpc._budget import charge, check_bytes, seconds_left
from seer.rpc._handles import Handle, part_of
from seer.rpc._pack import Unsendable
from seer.rpc._pool import Pool
from seer.rpc._values import decode, encode, unsendable_result
from seer.rpc.client._wire import RAISED

from ._calls import QUEUED, RUNNING
from ._failures import Stopped, gate_failure, raised_text, render, render_names
from ._replies import Reply
from ._stopping import stop_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from seer.rpc._blind import Scrubber
    from seer.rpc._budget import Tally

    from ._calls import Call
    from ._config import Tracebacks
    from ._entries import Entry
    from ._gate import Gate
    from ._recorder import Recorder
    from ._shared import Shared

_FIELDS = frozenset({"args", "kwargs"})
_NEVER = float("inf")
PASS_ON = 64
"""Calls of one function by one caller that are added up before the meters are told."""
_monotonic = time.monotonic


class Executor:
    """Runs calls on whatever lane asks it to."""

    def __init__(
        self,
        gate: Gate,
        shared: Shared,
        *,
        tracebacks: Tracebacks,
        scrubber: Scrubber | None,
        recorder: Recorder | None,
        grace: float,
        poisoned: Callable[[str], None],
    ) -> None:
        self.gate = gate
        self.shared = shared
        self.tracebacks = tracebacks
        self.scrubber = scrubber
        self.scrub = None if scrubber is None else scrubber.value
        self.recorder = recorder
        self.keeps_tracebacks = recorder is not None
        """Whether whole tracebacks are made for the record where callers do not see them."""
        self.grace = grace
        self._poisoned = poisoned

    def begin(self, call: Call, lane: int, runner: Any) -> bool:
        """Mark `call` as running on `lane` and set its time limits; False if it was stopped."""
        now = _monotonic()
        owner, entry = call.owner, call.entry
        with owner.lock:
            if call.state != QUEUED or call.cause:
                return False
            call.state = RUNNING
            call.runner = runner
            call.started_at = now
        if self.recorder is not None or call.tally.limited:
            # Who must know about a call that dies with the process: the record, and a budget.
            self.shared.begin(lane, call.place, call.id, now)
        else:
            self.shared.enter(lane, call.place)
        timeout = entry.options.timeout
        if timeout is not None and now + timeout < call.expires:
            call.expires = now + timeout
        if call.tally.limited:
            left, meter = seconds_left(call.tally.meters, gpu=uses_gpu())
            if meter is not None and now + left < call.expires:
                call.expires = now + left
                call.by_budget = True
        if call.expires != _NEVER:
            self.shared.kill_after(lane, call.expires + self.grace)
            if call.expires < self.gate.loop.wake_at:
                self.gate.loop.wake_at = call.expires
                self.gate.loop.ring()
        return True

    def arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """Decode and check the arguments.

        Raises:
            GateError: They are malformed, or do not fit the function; or the caller has not read
                its answers to calls that were ahead of this one.
        """
        if call.owner.clogged:
            call.owner.check_unread()
        try:
            value: Any
            if call.buffers:
                torch = "torch" in sys.modules
                value = decode(call.body, call.buffers, torch=torch, extra=call.owner.restorers)
            else:
                value = decode(call.body, extra=call.owner.restorers)
            args: Any
            kwargs: Any
            # Libraries send a list. An object was written by hand or by a peer that has only JSON.
            plain = not call.frames
            if value.__class__ is list and len(value) == 2:
                args, kwargs = value
            elif value.__class__ is dict and _FIELDS.issuperset(value):
                args, kwargs = value.get("args", []), value.get("kwargs", {})
                plain = True
            else:
                raise ProtocolError(
                    'a call\'s body is {"args": [...], "kwargs": {...}}, with nothing else in it'
                )
            if args.__class__ is not list or kwargs.__class__ is not dict:
                raise ProtocolError("a call's args must be a list and its kwargs an object")
            if call.target:
                args = [call.owner.handles.get(call.target), *args]
            bind = call.entry.bind_plain if plain else call.entry.bind
            return bind(args, kwargs)
        except BaseException as error:
            raise self.misfit(call.entry, error) from None

    def misfit(self, entry: Entry, error: BaseException) -> GateError:
        """The error for arguments of which checking them raised `error`."""
        if isinstance(error, GateError):
            return error
        # A validator of the user's own, which may raise anything, or no memory.
        return ArgumentError(
            f"{entry.name}() was not called, checking its arguments failed:"
            f" {type(error).__name__}: {error}"
        )

    def result(self, call: Call, value: Any) -> Reply:
        """The reply that carries a function's result, or says why it cannot be sent."""
        buffers: list[Any] = []
        if call.entry.returns_handle and type(value) is not Handle:
            value = Handle(value)
        try:
            text = encode(
                value,
                buffers,
                frames=call.frames,
                function=call.entry.name,
                extra=call.owner.describe,
                scrub=self.scrub,
            )
            text = b'{"result":%s}' % self.scrubbed(text)
        except Exception as error:  # properties of the user's classes, memory
            return self.unsendable(call, error)
        return self.laid_out(call, text, buffers)

    def laid_out(self, call: Call, text: bytes, buffers: list[Any]) -> Reply:
        """The reply with the text of a result and its buffers, or why they cannot be sent."""
        reply = Reply(200, text)
        try:
            if buffers:
                reply.add_buffers(buffers, self._pool(call))
        except Exception as error:  # memory, a GPU's copy
            self._give_up(reply)
            return self.unsendable(call, error)
        return reply

    def unsendable(self, call: Call, error: Exception) -> Reply:
        """The reply that says why a function's result cannot be sent."""
        if isinstance(error, Unsendable):
            error = unsendable_result(error, call.entry.name)
        if isinstance(error, GateError):
            return self.refusal(error)
        return self.refusal(
            ResultError(
                f"{call.entry.name}() returned a value that could not be sent:"
                f" {type(error).__name__}: {error}"
            )
        )

    def _pool(self, call: Call) -> Pool | None:
        if not call.shared or not call.connections:
            return None
        return self.gate.pool_of(call.connections[0], call.owner.allowance)

    def refusal(self, error: GateError) -> Reply:
        """The reply that carries an error of the gate itself."""
        status, text = gate_failure(error)
        return Reply(status, self.scrubbed(text), type(error).__name__)

    def fault(self, error: Exception) -> Reply:
        """The reply for a fault of the gate itself, so that no caller waits for ever."""
        import traceback

        sys.stderr.write(traceback.format_exc())
        name = type(error).__name__
        return self.refusal(GateError(f"the gate itself failed ({name}); its log says where"))

    def failure(self, call: Call, error: BaseException) -> Reply:
        """The reply that carries what a function raised, or why it was stopped."""
        if call.cause and isinstance(error, Stopped):
            return self.refusal(stop_error(call, _monotonic()))
        return self.raised(error)

    def raised(self, error: BaseException) -> Reply:
        """The reply that carries what a function raised."""
        shown = self.tracebacks
        whole = render(error, 1) if shown is True or self.keeps_tracebacks else ""
        trace = whole if shown is True else render_names(error, 1) if shown else ""
        reply = Reply(RAISED, self.scrubbed(raised_text(error, trace)), type(error).__name__)
        if shown is not True:
            reply.traceback = whole
        return reply

    def scrubbed(self, text: bytes) -> bytes:
        """The text without the names of hidden models."""
        return text if self.scrubber is None else self.scrubber.data(text)

    def finish(self, call: Call, lane: int, reply: Reply, ended: float) -> None:
        """Do the accounting, send the reply, record the call."""
        self.shared.end(lane)
        self.settle(call, reply, ended, ended - call.started_at)

    def settle(self, call: Call, reply: Reply, ended: float, seconds: float) -> None:
        """Account `seconds` of running to a call, send its reply, record it."""
        size = call.bytes_in + reply.size
        if call.tally.limited:
            try:
                check_bytes(call.tally.meters, size)
            except GateError as error:
                self._give_up(reply)
                reply = self.refusal(error)
                size = 0
        self._count(call, seconds, size)
        recorder = self.recorder
        if recorder is None:
            self.gate.finish(call, reply)
            return
        recorder.hold(reply)
        # Before the answer: who has it may ask at once for everything that was answered.
        recorder.add(call, reply, ended, seconds, call.bytes_in + reply.size)
        self.gate.finish(call, reply)

    def _count(self, call: Call, seconds: float, size: int) -> None:
        gpu_seconds = seconds if "torch" in sys.modules and uses_gpu() else 0.0
        count(call.tally, seconds, gpu_seconds, size)

    def complete(self, call: Call, lane: int, value: Any, ended: float) -> None:
        """Send a function's result."""
        self.finish(call, lane, self.result(call, value), ended)

    def _give_up(self, reply: Reply) -> None:
        if reply.slot is not None and reply.pool is not None:
            reply.slot.lent = False
            reply.pool.let_go(reply.slot)

    def check_poisoned(self, error: BaseException) -> None:
        """End the process if a CUDA error has made it unusable; every further call would fail."""
        if not uses_gpu():
            return
        try:
            text = str(error)
        except Exception:  # the class is the user's, and so is its bug
            return
        if "CUDA error" not in text and type(error).__name__ != "AcceleratorError":
            return
        try:
            sys.modules["torch"].cuda.synchronize()
        except RuntimeError as sticky:
            self._poisoned(str(sticky).partition("\n")[0])


def count(tally: Tally, seconds: float, gpu_seconds: float, size: int) -> None:
    """Count what a call has used: at once where there are limits, else some calls at a time."""
    if tally.limited:
        charge(tally.meters, seconds, gpu_seconds, size)
        return
    tally.calls += 1
    tally.seconds += seconds
    tally.gpu_seconds += gpu_seconds
    tally.size += size
    if tally.calls >= PASS_ON:
        tally.pass_on()


def uses_gpu() -> bool:
    """Whether this process has a GPU in use."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and cuda.is_initialized()


def bind_fetch(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Check the arguments of `POST /v1/fetch/<handle>`: the handle, and an index or nothing."""
    index: Any = args[1] if len(args) == 2 else None
    if kwargs or len(args) > 2 or not (index is None or index.__class__ is list):
        raise ArgumentError("fetch takes one argument, a list with one index for each axis")
    return [part_of(args[0].value, index)], {}


def fetch(part: Any) -> Any:
    """What `POST /v1/fetch/<handle>` runs: the part was already taken with the arguments."""
    return part
