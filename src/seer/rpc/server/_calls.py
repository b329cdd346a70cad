"""A call on its way through the interface process: its state and its transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from seer.errors import (
    BudgetExceededError,
    CallCancelledError,
    DeadlineExceededError,
    GateError,
    StillRunningError,
)
from seer.rpc.wire._protocol import KEEP_ALIVE

if TYPE_CHECKING:
    from seer.rpc.interface._budget import Tally
    from seer.rpc.wire._http import Request

    from ._connection import Connection
    from ._entries import Entry

    class Runner(Protocol):
        """What runs a call."""

        def interrupt(self, call: Any, /) -> None:
            """Raise in the function of `call`, if it runs; from another thread."""
            ...


QUEUED, RUNNING, DONE = 0, 1, 2
_NEVER = float("inf")
SMALL = 65536
"""Bodies up to this size are not counted as pending."""


class Call:
    """One call of one function.

    The call itself changes its state, under its caller's lock: in `begin`, `stop`, `end` and the
    methods between them. `Gate` makes it, stops it and settles it (`Gate.finish`). A lane begins it
    through the executor.

    Attributes:
        owner: The caller.
        tally: Counts what it uses.
        entry: The function.
        tool_call: The id of the agent's tool call that it belongs to, as its caller says.
        target: The id of the handle, if the call fetches one.
        state: QUEUED, RUNNING, or DONE when its caller was answered. Its function may run on.
        queue: The queue in which it waits; has `discard(call)`.
        deadline_at: When its caller stops waiting (monotonic); infinite without a deadline.
        timeout_at: When its function's own timeout is over; infinite until it runs.
        expires: When it must be told to stop: the earliest of its limits.
        limit: Which limit that is: `deadline`, `timeout` or `budget`.
        detach_at: When its caller is answered although its function has not stopped; infinite until
            the function is told to stop.
        blocks: Whether its caller can start no other call while its function runs on.
        lost_at: When the last connection that waited for it was lost; 0 while one waits.
        beat_at: When its connections get the next sign of life.
        cause: Why it was told to stop: `deadline`, `timeout`, `budget`, `cancel` or `gone`; empty
            if it was not.
        over: The error for its caller if its stream exceeds a budget.
        runner: The lane that runs it, once it runs; has `interrupt(call)`.
        mark: Its mark in the shared memory; -1 for none.
        paid: Seconds that were charged for it already.
        connections: The connections that wait for its answer.
        streaming: Whether parts of the answer were sent.
        items: The chunks that were streamed, if calls are recorded.
        left_out: How many streamed items are missing from `items`.
        pristine: Returns the buffers of the arguments as they arrived, if calls are recorded.
        copy: The number of the copy that has it; 0 without copies.
        gpu: Whether that copy uses a GPU.
        ran: Seconds that it ran.
        waiting: Its mark while it waits; None if it has none.
        waited: Seconds that other calls waited because its caller reads its stream slowly.
    """

    # Values that most calls never change are class attributes, because setting them takes time.
    batch = 1
    blocks = True
    buffers: Sequence[Any] = ()
    cause = ""
    copy = 0
    detach_at = _NEVER
    gpu = False
    items: list[bytes] | tuple[()] = ()
    left_out = 0
    limit = "deadline"
    lost_at = 0.0
    mark = -1
    over: GateError | None = None
    paid = 0.0
    pristine: Callable[[], list[memoryview]] | None = None
    queue: Any = None
    ran = 0.0
    runner: Runner | None = None
    started_at = 0.0
    state = QUEUED
    streaming = False
    target = ""
    timeout_at = _NEVER
    waited = 0.0
    waiting: int | None = None

    def __init__(
        self,
        connection: Connection,
        entry: Entry,
        request: Request,
        body: bytes | bytearray | memoryview,
        tally: Tally,
        now: float,
    ) -> None:
        self.owner = connection.caller
        self.entry = entry
        self.tally = tally
        self.id = request.call
        self.tool_call = request.tool_call
        self.frames = request.frames
        self.shared = request.shared
        self.linger = request.linger
        deadline = request.deadline
        self.expires = self.deadline_at = _NEVER if deadline is None else now + deadline
        self.queued_at = now
        self.beat_at = now + KEEP_ALIVE
        self.connections = [connection]
        self.body = body
        self.bytes_in = request.length

    @property
    def place(self) -> int:
        """The number that stands for its caller and function in the shared memory."""
        return self.owner.first_place + self.entry.place

    @property
    def text(self) -> bytes | bytearray | memoryview | None:
        """The JSON text of its arguments; None if it also got buffers or a handle."""
        return None if self.buffers or self.target else self.body

    # --- state -------------------------------------------------------------------------------

    def begin(self, runner: Runner | None, mark: int, now: float) -> bool:
        """Mark it as running; False if it must not run.

        Args:
            runner: Interrupts the call.
            mark: Its mark in the shared memory; -1 for none.
            now: The time (monotonic).

        Raises:
            StillRunningError: A detached function of this caller still runs.
        """
        owner = self.owner
        with owner.lock:
            if self.state != QUEUED or self.cause:
                return False
            if owner.detached:
                raise still_running(self.entry.name, next(iter(owner.detached)), now)
            self.state = RUNNING
            self.runner = runner
            self.started_at = now
            self.mark = mark
        return True

    def begin_alone(self, now: float, before: float) -> bool:
        """Begin again without the rest of its batch, in which it used `before` seconds.

        Returns:
            False if it has ended or was told to stop.
        """
        with self.owner.lock:
            if self.state == DONE or self.cause:
                return False
            self.batch = 1
            self.started_at = now - before
        return True

    def wait_alone(self) -> None:
        """Wait for a turn without the rest of its batch; its time limits do not run meanwhile."""
        with self.owner.lock:
            self.timeout_at = _NEVER
            self.expires = _NEVER if self.cause else self.deadline_at
            self.limit = "deadline"

    def requeue(self) -> None:
        """Wait again, because the copy that had it has not executed it."""
        with self.owner.lock:
            self.state, self.runner, self.copy, self.started_at = QUEUED, None, 0, 0.0

    def take_waiting(self) -> int | None:
        """Take its waiting mark, which the taker must give back; None if it has none."""
        if self.waiting is None:
            return None
        with self.owner.lock:
            mark, self.waiting = self.waiting, None
        return mark

    def set_limits(self, now: float, uses_gpu: Callable[[], bool]) -> None:
        """Compute when it must be told to stop; it begins to run at `now`."""
        expires = self.deadline_at
        timeout = self.entry.timeout
        if timeout is not None:
            self.timeout_at = until = now + timeout
            if until < expires:
                expires = until
                self.limit = "timeout"
        if self.tally.limited:
            until = now + self.tally.seconds_left(gpu=uses_gpu())
            if until < expires:
                expires = until
                self.limit = "budget"
        self.expires = expires

    def stop(self, cause: str) -> int:
        """Note why it must stop.

        Returns:
            Its state; DONE also if it was told to stop before, unless the new cause is `timeout`.
        """
        with self.owner.lock:
            if self.state == DONE:
                return DONE
            again = self.cause and cause != "timeout"
            self.cause = self.cause or cause
            self.expires = self.timeout_at
            return DONE if again else self.state

    def end(self, seconds: float, *, gpu: bool, runs_on: bool) -> bool:
        """Note that its caller gets an answer, or that its function has ended; charge its time.

        Args:
            seconds: How long its function has run for this call, in total.
            gpu: Whether this time is also charged as GPU time.
            runs_on: Whether its function still runs.

        Returns:
            Whether its caller must still be answered.
        """
        owner = self.owner
        with owner.lock:
            waiting = self.state != DONE
            if runs_on and not waiting:
                # Its function ended just now, on another thread.
                return False
            self.state = DONE
            # Charged before anyone can see that it has ended.
            more = seconds - self.paid
            if more > 0.0:
                self.tally.charge(more, more if gpu else 0.0)
            self.paid = seconds
            if runs_on:
                if self.blocks:
                    owner.detached[self] = None
                return True
            self.runner = None
            if owner.detached:
                owner.detached.pop(self, None)
            if self.bytes_in > SMALL:
                owner.bytes_pending -= self.bytes_in
        return waiting

    def leave(self, connection: Connection, now: float) -> bool:
        """Note that a connection no longer waits for the answer; True if none waits now."""
        with self.owner.lock:
            if connection in self.connections:
                self.connections.remove(connection)
            if self.connections or self.state == DONE:
                return False
            self.lost_at = now
        return True

    def stop_error(self, now: float, *, runs_on: bool = False) -> GateError:
        """The error for its caller if it was stopped: the cause, and how far it got.

        Args:
            now: The time (monotonic).
            runs_on: Whether its function still runs.
        """
        name = self.entry.name
        if self.over is not None:
            return self.over
        if self.started_at:
            state = f"it had run for {now - self.started_at:.3g} s"
            state += f", after {self.started_at - self.queued_at:.3g} s in the queue"
        else:
            state = f"it had waited for {now - self.queued_at:.3g} s and was not executed"
        if runs_on:
            state += "; the function has not stopped yet, and what it still uses is charged"
        if self.cause == "timeout":
            return DeadlineExceededError(
                f"{name}() was stopped at its timeout of {self.entry.timeout:g} s, which the"
                f" interface's owner sets (@expose(timeout=) or serve(call_timeout=)): {state}"
            )
        if self.cause == "deadline":
            return DeadlineExceededError(f"{name}() was stopped at its deadline: {state}")
        if self.cause == "budget":
            return BudgetExceededError(f"{name}() was stopped: its time budget is used up; {state}")
        if self.cause == "gone":
            return CallCancelledError(f"{name}() was cancelled after its caller left: {state}")
        return CallCancelledError(f"{name}() was cancelled: {state}")


def still_running(name: str, before: Call, now: float) -> StillRunningError:
    """The error for a call of `name` that does not start because `before` still runs."""
    timeout = before.entry.timeout
    until = "" if timeout is None else f"; it may run for {timeout:g} s in total"
    return StillRunningError(
        f"{name}() was not executed: this caller's earlier call of {before.entry.name}() was"
        f" stopped, but its function still runs, after {now - before.started_at:.3g} s{until}."
        " Call again when it has ended; `detached` in GET /v1/health is the number of such calls"
    )
