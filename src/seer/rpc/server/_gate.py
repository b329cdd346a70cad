"""The gate: which requests callers can make, and how each is handled.

Everything that a caller can reach is in `Gate._routes` or in the table of exposed functions. The
gate runs on the leading thread. The executor and its lanes run the functions.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seer.errors import (
    BudgetExceededError,
    CallLostError,
    GateBusyError,
    GateError,
    HandleError,
    InterfaceRestartedError,
    ProtocolError,
    UnknownFunctionError,
)
from seer.rpc.interface._budget import Meter, Tally, as_told
from seer.rpc.interface._schema import for_callers
from seer.rpc.wire._chunks import ALIVE
from seer.rpc.wire._http import Request, WireError, head_prefix, response_head
from seer.rpc.wire._memory import SlotPool, Spares
from seer.rpc.wire._protocol import KEEP_ALIVE

from ._calls import DONE, QUEUED, SMALL, Call, still_running
from ._failures import error_text, gate_failure, refusal, uses_gpu
from ._replies import Reply, plain_message
from ._request_buffers import RequestBuffers
from ._shared import WaitingMarks
from ._streams import finish_stream

if TYPE_CHECKING:
    from ._batch import Gather
    from ._callers import Caller
    from ._connection import Connection
    from ._entries import Entry
    from ._loop import Loop
    from ._recorder import Recorder
    from ._shared import Shared


_PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
_STILL_STREAMING = b"%x\r\n%s\r\n" % (len(ALIVE), ALIVE)
_CALL = "/v1/call/"
_monotonic = time.monotonic


MAX_CALLS = 2048
"""Calls that one caller may have at the same time."""


def _check_load(caller: Caller) -> None:
    """Refuse a call of a caller that has too much in progress.

    Raises:
        WireError: The caller has too many calls.
        GateBusyError: The caller leaves too many answers unread.
    """
    if len(caller.calls) >= MAX_CALLS:
        raise WireError(f"this caller has {MAX_CALLS} calls that have not ended", 429)
    caller.check_unread()


class Gate:
    """Answers the requests of all callers.

    Args:
        epoch: The id of this interface process.
        fetch: The entry for fetching a handle.
        meter: Counts what the whole interface uses.
        submit: Hands a call to its lane.
        loop: For timers.
        spares: Makes array slots in advance.
        shared: Shows the supervisor which calls run.
        patience: Seconds that a function gets to stop when it is told to. After that, its caller is
            answered while it still runs.
        recorder: Records every call and every refused request.
        lost_calls: What to answer to the calls that were lost with the last process, by caller and
            id.
        call_kind: The class of its calls.
    """

    def __init__(
        self,
        *,
        epoch: str,
        fetch: Entry,
        meter: Meter,
        submit: Callable[[Call], None],
        loop: Loop,
        spares: Spares,
        shared: Shared,
        patience: float,
        recorder: Recorder | None,
        lost_calls: dict[tuple[str, str], str],
        call_kind: type[Call] = Call,
    ) -> None:
        self.epoch = epoch
        self.loop = loop
        self.prefix = head_prefix(epoch)
        """The lines that follow the status line of every answer."""
        self._ok = response_head(200, self.prefix, 0)[: -len(b"0\r\n\r\n")]
        """The beginning of the usual answer, up to its length."""
        self.schema = b""
        self.entries: dict[str, Entry] = {}
        self._paths: dict[str, Entry] = {}
        self.meter = meter
        self.callers: dict[str, Caller] = {}
        self.gathers: list[Gather] = []
        self.started = time.monotonic()
        self._fetch = fetch
        self._submit = submit
        self._spares = spares
        self._shared = shared
        self._waiting = WaitingMarks(shared)
        self._patience = patience
        self._recorder = recorder
        self._lost_calls = lost_calls
        self._call_kind = call_kind
        self._anonymous = 0

    # --- requests ----------------------------------------------------------------------------

    def handle(self, connection: Connection, request: Request, body: bytes | bytearray) -> None:
        """Handle a complete request; on the leading thread."""
        path = request.path
        try:
            if request.unusual:
                self._note_unusual(connection, request)
            entry = self._paths.get(path)
            if entry is not None and request.method == "POST":
                self._call(connection, request, body, entry)
            else:
                self._route(connection, request, body)
        except WireError as error:
            self.refuse(connection, error)
        except GateError as error:
            self.answer_error(connection, error, request)

    def _note_unusual(self, connection: Connection, request: Request) -> None:
        if request.close:
            connection.closing = True
        if request.release is not None:
            self._release(connection, request.release)
        if request.free is not None:
            for handle in request.free:
                connection.caller.handles.free(handle)

    def look_at_budgets(self) -> None:
        """Apply budgets that were changed."""
        for caller in list(self.callers.values()):
            for tally in list(caller.tallies.values()):
                tally.look()

    def expose(self, entries: dict[str, Entry], schema: dict[str, Any]) -> None:
        """Serve these functions from now on; `schema` describes them as JSON."""
        self.entries = entries
        self.schema = json.dumps({"result": for_callers(schema)}).encode()
        self._paths = {_CALL + name: entry for name, entry in entries.items()}
        for caller in list(self.callers.values()):
            for entry in list(caller.tallies):
                if entry is not self._fetch and entries.get(entry.name) is not entry:
                    del caller.tallies[entry]

    def _unknown(self, name: str) -> UnknownFunctionError:
        known = ", ".join(sorted(self.entries)) or "none"
        return UnknownFunctionError(f"the interface exposes no function {name!r}; it has {known}")

    def _call(
        self,
        connection: Connection,
        request: Request,
        body: bytes | bytearray,
        entry: Entry,
        target: str = "",
    ) -> None:
        caller = connection.caller
        if request.epoch and request.epoch != self.epoch:
            lost = self._lost_calls.get((caller.name, request.call))
            error = InterfaceRestartedError(
                "the interface has restarted since it last answered this caller, so its module"
                " state and this caller's handles are gone; this call was not executed"
            )
            answer = CallLostError(lost) if lost else error
            self.answer_error(connection, answer, request, recorded=bool(lost))
            return
        if request.call:
            if request.call in caller.calls or request.call in caller.results.known:
                with caller.lock:
                    if self._repeated(connection, request, entry):
                        return
        else:
            self._anonymous += 1
            request.call = f"~{self._anonymous}"
        if caller.clogged or len(caller.calls) >= MAX_CALLS:
            _check_load(caller)
        now = _monotonic()
        if caller.detached:
            self._check_detached(caller, entry, now)
        tally = caller.tallies.get(entry)
        if tally is None:
            meters = (self.meter, entry.meter, caller.meter)
            tally = caller.tallies[entry] = Tally(meters, entry.options.cost)
        tally.admit()
        call = self._call_kind(connection, entry, request, body, tally, now)
        if target:
            call.target = target
        if request.pieces is not None:
            try:
                self._take_buffers(connection, request, body, call)
            except ProtocolError:
                tally.give_back()
                raise
        connection.call = call
        caller.calls[call.id] = call
        if call.bytes_in > SMALL:
            with caller.lock:
                caller.bytes_pending += call.bytes_in
        loop = self.loop
        first = call.beat_at if call.beat_at < call.expires else call.expires
        if first < loop.wake_at:
            loop.wake_by(first)
        self._submit(call)
        if call.state == QUEUED:
            self.note_waiting(call)

    def note_waiting(self, call: Call) -> None:
        """Mark a call that waits, so that it is in the record if the process ends before it runs.

        A lane may begin the call at the same time, on another thread.
        """
        if self._recorder is None:
            return
        with call.owner.lock:
            if call.state == QUEUED and call.waiting is None:
                call.waiting = self._waiting.add(call)

    def end_waiting(self, call: Call) -> None:
        """Note that a call has begun, or will not run."""
        mark = call.take_waiting()
        if mark is not None:
            self._waiting.remove(mark)

    def _check_detached(self, caller: Caller, entry: Entry, now: float) -> None:
        """Refuse a call of a caller whose detached function still runs.

        Raises:
            StillRunningError: One still runs.
        """
        with caller.lock:
            before = next(iter(caller.detached), None)
        if before is not None:
            raise still_running(entry.name, before, now)

    def _repeated(self, connection: Connection, request: Request, entry: Entry) -> bool:
        """Answer a call whose id is known, instead of running it again; False for a new id."""
        caller = connection.caller
        running = caller.calls.get(request.call)
        kept = None if running is not None else caller.results.get(request.call, _monotonic())
        if running is None and kept is None:
            return False
        name = running.entry.name if running is not None else kept[0] if kept else ""
        if name != entry.name:
            raise ProtocolError(f"the id {request.call!r} was used for a call of {name!r} before")
        if running is not None:
            self._wait_for(connection, running)
        elif kept is not None:
            self._send_kept(connection, request.call, kept[1])
        return True

    def _wait_for(self, connection: Connection, call: Call) -> None:
        """Send the answer of a running call to this connection too; under its caller's lock.

        Raises:
            ProtocolError: Parts of the answer went to another connection already.
        """
        if call.streaming:
            raise ProtocolError(
                f"the call {call.id!r} is a stream that another connection reads already"
            )
        call.connections.append(connection)
        call.lost_at = 0.0
        connection.call = call

    def _send_kept(self, connection: Connection, call: str, reply: Reply | None) -> None:
        """Send the answer of a call that has ended.

        Raises:
            CallLostError: The answer was not kept.
        """
        if reply is None:
            raise CallLostError(
                f"the call {call!r} was executed and is not executed again, but its result was not"
                " kept (streams, very large results and arrays of lost connections are not kept)"
            )
        self.send_reply(connection, reply)

    def _take_buffers(
        self, connection: Connection, request: Request, body: bytes | bytearray, call: Call
    ) -> None:
        room = connection.caller.room()
        taken = RequestBuffers(body, request, connection.take_descriptors(), room)
        call.body = taken.text
        call.buffers = taken.buffers
        call.bytes_in = taken.size
        if self._recorder is not None:
            call.pristine = taken.keep()
        else:
            taken.close()

    def _route(self, connection: Connection, request: Request, body: bytes | bytearray) -> None:
        parts = request.path.split("/")
        if request.path.startswith(_CALL):
            if request.method != "POST":
                raise WireError("functions are called with POST", 405)
            raise self._unknown(request.path[len(_CALL) :])
        if len(parts) < 3 or parts[1] != "v1":
            raise WireError(f"there is no {request.path!r}; see /v1/schema", 404)
        route = self._routes.get((request.method, parts[2], len(parts)))
        if route is None:
            raise WireError(f"there is no {request.method} {request.path!r}; see /v1/schema", 404)
        route(self, connection, request, body, parts[3] if len(parts) > 3 else "")

    # --- routes, besides calls of functions ----------------------------------------------------

    def _get_health(self, connection: Connection, *_: object) -> None:
        # A caller must not learn what other callers do.
        caller = connection.caller
        self.answer(
            connection,
            {
                "epoch": self.epoch,
                "seconds": _monotonic() - self.started,
                "calls": len(caller.calls),
                "detached": len(caller.detached),
            },
        )

    def _get_schema(self, connection: Connection, *_: object) -> None:
        self.answer_text(connection, 200, self.schema)

    def _get_budget(self, connection: Connection, *_: object) -> None:
        """Answer with the limits of a caller's calls, and what the caller itself has used.

        What is left of a shared limit is not in the answer: it would reveal what other callers do.
        """
        meter = connection.caller.meter
        self.answer(
            connection,
            {
                "caller": {
                    "limit": meter.budget.to_json(),
                    "used": as_told(meter.used()),
                    "left": as_told(meter.left()),
                },
                "interface": {"limit": self.meter.budget.to_json()},
                "functions": {
                    name: {"limit": entry.meter.budget.to_json()}
                    for name, entry in self.entries.items()
                },
            },
        )

    def _post_cancel(
        self, connection: Connection, _request: Request, _body: object, call_id: str
    ) -> None:
        call = connection.caller.calls.get(call_id)
        if call is not None:
            self.stop_call(call, "cancel")
        self.answer(connection, {"cancelled": call is not None})

    def _get_result(
        self, connection: Connection, request: Request, _body: object, call_id: str
    ) -> None:
        caller = connection.caller
        with caller.lock:
            running = caller.calls.get(call_id)
            if running is not None:
                self._wait_for(connection, running)
                return
            kept = caller.results.get(call_id, _monotonic())
        if kept is None:
            if request.epoch and request.epoch != self.epoch:
                raise InterfaceRestartedError("the interface has restarted since that call")
            raise HandleError(
                f"there is no call {call_id!r}, or its result has been dropped (results are"
                " kept for ten minutes, up to a limit)"
            )
        self._send_kept(connection, call_id, kept[1])

    def _post_release(self, connection: Connection, *_: object) -> None:
        """Answer a request whose only purpose is its header `seer-release`."""
        self.answer(connection, {})

    def _post_fetch(
        self, connection: Connection, request: Request, body: bytes | bytearray, handle: str
    ) -> None:
        """Fetch the value of a handle. It is counted, limited and recorded like a call."""
        connection.caller.handles.get(handle)
        self._call(connection, request, body, self._fetch, handle)

    def _post_free(
        self, connection: Connection, _request: Request, _body: object, handle: str
    ) -> None:
        self.answer(connection, {"freed": connection.caller.handles.free(handle)})

    _routes: dict[tuple[str, str, int], Callable[..., None]] = {
        ("GET", "health", 3): _get_health,
        ("GET", "schema", 3): _get_schema,
        ("GET", "budget", 3): _get_budget,
        ("POST", "cancel", 4): _post_cancel,
        ("GET", "result", 4): _get_result,
        ("POST", "release", 3): _post_release,
        ("POST", "fetch", 4): _post_fetch,
        ("POST", "free", 4): _post_free,
    }
    """By method, name and number of the path's parts. The fourth part is the route's argument."""

    # --- connections -------------------------------------------------------------------------

    def refuse(self, connection: Connection, error: WireError) -> None:
        """Answer a request that broke the protocol, and close the connection."""
        kind = GateBusyError if error.status in (429, 503) else ProtocolError
        self.note(connection.caller, kind(str(error)))
        connection.closing = True
        connection.drop_descriptors()
        if connection.call is not None:
            self._detach(connection)
        self.answer_text(connection, error.status, error_text(kind.__name__, str(error)))

    def reserve(self, connection: Connection, request: Request) -> None:
        """Reserve room for a body of the announced length.

        Raises:
            WireError: The caller may not hold that many more bytes.
        """
        room = connection.caller.room()
        if request.length > room:
            raise WireError(
                f"the request has {request.length} bytes, but this caller may hold {room} more:"
                " free handles, or make fewer calls at once",
                413,
            )
        with connection.caller.lock:
            connection.caller.bytes_pending += request.length
        connection.reserved = request.length

    def unreserve(self, connection: Connection) -> None:
        """Free the room for a body that has arrived, or never will."""
        reserved, connection.reserved = connection.reserved, 0
        if reserved:
            with connection.caller.lock:
                connection.caller.bytes_pending -= reserved

    def pool_of(self, connection: Connection) -> SlotPool:
        """The connection's pool, made on first use."""
        pool = connection.pool
        if pool is None:
            pool = connection.pool = SlotPool(connection.caller.allowance, self._spares)
            if connection.closed:
                # The connection was lost meanwhile, so nothing else would close the pool.
                pool.close()
        return pool

    def _release(self, connection: Connection, slots: list[int]) -> None:
        pool = connection.pool
        for slot in slots:
            if pool is None or not pool.release(slot):
                raise WireError(f"slot {slot} was released, but this connection does not hold it")
            call = connection.slot_calls.pop(slot, None)
            if call is not None:
                connection.caller.results.drop(call)

    def lost(self, connection: Connection) -> None:
        """Release the arrays of a closed connection; cancel its call unless it may linger."""
        caller = connection.caller
        caller.connections.discard(connection)
        for call in connection.slot_calls.values():
            caller.results.drop(call)
        if connection.pool is not None:
            connection.pool.close()
        if connection.call is not None:
            self._detach(connection)

    def _detach(self, connection: Connection) -> None:
        call, connection.call = connection.call, None
        if call is None:
            return
        if not call.leave(connection, _monotonic()):
            return
        if call.linger <= 0:
            self.stop_call(call, "gone")
        else:
            self.loop.wake_by(call.lost_at + call.linger)

    # --- time --------------------------------------------------------------------------------

    def due(self, now: float) -> None:
        """Check all calls: deadlines, keep-alives, callers that are gone, batches."""
        next_at = float("inf")
        for gather in self.gathers:
            next_at = min(next_at, gather.due(now))
        for caller in list(self.callers.values()):
            for call in list(caller.calls.values()):
                if call.lost_at and now >= call.lost_at + call.linger:
                    self.stop_call(call, "gone")
                if now >= call.expires:
                    self.stop_call(call, "timeout" if now >= call.timeout_at else call.limit)
                if now >= call.detach_at:
                    self.detach_call(call, now)
                    continue
                if now >= call.beat_at:
                    call.beat_at = now + KEEP_ALIVE
                    _show_life(call)
                next_at = min(next_at, call.expires, call.detach_at, call.beat_at)
                if call.lost_at and not call.cause:
                    next_at = min(next_at, call.lost_at + call.linger)
            for call in list(caller.detached):
                if now >= call.expires:
                    self._interrupt(call)
                next_at = min(next_at, call.expires)
        self.loop.wake_by(next_at)

    # --- how calls end -----------------------------------------------------------------------

    def stop_call(self, call: Call, cause: str) -> None:
        """Stop a call: remove it from its queue, or raise in its function.

        The process is not killed because a caller stops waiting. If the function does not stop, its
        caller is answered a moment later anyway: see `detach_call`.
        """
        state = call.stop(cause)
        if state == DONE:
            return
        if state == QUEUED:
            self.refuse_call(call, call.stop_error(_monotonic()))
            return
        call.detach_at = min(call.detach_at, _monotonic() + self._patience)
        self._interrupt(call)
        self.loop.wake_by(min(call.detach_at, call.expires))

    def _interrupt(self, call: Call) -> None:
        """Let the lane of a call raise in its function."""
        if _monotonic() >= call.timeout_at:
            # If this does not help, the supervisor kills the process.
            call.expires = float("inf")
        runner = call.runner
        if runner is not None:
            runner.interrupt(call)

    def detach_call(self, call: Call, now: float) -> None:
        """Answer the caller of a function that did not stop when told to. The function runs on."""
        reply = refusal(call.stop_error(now, runs_on=True))
        self.finish(call, reply, now, (now - call.started_at) / call.batch, runs_on=True)

    def refuse_call(self, call: Call, error: GateError) -> None:
        """End a call that is not executed."""
        self.finish(call, refusal(error), _monotonic(), 0.0)

    def finish(
        self, call: Call, reply: Reply, ended: float, seconds: float, *, runs_on: bool = False
    ) -> None:
        """Settle the budget, the record and the reply of a call, however it ends; on any thread.

        A detached call gets here twice: with `runs_on` when its caller is answered, and again when
        its function has ended. The second time only charges what it used since.

        Args:
            call: The call.
            reply: The answer for its caller.
            ended: When its function ended, or its caller stopped waiting (monotonic).
            seconds: How long the function had run for it by then, in total.
            runs_on: Whether the function still runs.
        """
        gpu = call.gpu or ("torch" in sys.modules and uses_gpu())
        call.ran = seconds
        mark = call.mark
        waiting = call.end(seconds, gpu=gpu, runs_on=runs_on)
        if runs_on and waiting and mark >= 0:
            self._shared.answered(mark, seconds)
        try:
            if waiting:
                self._answer(call, reply, ended, seconds)
            else:
                reply.keep_from_caller()
        finally:
            # The recorder and the caller hold its slot themselves.
            reply.let_go()
            # Only now: a process that ends before this point has not recorded the call.
            self.end_waiting(call)
        if not runs_on:
            self._forget(call)

    def _answer(self, call: Call, reply: Reply, ended: float, seconds: float) -> None:
        """Record the reply of a call, keep it, and send it to all connections that wait for it."""
        try:
            reply = self._settled(call, reply, ended, seconds)
        except Exception as error:
            # The call has ended, so nothing else would answer it. The connections end, because a
            # stream may have begun there. A caller that asks again for its result gets the error.
            name = type(error).__name__
            failed = refusal(GateError(f"the gate itself failed ({name}); its log says where"))
            try:
                if self._recorder is not None:
                    size = call.bytes_in + failed.size
                    self._recorder.add(call, failed, ended, seconds, size)
            finally:
                for connection in call.owner.answer(call, failed, ended):
                    connection.give_up()
            raise
        for connection in call.owner.answer(call, reply, ended):
            if reply.slot is not None and reply.pool is connection.pool:
                connection.slot_calls[reply.slot.index] = call.id
            self.send_reply(connection, reply, self.run_headers(call))

    def _settled(self, call: Call, reply: Reply, ended: float, seconds: float) -> Reply:
        """Charge and record the reply of a call; return it, or the refusal that replaces it."""
        size = call.bytes_in + reply.size
        if not call.started_at:
            call.tally.give_back()
            if call.queue is not None:
                call.queue.discard(call)
        else:
            try:
                call.tally.take_bytes(size, "the arguments and the result of this call")
            except BudgetExceededError as error:
                reply.keep_from_caller()
                call.tally.charge(0.0, 0.0, call.bytes_in)
                reply = refusal(error)
        if call.streaming or (call.entry.streams and call.started_at):
            finish_stream(call, reply, self.prefix + self.run_headers(call))
        recorder = self._recorder
        if recorder is not None:
            if reply.slot is not None:
                recorder.hold(reply)
            # Before the answer is sent: its reader may ask at once for the record of all calls.
            recorder.add(call, reply, ended, seconds, call.bytes_in + reply.size)
        return reply

    def run_headers(self, _call: Call) -> bytes:
        """Header lines that tell the front how a call ran. Callers do not get them."""
        return b""

    def _forget(self, call: Call) -> None:
        """Release what a finished call holds."""
        if call.buffers:
            call.buffers = ()

    # --- answers -----------------------------------------------------------------------------

    def answer(self, connection: Connection, result: object) -> None:
        """Answer with a plain JSON value."""
        self.answer_text(connection, 200, json.dumps({"result": result}).encode())

    def answer_text(self, connection: Connection, status: int, text: bytes) -> None:
        """Answer with JSON text."""
        connection.busy = False
        connection.call = None
        closing = connection.closing
        connection.send(plain_message(status, self.prefix, text, close=closing))
        if closing:
            self.loop.post(connection.finish)

    def answer_error(
        self, connection: Connection, error: GateError, request: Request, *, recorded: bool = False
    ) -> None:
        """Answer with an error of the gate itself, and record it unless the call is `recorded`."""
        status, text = gate_failure(error)
        if not recorded:
            self.note(connection.caller, error, request)
        connection.drop_descriptors()
        self.answer_text(connection, status, text)

    def send_reply(self, connection: Connection, reply: Reply, headers: bytes = b"") -> None:
        """Send the reply of a call, with further header lines; on any thread.

        The connection ends if that fails, for example for lack of memory. The call has ended, so
        nothing else would answer it, and a part of the reply may have been sent.
        """
        try:
            self._send_reply(connection, reply, headers)
        except Exception:
            import traceback

            sys.stderr.write(traceback.format_exc())
            connection.give_up()

    def _send_reply(self, connection: Connection, reply: Reply, headers: bytes) -> None:
        connection.busy = False
        connection.call = None
        closing = connection.closing
        if reply.last_chunk:
            connection.send(reply.last_chunk)
            if closing:
                self.loop.post(connection.finish)
            return
        if not reply.pieces and reply.status == 200 and not closing and not headers:
            connection.send(b"%s%d\r\n\r\n%s" % (self._ok, len(reply.text), reply.text))
            return
        self._send_whole(connection, reply, self.prefix + headers)
        if closing:
            self.loop.post(connection.finish)

    def _send_whole(self, connection: Connection, reply: Reply, prefix: bytes) -> None:
        """Send a reply that may have buffers; inline if a descriptor cannot be passed."""
        closing = connection.closing
        pool = connection.pool
        if reply.slot is None or pool is None or reply.pool is not pool:
            dropped = b"" if pool is None else pool.take_dropped()
            connection.send_parts(reply.unshared().message(prefix + dropped, close=closing), ())
            return
        prefix += pool.take_dropped()
        try:
            descriptors = [] if reply.slot.known else [reply.slot.open_for_caller()]
            connection.send_parts(reply.message(prefix, close=closing), descriptors)
            reply.slot.known = True
            return
        except OSError:
            connection.send_parts(reply.unshared().message(prefix, close=closing), ())
        # The caller never got the slot, which is free again, so the reply cannot be sent twice.
        call = connection.slot_calls.pop(reply.slot.index, None)
        if call is not None:
            connection.caller.results.drop(call)
        pool.release(reply.slot.index)

    def note(self, caller: Caller, error: GateError, request: Request | None = None) -> None:
        """Record a refused request; `request` is None if it could not be read."""
        if self._recorder is not None:
            path, tool_call = ("", "") if request is None else (request.path, request.tool_call)
            kind = type(error).__name__
            self._recorder.refused(caller, path, kind, str(error), tool_call=tool_call)


def _show_life(call: Call) -> None:
    """Send a sign of life to the connections that wait for a call."""
    # Under the lock, so that this comes neither before the head of a stream nor after its end.
    with call.owner.lock:
        if call.state != DONE:
            for connection in call.connections:
                connection.send(_STILL_STREAMING if call.streaming else _PROCESSING)
