"""The interface process: it loads the file and serves the functions that it exposes.

The supervisor holds all sockets and forks this process, so the process starts with all it needs.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

from seer.errors import ServeError
from seer.rpc.interface._budget import Budget
from seer.rpc.interface._load import Interface, load
from seer.rpc.wire._memory import Spares

from ._callers import Caller, Callers
from ._calls import Call
from ._entries import make_entries
from ._execute import Executor, bind_fetch, fetch
from ._failures import forget_sources, uses_gpu
from ._gate import Gate
from ._gate_process import CloseInForks, GateProcess, prepare_process
from ._lanes import FairQueue, MainLane, ThreadLanes
from ._loop import Loop
from ._shared import MAIN_MARK, Shared

if TYPE_CHECKING:
    from seer.rpc.interface._expose import Context
    from seer.rpc.interface._schema import Function

    from ._async import AsyncLane
    from ._batch import Gather
    from ._config import ServerConfig
    from ._gate_process import Message
    from ._message_socket import MessageSocket

PATIENCE, MOST_PATIENCE = 0.5, 60.0
"""Bounds for the seconds between two checks whether calls still run code of a replaced module."""
FAILED_TO_LOAD = 3
POISONED = 4


def serve(
    config: ServerConfig,
    *,
    epoch: str,
    shared: Shared,
    to_supervisor: MessageSocket,
    listeners: list[tuple[str, int, Budget, socket.socket]],
    places: dict[str, int],
) -> int:
    """Load the interface, serve it, and return the process's exit code."""
    prepare_process()
    closing = CloseInForks(
        to_supervisor.fileno(), *(listener.fileno() for *_, listener in listeners)
    )
    interface = load_or_tell(config, to_supervisor)
    if interface is None:
        return FAILED_TO_LOAD
    process = InterfaceProcess(config, interface, epoch, shared, to_supervisor, places)
    # A reload replaces the interface in the process. A reference here would keep the first one.
    del interface
    closing.loop = process.loop
    for name, index, budget, listener in listeners:
        process.callers.add(name, index, budget, listener)
    process.run()
    return 0


def load_or_tell(config: ServerConfig, to_supervisor: MessageSocket) -> Interface | None:
    """Load the interface file. If it cannot be served, tell the supervisor and return None."""
    try:
        return load(
            config.file,
            config.name,
            models=config.models,
            hidden=config.hidden,
            blind=config.blind,
        )
    except ServeError as error:
        to_supervisor.send({"op": "failed", **describe(error)})
        return None


def describe(error: ServeError) -> dict[str, Any]:
    """A ServeError as data."""
    return {
        "message": error.message,
        "file": error.file,
        "line": error.line,
        "remote_traceback": error.remote_traceback,
    }


