"""A gate that answers from a record: the protocol of `seer.rpc` without interface, model or GPU.

It serves the control socket that a controller expects, and a socket per caller. A thread serves
each connection. Requests are hostile, so the live gate's strict parser reads them.
"""

import bisect
import hashlib
import json
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from seer._redact import Redactor
from seer._unix_sockets import listen
from seer.errors import GateError, ReplayDivergenceError
from seer.rpc.interface._schema import for_callers
from seer.rpc.server._failures import STATUS, error_text
from seer.rpc.server._follows import Follow, followers
from seer.rpc.server._replies import Reply, plain_message
from seer.rpc.server._streams import recorded_stream
from seer.rpc.wire._http import WireError, head_prefix
from seer.runs._call_values import is_stream
from seer.runs._calls import GateCall, is_call
from seer.runs.replay._budget import budget_answer
from seer.runs.replay._choice import Choice
from seer.runs.replay._differences import Differences, SharedRest
from seer.runs.replay._match import FirstCall, Tapes
from seer.runs.replay._requests import Asked, RequestReader

logger = logging.getLogger(__name__)

EPOCH = "replay"
_CALL = "/v1/call/"
_ROUTES = frozenset(
    {
        ("GET", "health", 3),
        ("GET", "schema", 3),
        ("GET", "budget", 3),
        ("GET", "result", 4),
        ("POST", "cancel", 4),
        ("POST", "release", 3),
        ("POST", "fetch", 4),
        ("POST", "free", 4),
    }
)
"""What callers can ask for besides calls, as in `seer.rpc.server._gate`."""
_STATUS = {kind.__name__: status for kind, status in STATUS.items()}


@dataclass(frozen=True)
class Answered:
    """The answer of a live gate."""

    raw: bytes
    """The whole message, to be forwarded."""
    status: int
    text: str
    buffers: tuple[bytes, ...]


class LiveGate(Protocol):
    """The live gate that answers where the record does not."""

    @property
    def has_taken_over(self) -> bool:
        """Whether the live gate answers everything from now on."""
        ...

    def holding_off(self) -> AbstractContextManager[bool]:
        """Let nothing take over meanwhile; gives whether the record still answers.

        What the record answers meanwhile is repeated by a later take-over.
        """
        ...

    def take_over(self) -> None:
        """Let the live gate take over.

        Raises:
            GateError: It cannot be reached, or its state cannot become that of the recording.
        """
        ...

    def answer(self, interface: str, caller: str, asked: Asked) -> Answered:
        """The whole answer of the live gate to a request.

        Raises:
            GateError: It cannot be reached.
        """
        ...


