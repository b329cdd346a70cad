"""What a caller may ask besides calling functions: each route is one function here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from seer.errors import HandleError, InterfaceRestartedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from seer.rpc.wire._http import Request

    from ._callers import Caller
    from ._connection import Connection
    from ._gate import Gate


def _get_health(
    gate: Gate, connection: Connection, _request: Request, _body: object, _argument: str
) -> None:
    # What others do is none of a caller's business.
    caller = connection.caller
    gate.answer(
        connection,
        {
            "epoch": gate.epoch,
            "seconds": time.monotonic() - gate.started,
            "calls": len(caller.calls),
            "detached": len(caller.detached),
        },
    )


def _get_schema(
    gate: Gate, connection: Connection, _request: Request, _body: object, _argument: str
) -> None:
    gate.answer_text(connection, 200, gate.schema)


def _get_budget(
    gate: Gate, connection: Connection, _request: Request, _body: object, _argument: str
) -> None:
    gate.answer(connection, _budget_of(gate, connection.caller))


def _budget_of(gate: Gate, caller: Caller) -> dict[str, Any]:
    """The limits that a caller's calls have, and what it has used itself.

    What is left of a limit that it shares would tell what others do.
    """
    meter = caller.meter
    return {
        "caller": {"limit": meter.budget.to_json(), "used": meter.used(), "left": meter.left()},
        "interface": {"limit": gate.meter.budget.to_json()},
        "functions": {
            name: {"limit": entry.meter.budget.to_json()} for name, entry in gate.entries.items()
        },
    }


def _post_cancel(
    gate: Gate, connection: Connection, _request: Request, _body: object, call_id: str
) -> None:
    call = connection.caller.calls.get(call_id)
    if call is not None:
        gate.stop_call(call, "cancel")
    gate.answer(connection, {"cancelled": call is not None})


def _get_result(
    gate: Gate, connection: Connection, request: Request, _body: object, call_id: str
) -> None:
    caller = connection.caller
    with caller.lock:
        running = caller.calls.get(call_id)
        if running is not None:
            gate.wait_for(connection, running)
            return
        kept = caller.results.get(call_id, time.monotonic())
    if kept is None:
        if request.epoch and request.epoch != gate.epoch:
            raise InterfaceRestartedError("the interface was started again since that call")
        raise HandleError(
            f"there is no call {call_id!r}, or its result is not kept any more (results are"
            " kept for ten minutes, within bounds)"
        )
    gate.send_kept(connection, call_id, kept[1])


def _post_release(
    gate: Gate, connection: Connection, _request: Request, _body: object, _argument: str
) -> None:
    gate.answer(connection, {})


def _post_fetch(
    gate: Gate, connection: Connection, request: Request, body: bytes | bytearray, handle: str
) -> None:
    gate.fetch(connection, request, body, handle)


def _post_free(
    gate: Gate, connection: Connection, _request: Request, _body: object, handle: str
) -> None:
    gate.answer(connection, {"freed": connection.caller.handles.free(handle)})


ROUTES: dict[tuple[str, str, int], Callable[..., None]] = {
    ("GET", "health", 3): _get_health,
    ("GET", "schema", 3): _get_schema,
    ("GET", "budget", 3): _get_budget,
    ("POST", "cancel", 4): _post_cancel,
    ("GET", "result", 4): _get_result,
    ("POST", "release", 3): _post_release,
    ("POST", "fetch", 4): _post_fetch,
    ("POST", "free", 4): _post_free,
}
"""Method, name and number of the path's parts; the last part is the route's argument."""
