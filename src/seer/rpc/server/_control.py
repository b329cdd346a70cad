"""The control socket: what the controller may ask of a gate. No jail can reach it."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from seer.rpc.interface._budget import Budget, Meter
from seer.rpc.wire._http import Request, head_prefix

from ._config import CallerConfig, check_replicas
from ._failures import error_text
from ._follows import (
    ABANDONED,
    Follow,
    LineWriter,
    cut_line,
    discard,
    end_of,
    followers,
    given,
    owners,
    read_lines,
    remove_folder,
)
from ._http_server import HttpConnection
from ._listeners import listen
from ._refusals import Refusals
from ._shared import FIRST_CALLER, FIRST_FUNCTION

if TYPE_CHECKING:
    from seer.errors import GateError

    from ._poller import Poller
    from ._shared import UnfinishedCall
    from ._supervisor import Supervisor

_RECORDS_AT_ONCE = 256 << 10
_NO_FOLLOW = "there is no follow {!r}: it has ended, or was not read for too long"


class Control:
    """Serves the control socket."""

    def __init__(self, supervisor: Supervisor, poller: Poller) -> None:
        self._supervisor = supervisor
        self._poller = poller
        self._listener: socket.socket | None = None
        self._connections: set[HttpConnection] = set()
        self._awaiting_ready: list[HttpConnection] = []
        self._awaiting_records: list[tuple[HttpConnection, str, int]] = []
        """Connections that wait for lines, with the follow and the lost calls they know of."""
        self._unfollowed: dict[str, float] = {}
        """By caller: when the last run that followed it ended."""
        self._dropped: dict[str, int] = {}
        """By caller: how many of its calls a crash has taken from its next run; under "" those of
        which the caller is not known."""
        self._refusals = Refusals()
        self._routes: dict[tuple[str, str], Callable[[HttpConnection, Any, str], None]] = {
            ("GET", "ready"): self._get_ready,
            ("GET", "health"): self._get_health,
            ("GET", "schema"): self._get_schema,
            ("GET", "budget"): self._get_budget,
            ("POST", "follow"): self._post_follow,
            ("POST", "unfollow"): self._post_unfollow,
            ("POST", "records"): self._post_records,
            ("POST", "flush"): self._post_flush,
            ("POST", "stop"): self._post_stop,
            ("POST", "callers"): self._post_callers,
            ("POST", "remove"): self._post_remove,
            ("POST", "reload"): self._post_reload,
            ("POST", "scale"): self._post_scale,
            ("POST", "budget"): self._post_budget,
        }

    def open(self, path: str) -> None:
        """Listen at `path`."""
        self._listener = listener = listen(path, 0o600)
        self._poller.watch(listener.fileno(), select.EPOLLIN, self._accept)

    def forget(self) -> None:
        """In a forked process: close the control socket and its connections."""
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
            HttpConnection(
                connected,
                self._poller,
                self._handle,
                prefix=head_prefix("control"),
                once=False,
                on_close=self._lost,
            )
        )

    def _lost(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        self._awaiting_ready = [c for c in self._awaiting_ready if c is not connection]
        self._awaiting_records = [c for c in self._awaiting_records if c[0] is not connection]

    def _handle(self, connection: HttpConnection, request: Request, body: bytes) -> None:
        parts = request.path.split("/")
        known = len(parts) > 2 and parts[1] == "v1"
        route = self._routes.get((request.method, parts[2])) if known else None
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

    def _get_ready(self, connection: HttpConnection, _found: Any, _argument: str) -> None:
        self._awaiting_ready.append(connection)
        self.wake_ready()

    def wake_ready(self) -> None:
        """Answer the clients that wait for the interface, once it is up or has failed."""
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

    def _get_health(self, connection: HttpConnection, _found: Any, _argument: str) -> None:
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
                "copies": supervisor.workers.status(),
            }
        )

    def _get_schema(self, connection: HttpConnection, _found: Any, _argument: str) -> None:
        connection.respond(self._supervisor.schema)

    def _post_stop(self, connection: HttpConnection, _found: Any, _argument: str) -> None:
        connection.respond({})
        self._supervisor.stop()

    # --- callers -----------------------------------------------------------------------------

    def _post_callers(self, connection: HttpConnection, found: Any, _argument: str) -> None:
        supervisor = self._supervisor
        config = CallerConfig.from_json(found)
        supervisor.add_caller(config)
        index, _, listener = supervisor.callers[config.name]
        message = {
            "op": "add_caller",
            "name": config.name,
            "index": index,
            "budget": config.budget.to_json(),
        }
        # If the process does not get the socket, the name can be used again.
        undo = partial(supervisor.remove_caller, config.name)
        self._change(connection, message, descriptors=[listener.fileno()], undo=undo)

    def _post_remove(self, connection: HttpConnection, _found: Any, name: str) -> None:
        self._supervisor.remove_caller(name)
        self._unfollowed.pop(name, None)
        self._change(connection, {"op": "remove_caller", "name": name})

    def _change(
        self,
        connection: HttpConnection,
        message: dict[str, Any],
        *,
        descriptors: list[int] | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        """Send a change to the interface process. A process that starts later has it already.

        Args:
            connection: The connection that asked for the change.
            message: The change.
            descriptors: Descriptors that belong to it.
            undo: Called if the descriptors cannot be passed now.
        """

        def answered(answer: dict[str, Any]) -> None:
            error = answer.get("error", {})
            if error.get("busy"):
                if undo is not None:
                    undo()
            elif self._supervisor.state != "up":
                # The process ended before it answered.
                answer = {}
            self._pass_on(connection, answer)

        self._tell(message, answered, descriptors)

    def _tell(
        self,
        message: dict[str, Any],
        answered: Callable[[dict[str, Any]], None],
        descriptors: list[int] | None = None,
    ) -> None:
        """Send a message to the interface process, without awaiting the answer while it loads."""
        supervisor = self._supervisor
        if supervisor.state == "up":
            supervisor.ask(message, answered, descriptors)
            return
        told: dict[str, Any] = {}
        if supervisor.child is not None:
            # By the time `ask` returns, `told` has the error if descriptors cannot be passed.
            supervisor.ask(message, told.update, descriptors)
        answered(dict(told))

    def _pass_on(self, connection: HttpConnection, answer: dict[str, Any]) -> None:
        error = answer.get("error")
        if error is None:
            connection.respond({})
        elif "file" in error:
            message = error.pop("message")
            connection.respond_text(500, error_text("ServeError", message, **error))
        else:
            kind = "GateBusyError" if error.get("busy") else "InterfaceDiedError"
            connection.respond_text(503, error_text(kind, error["message"]))

    def _post_reload(self, connection: HttpConnection, _found: Any, _argument: str) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer:
                self._pass_on(connection, answer)
            else:
                connection.respond({"schema": answer["schema"], "warnings": answer["warnings"]})

        self._supervisor.workers.reload(answered)

    def _post_scale(self, connection: HttpConnection, found: Any, _argument: str) -> None:
        """Change the number of copies, and answer when it is reached."""
        check_replicas(found["replicas"])
        self._supervisor.workers.scale(
            found["replicas"], lambda answer: self._pass_on(connection, answer)
        )

    # --- budgets -----------------------------------------------------------------------------

    def _get_budget(self, connection: HttpConnection, _found: Any, _argument: str) -> None:
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

    def _post_budget(self, connection: HttpConnection, found: Any, _argument: str) -> None:
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
            raise ValueError(f"there is no {scope} {name!r}, so its budget cannot be set")
        message = {"op": "budget", "scope": scope, "name": name, "budget": budget.to_json()}
        self._change(connection, message)

    # --- records -----------------------------------------------------------------------------

    def _post_follow(self, connection: HttpConnection, found: Any, identifier: str) -> None:
        """Begin a follow of some callers, or add callers to one."""
        supervisor = self._supervisor
        if not supervisor.config.record:
            raise ValueError("this interface is served without a record")
        follow = self._follow(identifier) if identifier else Follow(os.urandom(6).hex(), (), "")
        follow.names.update(map(str, found["callers"]))
        follow.prefix = str(found.get("prefix", follow.prefix))
        supervisor.config.follows[follow.id] = follow

        def answered(answer: dict[str, Any]) -> None:
            dropped = answer.get("dropped", 0) + self._take_dropped(follow.id)
            connection.respond({"follow": follow.id, "dropped": dropped})

        message = {"op": "follow", "began_at": follow.began_at, **_named(follow)}
        message["prefix"] = follow.prefix
        self._tell(message, answered)

    def _take_dropped(self, identifier: str) -> int:
        """How many calls crashes have taken from a follow since the last run of their callers."""
        follows = self._supervisor.config.follows
        told = [c for c in self._dropped if not c or identifier in followers(follows, c)]
        return sum(self._dropped.pop(caller) for caller in told)

    def _drop(self, caller: str, calls: int) -> None:
        self._dropped[caller] = self._dropped.get(caller, 0) + calls

    def lose_kept(self) -> None:
        """Count the calls that an interface process kept for the next runs of their callers."""
        kept = self._supervisor.shared.kept
        for number, caller in self._supervisor.sockets.names.items():
            if kept[number]:
                self._drop(caller, int(kept[number]))
                kept[number] = 0.0

    def _post_unfollow(self, connection: HttpConnection, _found: Any, identifier: str) -> None:
        """End a follow, and remove its files."""
        self._end_follow(self._follow(identifier), lambda: connection.respond({}))

    def _end_follow(self, follow: Follow, done: Callable[[], None]) -> None:
        self._supervisor.config.follows.pop(follow.id, None)
        # Already now: if the interface dies before it answers, its calls are in no later run.
        self._note_end(follow, min(follow.sealed_at, time.monotonic()))
        waiting = [c for c, name, _ in self._awaiting_records if name == follow.id]
        self._awaiting_records = [c for c in self._awaiting_records if c[1] != follow.id]
        for connection in waiting:
            connection.respond_text(400, error_text("ProtocolError", _NO_FOLLOW.format(follow.id)))

        def sealed() -> None:
            self._note_end(follow, follow.sealed_at)
            message = {"op": "unfollow", "sealed_at": follow.sealed_at, **_named(follow)}
            self._tell(message, unfollowed)

        def unfollowed(_answer: dict[str, Any]) -> None:
            remove_folder(self._folder(follow.id))
            done()

        self._seal(follow, sealed)

    def _note_end(self, follow: Follow, ended: float) -> None:
        for name in follow.names & self._supervisor.callers.keys():
            self._unfollowed[name] = max(self._unfollowed.get(name, 0.0), ended)

    def end_abandoned(self, now: float) -> None:
        """End the follows that nobody has read for a long time: their readers are gone."""
        for _, identifier, _ in self._awaiting_records:
            self._follow(identifier).asked = now
        for follow in list(self._supervisor.config.follows.values()):
            if now - follow.asked > ABANDONED:
                self._end_follow(follow, _nothing)

    def _follow(self, identifier: str) -> Follow:
        follow = self._supervisor.config.follows.get(identifier)
        if follow is None:
            raise ValueError(_NO_FOLLOW.format(identifier))
        follow.asked = time.monotonic()
        return follow

    def _folder(self, identifier: str) -> str:
        return f"{self._supervisor.config.record}/{identifier}"

    def _post_records(self, connection: HttpConnection, found: Any, identifier: str) -> None:
        """Answer with a follow's lines from an offset on, once there are some or calls were lost.

        The reader has the lines before the offset and the files that the request names, so both are
        removed.
        """
        follow = self._follow(identifier)
        after = int(found["after"])
        freed = discard(self._folder(identifier), after, found.get("files", ()))
        freed += after - follow.taken
        follow.taken = after
        if freed and self._supervisor.state == "up":
            message = {"op": "taken", "follow": identifier, "bytes": freed}
            self._supervisor.ask(message, lambda _answer: None)
        self._awaiting_records.append((connection, identifier, int(found.get("lost", 0))))
        self.wake_records()

    def wake_records(self) -> None:
        """Answer the connections for which there are new lines or lost calls."""
        waiting, self._awaiting_records = self._awaiting_records, []
        for connection, identifier, known in waiting:
            follow = self._supervisor.config.follows[identifier]
            data = read_lines(self._folder(identifier), follow.taken, _RECORDS_AT_ONCE)
            if data or follow.lost != known:
                # Not `splitlines`, which also splits at other characters that texts may contain.
                lines = data.decode("utf-8", "surrogatepass").split("\n")[:-1]
                connection.respond({"lines": lines, "lost": follow.lost, "why": follow.why})
            else:
                self._awaiting_records.append((connection, identifier, known))

    def _post_flush(self, connection: HttpConnection, found: Any, identifier: str) -> None:
        """Write every answered call; answer with the offset at which a follow's lines then end.

        With `last`, calls that are made from now on are not part of the follow. Calls that were
        sent before but are not read yet still are.
        """
        follow = self._follow(identifier)

        def flush() -> None:
            self._tell({"op": "flush", **_named(follow)}, flushed)

        def flushed(answer: dict[str, Any]) -> None:
            end = end_of(self._folder(identifier))
            # An answer without them comes from no interface.
            follow.complete = bool(found.get("last")) and answer.get("running") == {}
            running = answer.get("running", {})
            connection.respond(
                {"end": end, "lost": follow.lost, "why": follow.why, "running": running}
            )

        self._write_refusals()
        if found.get("last"):
            self._seal(follow, flush)
        else:
            flush()

    def _seal(self, follow: Follow, done: Callable[[], None]) -> None:
        """End the run of a follow: now, or when the recording process says that it did."""

        def answered(answer: dict[str, Any]) -> None:
            if "sealed_at" in answer:
                sealed_at = answer["sealed_at"]
            else:
                self._supervisor.sockets.read_arrived(sorted(follow.names))
                self._write_refusals()
                sealed_at = time.monotonic()
            follow.sealed_at = min(follow.sealed_at, sealed_at)
            # As in the recorder: the next follow gets the calls of the user's script.
            follow.prefix = ""
            done()

        message = {"op": "seal", **_named(follow)}
        if self._supervisor.state != "up":
            # An interface that is loading hears of the end later.
            message["at"] = time.monotonic()
        self._tell(message, answered)

    def lose_records(self, calls: int, why: str, identifier: str | None = None) -> None:
        """Count calls that cannot be recorded, for one follow or for all that may have had them."""
        follows = self._supervisor.config.follows.values()
        losing = [f for f in follows if (f.id == identifier if identifier else not f.complete)]
        if not losing and identifier is None:
            self._drop("", calls)
        for follow in losing:
            follow.lose(calls, why)
        self.wake_records()

    def record_lost(self, lost: list[tuple[UnfinishedCall, str]], ended: str, output: str) -> None:
        """Record the calls that were lost with the interface process.

        Args:
            lost: The calls, each with its function's name.
            ended: How the process ended, in the words for callers.
            output: Its last output, if callers must not see it.
        """
        config = self._supervisor.config
        for identifier in config.follows:
            cut_line(self._folder(identifier))
        config.lost_calls = {}
        now, when = time.monotonic(), time.time()
        for call, function in lost:
            caller = self._supervisor.sockets.names[call.caller]
            told = (
                f"{function}() was lost with the interface; whether it had an effect is not known."
                f" {ended[:1].upper()}{ended[1:]}"
            )
            config.lost_calls[caller, call.call] = told
            if call.noted:
                # It is in the record already, or counted as missing from it.
                continue
            began = call.since or now
            line: dict[str, Any] = {
                "caller": caller,
                "function": function,
                "call": call.call,
                "outcome": "CallLostError",
                "error": told,
                "queue": began - call.made,
                "run": now - began,
                "time": when,
            }
            if call.tool_call:
                line["tool_call"] = call.tool_call
            if call.body is not None:
                line["arguments"] = given(call.body)
            if call.streamed:
                # The items themselves were lost with the process.
                error = {"type": "CallLostError", "message": told}
                line["result"] = {"stream": [], "left_out": call.streamed, "error": error}
            if output:
                line["traceback"] = output
            if self._write(caller, call.made, json.dumps(line).encode() + b"\n") == []:
                self._drop(caller, 1)
        self.wake_records()

    def record_refused(self, caller: str, request: Request, error: GateError) -> None:
        """Record a request that the supervisor refused, unless it only reads state (GET)."""
        if not self._supervisor.config.record or request.method == "GET":
            return
        kind, tool_call = type(error).__name__, request.tool_call
        line = self._refusals.line(caller, request.path, kind, str(error), tool_call=tool_call)
        if line:
            self._write(caller, time.monotonic(), line)
            self.wake_records()

    def _write_refusals(self) -> None:
        """Record how many requests were refused without a line of their own."""
        for caller, line in self._refusals.rest():
            self._write(caller, time.monotonic(), line)

    def _write(self, caller: str, made: float, line: bytes) -> list[Follow] | None:
        """Write the line of a call or request into the files of the follows that get it.

        Returns:
            These follows; None if the run that made the call has ended.
        """
        follows = self._supervisor.config.follows
        followed = [follows[identifier] for identifier in followers(follows, caller)]
        found = owners(followed, made, self._unfollowed.get(caller, 0.0))
        for follow in found or ():
            writer = LineWriter(self._folder(follow.id))
            failed = writer.append([line])
            writer.close()
            for error in failed.values():
                follow.lose(1, f"{type(error).__name__}: {error}")
        return found


def _nothing() -> None:
    return


def _named(follow: Follow) -> dict[str, Any]:
    return {"follow": follow.id, "names": sorted(follow.names)}


def _functions(schema: dict[str, Any] | None) -> set[str]:
    return set() if schema is None else {function["name"] for function in schema["functions"]}