class ReplayGate:
    """Serves one recorded interface.

    Args:
        name: The interface.
        schema: Its schema, in JSON form.
        calls: Its recorded calls.
        read_blob: Returns the content of a recorded array.
        host_path: Returns the path on this host of a socket in the machine.
        live: The live gate, for a replay that may continue past the record.
        about: The recorded description of the interface, for its budgets.
        choice: Chooses the recorded interface at the first call, instead of `calls` and `about`.
        rest: Tells which calls were not made, if other gates have the same calls.
    """

    def __init__(
        self,
        name: str,
        schema: Mapping[str, Any],
        calls: list[GateCall],
        *,
        read_blob: Callable[[str], bytes],
        host_path: Callable[[str], Path],
        live: LiveGate | None = None,
        about: Mapping[str, Any] | None = None,
        choice: Choice | None = None,
        rest: SharedRest | None = None,
    ) -> None:
        self.name = name
        self.tapes = Tapes(calls, None if choice is None else choice.choose)
        self._schema = dict(schema)
        self._about = about or {}
        self._choice = choice
        self._read_blob = read_blob
        self._host_path = host_path
        self._live = live
        self._differences = Differences(name, self.tapes, may_end_early=live is not None, rest=rest)
        # Also if the program ends without closing it.
        weakref.finalize(self, self._differences.finish)
        self._lock = threading.Lock()
        self._listeners: dict[str, socket.socket] = {}
        self._open: set[socket.socket] = set()
        self._kept: dict[tuple[str, str], bytes] = {}
        self.freed: list[tuple[str, str]] = []
        """The handles that were freed while the record answered, each after its caller."""
        self._closed = False
        self._prefix = head_prefix(EPOCH)
        self._redactor = Redactor()
        self._follows: dict[str, Follow] = {}
        self._lines: dict[str, list[tuple[int, str]]] = {}
        """The calls of each follow as a live gate writes them, and where each line ends."""
        self._unfollowed: list[tuple[str, str]] = []
        self._logged = threading.Condition()
        self._live_blobs: dict[str, bytes] = {}

    # --- sockets -----------------------------------------------------------------------------

    def serve_control(self, path: str) -> None:
        """Listen for the controller."""
        self._listen("", path, self._control, mode=0o600)

    def serve_caller(self, caller: str, path: str) -> None:
        """Listen for one caller."""
        self.tapes.open(caller)
        self._listen(caller, path, lambda asked: self._answer(caller, asked), mode=0o666)

    def close(self) -> None:
        """Stop serving. Closing twice is harmless."""
        with self._lock:
            self._closed = True
            sockets = [*self._listeners.values(), *self._open]
            self._listeners.clear()
        for item in sockets:
            _shut(item)
        with self._logged:
            self._logged.notify_all()
        if self._choice is not None:
            self._choice.close()
        self._differences.finish()

    def blob(self, sha256: str) -> bytes:
        """An array of a call that was answered.

        Raises:
            RecordError: No array has this hash.
        """
        found = self._live_blobs.get(sha256)
        return self._read_blob(sha256) if found is None else found

    def _listen(self, name: str, path: str, handle: Callable[[Asked], bytes], *, mode: int) -> None:
        target = self._host_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        listener = listen(target, 128, mode=mode)
        with self._lock:
            self._listeners[name] = listener
        threading.Thread(
            target=self._accept, args=(listener, handle), name="seer-replay", daemon=True
        ).start()

    def _accept(self, listener: socket.socket, handle: Callable[[Asked], bytes]) -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    connected.close()
                    return
                self._open.add(connected)
            threading.Thread(
                target=self._serve, args=(connected, handle), name="seer-replay", daemon=True
            ).start()

    def _serve(self, connected: socket.socket, handle: Callable[[Asked], bytes]) -> None:
        reader = RequestReader(connected)
        try:
            while (asked := reader.next()) is not None:
                connected.sendall(handle(asked))
                if asked.request.close:
                    return
        except WireError as error:
            text = error_text("ProtocolError", str(error))
            _try_send(connected, plain_message(error.status, self._prefix, text, close=True))
        except OSError as error:
            logger.debug("a connection of a replayed interface ended: %s", error)
        finally:
            with self._lock:
                self._open.discard(connected)
            connected.close()
            reader.close()

    # --- callers -------------------------------------------------------------------------------

    def _answer(self, caller: str, asked: Asked) -> bytes:
        method, path = asked.request.method, asked.request.path
        if path.startswith(_CALL):
            return self._call_by_path(caller, asked)
        parts = path.split("/")
        kind = parts[2] if len(parts) > 2 and parts[1] == "v1" else ""
        argument = parts[3] if len(parts) > 3 else ""
        if (method, kind, len(parts)) not in _ROUTES:
            raise WireError(f"there is no {method} {path!r}; see /v1/schema", 404)
        if kind == "fetch":
            return self._call(caller, asked, "handle.fetch", handle=argument)
        if kind == "result" and (caller, argument) in self._kept:
            return self._kept[caller, argument]
        if self._live is not None and self._live.has_taken_over:
            return self._forward(self._live, caller, asked)
        freed = [argument] if kind == "free" else []
        self.freed += [(caller, handle) for handle in (*freed, *(asked.request.free or ()))]
        if kind == "health":
            return self._plain({"epoch": EPOCH, "seconds": 0.0, "calls": 0})
        if kind == "schema":
            return self._plain(for_callers(self._schema))
        if kind == "budget":
            played = self.tapes.played(caller)
            about = self._about if self._choice is None else self._choice.about
            return self._plain(budget_answer({**about, "schema": self._schema}, played))
        if kind in {"release", "free", "cancel"}:
            return self._plain({"freed": True, "cancelled": False})
        return self._error(404, "ProtocolError", f"there is no {path!r} in a replay")

    def _call_by_path(self, caller: str, asked: Asked) -> bytes:
        if asked.request.method != "POST":
            raise WireError("functions are called with POST", 405)
        function = asked.request.path[len(_CALL) :]
        if not is_call(function):
            # The record does not have it as a call, so it answers none.
            error = f"the interface exposes no function {function!r}"
            return self._error(404, "UnknownFunctionError", error)
        return self._call(caller, asked, function, handle="")

    def _call(self, caller: str, asked: Asked, function: str, *, handle: str) -> bytes:
        known = (caller, asked.request.call)
        if asked.request.call and known in self._kept:
            return self._kept[known]
        answer = self._play(caller, asked, function, handle)
        if asked.request.call:
            self._kept[known] = answer
        return answer

    def _play(self, caller: str, asked: Asked, function: str, handle: str) -> bytes:
        live = self._live
        if live is not None and live.has_taken_over:
            return self._ask_live(live, caller, asked, function, handle)
        try:
            # Without secrets, as in the record.
            arguments = self._redactor.redact(asked.arguments)
            hashes = asked.hashes(self._redactor)
            first = FirstCall(function, arguments, hashes, handle)
            tape = self.tapes.tape(caller, first)
            with nullcontext(True) if live is None else live.holding_off() as is_recorded:
                match = None
                # A take-over since would not repeat this call.
                if is_recorded:
                    match = tape.match(function, arguments, hashes, handle=handle)
                    self.freed += [(caller, item) for item in asked.request.free or ()]
        except RecursionError:
            return self._error(400, "ProtocolError", "the arguments are nested too deeply")
        except ReplayDivergenceError as error:
            if live is not None:
                logger.warning("replay: the live interface takes over. %s", error)
                return self._ask_live(live, caller, asked, function, handle)
            logger.error("replay of %r: %s", self.name, error)
            self._differences.add(str(error))
            return self._error(409, "GateError", f"replay: {error}")
        if match is None:
            assert live is not None
            return self._ask_live(live, caller, asked, function, handle)
        recorded = match.call
        if match.line is not None:
            token = asked.request.tool_call
            self._log_call(replace(match.line, caller=caller, time=time.time(), tool_call=token))
        answer = self.render(recorded)
        if recorded.lost and tape.has_again(recorded):
            # As when the process ended: the connection closes, and a retry gets `answer`.
            self._kept[caller, asked.request.call] = answer
            raise ConnectionAbortedError("this call was lost with the interface")
        return answer

    def _ask_live(
        self, live: LiveGate, caller: str, asked: Asked, function: str, handle: str
    ) -> bytes:
        try:
            live.take_over()
            began = time.time()
            answered = live.answer(self.name, caller, asked)
        except GateError as error:
            if not live.has_taken_over:
                self._differences.add(str(error))
            return self._error(503, type(error).__name__, str(error))
        now = time.time()
        call = GateCall(
            interface=self.name,
            caller=caller,
            function=function,
            handle=handle,
            arguments=asked.arguments,
            argument_buffers=self._keep(asked.buffers),
            outcome="ok" if answered.status == 200 else _error_type(answered.text),
            result=answered.text,
            result_buffers=self._keep(answered.buffers),
            call=asked.request.call,
            tool_call=asked.request.tool_call,
            time=now,
            run=now - began,
        )
        self._log_call(call)
        return answered.raw

    def _forward(self, live: LiveGate, caller: str, asked: Asked) -> bytes:
        """The live gate's answer to a request that is not a call."""
        try:
            return live.answer(self.name, caller, asked).raw
        except GateError as error:
            return self._error(503, type(error).__name__, str(error))

    def _keep(self, buffers: Sequence[bytes]) -> tuple[str, ...]:
        found = {hashlib.sha256(data).hexdigest(): data for data in buffers}
        self._live_blobs.update(found)
        return tuple(hashlib.sha256(data).hexdigest() for data in buffers)

    def _log_call(self, call: GateCall) -> None:
        line = json.dumps(call.to_gate())
        with self._logged:
            followed = followers(self._follows, call.caller)
            for identifier in followed:
                _append(self._lines[identifier], line)
            if not followed:
                self._unfollowed.append((call.caller, line))
            self._logged.notify_all()

    def _follow(self, identifier: str, asked: Mapping[str, Any]) -> bytes:
        """Follow the calls of some callers; earlier calls that no follow has taken come first."""
        with self._logged:
            new = Follow(identifier or f"follow-{len(self._lines)}", (), "")
            follow = self._follows.setdefault(new.id, new)
            follow.names.update(asked["callers"])
            follow.prefix = asked.get("prefix", follow.prefix)
            lines = self._lines.setdefault(follow.id, [])
            rest: list[tuple[str, str]] = []
            for caller, line in self._unfollowed:
                if follow.id in followers(self._follows, caller):
                    _append(lines, line)
                else:
                    rest.append((caller, line))
            self._unfollowed = rest
            self._logged.notify_all()
        return self._plain({"follow": follow.id, "dropped": 0})

    def _unfollow(self, identifier: str) -> bytes:
        with self._logged:
            self._follows.pop(identifier, None)
            self._logged.notify_all()
        return self._plain({})

    def _records(self, identifier: str, after: int) -> bytes:
        """A follow's lines from an offset on; waits for the first one."""
        lines = self._lines[identifier]

        def new() -> list[str]:
            first = bisect.bisect_right(lines, after, key=lambda item: item[0])
            return [line for _, line in lines[first:]]

        with self._logged:
            self._logged.wait_for(lambda: new() or self._closed or identifier not in self._follows)
            return self._plain({"lines": new(), "lost": 0, "why": ""})

    def _flush(self, identifier: str) -> bytes:
        with self._logged:
            lines = self._lines[identifier]
            end = lines[-1][0] if lines else 0
        return self._plain({"end": end, "lost": 0, "why": ""})

    def render(self, recorded: GateCall) -> bytes:
        """A recorded answer as it goes over the wire."""
        if is_stream(recorded):
            buffers = [self._read_blob(item) for item in recorded.result_buffers]
            return recorded_stream(recorded.result, buffers, self._prefix)
        status = 200 if recorded.outcome == "ok" else _STATUS.get(recorded.outcome, 500)
        reply = Reply(status, recorded.result.encode())
        if recorded.result_buffers:
            reply.add_buffers([self._read_blob(item) for item in recorded.result_buffers], None)
        parts = reply.message(self._prefix, close=False)
        return b"".join(parts)

    # --- the controller ----------------------------------------------------------------------

    def _control(self, asked: Asked) -> bytes:
        parts = asked.request.path.split("/")
        kind = parts[2] if len(parts) > 2 else ""
        if kind in {"ready", "reload"}:
            return self._plain({"schema": self._schema, "warnings": []})
        if kind == "callers":
            found: Any = json.loads(asked.text)
            self.serve_caller(str(found["name"]), str(found["socket"]))
            return self._plain({})
        if kind == "remove":
            with self._lock:
                listener = self._listeners.pop(parts[3], None)
            if listener is not None:
                _shut(listener)
            return self._plain({})
        argument = parts[3] if len(parts) > 3 else ""
        if kind == "follow":
            return self._follow(argument, json.loads(asked.text))
        if kind == "unfollow":
            return self._unfollow(argument)
        if kind == "records":
            return self._records(argument, int(json.loads(asked.text)["after"]))
        if kind == "flush":
            return self._flush(argument)
        if kind == "health":
            empty: dict[str, list[object]] = {"notes": [], "copies": []}
            return self._plain({"state": "up", "epoch": EPOCH, "restarts": 0, **empty})
        if kind == "budget":
            return self._plain({"interface": {}, "functions": {}, "callers": {}})
        if kind in {"scale", "stop"}:
            # Copies would not make this faster.
            return self._plain({})
        return self._error(400, "ProtocolError", f"a replay does not offer {asked.request.path!r}")

    def _plain(self, result: object) -> bytes:
        return plain_message(200, self._prefix, json.dumps({"result": result}).encode())

    def _error(self, status: int, kind: str, message: str) -> bytes:
        return plain_message(status, self._prefix, error_text(kind, message))


def _append(lines: list[tuple[int, str]], line: str) -> None:
    lines.append(((lines[-1][0] if lines else 0) + len(line.encode()) + 1, line))


def _error_type(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["type"])
    except (ValueError, LookupError, TypeError):
        return "GateError"


def _shut(item: socket.socket) -> None:
    try:
        item.shutdown(socket.SHUT_RDWR)
    except OSError:
        logger.debug("a socket was closed already")
    item.close()


def _try_send(connected: socket.socket, data: bytes) -> None:
    try:
        connected.sendall(data)
    except OSError:
        logger.debug("a caller went away before it was answered")
