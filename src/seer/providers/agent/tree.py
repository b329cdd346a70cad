"""Process trees: adopt orphans, find all descendants, kill them. Linux only.

A child subreaper becomes the parent of every descendant whose own parent ends, so neither `setsid`
nor a double fork removes a process from its tree.
"""

from __future__ import annotations

import os
import time

from .c_modules import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_KILL_TIMEOUT = 30.0


def _libc(name: str, *arguments: int | bytes) -> int:
    # Importing ctypes takes 10 ms. Its C module is enough for this call.
    try:
        import _ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)  # pyright: ignore[reportArgumentType]
        return _ctypes.call_function(address, arguments)
    except (AttributeError, ImportError):
        import ctypes

        return ctypes.CDLL(None)[name](*arguments)


def _prctl(option: int, value: int | bytes) -> int:
    return _libc("prctl", option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Adopt every descendant whose parent ends."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError("this kernel refuses PR_SET_CHILD_SUBREAPER")


def hide_from_peers() -> None:
    """Keep processes of the same user from tracing this one or taking its descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def set_name(name: str) -> None:
    """Set the name that `ps` and `top` show for this process (15 bytes)."""
    _prctl(_PR_SET_NAME, name.encode()[:15] + b"\0")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The direct children of a process, including zombies; empty if the process is gone."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    """The parent of a process; 0 if the process is gone or has none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def descendants(pid: int, *, spare: set[int] | None = None) -> list[int]:
    """All descendants of a process, parents before children, without the branches in `spare`."""
    found = [child for child in children(pid) if spare is None or child not in spare]
    for child in found:
        found.extend(children(child))
    return found


def visible() -> bool:
    """Whether this process can see its own tree, which needs /proc."""
    # Open the folder, because `access` does not check Landlock rules.
    try:
        os.close(os.open(f"/proc/{os.getpid()}/task", os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        return False
    return True


def reap(*, stopped: bool = False) -> dict[int, int]:
    """Collect the wait statuses of ended children, by pid. Does not block.

    Args:
        stopped: Also report children that were stopped.
    """
    ended: dict[int, int] = {}
    flags = os.WNOHANG | (os.WUNTRACED if stopped else 0)
    while True:
        try:
            pid, status = os.waitpid(-1, flags)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def kill_descendants(*, spare: set[int] | None = None) -> dict[int, int]:
    """Kill and reap every descendant of this process, which must be a subreaper.

    It stops all of them before it kills them, so that no process can fork faster than this finds
    its children.

    Args:
        spare: Children that survive, with everything below them.

    Returns:
        The wait statuses of the children that were reaped.

    Raises:
        TimeoutError: A process did not die, for instance because it is stuck in the kernel.
    """
    ended: dict[int, int] = {}
    deadline = time.monotonic() + _KILL_TIMEOUT
    pause = 0.0005
    while True:
        kill_tree(os.getpid(), spare=spare)
        ended.update(reap())
        left = [pid for pid in children(os.getpid()) if pid not in (spare or ())]
        if not left:
            return ended
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left[:10]} survive SIGKILL")
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def kill_tree(root: int, *, spare: set[int] | None = None) -> None:
    """Stop every descendant of `root`, then send SIGKILL to all of them."""
    stop_tree(root, spare=spare)
    _signal_all(root, descendants(root, spare=spare), signal.SIGKILL)


def stop_tree(root: int, *, spare: set[int] | None = None) -> list[int]:
    """Stop every descendant of `root`. Returns those that this call stopped, parents first."""
    seen: set[int] = set()
    stopped: list[int] = []
    # A stopped process does not fork, so each round finds only recently forked processes.
    for _ in range(1000):
        found = descendants(root, spare=spare)
        fresh = [pid for pid in found if pid not in seen]
        if not fresh:
            break
        stopped += [pid for pid in fresh if _state(pid) not in "TtZ"]
        _signal_all(root, found, signal.SIGSTOP, only=fresh)
        seen.update(fresh)
    return stopped


def continue_tree(root: int, stopped: list[int]) -> None:
    """Continue processes that `stop_tree` stopped, children before their parents.

    In this order, no running parent has a stopped child.
    """
    _signal_all(root, descendants(root), signal.SIGCONT, only=stopped[::-1])


def _state(pid: int) -> str:
    """The letter of a process's state; `Z` if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "Z"


def _signal_all(root: int, tree: list[int], number: int, *, only: list[int] | None = None) -> None:
    family = {root, *tree}
    for pid in tree if only is None else only:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Check this after opening the handle: if the pid was reused, the parent differs.
            if parent(pid) in family:
                signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            continue
        finally:
            os.close(handle)
