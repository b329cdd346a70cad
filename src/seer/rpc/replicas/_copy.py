"""A copy of the interface: an interface process whose only client is the front.

Its callers have the same names as the front's, so that each caller has its own handles. They have
no sockets here: the front makes the connections and passes them in. The front also has the budgets,
the kept results and the record.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seer.rpc.interface._budget import Budget, Meter
from seer.rpc.server._callers import Caller, Results
from seer.rpc.server._failures import uses_gpu
from seer.rpc.server._gate import Gate
from seer.rpc.server._gate_process import CloseInForks, prepare_process
from seer.rpc.server._message_socket import MessageSocket
from seer.rpc.server._process import FAILED_TO_LOAD, InterfaceProcess, load_or_tell

from ._copy_client import RAN, with_traceback

if TYPE_CHECKING:
    from seer.rpc.interface._schema import Function
    from seer.rpc.server._calls import Call
    from seer.rpc.server._config import ServerConfig
    from seer.rpc.server._gate_process import Message
    from seer.rpc.server._replies import Reply
    from seer.rpc.server._shared import Shared

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
MAX_EARLY = 1024


def serve_copy(
    config: ServerConfig,
    *,
    epoch: str,
    shared: Shared,
    to_supervisor: MessageSocket,
    front: socket.socket,
    places: dict[str, int],
    gpu: str | None,
) -> int:
    """Load the interface, run what the front asks for, and return the process's exit code.

    Args:
        config: What is served.
        epoch: The id of this copy.
        shared: Memory that only this copy and the supervisor have.
        to_supervisor: Messages to and from the supervisor.
        front: The copy's end of the socket to the front.
        places: The numbers of the functions.
        gpu: The only GPU that it sees; None to see all GPUs of the machine.
    """
    prepare_process()
    if gpu is not None:
        os.environ[GPU_VARIABLE] = gpu
    closing = CloseInForks(to_supervisor.fileno(), front.fileno())
    interface = load_or_tell(config, to_supervisor)
    if interface is None:
        return FAILED_TO_LOAD
    process = CopyProcess(config, interface, epoch, shared, to_supervisor, places)
    # A reload replaces the interface in the process. A reference here would keep the first one.
    del interface
    closing.loop = process.loop
    process.serve_front(MessageSocket(front))
    return 0


class _NoResults(Results):
    """Keeps nothing, because the front keeps results."""

    __slots__ = ()

    def add(self, call: str, function: str, reply: Reply | bytes | None, now: float) -> None:
        """Keep nothing."""


class _CopyCaller(Caller):
    """A caller of the front."""

    __slots__ = ()

    def __init__(self, name: str, index: int, meter: Meter) -> None:
        super().__init__(name, index, meter)
        self.results = _NoResults()


class CopyGate(Gate):
    """Answers the front, and says in each answer how the call ran."""

    def finish(
        self, call: Call, reply: Reply, ended: float, seconds: float, *, runs_on: bool = False
    ) -> None:
        """Finish a call; the front takes the whole traceback out of the reply for its record."""
        if reply.traceback:
            reply.text = with_traceback(reply.text, reply.traceback)
        super().finish(call, reply, ended, seconds, runs_on=runs_on)

    def run_headers(self, call: Call) -> bytes:
        """The header line that says how a call ran, for the front."""
        return b"%s: %.6f %d %d\r\n" % (RAN, call.ran, uses_gpu(), call.batch)


class CopyProcess(InterfaceProcess):
    """The parts of one copy, put together."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, gate_kind=CopyGate, caller_kind=_CopyCaller)
        self._front: MessageSocket | None = None
        self._front_operations: dict[str, Callable[[Message], None]] = {
            "connect": self._front_connect,
            "cancel": self._front_cancel,
            "free": self._front_free,
            "remove": self._front_remove,
        }
        self._early: dict[str, None] = {}
        """Calls that were cancelled before they arrived, because both use different sockets."""

    def serve_front(self, front: MessageSocket) -> None:
        """Serve until told to stop or until the supervisor is gone."""
        self._front = front
        self.loop.watch(front.fileno(), select.EPOLLIN, self._on_front)
        self.run()

    def _detach_after(self) -> float:
        # The front answers callers in time. This process answers when the function has ended.
        return float("inf")

    def _make_recorder(self, source_hash: str, shared: Shared) -> None:
        return None

    def _budget_of(self, function: Function) -> Budget:
        # The front counts the calls.
        return Budget()

    def _submit(self, call: Call) -> None:
        if self._early and call.id in self._early:
            del self._early[call.id]
            self.gate.stop_call(call, "cancel")
            return
        super()._submit(call)

    # --- messages of the front ---------------------------------------------------------------

    def _on_front(self, _events: int) -> None:
        assert self._front is not None
        messages = self._front.receive()
        if messages is None:
            # The front is gone. The supervisor decides what happens next.
            self.loop.unwatch(self._front.fileno())
            return
        for message in messages:
            self._front_operations[message["op"]](message)

    def _front_connect(self, message: Message) -> None:
        name = message["caller"]
        descriptors: list[int] = message["descriptors"]
        if not descriptors:
            # This process has no descriptor left. The front notices that the connection ends.
            os.write(2, b"no descriptor is left for a connection to the front\n")
            return
        caller = self.gate.callers.get(name)
        if caller is None:
            caller = self.callers.know(name, message["index"], Budget())
        self.callers.connect(caller, socket.socket(fileno=descriptors[0]))

    def _front_cancel(self, message: Message) -> None:
        caller = self.gate.callers.get(message["caller"])
        call = None if caller is None else caller.calls.get(message["call"])
        if call is not None:
            self.gate.stop_call(call, "cancel")
            return
        # The call has just ended, or has not arrived yet. Ids are never reused, so a few old ones
        # do no harm.
        self._early[message["call"]] = None
        if len(self._early) > MAX_EARLY:
            del self._early[next(iter(self._early))]

    def _front_free(self, message: Message) -> None:
        caller = self.gate.callers.get(message["caller"])
        if caller is not None:
            caller.handles.free(message["handle"])

    def _front_remove(self, message: Message) -> None:
        self.callers.remove(message["caller"])
