"""What a caller is told of a call that was stopped before it had a result."""

from __future__ import annotations

from seer.errors import (
    BudgetExceededError,
    CallCancelledError,
    DeadlineExceededError,
    GateError,
    StillRunningError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._calls import Call


def stop_error(call: Call, now: float, *, runs_on: bool = False) -> GateError:
    """The error for a call, by its cause and how far it got.

    Args:
        call: The call.
        now: The time (monotonic).
        runs_on: Whether its function has not stopped.
    """
    name = call.entry.name
    if call.over is not None:
        return call.over
    if call.started_at:
        state = f"it had run for {now - call.started_at:.3g} s"
        state += f", after {call.started_at - call.queued_at:.3g} s in the queue"
    else:
        state = f"it had waited for {now - call.queued_at:.3g} s and was not executed"
    if runs_on:
        state += "; the function has not stopped yet, and what it still uses is charged"
    if call.cause == "timeout":
        return DeadlineExceededError(
            f"{name}() was stopped at its timeout of {call.entry.timeout:g} s, which the"
            f" interface's owner sets (@expose(timeout=) or serve(call_timeout=)): {state}"
        )
    if call.cause == "deadline":
        return DeadlineExceededError(f"{name}() was stopped at its deadline: {state}")
    if call.cause == "budget":
        return BudgetExceededError(f"{name}() was stopped, its time budget is used up: {state}")
    if call.cause == "gone":
        return CallCancelledError(f"{name}() was cancelled, its caller had gone away: {state}")
    return CallCancelledError(f"{name}() was cancelled: {state}")


def still_running(name: str, before: Call, now: float) -> StillRunningError:
    """The error for a call of `name` that is not started because of an earlier one."""
    timeout = before.entry.timeout
    until = "" if timeout is None else f"; it may run for {timeout:g} s in all"
    return StillRunningError(
        f"{name}() was not executed: this caller's earlier call of {before.entry.name}() was"
        f" stopped, but its function still runs, for {now - before.started_at:.3g} s now{until}."
        " Call again when it has ended; GET /v1/health says how many are left as `detached`"
    )
