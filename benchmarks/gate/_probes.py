"""The benchmark's side of probes: spawn them, send commands, pin them to cores, end them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]
BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
"""The interpreter of the environment that holds the peers' packages."""


class ProbeError(RuntimeError):
    """A client process reported an error, did not answer, or ended."""


def probe_argv(python: str, module: str) -> list[str]:
    """Command that runs a probe with `module` as the client. PYTHONPATH must contain the
    repository's root, or its path in the jail."""
    return [python, "-m", "benchmarks.gate._probe", module]


def bench_env() -> dict[str, str]:
    """Environment of processes outside jails: only PATH comes from the caller."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        # One thread per library pool: the machine's cores belong to server and client.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def tree(roots: Iterable[int]) -> list[int]:
    """The processes `roots`, and all their descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid for pid in roots if pid in parents}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return sorted(found)
        found |= more


def set_affinity(pids: Iterable[int], cores: set[int]) -> None:
    """Let every thread of every given process run on `cores` only."""
    for pid in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    os.sched_setaffinity(int(task.name), cores)


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes. Some of them may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end(process: subprocess.Popen[Any], *, grace: float = 3.0) -> None:
    """End a process and all its descendants, and wait until they are gone."""
    below = [pid for pid in tree([process.pid]) if pid != process.pid]
    watched: list[int] = []
    for pid in below:
        with suppress(OSError):
            watched.append(os.pidfd_open(pid))
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    for descriptor in watched:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()
    for descriptor in watched:
        select.select([descriptor], [], [], grace)
        os.close(descriptor)


class Probe:
    """A running client process."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start the process, and wait until it has imported its client module.

        Standard error goes to `log`.
        """
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(env),
                pass_fds=pass_fds,
                bufsize=0,
            )
        self._buffer = b""
        try:
            self._receive(60)
        except BaseException:
            self.close()
            raise

    def ask(self, command: dict[str, Any], *, timeout: float = 120) -> dict[str, Any]:
        """Send one command and wait for its answer.

        Raises:
            ProbeError: The command failed, or no answer came in time.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError as error:
            raise ProbeError(f"client process is gone, asked {command!r}") from error
        return self._receive(timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        limit = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise ProbeError(f"client process gave no answer in {timeout:.0f} s")
            data = self.process.stdout.read(65536)
            if not data:
                raise ProbeError(f"client process ended ({self.process.wait(5)})")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProbeError(answer["error"])
        return answer

    def pids(self) -> list[int]:
        """The client's processes, including those of its jail."""
        return tree([self.process.pid])

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        end(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
