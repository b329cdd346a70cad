"""Sending answers to callers: results, errors, and what is told of refusals."""

from __future__ import annotations

import json
import os

from seer.rpc.wire._http import head_prefix, response_head
from seer.rpc.wire._protocol import RAISED

from ._failures import gate_failure
from ._replies import Reply, plain_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from seer.errors import GateError

    from ._calls import Caller
    from ._connection import Connection
    from ._loop import Loop


class Answers:
    """Sends answers.

    Args:
        epoch: The name of this incarnation of the interface.
        loop: Closes connections when their answer is sent.
        observe: Told of every refused request: caller, what, error.

    Attributes:
        prefix: The lines that follow the status line of every answer.
        ok: The beginning of the usual answer, up to its length.
        raised: The same for what a function raised.
    """

    def __init__(
        self,
        epoch: str,
        loop: Loop,
        observe: Callable[[Caller, str, str, str], None] | None,
    ) -> None:
        self.epoch = epoch
        self.loop = loop
        self.prefix = head_prefix(epoch)
        self.ok = response_head(200, self.prefix, 0)[: -len(b"0\r\n\r\n")]
        self.raised = response_head(RAISED, self.prefix, 0)[: -len(b"0\r\n\r\n")]
        self._observe = observe

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

    def answer_error(self, connection: Connection, error: GateError, path: str) -> None:
        """Answer with an error of the gate itself."""
        status, text = gate_failure(error)
        self.note(connection.caller, path, error)
        for fd in connection.take_descriptors():
            os.close(fd)
        self.answer_text(connection, status, text)

    def send_reply(self, connection: Connection, reply: Reply) -> None:
        """Send the reply of a call; on any thread."""
        connection.busy = False
        connection.call = None
        closing = connection.closing
        if reply.last_chunk:
            connection.send(reply.last_chunk)
            if closing:
                self.loop.post(connection.finish)
            return
        if not reply.pieces and reply.status == 200 and not closing:
            connection.send(b"%s%d\r\n\r\n%s" % (self.ok, len(reply.text), reply.text))
            return
        self.send_whole(connection, reply, self.prefix)
        if closing:
            self.loop.post(connection.finish)

    def send_whole(self, connection: Connection, reply: Reply, prefix: bytes) -> None:
        """Send a reply that may have buffers; those whose descriptor cannot be passed go inline."""
        closing = connection.closing
        pool = connection.pool
        if reply.slot is None or pool is None or reply.pool is not pool:
            dropped = b"" if pool is None else pool.take_dropped()
            connection.send_parts(reply.unshared().message(prefix + dropped, close=closing))
            return
        prefix += pool.take_dropped()
        try:
            descriptors = [] if reply.slot.known else [reply.slot.open_for_caller()]
        except OSError:
            passed = False
        else:
            passed = connection.send_parts(reply.message(prefix, close=closing), descriptors)
        if passed:
            reply.slot.known = True
            return
        connection.send_parts(reply.unshared().message(prefix, close=closing))
        # The caller does not know of the slot, so it is free, and no answer for a later request.
        call = connection.slot_calls.pop(reply.slot.index, None)
        if call is not None:
            connection.caller.results.drop(call)
        pool.release(reply.slot.index)

    def note(self, caller: Caller, path: str, error: GateError) -> None:
        """Tell whoever records them of a refused request."""
        if self._observe is not None:
            self._observe(caller, path, type(error).__name__, str(error))
