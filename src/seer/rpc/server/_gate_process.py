"""What all processes with a gate have in common, and what the supervisor asks of them.

Such a process has a gate, its callers, a loop and perhaps a recorder. A subclass decides where a
call runs: here, or in a copy.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seer.rpc.interface._budget import Budget, Meter
from seer.rpc.interface._expose import Options

from ._calls import Call
from ._entries import Entry
from ._follows import Follow
from ._shared import FETCH_METER, Shared

if TYPE_CHECKING:
    from seer.rpc.wire._memory import Spares

    from ._callers import Callers
    from ._config import ServerConfig
    from ._gate import Gate
    from ._loop import Loop
    from ._message_socket import MessageSocket
    from ._recorder import Recorder

    Message = dict[str, Any]


DETACH_AFTER = 0.5
"""Maximum seconds that a function gets to stop before its caller is answered while it runs on."""


def prepare_process() -> None:
    """In a new process of the supervisor: set its signals, and write its output line by line."""
    for name in ("SIGTERM", "SIGCHLD"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)


class GateProcess:
    """A process with a gate in it.

    Attributes:
        gate: Answers the callers.
        callers: Accepts their connections.
        loop: Watches the sockets.
    """

    gate: Gate
    callers: Callers
    loop: Loop

    def __init__(
        self, config: ServerConfig, to_supervisor: MessageSocket, places: dict[str, int]
    ) -> None:
        self._config = config
        self._to_supervisor = to_supervisor
        self._places = places
        self._recorder: Recorder | None = None
        self._operations: dict[str, Callable[[Message], None]] = {
            "add_caller": self._add_caller,
            "remove_caller": self._remove_caller,
            "budget": self._set_budget,
            "flush": self._flush,
            "follow": self._follow,
            "seal": self._seal,
            "unfollow": self._unfollow,
            "taken": self._note_taken,
        }
        """What the supervisor can ask for. Subclasses add to it."""

    def _make_recorder(self, source_hash: str, shared: Shared) -> Recorder | None:
        if not self._config.record:
            return None
        from ._recorder import Recorder

        return Recorder(
            self._config.record,
            results=self._config.record_results,
            source_hash=source_hash,
            follows=self._config.follows,
            shared=shared,
            notify=self._notify,
        )

    def _make_gate(
        self,
        kind: type[Gate],
        *,
        epoch: str,
        shared: Shared,
        fetch: tuple[Callable[..., Any], Callable[..., Any]],
        submit: Callable[[Call], None],
        spares: Spares,
        call_kind: type[Call] = Call,
    ) -> Gate:
        """A gate of `kind`; `fetch` has the target and the binder for fetching a handle."""
        cells = shared.cells
        target, bind = fetch
        counts = Meter("fetching", Budget(), cells, shared.meter_base(FETCH_METER))
        return kind(
            epoch=epoch,
            fetch=Entry(
                "handle.fetch",
                target,
                bind,
                Options(),
                counts,
                call_timeout=self._config.call_timeout,
            ),
            meter=Meter("the interface", self._config.budget, cells, shared.meter_base(0)),
            submit=submit,
            loop=self.loop,
            spares=spares,
            shared=shared,
            patience=self._detach_after(),
            recorder=self._recorder,
            lost_calls=self._config.lost_calls,
            call_kind=call_kind,
        )

    def _detach_after(self) -> float:
        # The caller must be answered before the process is killed at the end of the grace period.
        return min(DETACH_AFTER, self._config.grace / 2)

    def _notify(self, message: dict[str, Any]) -> None:
        """Send a message to the supervisor; on any thread."""
        self.loop.post(lambda: self._tell(message))

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._to_supervisor.send(message)
        except OSError:
            self.loop.stop()

    def _serve(self, ready: dict[str, Any]) -> None:
        """Send `ready`, and serve until told to stop or until the supervisor is gone."""
        self.loop.watch(self._to_supervisor.fileno(), select.EPOLLIN, self._on_message)
        # What is loaded now stays loaded, so the collector can skip it.
        gc.collect()
        gc.freeze()
        self._to_supervisor.send(ready)
        self.loop.run()

    # --- messages of the supervisor ----------------------------------------------------------

    def _on_message(self, _events: int) -> None:
        messages = self._to_supervisor.receive()
        if messages is None:
            # The supervisor is gone, so nobody needs this process.
            os._exit(0)
        for message in messages:
            self._operations[message["op"]](message)

    def _reply(self, message: Message, **found: Any) -> None:
        """Answer a message of the supervisor; on any thread."""
        self._notify({"op": "answer", "to": message["n"], **found})

    def _add_caller(self, message: Message) -> None:
        listener = socket.socket(fileno=message["descriptors"][0])
        budget = Budget.from_json(message["budget"])
        self.callers.add(message["name"], message["index"], budget, listener)
        self._reply(message)

    def _remove_caller(self, message: Message) -> None:
        self.callers.remove(message["name"])
        self._reply(message)

    def _set_budget(self, message: Message) -> None:
        budget = Budget.from_json(message["budget"])
        if message["scope"] == "interface":
            self.gate.meter.budget = budget
        elif message["scope"] == "function":
            self._config.changed_budgets[message["name"]] = budget
            entry = self.gate.entries.get(message["name"])
            if entry is not None and entry.function is not None:
                entry.meter.budget = self._config.budget_of(entry.function)
        else:
            caller = self.gate.callers.get(message["name"])
            if caller is not None:
                caller.meter.budget = budget
        self.gate.look_at_budgets()
        self._reply(message)

    def _flush(self, message: Message) -> None:
        """Write the answered calls, and report the calls of a follow that still run."""
        recorder, follow = self._recorder, message["follow"]
        assert recorder is not None
        callers = [self.gate.callers.get(name) for name in message["names"]]
        calls = [call for c in callers if c is not None for call in list(c.calls.values())]

        def done() -> None:
            running: dict[str, int] = {}
            for call in calls:
                if recorder.is_for(call, follow):
                    running[call.entry.name] = running.get(call.entry.name, 0) + 1
            self._reply(message, running=running)

        recorder.flush(done)

    def _follow(self, message: Message) -> None:
        assert self._recorder is not None
        follow = Follow(message["follow"], message["names"], message["prefix"])
        follow.began_at = message["began_at"]
        self._recorder.follow(follow, lambda dropped: self._reply(message, dropped=dropped))

    def _seal(self, message: Message) -> None:
        """Close a follow to later calls; answer with the time at which it was closed.

        Calls that are already in their sockets still belong to the follow, so they are read first.
        Their senders may be gone, because the run has ended.
        """
        assert self._recorder is not None
        at = message.get("at")
        if at is None and not self._recorder.is_sealed(message["follow"]):
            self.callers.read_arrived(message["names"])
        sealed_at = self._recorder.seal(message["follow"], at)
        # At once: if this process dies, the supervisor must know which lost calls came later.
        self._tell({"op": "answer", "to": message["n"], "sealed_at": sealed_at})

    def _unfollow(self, message: Message) -> None:
        assert self._recorder is not None
        for name in message["names"]:
            caller = self.gate.callers.get(name)
            if caller is not None:
                caller.unfollowed_at = max(caller.unfollowed_at, message["sealed_at"])
        self._recorder.unfollow(message["follow"], lambda: self._reply(message))

    def _note_taken(self, message: Message) -> None:
        assert self._recorder is not None
        self._recorder.taken(message["follow"], message["bytes"])
        self._reply(message)


class CloseInForks:
    """Closes the gate's descriptors in processes that functions fork.

    A worker of a process pool or of a data loader lives on when the interface process is killed. If
    it had a caller's connection, it would keep that open, and the caller would wait forever.

    Args:
        descriptors: What to close until `loop` is set. After that, everything that the loop watches
            is closed.
    """

    def __init__(self, *descriptors: int) -> None:
        self._descriptors = descriptors
        self.loop: Loop | None = None
        os.register_at_fork(after_in_child=self._let_go)

    def _let_go(self) -> None:
        """In the forked process: replace each descriptor by one of /dev/null.

        Closing them would free their numbers for reuse while objects of the gate still have them.
        """
        found = self._descriptors
        if self.loop is not None:
            found = self.loop.descriptors()
            self.loop.abandoned = True
        # In the processes that this one forks, nothing is left to close.
        self._descriptors, self.loop = (), None
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in found:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
