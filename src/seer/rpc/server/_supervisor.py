"""The supervisor: it holds the sockets, starts the interface process, watches it and ends it.

It runs no code of the interface, and a call does not pass through it. It answers callers only while
no interface process can: while the interface loads, and after it has ended for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seer.errors import CallLostError, GateError, InterfaceDiedError, InterfaceRestartedError
from seer.rpc.wire._http import Request
from seer.rpc.wire._protocol import CANNOT_PASS

from ._child import Child, ExitReport, new_epoch
from ._control import Control
from ._failures import error_text, gate_failure
from ._http_server import HttpConnection
from ._listeners import CallerSockets
from ._poller import Poller
from ._shared import FIRST_CALLER, METERS, Shared

if TYPE_CHECKING:
    from seer.rpc.interface._budget import Budget

    from ._config import CallerConfig, ServerConfig
    from ._message_socket import MessageSocket

    OnAnswer = Callable[[dict[str, Any]], None]

TICK = 0.2
"""Seconds between two checks of timeouts."""


class Workers:
    """The processes that run the interface: one (`OneProcess`), or several copies (`Replicas`)."""

    def __init__(self, supervisor: Supervisor, poller: Poller) -> None:
        self._supervisor = supervisor
        self._poller = poller

    def start(self) -> None:
        """Start the processes. The supervisor must fork the one that has the callers' sockets."""
        raise NotImplementedError

    def reload(self, answered: OnAnswer) -> None:
        """Load the file again."""
        raise NotImplementedError

    def scale(self, wanted: int, answered: OnAnswer) -> None:
        """Run another number of copies.

        Raises:
            ValueError: The interface is served without a front.
        """
        raise ValueError("this interface is served by one process, without a front")

    def status(self) -> list[dict[str, Any]]:
        """The state of each copy."""
        return []

    def on_up(self) -> None:
        """Called when the process with the callers' sockets is ready."""

    def on_drained(self, number: int) -> None:
        """Called when the copy of this number has finished its work."""

    def tick(self, now: float) -> None:
        """Check timeouts."""

    def end_all(self, because: str) -> None:
        """End all copies."""

    def reap_all(self) -> None:
        """Wait until all copies have ended."""

    def leave(self) -> None:
        """In a forked process: close the supervisor's descriptors."""


class OneProcess(Workers):
    """The interface in one process, which has the callers' sockets itself."""

    def start(self) -> None:
        """Fork the process."""
        self._supervisor.fork(self._run)

    def _run(self, to_supervisor: MessageSocket, epoch: str) -> int:
        """Serve in the forked process."""
        from ._process import serve

        supervisor = self._supervisor
        return serve(
            supervisor.config,
            epoch=epoch,
            shared=supervisor.shared,
            to_supervisor=to_supervisor,
            listeners=supervisor.listeners(),
            places=supervisor.places,
        )

    def reload(self, answered: OnAnswer) -> None:
        """Ask the process to load the file again."""
        self._supervisor.ask({"op": "reload"}, answered)


