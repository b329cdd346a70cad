"""The front: the process that has the callers' sockets if an interface runs in several copies.

It is a gate like any other, with the same callers, budgets, kept results and record, but it runs no
code of the interface. It knows the functions from the schema that the copies report, and hands
calls to copies. It keeps running while copies come and go.
"""

from __future__ import annotations

import resource
import socket
from typing import TYPE_CHECKING, Any

from seer.errors import GateError
from seer.rpc.interface._budget import Budget
from seer.rpc.interface._schema import Schema
from seer.rpc.server._callers import Callers
from seer.rpc.server._entries import make_entries
from seer.rpc.server._gate import Gate
from seer.rpc.server._gate_process import GateProcess, prepare_process
from seer.rpc.server._loop import Loop
from seer.rpc.wire._memory import Spares

from ._calls import FrontCall, FrontCaller, at_front
from ._dispatch import Dispatch
from ._forwarding import Forwarding

if TYPE_CHECKING:
    from seer.rpc.server._calls import Call
    from seer.rpc.server._config import ServerConfig
    from seer.rpc.server._connection import Connection
    from seer.rpc.server._gate_process import Message
    from seer.rpc.server._message_socket import MessageSocket
    from seer.rpc.server._shared import Shared
    from seer.rpc.wire._http import Request


def serve_front(
    config: ServerConfig,
    *,
    epoch: str,
    shared: Shared,
    to_supervisor: MessageSocket,
    listeners: list[tuple[str, int, Budget, socket.socket]],
    places: dict[str, int],
    about: dict[str, Any],
) -> int:
    """Serve what the copies of an interface expose, and return the process's exit code.

    Args:
        config: What is served.
        epoch: The id of this process.
        shared: Holds the meters.
        to_supervisor: Messages to and from the supervisor.
        listeners: Each caller's name, number, budget and listening socket.
        places: The numbers of the functions' meters.
        about: The schema and the warnings that a copy reported.
    """
    prepare_process()
    _raise_descriptors()
    front = Front(config, epoch, shared, to_supervisor, places)
    front.expose(about)
    for name, index, budget, listener in listeners:
        front.callers.add(name, index, budget, listener)
    front.run()
    return 0


def _raise_descriptors() -> None:
    """Raise the limit of open descriptors as far as possible: each caller needs several."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class FrontGate(Gate):
    """A gate whose calls run in copies."""

    def _take_buffers(
        self, connection: Connection, request: Request, body: bytes | bytearray, call: Call
    ) -> None:
        front_call = at_front(call)
        front_call.keep_message(body, request, connection.descriptors)
        try:
            super()._take_buffers(connection, request, body, call)
        except BaseException:
            front_call.close_memfds()
            raise

    def _forget(self, call: Call) -> None:
        super()._forget(call)
        at_front(call).close_memfds()


class Front(GateProcess):
    """The parts of the front process, put together."""

    def __init__(
        self,
        config: ServerConfig,
        epoch: str,
        shared: Shared,
        to_supervisor: MessageSocket,
        places: dict[str, int],
    ) -> None:
        super().__init__(config, to_supervisor, places)
        self._operations |= {
            "copy": self._add_copy,
            "ended": self._end_copy,
            "drain": self._drain,
            "expose": self._expose,
            "give_up": self._give_up,
        }
        self._shared = shared
        self._about: dict[str, Any] = {}
        self.loop = Loop(next_job=_no_job, run_job=_not_here, jobs=(), due=self._due)
        recorder = self._recorder = self._make_recorder("", shared)
        self.gate = self._make_gate(
            FrontGate,
            epoch=epoch,
            shared=shared,
            fetch=(_not_here, _not_here),
            submit=self._submit,
            spares=Spares(),
            call_kind=FrontCall,
        )
        self._forwarding = Forwarding(
            self.gate,
            shared,
            tracebacks=False,
            scrubber=None,
            recorder=recorder,
            grace=config.grace,
            poisoned=_not_here,
        )
        self._copies = Dispatch(
            self._forwarding, self.loop, grace=config.drain, drained=self._drained
        )
        self.callers = Callers(self.gate, self.loop, shared, config, FrontCaller)

    def run(self) -> None:
        """Serve until told to stop or until the supervisor is gone."""
        self._serve({"op": "ready", **self._about, "places": self._places})

    def expose(self, about: dict[str, Any]) -> None:
        """Serve the functions of a schema from now on."""
        self._about = about
        schema = Schema.from_json(about["schema"])
        entries = make_entries(
            schema.functions,
            source=schema.source_hash,
            budget_of=self._config.budget_of,
            shared=self._shared,
            places=self._places,
            call_timeout=self._config.call_timeout,
            target=_not_here,
        )
        if self._recorder is not None:
            self._recorder.source_hash = schema.source_hash
        self.gate.expose(entries, about["schema"])

    def _submit(self, call: Call) -> None:
        self._copies.submit(at_front(call))

    def _due(self, now: float) -> None:
        self.gate.due(now)
        self._copies.due(now)

    def _drained(self, number: int) -> None:
        self._tell({"op": "drained", "copy": number})

    # --- messages of the supervisor ----------------------------------------------------------

    def _add_copy(self, message: Message) -> None:
        self._copies.add(message["copy"], socket.socket(fileno=message["descriptors"][0]))
        self._reply(message)

    def _end_copy(self, message: Message) -> None:
        self._copies.ended(message["copy"], message["why"])
        self._reply(message)

    def _drain(self, message: Message) -> None:
        self._reply(message, going=self._copies.drain(message["count"]))

    def _expose(self, message: Message) -> None:
        self.expose({"schema": message["schema"], "warnings": message["warnings"]})
        self._reply(message, **self._about, places=self._places)

    def _give_up(self, message: Message) -> None:
        self._copies.give_up(message["why"])
        # The supervisor kills this process once it has the answer. A call that is answered after
        # the last line was written would be in no record, so no more requests are read. The answer
        # waits for earlier posts, which refuse calls that were to be made again, and for large
        # results that are still being copied.
        self.callers.stop_reading()
        self._forwarding.when_copied(lambda: self._reply_when_written(message))

    def _reply_when_written(self, message: Message) -> None:
        if self._recorder is None:
            self._reply(message)
        else:
            self._recorder.flush(lambda: self._reply(message))

    def _remove_caller(self, message: Message) -> None:
        caller = self.gate.callers.get(message["name"])
        super()._remove_caller(message)
        if isinstance(caller, FrontCaller):
            self._copies.remove(caller)


def _no_job() -> None:
    return None


def _not_here(*_arguments: Any) -> Any:
    raise GateError("functions run in the copies of the interface, not in the front")
