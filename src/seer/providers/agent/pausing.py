"""Pause and resume a machine: free its GPUs if the driver can, and stop all its processes.

The control group's freezer stops the processes; without one, they are stopped one by one. Moving
GPU memory to the host takes seconds, so a fork of the keeper does it. Meanwhile the keeper still
checks the lease. It reads the result from a pipe.
"""

from __future__ import annotations

import os

from . import tree, wire
from .c_modules import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from seer.isolation._cgroup import Cgroup


class Pause:
    """Pauses and resumes a machine."""

    def __init__(
        self, jail: int, group: Cgroup | None, *, folder: bytes, gpu: bool, memory: int | None
    ) -> None:
        self._jail = jail
        self._mark = os.path.join(folder, b"gpus-freed")
        """Exists while the machine's GPUs are free for others."""
        self._group = group
        self._gpu = gpu
        self._memory = memory
        self._stopped: list[int] = []
        """Processes that were stopped one by one."""
        self._needs: dict[str, int] = {}
        """MiB of GPU memory that were moved to the host, by GPU."""
        self.paused = False
        self.fd = -1
        """Readable once GPU memory has been moved; -1 while none is being moved."""
        self.problem = ""
        """Why the last pause or resume failed."""
        self.kept = ""
        """Why GPU memory stays allocated although the machine is paused."""

    def pause(self) -> None:
        """Begin to pause. Without a GPU, the machine is paused when this returns."""
        if self.paused or self.fd >= 0:
            return
        self.problem = self.kept = ""
        if self._gpu:
            self._move(self._suspend)
        else:
            self._stop()

    def resume(self) -> None:
        """Begin to resume. Without a GPU, the machine runs when this returns."""
        if not self.paused or self.fd >= 0:
            return
        self.problem = ""
        # A process restores its GPU memory itself, so it must run first.
        self._go_on()
        if self._gpu and not self.problem:
            self._move(self._restore)
        elif not self.problem:
            self.paused = False

    def proceed(self) -> None:
        """Continue after GPU memory was moved, or could not be moved."""
        with open(self.fd, "rb") as file:
            said = file.read()
        self.fd = -1
        words = "moving the GPU's memory was interrupted"
        if said:
            answer = wire.decode_message(said)
            words = wire.get_text(answer, "words")
            needs = wire.get_dict(answer, "needs")
            self._needs = {gpu: wire.get_int(needs, gpu) for gpu in needs}
        if not self.paused:
            self.kept = words
            if not words:
                os.close(os.open(self._mark, os.O_CREAT, 0o600))
            self._stop()
        elif words:
            self.problem = f"the GPU memory cannot be restored: {words}"
            self._stop()
        else:
            self.paused = False
            self._unmark()

    def _move(self, work: Callable[[], tuple[str, dict[str, int]]]) -> None:
        self.fd, said = os.pipe()
        if os.fork() == 0:
            # This process must not handle signals as the keeper does.
            signal.set_wakeup_fd(-1)
            try:
                words, needs = work()
                os.write(said, wire.encode({"words": words[:2000], "needs": needs}))
            except Exception as error:
                # At the edge of this process, every error becomes an answer.
                words = f"{type(error).__name__}: {error}"[:2000]
                os.write(said, wire.encode({"words": words, "needs": self._needs}))
            finally:
                os._exit(0)
        os.close(said)

    def _suspend(self) -> tuple[str, dict[str, int]]:
        from .cuda import suspend

        return suspend(self._processes(), self._room())

    def _restore(self) -> tuple[str, dict[str, int]]:
        from .cuda import restore

        return restore(self._processes(), self._needs), self._needs

    def _unmark(self) -> None:
        try:
            os.unlink(self._mark)
        except FileNotFoundError:
            return

    def _stop(self) -> None:
        try:
            if self._group is not None and self._group.can_freeze:
                self._group.freeze(True)
            else:
                self._stopped = tree.stop_tree(os.getpid())
            self.paused = True
        except OSError as error:
            self.problem = self.problem or str(error)
            if self._gpu:
                # Resume, because memory that was moved must be moved back.
                self.paused = True
                problem = self.problem
                self.resume()
                self.problem = problem

    def _go_on(self) -> None:
        try:
            if self._group is not None and self._group.can_freeze:
                self._group.freeze(False)
            tree.continue_tree(os.getpid(), self._stopped)
            self._stopped = []
        except OSError as error:
            self.problem = str(error)

    def _processes(self) -> list[int]:
        return [self._jail, *tree.descendants(self._jail)]

    def _room(self) -> int:
        """The bytes of memory that the machine may still use and the host still has."""
        rooms: list[int] = []
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    # Leave some memory for other programs.
                    rooms.append(int(line.split()[1]) * 1024 * 9 // 10)
        if self._memory is not None:
            group = self._group
            used = group.usage().get("memory", 0) if group is not None else self._memory
            rooms.append(self._memory - used)
        return max(min(rooms, default=0), 0)
