"""Running a call: begin, check its arguments, call the function, make the reply, finish.

These steps are written once, here, for every kind of call. A lane only chooses where the function
runs and how it is interrupted there:

- `Executor.run` does all steps on the calling thread, for the main thread and for threads of
  functions with `max_concurrency`. A generator is run by `Streamer.run`, which calls `attempt` for
  each item.
- `AsyncLane` awaits between `start` and `settle`.
- `Batch` begins several calls, calls `attempt` once, and settles each of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from seer.errors import (
    ArgumentError,
    GateError,
    ProtocolError,
    ResultError,
    StillRunningError,
)
from seer.rpc.values._codec import decode, decode_plain_call, encode, unsendable_result
from seer.rpc.values._handles import Handle, part_of
from seer.rpc.values._pack import Unsendable
from seer.rpc.wire._memory import SlotPool
from seer.rpc.wire._protocol import RAISED

from ._calls import DONE
from ._failures import Stopped, gate_failure, raised_text, render, render_names, uses_gpu
from ._replies import Reply
from ._shared import MAIN_MARK, Marks, Shared
from ._streams import STREAM_END, Streamer

if TYPE_CHECKING:
    from seer.rpc.interface._blind import Scrubber

    from ._calls import Call, Runner
    from ._config import Tracebacks
    from ._gate import Gate
    from ._recorder import Recorder

    class Job(Protocol):
        """A call, or a batch of calls."""

        @property
        def cause(self) -> str:
            """Why it must stop; empty if it may run on."""
            ...

    class Lane(Runner, Protocol):
        """A place where functions run, and how one is told to stop there."""

        def enter(self, job: Any, /) -> None:
            """Note that the calling thread enters user code for `job`."""
            ...

        def leave(self, job: Any, /) -> None:
            """Note that the calling thread has left user code."""
            ...


_FIELDS = frozenset({"args", "kwargs"})
_monotonic = time.monotonic


class Executor:
    """Runs calls, on the lane that asks it to.

    Args:
        gate: Ends calls.
        shared: Shows the supervisor which calls run.
        tracebacks: What callers see of the traceback of an exception.
        scrubber: Removes the names of hidden models from replies.
        recorder: Records every call.
        grace: Seconds after a function's timeout until the supervisor kills the process.
        poisoned: Ends the process after a CUDA error that makes it unusable.
        kills: Whether the supervisor may kill this process for a call that runs past its
            function's timeout.
        keeps_tracebacks: Whether the record gets full tracebacks even if callers do not.
    """

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
        kills: bool = True,
        keeps_tracebacks: bool = False,
    ) -> None:
        self.gate = gate
        self.shared = shared
        self.tracebacks = tracebacks
        self.scrubber = scrubber
        self._scrub = None if scrubber is None else scrubber.value
        self.recorder = recorder
        self._keeps_tracebacks = keeps_tracebacks
        self._kills = kills
        self.grace = grace
        self._poisoned = poisoned
        self.streamer = Streamer(self)
        self.marks = Marks()

    def begin(self, call: Call, mark: int, runner: Runner | None, shared_by: int = 1) -> bool:
        """Mark `call` as running and set its time limits.

        Args:
            call: The call.
            mark: Its mark in the shared memory; -1 for none. It is given back when the call ends.
            runner: Interrupts the call.
            shared_by: How many calls of a batch share its time.

        Returns:
            False if the call must not run. Then its caller has an answer.
        """
        now = _monotonic()
        try:
            begun = call.begin(runner, mark, now)
        except StillRunningError as error:
            self.gate.refuse_call(call, error)
            begun = False
        if not begun:
            self.marks.give(mark)
            return False
        if shared_by > 1:
            call.batch = shared_by
        if mark >= 0:
            self.watch(call, mark, now, shared_by)
            if call.waiting is not None:
                self.gate.end_waiting(call)
        self._set_limits(call, now)
        return True

    def begin_again(self, call: Call, now: float, before: float) -> bool:
        """Begin a call of a failed batch again, alone; it has used `before` seconds already.

        Returns:
            False if the call has ended.
        """
        if not call.begin_alone(now, before):
            return False
        if call.mark >= 0:
            since = now - before
            timeout = call.entry.timeout
            kill_at = 0.0 if timeout is None or not self._kills else since + timeout + self.grace
            self.shared.go_on(call.mark, since=since, kill_at=kill_at, shared_by=1)
        self._set_limits(call, now)
        return True

    def _set_limits(self, call: Call, now: float) -> None:
        """Compute when a call that runs from now on must stop, and wake the loop by then."""
        call.set_limits(now, self._uses_gpu)
        if call.expires < self.gate.loop.wake_at:
            self.gate.loop.wake_by(call.expires)

    def watch(self, call: Call, mark: int, now: float, shared_by: int = 1) -> None:
        """Mark a call as running from now on, and when the supervisor may kill the process."""
        timeout = call.entry.timeout
        kill_at = 0.0 if timeout is None or not self._kills else now + timeout + self.grace
        body = None if self.recorder is None else call.text
        self.shared.begin(mark, call, now, kill_at, shared_by, body)

    def _uses_gpu(self) -> bool:
        return uses_gpu()

    def run(self, call: Call, mark: int, lane: Lane) -> None:
        """Run one call from its arguments to its reply, on the calling thread."""
        try:
            bound = self.start(call, mark, lane)
            if bound is None:
                return
            args, kwargs = bound
            refused = None
            value, error = self.attempt(call, lane, call.entry.target, args, kwargs)
            if error is None and call.entry.streams:
                error, refused = self.streamer.run(call, lane, value)
            self.settle(call, value, error, refused)
        except Exception as error:
            self.finish(call, self.fault(error), _monotonic())

    def start(
        self, call: Call, mark: int, runner: Runner
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """Begin a call and check its arguments; None if it does not run and was answered."""
        if not self.begin(call, mark, runner):
            return None
        try:
            return self.arguments(call)
        except GateError as error:
            self.settle(call, refused=error)
            return None

    def attempt(
        self,
        job: Job,
        lane: Lane,
        target: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, BaseException | None]:
        """Call user code on a lane, which may interrupt it.

        Tracebacks begin with this frame, which `render` leaves out.

        Returns:
            The result and the exception, which may be any exception, even `SystemExit`.
        """
        try:
            try:
                lane.enter(job)
                if job.cause:
                    raise Stopped
                value = target(*args, **kwargs)
                lane.leave(job)
            except BaseException as error:
                lane.leave(job)
                return None, error
        except Stopped as stopped:
            # The interrupt came after the function had ended and before `leave`.
            lane.leave(job)
            return None, stopped
        return value, None

    def settle(
        self,
        call: Call,
        value: Any = None,
        raised: BaseException | None = None,
        refused: GateError | None = None,
        *,
        seconds: float | None = None,
    ) -> None:
        """End a call whose function has ended: make its reply, and finish it.

        Args:
            call: The call.
            value: What the function returned.
            raised: What the function raised.
            refused: Why the gate ended the call. It takes precedence over the other two.
            seconds: How long the function ran for this call; by default, since it began.
        """
        if self.gate.loop.abandoned:
            # The function forked, and the forked process returned here. It has no caller to answer,
            # and no thread that would give it another call.
            os._exit(0)
        ended = _monotonic()
        if call.state == DONE:
            # Its caller was answered before, so nobody gets this reply.
            reply = Reply(200, b"")
        elif refused is not None and not call.cause:
            reply = self.refusal(refused)
        elif raised is not None or refused is not None:
            reply = self.failure(call, raised or Stopped())
        elif call.entry.streams:
            reply = Reply(200, STREAM_END)
        else:
            reply = self.result(call, value)
        self.finish(call, reply, ended, seconds)
        if raised is not None:
            self.check_poisoned(raised)

    def arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """Decode and check the arguments.

        Raises:
            GateError: The arguments are malformed or do not fit the function, or the caller has
                left too many earlier replies unread.
        """
        if call.owner.clogged:
            call.owner.check_unread()
        try:
            value: Any = None
            # Libraries send a list. Peers that only have JSON send an object.
            plain = not call.frames
            if type(call.body) is bytes and not call.buffers:
                value = decode_plain_call(call.body)
            if value is None:
                value, listed = self._decode(call)
                plain = plain or not listed
            args, kwargs = value
            if call.target:
                args = [call.owner.handles.get(call.target), *args]
            bind = call.entry.bind_plain if plain else call.entry.bind
            return bind(args, kwargs)
        except GateError:
            raise
        except BaseException as error:
            # A validator of the user may raise anything, and memory may run out.
            raise ArgumentError(
                f"{call.entry.name}() was not called, because checking its arguments failed:"
                f" {type(error).__name__}: {error}"
            ) from None

    def _decode(self, call: Call) -> tuple[tuple[list[Any], dict[str, Any]], bool]:
        """The arguments, and whether they came as a list."""
        torch = bool(call.buffers) and "torch" in sys.modules
        value: Any = decode(call.body, call.buffers, torch=torch, extra=call.owner.restorers)
        args: Any
        kwargs: Any
        if value.__class__ is list and len(value) == 2:
            args, kwargs = value
        elif value.__class__ is dict and _FIELDS.issuperset(value):
            args, kwargs = value.get("args", []), value.get("kwargs", {})
        else:
            raise ProtocolError(
                'a call\'s body is {"args": [...], "kwargs": {...}}, with nothing else in it'
            )
        if args.__class__ is not list or kwargs.__class__ is not dict:
            raise ProtocolError("a call's args must be a list and its kwargs an object")
        return (args, kwargs), value.__class__ is list

    def result(self, call: Call, value: Any) -> Reply:
        """The reply that carries a function's result, or says why it cannot be sent."""
        buffers: list[Any] = []
        if call.entry.returns_handle and type(value) is not Handle:
            value = Handle(value)
        try:
            text = b'{"result":%s}' % self.encoded(call, value, buffers)
        except Exception as error:  # from properties of the user's classes, or lack of memory
            return self.unsendable(call, error)
        return self.laid_out(call, text, buffers)

    def encoded(self, call: Call, value: Any, buffers: list[Any]) -> bytes:
        """The text of a result or an item of `call`. Its bulk data is appended to `buffers`."""
        text = encode(
            value,
            buffers,
            frames=call.frames,
            function=call.entry.name,
            extra=call.owner.describe,
            scrub=self._scrub,
        )
        # Not `self.scrubbed(text)`, because every answer would pay for that call.
        return text if self.scrubber is None else self.scrubber.data(text)

    def laid_out(self, call: Call, text: bytes, buffers: list[Any]) -> Reply:
        """The reply with the text of a result and its buffers, or why these cannot be sent."""
        reply = Reply(200, text)
        try:
            if buffers:
                reply.add_buffers(buffers, self._pool(call))
        except Exception as error:  # from copying off a GPU, or lack of memory
            reply.keep_from_caller()
            reply.let_go()
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

    def _pool(self, call: Call) -> SlotPool | None:
        if not call.shared or not call.connections:
            return None
        return self.gate.pool_of(call.connections[0])

    def refusal(self, error: GateError) -> Reply:
        """The reply that carries an error of the gate itself."""
        status, text = gate_failure(error)
        return Reply(status, self.scrubbed(text), type(error).__name__)

    def fault(self, error: Exception) -> Reply:
        """The reply for a bug in the gate itself, so that no caller waits forever."""
        import traceback

        sys.stderr.write(traceback.format_exc())
        name = type(error).__name__
        return self.refusal(GateError(f"the gate itself failed ({name}); its log says where"))

    def failure(self, call: Call, error: BaseException) -> Reply:
        """The reply that carries what a function raised, or why it was stopped."""
        if call.cause and isinstance(error, Stopped):
            return self.refusal(call.stop_error(_monotonic()))
        return self.raised(error)

    def raised(self, error: BaseException) -> Reply:
        """The reply that carries what a function raised."""
        shown = self.tracebacks
        whole = render(error) if shown is True or self._keeps_tracebacks else ""
        trace = whole if shown is True else render_names(error) if shown else ""
        reply = Reply(RAISED, self.scrubbed(raised_text(error, trace)), type(error).__name__)
        if shown is not True:
            reply.traceback = whole
        return reply

    def scrubbed(self, text: bytes) -> bytes:
        """The text without the names of hidden models."""
        return text if self.scrubber is None else self.scrubber.data(text)

    def finish(self, call: Call, reply: Reply, ended: float, seconds: float | None = None) -> None:
        """Finish a call whose function has ended, and give its mark back.

        Args:
            call: The call.
            reply: The answer for its caller.
            ended: When its function ended (monotonic).
            seconds: How long it ran for this call; by default, since it began.
        """
        mark = call.mark
        try:
            self.gate.finish(
                call, reply, ended, ended - call.started_at if seconds is None else seconds
            )
        finally:
            # Only now: a process that ends before this point may not have recorded the call.
            if mark >= 0:
                self.shared.end(mark)
        if mark > MAIN_MARK:
            call.mark = -1
            self.marks.give(mark)

    def check_poisoned(self, error: BaseException) -> None:
        """End the process if a CUDA error has made it unusable, so that every call would fail."""
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


def bind_fetch(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Check the arguments of `POST /v1/fetch/<handle>`: the handle, and an index or nothing."""
    index: Any = args[1] if len(args) == 2 else None
    if kwargs or len(args) > 2 or not (index is None or index.__class__ is list):
        raise ArgumentError("fetch takes one argument, a list with one index for each axis")
    return [part_of(args[0].value, index)], {}


def fetch(part: Any) -> Any:
    """The target of `POST /v1/fetch/<handle>`: `bind_fetch` has already taken the part."""
    return part
