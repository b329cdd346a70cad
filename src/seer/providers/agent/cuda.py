"""Move the GPU memory of processes to the host and back, with CUDA's checkpoint functions.

The driver (570 or newer) can do this to any process without its help. The process's CUDA calls wait
meanwhile. This code runs in a fork of the keeper, never in a jail.
"""

from __future__ import annotations

import ctypes
import subprocess

_RUNNING, _LOCKED, _CHECKPOINTED = 0, 1, 2
_LOCK_PATIENCE_MS = 10_000
"""Milliseconds for running GPU work to finish."""
_TOOLS = {"PATH": "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin"}


class _LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint64 * 8))


class CudaCheckpoint:
    """CUDA's checkpoint functions. Each returns an error message, or an empty string."""

    def __init__(self) -> None:
        """Load the driver's library.

        Raises:
            OSError: There is no such library.
            AttributeError: The library is too old to have these functions.
        """
        self._library = ctypes.CDLL("libcuda.so.1")
        _ = self._library.cuCheckpointProcessCheckpoint

    def state(self, pid: int) -> int | None:
        """The state of a process that uses CUDA; None for other processes."""
        state = ctypes.c_int(-1)
        failed = self._library.cuCheckpointProcessGetState(pid, ctypes.byref(state))
        return None if failed else state.value

    def lock(self, pid: int) -> str:
        """Let the process's work on the GPU finish, and make its further CUDA calls wait."""
        arguments = _LockArguments(timeout_ms=_LOCK_PATIENCE_MS)
        return self._call("Lock", pid, ctypes.byref(arguments))

    def checkpoint(self, pid: int) -> str:
        """Move a locked process's GPU memory to the host, and release the GPU."""
        return self._call("Checkpoint", pid, None)

    def restore(self, pid: int) -> str:
        """Take a GPU again and move the memory back. The process stays locked."""
        return self._call("Restore", pid, None)

    def unlock(self, pid: int) -> str:
        """Let a locked process's CUDA calls continue."""
        return self._call("Unlock", pid, None)

    def _call(self, name: str, pid: int, arguments: object) -> str:
        code = self._library[f"cuCheckpointProcess{name}"](pid, arguments)
        if not code:
            return ""
        words = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(words))
        told = (words.value or b"error %d" % code).decode(errors="replace")
        return f"{name} of process {pid}: {told}"


def suspend(pids: list[int], room: int) -> tuple[str, dict[str, int]]:
    """Move the GPU memory of processes to the host.

    Args:
        pids: The processes of a machine; those that use no GPU are left alone.
        room: Bytes that the host, or the machine's memory limit, has left.

    Returns:
        The reason why memory stays on the GPU (empty if none does), and the moved MiB by GPU.
    """
    try:
        driver = CudaCheckpoint()
    except (OSError, AttributeError) as error:
        return f"this host's driver cannot move it ({error})", {}
    using = [pid for pid in pids if driver.state(pid) == _RUNNING]
    if not using:
        return "", {}
    used = memory_of(using)
    if used is None:
        return "nvidia-smi does not report the amount", {}
    needed = sum(used.values())
    if needed > room >> 20:
        free = f"the host and the machine's memory limit have room for {room >> 20} MiB"
        return f"{needed} MiB are on the GPU, but {free}", {}
    for step in (driver.lock, driver.checkpoint):
        for pid in using:
            problem = step(pid)
            if problem:
                back = restore(using, {})
                return f"{problem}; {back}" if back else problem, {}
    return "", used


def restore(pids: list[int], needs: dict[str, int]) -> str:
    """Restore the GPU memory of processes, in whichever state `suspend` left them.

    Args:
        pids: The processes of a machine.
        needs: MiB that must be free, by GPU. This is checked first, because a process whose restore
            fails for lack of memory is lost.

    Returns:
        The problem; empty if all processes can continue.
    """
    try:
        driver = CudaCheckpoint()
    except (OSError, AttributeError):
        return ""  # then nothing was moved either
    free = free_memory() if needs else {}
    for gpu, needed in needs.items():
        if free.get(gpu, 0) < needed:
            return f"{needed} MiB are needed, but only {free.get(gpu, 0)} MiB of the GPU are free"
    for pid in pids:
        state = driver.state(pid)
        problem = driver.restore(pid) if state == _CHECKPOINTED else ""
        if not problem and state in (_LOCKED, _CHECKPOINTED):
            problem = driver.unlock(pid)
        if problem:
            return problem
    return ""


def memory_of(pids: list[int]) -> dict[str, int] | None:
    """The total MiB of GPU memory that processes use, by GPU; None if that is unknown."""
    used: dict[str, int] = {}
    unknown = set(pids)
    for gpu, pid, amount in _ask("--query-compute-apps=gpu_uuid,pid,used_memory"):
        if pid.isdigit() and amount.isdigit() and int(pid) in pids:
            used[gpu] = used.get(gpu, 0) + int(amount)
            unknown.discard(int(pid))
    return None if unknown else used


def free_memory() -> dict[str, int]:
    """The free MiB, by GPU."""
    found = _ask("--query-gpu=uuid,index,memory.free")
    return {gpu: int(amount) for gpu, _, amount in found if amount.isdigit()}


def _ask(query: str) -> list[tuple[str, str, str]]:
    """The rows of a three-column `nvidia-smi` table; empty if it does not answer."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=_TOOLS, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = ([part.strip() for part in line.split(",")] for line in done.stdout.splitlines())
    return [(line[0], line[1], line[2]) for line in lines if len(line) == 3]
