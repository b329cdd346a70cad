"""The control socket: what the controller may ask of a gate. No jail ever sees it."""

from __future__ import annotations

import json
import os
import select
import socket
import time

from seer.rpc._budget import Budget, Meter
from seer.rpc._wire import Request, head_prefix

from ._config import CallerConfig, check_replicas
from ._failures import error_text
from ._listen import listen
from ._mini import MiniConnection, Poller
from ._shared import FIRST_CALLER, FIRST_FUNCTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._supervisor import Supervisor

_RECORDS_AT_ONCE = 1 << 20


class Control:
    """Serves the control socket."""

    def __init__(self, supervisor: Supervisor, poller: Poller) -> None:
        self._supervisor = supervisor
        self._poller = poller
        self._listener: socket.socket | None = None
        self._connections: set[MiniConnection] = set()
        self._awaiting_ready: list[MiniConnection] = []
        self._awaiting_records: list[tuple[MiniConnection, int]] = []

    def open(self, path: str) -> None:
        """Listen at `path`."""
        self._listener = listener = listen(path, 0o600)
        self._poller.watch(listener.fileno(), select.EPOLLIN, self._accept)

    def forget(self) -> None:
        """In the forked interface process: close everything of this."""
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections:
            connection.socket.close()

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return
        self._connections.add(
            MiniConnection(
                connected,
                self._poller,
                self._handle,
                prefix=head_prefix("control"),
                once=False,
                on_close=self._lost,
            )
        )

    def _lost(self, connection: MiniConnection) -> None:
        self._connections.discard(connection)
        self._awaiting_ready = [c for c in self._awaiting_ready if c is not connection]
        self._awaiting_records = [c for c in self._awaiting_records if c[0] is not connection]

    def _handle(self, connection: MiniConnection, request: Request, body: bytes) -> None:
        parts = request.path.split("/")
        name = f"_{request.method.lower()}_{parts[2]}" if len(parts) > 2 else ""
        route = getattr(self, name, None) if parts[1] == "v1" and name in _ROUTES else None
        if route is None:
            connection.respond_text(
                404, error_text("ProtocolError", f"there is no {request.method} {request.path}")
            )
            return
        try:
            found: Any = json.loads(body) if body else {}
            route(connection, found, parts[3] if len(parts) > 3 else "")
        except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
            connection.respond_text(400, error_text("ProtocolError", f"{error}"))

    # --- state -------------------------------------------------------------------------------

    def _get_ready(self, connection: MiniConnection, _found: Any, _argument: str) -> None:
        self._awaiting_ready.append(connection)
        self.wake_ready()

    def wake_ready(self) -> None:
        """Answer those who wait until the interface is up, if it is or never will be."""
        supervisor = self._supervisor
        if supervisor.state in ("starting", "restarting"):
            return
        waiting, self._awaiting_ready = self._awaiting_ready, []
        for connection in waiting:
            if supervisor.state == "up":
                connection.respond({"schema": supervisor.schema, "warnings": supervisor.warnings})
            elif supervisor.state == "failed":
                failure = dict(supervisor.failure or {})
                message = failure.pop("message", "")
                connection.respond_text(500, error_text("ServeError", message, **failure))
            else:
                connection.respond_text(503, error_text("InterfaceDiedError", supervisor.explained))

    def _get_health(self, connection: MiniConnection, _found: Any, _argument: str) -> None:
        supervisor = self._supervisor
        child = supervisor.child
        connection.respond(
            {
                "state": supervisor.state,
                "pid": None if child is None else child.pid,
                "epoch": None if child is None else child.epoch,
                "restarts": supervisor.restarts,
                "ended": supervisor.explained,
                "notes": supervisor.notes,
                "copies": [] if supervisor.replicas is None else supervisor.replicas.status(),
            }
        )

    def _get_schema(self, connection: MiniConnection, _found: Any, _argument: str) -> None:
        connection.respond(self._supervisor.schema)

    def _post_stop(self, connection: MiniConnection, _found: Any, _argument: str) -> None:
        connection.respond({})
        self._supervisor.stop()

    # --- callers -----------------------------------------------------------------------------

    def _post_callers(self, connection: MiniConnection, found: Any, _argument: str) -> None:
        supervisor = self._supervisor
        config = CallerConfig.from_json(found)
        supervisor.add_caller(config)
        if supervisor.state != "up":
            connection.respond({})
            return
        index, _, listener = supervisor.callers[config.name]

        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer and answer["error"].get("busy"):
                # The interface's process does not know of it: who asks again may use the name.
                supervisor.remove_caller(config.name)
            self._pass_on(connection, answer)

        supervisor.ask(
            {
                "op": "add_caller",
                "name": config.name,
                "index": index,
                "budget": config.budget.to_json(),
            },
            answered,
            [listener.fileno()],
        )

    def _post_remove(self, connection: MiniConnection, _found: Any, name: str) -> None:
        self._supervisor.remove_caller(name)
        if self._supervisor.state != "up":
            connection.respond({})
            return
        self._supervisor.ask(
            {"op": "remove_caller", "name": name},
            lambda answer: self._pass_on(connection, answer),
        )

    def _pass_on(self, connection: MiniConnection, answer: dict[str, Any]) -> None:
        error = answer.get("error")
        if error is None:
            connection.respond({})
        elif "file" in error:
            message = error.pop("message")
            connection.respond_text(500, error_text("ServeError", message, **error))
        else:
            kind = "GateBusyError" if error.get("busy") else "InterfaceDiedError"
            connection.respond_text(503, error_text(kind, error["message"]))

    def _post_reload(self, connection: MiniConnection, _found: Any, _argument: str) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer:
                self._pass_on(connection, answer)
            else:
                connection.respond({"schema": answer["schema"], "warnings": answer["warnings"]})

        replicas = self._supervisor.replicas
        if replicas is None:
            self._supervisor.ask({"op": "reload"}, answered)
        else:
            replicas.reload(answered)

    def _post_scale(self, connection: MiniConnection, found: Any, _argument: str) -> None:
        """Have another number of copies; answered once there are as many."""
        check_replicas(found["replicas"])
        replicas = self._supervisor.replicas
        if replicas is None:
            raise ValueError("this interface is served by one process, with no front before it")
        if self._supervisor.state != "up":
            self._pass_on(connection, {"error": {"message": "the interface is not running"}})
            return
        replicas.scale(found["replicas"], lambda answer: self._pass_on(connection, answer))

    # --- budgets -----------------------------------------------------------------------------

    def _get_budget(self, connection: MiniConnection, _found: Any, _argument: str) -> None:
        supervisor = self._supervisor

        def used(place: int) -> dict[str, float]:
            base = supervisor.shared.meter_base(place)
            return Meter("", Budget(), supervisor.shared.cells, base).used()

        connection.respond(
            {
                "interface": used(0),
                "functions": {
                    name: used(FIRST_FUNCTION + place) for name, place in supervisor.places.items()
                },
                "callers": {
                    name: used(FIRST_CALLER + index)
                    for name, (index, _, _) in supervisor.callers.items()
                },
            }
        )

    def _post_budget(self, connection: MiniConnection, found: Any, _argument: str) -> None:
        supervisor = self._supervisor
        budget = Budget.from_json(found["budget"])
        scope, name = found["scope"], found.get("name", "")
        if scope == "interface":
            supervisor.config.budget = budget
        elif scope == "function" and name in _functions(supervisor.schema):
            supervisor.config.changed_budgets[name] = budget
        elif scope == "caller" and name in supervisor.callers:
            supervisor.callers[name][1].budget = budget
        else:
            raise ValueError(f"there is no {scope} {name!r} to give a budget to")
        if supervisor.state != "up":
            connection.respond({})
            return
        supervisor.ask(
            {"op": "budget", "scope": scope, "name": name, "budget": budget.to_json()},
            lambda answer: self._pass_on(connection, answer),
        )

    # --- records -----------------------------------------------------------------------------

    def _get_records(self, connection: MiniConnection, _found: Any, offset: str) -> None:
        """The record's lines from a byte offset on; waits until there are some."""
        if not self._supervisor.config.record:
            raise ValueError("this interface is served without a record")
        self._awaiting_records.append((connection, int(offset)))
        self.wake_records()

    def wake_records(self) -> None:
        """Answer those who wait for new lines of the record."""
        waiting, self._awaiting_records = self._awaiting_records, []
        for connection, offset in waiting:
            data = self._read_records(offset)
            if data:
                # Only "\n" ends a line: texts may have other characters that Python splits at.
                lines = data.decode("utf-8", "surrogatepass").split("\n")[:-1]
                connection.respond({"next": offset + len(data), "lines": lines})
            else:
                self._awaiting_records.append((connection, offset))

    def _read_records(self, offset: int) -> bytes:
        path = os.path.join(self._supervisor.config.record, "calls.jsonl")  # noqa: PTH118
        try:
            with open(path, "rb") as file:  # noqa: PTH123 (import time)
                file.seek(offset)
                data = file.read(_RECORDS_AT_ONCE)
                while data and b"\n" not in data:
                    more = file.read(_RECORDS_AT_ONCE)
                    if not more:
                        break
                    data += more
        except OSError:
            return b""
        return data[: data.rfind(b"\n") + 1]

    def _post_flush(self, connection: MiniConnection, _found: Any, _argument: str) -> None:
        """Write down every call that was answered; where the record then ends."""
        record = self._supervisor.config.record
        if not record:
            raise ValueError("this interface is served without a record")

        def answered(_answer: dict[str, Any]) -> None:
            try:
                end = os.stat(os.path.join(record, "calls.jsonl")).st_size  # noqa: PTH116, PTH118
            except OSError:
                end = 0
            connection.respond({"end": end})

        if self._supervisor.state == "up":
            self._supervisor.ask({"op": "flush"}, answered)
        else:
            answered({})

    def record_lost(
        self, running: list[tuple[int, str, str, float]], ended: str, output: str
    ) -> None:
        """Add to the record the calls that died with the interface's process.

        Args:
            running: Caller, function, id and start of each.
            ended: How it ended, as callers are told.
            output: What it printed last, where callers are not told.
        """
        if not self._supervisor.config.record or not running:
            return
        names = {index: name for name, (index, _, _) in self._supervisor.callers.items()}
        path = os.path.join(self._supervisor.config.record, "calls.jsonl")  # noqa: PTH118
        now = time.monotonic()
        lines = [
            json.dumps(
                {
                    "caller": names.get(index, ""),
                    "function": function,
                    "call": call,
                    "outcome": "CallLostError",
                    "error": ended,
                    **({"traceback": output} if output else {}),
                    "run": now - since,
                    "time": time.time(),
                }
            )
            for index, function, call, since in running
        ]
        try:
            os.makedirs(self._supervisor.config.record, exist_ok=True)  # noqa: PTH103 (import time)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, ("\n".join(lines) + "\n").encode())
            finally:
                os.close(fd)
        except OSError as error:
            note = f"lost calls could not be recorded: {error}"
            self._supervisor.notes.append({"kind": "record", "message": note})
        self.wake_records()


def _functions(schema: dict[str, Any] | None) -> set[str]:
    return set() if schema is None else {function["name"] for function in schema["functions"]}


_ROUTES = frozenset(
    {
        "_get_ready",
        "_get_health",
        "_get_schema",
        "_get_budget",
        "_get_records",
        "_post_flush",
        "_post_stop",
        "_post_callers",
        "_post_remove",
        "_post_reload",
        "_post_scale",
        "_post_budget",
    }
)