class InterfaceProcess(GateProcess):
    """The parts of one interface process, put together.

    A copy behind a front uses its own classes for the gate and the callers.
    """

    def __init__(
        self,
        config: ServerConfig,
        interface: Interface,
        epoch: str,
        shared: Shared,
        to_supervisor: MessageSocket,
        places: dict[str, int],
        *,
        gate_kind: type[Gate] = Gate,
        caller_kind: type[Caller] = Caller,
    ) -> None:
        super().__init__(config, to_supervisor, places)
        self._operations["reload"] = lambda message: self._queue.put(
            "reload", lambda: self._reload(message)
        )
        self._interface = interface
        self._shared = shared
        self._queue = FairQueue()
        self._lanes: list[ThreadLanes] = []
        self._async: AsyncLane | None = None
        self._old: list[ref[Context]] = []
        """The contexts of replaced modules whose code calls still run."""
        self._patience = PATIENCE
        self._again: threading.Timer | None = None
        self._forgetting = threading.Lock()
        """Guards `_old`, `_patience` and `_again`, which the main thread and a timer's change."""
        self.loop = Loop(
            next_job=self._queue.pop,
            run_job=self._run_job,
            jobs=self._queue.turns,
            due=lambda now: self.gate.due(now),
        )
        recorder = self._recorder = self._make_recorder(interface.source_hash, shared)
        self.gate = self._make_gate(
            gate_kind,
            epoch=epoch,
            shared=shared,
            fetch=(fetch, bind_fetch),
            submit=self._submit,
            spares=Spares(register_with_gpu),
        )
        self._executor = Executor(
            self.gate,
            shared,
            tracebacks=False if interface.blind else config.tracebacks,
            scrubber=interface.scrubber if config.hidden else None,
            recorder=recorder,
            grace=config.grace,
            poisoned=self._end_poisoned,
            keeps_tracebacks=bool(config.record),
        )
        self._main = MainLane()
        self.callers = Callers(self.gate, self.loop, shared, config, caller_kind)
        self._adopt(interface)

    def run(self) -> None:
        """Tell the supervisor that it is ready, and serve."""
        self._serve({"op": "ready", **self._exposed()})

    def _exposed(self) -> Message:
        """What the supervisor must know about the interface."""
        return {
            "schema": self._interface.schema(),
            "warnings": self._interface.warnings,
            "places": self._places,
        }

    # --- jobs --------------------------------------------------------------------------------

    def _submit(self, call: Call) -> None:
        runner = call.entry.runner
        if runner is None:
            owner, batch = call.owner, self.loop.batch
            # A call runs as soon as it is read. If its caller had another call in the same batch
            # of events, it is queued, so that other callers get their turn first.
            if (owner.batch == batch and len(self.gate.callers) > 1) or not self.loop.run_now(call):
                self._queue.put_call(call)
            owner.batch = batch
        else:
            runner.submit(call)

    def _run_job(self, job: Any) -> None:
        """Run a call to its end, or another job of the main thread: a batch, or a reload."""
        if type(job) is Call:
            self._executor.run(job, MAIN_MARK, self._main)
        else:
            job()

    def _gather_ready(self, gather: Gather) -> None:
        self._queue.put(gather, gather.run)
        self.loop.ring()

    def _budget_of(self, function: Function) -> Budget:
        return self._config.budget_of(function)

    # --- the interface, first and after reloads ----------------------------------------------

    def _adopt(self, interface: Interface) -> None:
        """Serve `interface` from now on; running calls end with the code they began with."""
        entries = make_entries(
            interface.functions,
            source=interface.source_hash,
            budget_of=self._budget_of,
            shared=self._shared,
            places=self._places,
            call_timeout=self._config.call_timeout,
        )
        old, self._lanes = self._lanes, []
        gathers: list[Gather] = []
        for entry in entries.values():
            if entry.lane == "threads":
                if entry.options.batch > 1:
                    from ._batch import one_by_one

                    entry.target = one_by_one(entry)
                lanes = ThreadLanes(self._executor, entry.room, entry.name)
                self._lanes.append(lanes)
                entry.runner = lanes
            elif entry.lane == "async":
                entry.runner = self._async_lane()
            elif entry.lane == "batch":
                from ._batch import Gather

                if entry.function is not None and entry.function.is_async:
                    entry.target = self._async_lane().blocking(entry.target)
                gather = Gather(entry, self._executor, self._main, self._gather_ready)
                gathers.append(gather)
                entry.runner = gather
        self._interface = interface
        if self._recorder is not None:
            self._recorder.source_hash = interface.source_hash
        busy = [gather for gather in self.gate.gathers if not gather.idle]
        self.gate.gathers = [*busy, *gathers]
        self.gate.expose(entries, interface.schema())
        for lanes in old:
            lanes.close()

    def _async_lane(self) -> AsyncLane:
        if self._async is None:
            from ._async import AsyncLane

            self._async = AsyncLane(self._executor)
        return self._async

    # --- reloads and the end -------------------------------------------------------------------

    def _reload(self, message: Message) -> None:
        """Load the file again, on the main thread, between two calls."""
        try:
            interface = self._interface.reload()
        except ServeError as error:
            self._reply(message, error=describe(error))
            return
        # The context is a global of the module, so it lives as long as the module does.
        old = ref(self._interface.context)
        forget_sources()
        self._adopt(interface)
        with self._forgetting:
            self._old.append(old)
            self._patience = PATIENCE
        self._forget_old()
        self._reply(message, **self._exposed())

    def _forget_old(self) -> None:
        """Free the memory of replaced modules as soon as no call runs their code.

        A module and its functions refer to each other, so only the collector can free them, and it
        skips what is frozen. It runs here at once, because an old model may fill a GPU.
        """
        gc.unfreeze()
        gc.collect()
        if uses_gpu():
            sys.modules["torch"].cuda.empty_cache()
        with self._forgetting:
            self._old = [context for context in self._old if context() is not None]
            if self._again is not None:
                self._again.cancel()  # one wait is enough, even after several reloads
            if self._old:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
                self._again = threading.Timer(self._patience, self._forget_old)
                self._again.daemon = True
                self._again.start()
            else:
                self._patience = PATIENCE
                gc.freeze()

    def _end_poisoned(self, reason: str) -> None:
        self._tell({"op": "poisoned", "reason": reason})
        os._exit(POISONED)


def register_with_gpu(view: memoryview) -> Any:
    """Pin a slot for copies from a GPU, and return a function that unpins it, or None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if torch is None or cuda is None or not cuda.is_initialized():
        return None
    runtime = cuda.cudart()
    address = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
    if int(runtime.cudaHostRegister(address, len(view), 0)) != 0:
        return None
    return lambda: runtime.cudaHostUnregister(address)
