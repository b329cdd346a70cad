"""Move the GPU memory of processes to the host and back, with CUDA's checkpoint functions.

The driver (570 or newer) does it for any process, without that process's help; its CUDA calls wait
meanwhile. This runs in a fork of the keeper, never in a jail.
"""

from __future__ import annotations

import ctypes
import subprocess

_RUNNING, _LOCKED, _CHECKPOINTED = 0, 1, 2
_LOCK_PATIENCE_MS = 10_000
"""How long work that a process has already given to the GPU may take to finish."""
_TOOLS = {"PATH": "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin"}


class _LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint64 * 8))


class Driver:
    """CUDA's checkpoint functions. Each gives what went wrong, or nothing."""

    def __init__(self) -> None:
        """Load the driver's library.

        Raises:
            OSError: There is none.
            AttributeError: It is too old to have these functions.
        """
        self._library = ctypes.CDLL("libcuda.so.1")
        _ = self._library.cuCheckpointProcessCheckpoint

    def state(self, pid: int) -> int | None:
        """The state of a process that uses CUDA; None for one that does not."""
        state = ctypes.c_int(-1)
        failed = self._library.cuCheckpointProcessGetState(pid, ctypes.byref(state))
        return None if failed else state.value

    def lock(self, pid: int) -> str:
        """Let the process's work on the GPU finish, and have its further CUDA calls wait."""
        arguments = _LockArguments(timeout_ms=_LOCK_PATIENCE_MS)
        return self._call("Lock", pid, ctypes.byref(arguments))

    def checkpoint(self, pid: int) -> str:
        """Move a locked process's GPU memory to the host, and let go of the GPU."""
        return self._call("Checkpoint", pid, None)

    def restore(self, pid: int) -> str:
        """Take a GPU again, and move the memory back; the process is locked afterwards."""
        return self._call("Restore", pid, None)

    def unlock(self, pid: int) -> str:
        """Let a locked process's CUDA calls go on."""
        return self._call("Unlock", pid, None)

    def _call(self, name: str, pid: int, arguments: object) -> str:
        code = self._library[f"cuCheckpointProcess{name}"](pid, arguments)
        if not code:
            return ""
        words = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(words))
        told = (words.value or b"error %d" % code).decode(errors="replace")
        return f"{name} of process {pid}: {told}"


def suspend(pids: list[int], room: int) -> str:
    """Move the GPU memory of processes to the host.

    Args:
        pids: The processes of a machine; those that use no GPU are left alone.
        room: Bytes that the host, or the machine's memory limit, has left.

    Returns:
        Why it stays on the GPU; empty when nothing is left there.
    """
    try:
        driver = Driver()
    except (OSError, AttributeError) as error:
        return f"this host's driver cannot move it ({error})"
    using = [pid for pid in pids if driver.state(pid) == _RUNNING]
    if not using:
        return ""
    needed = memory_of(using)
    if needed is None:
        return "nvidia-smi does not tell how much it is"
    if needed > room:
        return f"{needed >> 20} MiB on the GPU, and room for {room >> 20} MiB in memory"
    for step in (driver.lock, driver.checkpoint):
        for pid in using:
            problem = step(pid)
            if problem:
                back = restore(using)
                return f"{problem}; {back}" if back else problem
    return ""


def restore(pids: list[int]) -> str:
    """Give processes their GPU memory back, wherever `suspend` has left them.

    Returns:
        What is in the way; empty when all of them can go on.
    """
    driver = Driver()
    for pid in pids:
        state = driver.state(pid)
        problem = driver.restore(pid) if state == _CHECKPOINTED else ""
        if not problem and state in (_LOCKED, _CHECKPOINTED):
            problem = driver.unlock(pid)
        if problem:
            return problem
    return ""


def memory_of(pids: list[int]) -> int | None:
    """Bytes of GPU memory that processes use together; None where that is not known."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, env=_TOOLS, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    used: dict[int, int] = {}
    for line in done.stdout.splitlines():
        pid, _, mebibytes = line.partition(b",")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():
            used[int(pid)] = used.get(int(pid), 0) + (int(mebibytes) << 20)
    return sum(used[pid] for pid in pids) if used.keys() >= set(pids) else None
