"""Floors: the lowest possible cost of a design. Servers and clients are in `floors/`."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from benchmarks.gate._adapter import Contestant
from benchmarks.gate._jail import PYTHON, SHARED, launch
from benchmarks.gate._probes import BENCH_PYTHON, Probe, bench_env, end, probe_argv

if TYPE_CHECKING:
    from pathlib import Path

_NO_ARRAYS = "the floor for arrays is one memcpy"


class Floor(Contestant):
    """A server module and a client module of `floors/`."""

    kind = "floor"
    server: str
    client: str
    jailed: bool = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        folder = SHARED if self.jailed else str(self.folder)
        return f"{folder}/socket"

    def serve(self) -> None:
        module = f"benchmarks.gate.floors.{self.server}"
        with (self.folder / "server.log").open("ab") as log:
            if not self.jailed:
                argv = [str(BENCH_PYTHON), "-m", module, self.address]
                self._process = subprocess.Popen(argv, env=bench_env(), stderr=log)
                return
            jail = launch([PYTHON, "-m", module, self.address], shared=self.folder)
            self._process = subprocess.Popen(
                jail.argv, env=jail.env, pass_fds=jail.pass_fds, stderr=log
            )
            jail.close()

    def probe(self) -> Probe:
        module = f"benchmarks.gate.floors.{self.client}"
        log = self.folder / "client.log"
        if not self.jailed:
            return Probe(probe_argv(str(BENCH_PYTHON), module), env=bench_env(), log=log)
        jail = launch(probe_argv(PYTHON, module), shared=self.folder)
        try:
            return Probe(jail.argv, env=jail.env, log=log, pass_fds=jail.pass_fds)
        finally:
            jail.close()

    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, grace=0.5)
            self._process = None
        (self.folder / "socket").unlink(missing_ok=True)


class Least(Floor):
    """The minimal work that the gate cannot avoid."""

    name = "least"
    title = "floor: same least work, jailed"
    server = "least_server"
    client = "json_client"
    lacks = {"drop": _NO_ARRAYS, "keep": _NO_ARRAYS}
    note = (
        "Unix socket, length-prefixed JSON, a thread per connection that decodes, one worker "
        "thread that calls, encodes and sends; server and client each in a bubblewrap jail"
    )


class Loop(Floor):
    """The best known design for many callers."""

    name = "loop"
    title = "floor: event-loop echo, jailed"
    server = "loop_server"
    client = "json_client"
    lacks = {"drop": _NO_ARRAYS, "keep": _NO_ARRAYS}
    note = "the same wire, one epoll loop that decodes, calls inline and encodes; same jails"


class Raw(Floor):
    """Only a socket."""

    name = "raw"
    title = "floor: raw Unix-socket echo + msgpack"
    server = "raw_server"
    client = "raw_client"
    jailed = False
    lacks = {"drop": _NO_ARRAYS, "keep": _NO_ARRAYS}
    note = "a thread per connection that unpacks, calls inline and packs; no jail"


FLOORS: tuple[type[Floor], ...] = (Least, Loop, Raw)
