"""The interface of a contestant, through which Seer, the peers and the floors are measured.

A contestant has two sides.

*The server side* is a `Contestant`, an object in the benchmark's own process. It starts and ends
a server that offers the five functions of `_work.py` (`small`, `floats`, `take`, `array`, `fail`)
and starts client processes.

*The client side* is a module with one function, `connect(address: str) -> Client`. It is imported
by `_probe.py` in a process of its own (in a jail, where the contestant is measured from one).
The probe does all the timing, so the loop around a call is the same for everybody.

    benchmark process                       client process (maybe jailed)
    -----------------                       -----------------------------
    contestant.prepare()
    contestant.probe() ------------spawn--> _probe.py: import the client module
    contestant.serve()  (timed)
    {"do": "connect", "address"} --stdin--> client = module.connect(address)
    {"do": "calls", "work": "small"} -----> loop: client.small(i)
                                 <-stdout-- {"p50": ..., "p99": ...}

Rules for a client module:

- Importing it imports whatever library it needs but opens nothing: for the row with 64 clients the
  probe imports the module once, forks 64 times and calls `connect` in every child.
- `connect` may be called before the server listens. It then raises an error (an `OSError`, or the
  library's own) at once or within a second; the probe tries again until a deadline.
- Every call waits for its answer and returns a plain value that the probe checks.

Seer's own contestants are in `ours.py` as `CONTESTANTS: tuple[type[Contestant], ...]`: `ours`
(all works, called from a jail), `ours_recorded` (the same with a record, `small` in turns with
`ours`) and `ours_mcp` (`expose_as="mcp"`; only `small`; its client module is
`benchmarks.gate.peers.mcp_client`, whose address is JSON with `command`, `args` and `env`, run
outside a jail, like an agent's own process). `run.py` imports them; the bars refer to them by these
names.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.gate._probes import Probe

Kind = Literal["ours", "peer", "floor"]

Work = Literal["small", "pinned", "fan", "floats", "take", "drop", "keep", "fail", "start"]
"""A kind of measurement.

- `small`: one client, `small(x)`, p50; processes run where the kernel puts them.
- `pinned`: the same with server and client on one core (what a call costs in CPU).
- `fan`: 64 clients at once, each a process with a connection of its own; calls per second.
- `floats`: 4096 floats returned. `take`: 4096 floats sent as an argument.
- `drop`: a 120 MB float32 array returned, the previous one released before each call.
- `keep`: the same while the caller keeps every result.
- `fail`: `ValueError` raised in the function and caught by the caller.
- `start`: from `serve()` to the first answer.
"""

WORKS: tuple[Work, ...] = (
    "small",
    "pinned",
    "fan",
    "floats",
    "take",
    "drop",
    "keep",
    "fail",
    "start",
)


class Client(Protocol):
    """One connected caller. Method names and meaning are those of `_work.py`."""

    def small(self, x: int) -> int:
        """Return `x + 1`."""
        ...

    def floats(self, n: int) -> list[float]:
        """Return `n` floats as a list."""
        ...

    def take(self, values: list[float]) -> float:
        """Send the list; return its last value."""
        ...

    def array(self, nbytes: int, stamp: int) -> Any:
        """Return a float32 array of `nbytes` bytes whose first element is `stamp`.

        The result must be something `numpy.frombuffer` or `numpy.asarray` reads without a copy.
        It may be read-only.
        """
        ...

    def fail(self, message: str) -> None:
        """Call the function that raises `ValueError(message)` and raise what the library raises.

        The text of the raised exception must contain `message`.
        """
        ...

    def close(self) -> None: ...


class Contestant(ABC):
    """The server side of one contestant. Its life is: prepare, (serve, stop)*, close."""

    name: str
    """Key in the JSON results."""
    title: str
    """The label in the table."""
    kind: Kind
    validates: bool = False
    """Whether arguments are checked against declared types before the function runs."""
    lacks: Mapping[str, str] = {}
    """The works that it cannot do, each with the reason that the table's cell shows."""
    note: str = ""
    """How it was set up, for the notes below the table."""
    suspend: ClassVar[bool] = False
    """Whether to stop its processes while another is measured, because they are never idle."""
    slow_start: ClassVar[bool] = False
    """Whether to measure its start only once."""

    def __init__(self, folder: Path) -> None:
        """Take an empty folder (its path is short enough for sockets) for files and sockets."""
        self.folder = folder

    def prepare(self) -> None:
        """Do what is not part of serving (start the sandbox that will serve). Not timed."""
        return

    @abstractmethod
    def serve(self) -> None:
        """Start the server. May return before it listens."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The argument of `connect` in the client process. Valid after `serve()`."""

    @abstractmethod
    def probe(self) -> Probe:
        """Start a client process with this contestant's client module; do not connect it yet.

        `Probe(argv, env=..., log=..., pass_fds=...)` spawns it; `_probes.probe_argv()` gives the
        command line. For a contestant measured from a jail, `argv` is the jail's and
        that command line goes inside. Standard input and output carry the probe's commands.
        Several probes of a contestant may run at once.
        """

    @abstractmethod
    def pids(self) -> Sequence[int]:
        """Give the processes that, with their descendants, are the server (to pin them)."""

    @abstractmethod
    def stop(self) -> None:
        """End the server so that `serve()` can be called again."""

    def close(self) -> None:
        """Undo `prepare()`."""
        return

    def first_answer(self) -> float:
        """Seconds from the call of `serve()` to the first answer of `small`. Then stop again.

        The client process runs and has imported its library before the clock starts. Override this
        for a contestant whose client can only be made after serving.
        """
        with self.probe() as probe:
            begin = time.monotonic_ns()
            self.serve()
            try:
                return (self.connect(probe, timeout=60) - begin) / 1e9
            finally:
                self.stop()

    def connect(self, probe: Probe, *, timeout: float) -> int:
        """Connect a probe to the server; give the time (monotonic ns) of its first answer."""
        answer = probe.ask({"do": "connect", "address": self.address, "timeout": timeout})
        return int(answer["answered_ns"])