class Supervisor:
    """Serves one interface until it is told to stop.

    Args:
        config: What to serve, and the callers.
        workers: The class that starts and watches the processes that run the interface.

    Attributes:
        epoch: The id of the interface process that runs, or of the next one.
        state: `starting`, `up`, `restarting`, `failed` (it was never loaded) or `dead`.
        ended: How the last interface process ended, in words.
        failure: Why the interface could not be loaded, as data.
        schema: The interface's schema, once it is known.
        child: The process that has the callers' sockets: the interface process, or the front.
        workers: The processes that run the interface.
    """

    def __init__(
        self,
        config: ServerConfig,
        workers: Callable[[Supervisor, Poller], Workers] = OneProcess,
    ) -> None:
        self.config = config
        self.shared = Shared()
        self.state = "starting"
        self.ended = ""
        self.failure: dict[str, Any] | None = None
        self.schema: dict[str, Any] | None = None
        self.warnings: list[str] = []
        self.notes: list[dict[str, Any]] = []
        self.restarts = 0
        self.child: Child | None = None
        self.epoch = new_epoch()
        self.places: dict[str, int] = {}
        self._poller = Poller()
        self.sockets = CallerSockets(
            self._poller, self._answer, self._shown_epoch, most=METERS - FIRST_CALLER
        )
        self._recent = Restarts()
        self._restart_at = float("inf")
        self._stopping = False
        self._questions = Questions()
        self._control = Control(self, self._poller)
        self._given_up = ""
        self._output = ""
        """The last output of the last interface process, if callers must not see it."""
        self.workers = workers(self, self._poller)

    @property
    def callers(self) -> dict[str, tuple[int, CallerConfig, socket.socket]]:
        """Number, configuration and listening socket of each caller, by name."""
        return self.sockets.callers

    def add_caller(self, config: CallerConfig) -> None:
        """Make a socket for a caller.

        Raises:
            OSError: The socket cannot be made.
            ValueError: There is a caller of that name, or there are too many.
        """
        index = self.sockets.add(config)
        # A removed caller may have used this meter.
        self.shared.clear_meter(FIRST_CALLER + index)

    def remove_caller(self, name: str) -> None:
        """Close a caller's socket."""
        self.sockets.remove(name)

    def _shown_epoch(self) -> str:
        """The epoch that callers are told while this process answers."""
        return self.epoch if self.state in ("starting", "restarting") else "none"

    def run(self) -> int:
        """Serve until told to stop, and return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.stop())
        self._control.open(self.config.control)
        for caller in self.config.callers:
            self.add_caller(caller)
        # The first line of the output says where to connect. The interface's own output follows.
        os.write(1, (json.dumps({"seer-gate": 1, "control": self.config.control}) + "\n").encode())
        self._start()
        while not self._stopping:
            self._poller.step(TICK)
            self._tick(time.monotonic())
        self._close()
        return 0

    def stop(self) -> None:
        """End the interface and this process."""
        self._stopping = True

    def _close(self) -> None:
        child = self.child
        if child is not None:
            child.kill("the gate was closed")
            child.reap()
        self.workers.end_all("the gate was closed")
        self.workers.reap_all()
        for name in list(self.callers):
            self.remove_caller(name)
        with contextlib.suppress(OSError):
            os.unlink(self.config.control)  # noqa: PTH108 (import time)

    # --- the interface process ---------------------------------------------------------------

    def _start(self) -> None:
        self.shared.reset_marks()
        self.sockets.answer(True)
        self._recent.started(time.monotonic())
        self.workers.start()

    def fork(self, run: Callable[[MessageSocket, str], int]) -> None:
        """Start the process that has the callers' sockets; it calls `run`."""
        self.child = child = Child(self.epoch, run, self.forget)
        child.watch(
            self._poller,
            lambda messages: self._hear(child, messages),
            lambda: self._on_exit(child),
        )

    def listeners(self) -> list[tuple[str, int, Budget, socket.socket]]:
        """Name, number, budget and listening socket of each caller."""
        return [
            (name, index, config.budget, listener)
            for name, (index, config, listener) in self.callers.items()
        ]

    def forget(self) -> None:
        """In a forked process: close what only the supervisor uses."""
        self.sockets.forget()
        self._control.forget()
        self._poller.close()
        if self.child is not None:
            self.child.leave()
        self.workers.leave()

    def _hear(self, child: Child, messages: list[dict[str, Any]]) -> None:
        """Handle messages of the interface process."""
        for message in messages:
            op = message.pop("op")
            if op == "ready":
                self._on_ready(message)
            elif op == "failed":
                self.failure = message
            elif op == "poisoned":
                child.poisoned = message["reason"]
            elif op == "note":
                self.note(message)
            elif op == "drained":
                self.workers.on_drained(message["copy"])
            elif op == "recorded":
                self._control.wake_records()
            elif op == "lost":
                self._control.lose_records(message["calls"], message["why"], message["follow"])
            elif op == "answer":
                if "schema" in message:
                    self._adopt(message)
                self._questions.answer(message)

    def _on_ready(self, message: dict[str, Any]) -> None:
        self._adopt(message)
        self.state = "up"
        self.sockets.answer(False)
        self._control.wake_ready()
        self.workers.on_up()

    def note(self, message: dict[str, Any]) -> None:
        """Keep a message for the controller, which reads it with the health."""
        self.notes = [*self.notes[-99:], message]

    def _adopt(self, message: dict[str, Any]) -> None:
        self.schema = message["schema"]
        self.warnings = message["warnings"]
        self.places = message["places"]

    def _on_exit(self, child: Child) -> None:
        last = ExitReport(self.shared, self.places)
        last.charge()
        self.ended = self.describe_end(child, last)
        if (unrecorded := self.shared.take_unrecorded()) > 0:
            words = f"the interface ended before it could write them down: {self.ended}"
            self._control.lose_records(unrecorded, words)
        self._control.lose_kept()
        self.child = None
        self.workers.end_all("the process that serves their callers has ended")
        if not self._stopping and self.state != "starting":
            self._control.record_lost(last.lost, self.ended, self._output)
        if not self._stopping:
            self._after_end(child.tail())
        # Last, because a question may be for everything that is recorded, or end a run.
        self._questions.fail(f"the interface has ended: {self.explained}")

    def fail_to_start(self, failure: dict[str, Any] | None, ended: str, tail: str) -> None:
        """Called when the copies could not be started, so nothing can be served."""
        self.failure = failure
        self.ended = ended
        if not self._stopping:
            self._after_end(tail)

    def give_up(self, why: str) -> None:
        """Let the front tell all callers that no further copy will be started, and end it."""
        self._given_up = why

        def told(_answer: dict[str, Any]) -> None:
            if self.child is not None:
                self.child.kill(why)

        self.ask({"op": "give_up", "why": f"the interface is not running: {why}"}, told)

    def _after_end(self, tail: str) -> None:
        """Restart the interface after its end, or keep the reason for callers that ask."""
        if self.state == "starting":
            self.state = "failed"
            if self.failure is None:
                self.failure = {
                    "message": f"the interface's process ended while loading: {self.ended}",
                    "file": self.config.file,
                    "line": None,
                    "remote_traceback": tail,
                }
            self._control.wake_ready()
            return
        restart_at = None
        if self.config.restart == "on-failure" and self.failure is None:
            restart_at = self._recent.next(time.monotonic())
        if self._given_up:
            self.ended = self._given_up
            self.state = "dead"
            self.sockets.answer(True)
        elif restart_at is not None:
            self.state = "restarting"
            self.epoch = new_epoch()
            self.restarts += 1
            self._restart_at = restart_at
            self.sockets.answer(True)
        else:
            if self.failure is not None:
                # The reason may contain what callers of a blind interface must not see.
                self.ended += "; loading it again failed"
                if not self.blind:
                    self.ended += f": {self.failure['message']}"
            self.state = "dead"
            self.sockets.answer(True)
        self._control.wake_ready()

    @property
    def blind(self) -> bool:
        """Whether callers get no details of the server: it is blind, or a model is hidden."""
        return bool(self.config.blind or self.config.hidden)

    def describe_end(self, child: Child, last: ExitReport) -> str:
        """Reap a process, and return how it ended, in as much detail as callers may have."""
        ended = child.reap()
        output = child.tail(5)
        told = self.config.tracebacks is True and not self.blind
        self._output = "" if told else output
        return last.add_to(ended, output if told else "")

    @property
    def explained(self) -> str:
        """How the last interface process ended, with its last output; for the controller only."""
        told = self.ended
        if self.state == "dead" and self.failure is not None and self.blind:
            told += f": {self.failure['message']}"
        return told + (f"; its last output was:\n{self._output}" if self._output else "")

    def _tick(self, now: float) -> None:
        child = self.child
        self._control.end_abandoned(now)
        self.workers.tick(now)
        if child is not None:
            child.check(self.shared, now)
        elif self.state == "restarting" and now >= self._restart_at:
            self._restart_at = float("inf")
            self._start()

    # --- questions to the interface process --------------------------------------------------

    def ask(
        self,
        message: dict[str, Any],
        answered: Callable[[dict[str, Any]], None],
        descriptors: list[int] | None = None,
    ) -> None:
        """Ask the process that has the callers' sockets, and call `answered` with its answer."""
        child = self.child
        if child is None:
            answered({"error": {"message": f"the interface is not running: {self.explained}"}})
            return
        self._questions.ask(child.socket, message, answered, descriptors)

    def _answer(self, connection: HttpConnection, request: Request, caller: str) -> None:
        lost = self.config.lost_calls.get((caller, request.call))
        refused: GateError
        if lost:
            refused = CallLostError(lost)
        elif self.state in ("dead", "failed"):
            ended = self.ended if self.state == "dead" else "it could not be loaded"
            refused = InterfaceDiedError(f"the interface is not running: {ended}")
        elif request.epoch and request.epoch != self.epoch:
            refused = InterfaceRestartedError(
                "the interface is restarting, so its module state and this caller's handles are"
                f" gone; this call was not executed. {self.ended[:1].upper()}"
                f"{self.ended[1:]}"
            )
        else:
            # The client tries again, so this is not recorded as a refusal.
            connection.respond_text(503, error_text("Starting", "the interface is being started"))
            return
        if not lost:
            self._control.record_refused(caller, request, refused)
        connection.respond_text(*gate_failure(refused))


