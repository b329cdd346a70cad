"""What a caller is told of a call that was stopped before it had a result."""

from __future__ import annotations

from seer.errors import (
    BudgetExceededError,
    CallCancelledError,
    DeadlineExceededError,
    GateError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._calls import Call


def stop_error(call: Call, now: float) -> GateError:
    """The error for a call, by its cause and how far it got."""
    name = call.entry.name
    if call.started_at:
        state = f"it had run for {now - call.started_at:.3g} s"
        state += f", after {call.started_at - call.queued_at:.3g} s in the queue"
    else:
        state = f"it had waited for {now - call.queued_at:.3g} s and was not executed"
    if call.cause == "deadline":
        return DeadlineExceededError(f"{name}() was stopped at its deadline: {state}")
    if call.cause == "budget":
        return BudgetExceededError(f"{name}() was stopped, its time budget is used up: {state}")
    if call.cause == "gone":
        return CallCancelledError(f"{name}() was cancelled, its caller had gone away: {state}")
    return CallCancelledError(f"{name}() was cancelled: {state}")