class Questions:
    """Questions to a process. Each gets an answer, even if the process ends."""

    def __init__(self) -> None:
        self._asked: dict[int, OnAnswer] = {}
        self._number = 0

    def ask(
        self,
        to_process: MessageSocket,
        message: dict[str, Any],
        answered: OnAnswer,
        descriptors: list[int] | None = None,
    ) -> None:
        """Ask a process; `answered` gets its answer, or an error."""
        self._number += 1
        self._asked[self._number] = answered
        message = {**message, "n": self._number}
        try:
            to_process.post(message, descriptors)
        except OSError as error:
            # Any other error means that the process has just ended. `fail` answers after its last
            # calls are recorded, because the question may be about them.
            if error.errno in CANNOT_PASS:
                del self._asked[self._number]
                words = f"descriptors cannot be passed just now: {error.strerror}; try again"
                answered({"error": {"message": words, "busy": True}})

    def answer(self, message: dict[str, Any]) -> None:
        """Pass an answer to the function that waits for it."""
        answered = self._asked.pop(message["to"], None)
        if answered is not None:
            answered(message)

    def fail(self, why: str) -> None:
        """Answer all open questions with an error: the process has ended."""
        asked, self._asked = self._asked, {}
        for answered in asked.values():
            answered(_error(why))


def _error(why: str) -> dict[str, Any]:
    return {"error": {"message": why}}


MAX_RESTARTS = 5
RESTART_WINDOW = 60.0


class Restarts:
    """Limits how often the interface is restarted."""

    def __init__(self) -> None:
        self._starts: list[float] = []

    def started(self, now: float) -> None:
        """Note a start."""
        self._starts.append(now)

    def next(self, now: float) -> float | None:
        """When to start the interface again; None if it was started too often recently."""
        self._starts = [when for when in self._starts if when > now - RESTART_WINDOW]
        if len(self._starts) > MAX_RESTARTS:
            return None
        # At once the first time, then with a delay that doubles.
        recent = len(self._starts) - 1
        return now + (min(0.1 * 2**recent, 3.0) if recent else 0.0)
