"""Limit the memory and the process count of a whole process tree, with control groups.

The keeper of a machine runs from a copy of this file, so it is self-contained and uses only the
standard library. It works if this user may create control groups: version 2 below a delegated
group, or version 1 as root. Otherwise `create` raises an error with the reason, and the caller uses
a watchdog.
"""

# pathlib would be most of the import time of a keeper.
# ruff: noqa: PTH102, PTH106, PTH110, PTH112, PTH118, PTH120, PTH123
from __future__ import annotations

import os
import time

_SIGKILL = 9  # the signal module costs more to import than everything else here
_MOUNT = "/sys/fs/cgroup"
_CONTROLLERS = ("memory", "pids")
_FREEZERS = (
    ("cgroup.freeze", ("0", "1"), "cgroup.events", "frozen 1"),
    ("freezer.state", ("THAWED", "FROZEN"), "freezer.state", "FROZEN"),
)
"""For each version: the file, the values that thaw and freeze, and the file and text that report
that everything is frozen."""
_FREEZE_PATIENCE = 10.0


class Cgroup:
    """A control group; in version 1 it is one folder per controller."""

    def __init__(self, folders: list[str]) -> None:
        """Use an existing group by its `folders`, for example in another process."""
        self.folders = folders

    def join(self, pid: int = 0) -> None:
        """Move a process into the group; 0 is this process."""
        for folder in self.folders:
            _write(folder, "cgroup.procs", str(pid))

    def pids(self) -> list[int]:
        """The ids, in this namespace, of the processes in the group and its subgroups."""
        found: set[int] = set()
        for folder in self.folders:
            for path, _, _ in os.walk(folder):
                found.update(int(line) for line in _read(path, "cgroup.procs").split())
        found.discard(0)
        return sorted(found)

    def usage(self) -> dict[str, int]:
        """The current `memory` (bytes) and `pids`, and how many `oom_kills` there were."""
        result: dict[str, int] = {}
        for folder in self.folders:
            for name in ("memory.current", "memory.usage_in_bytes"):
                if os.path.exists(os.path.join(folder, name)):
                    result["memory"] = int(_read(folder, name))
            if os.path.exists(os.path.join(folder, "pids.current")):
                result["pids"] = int(_read(folder, "pids.current"))
            for name in ("memory.events", "memory.oom_control"):
                for line in _read(folder, name).splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        result["oom_kills"] = int(value)
        return result

    def freeze(self, frozen: bool) -> None:
        """Freeze every process in the group, or thaw all of them.

        Raises:
            OSError: The kernel has no freezer for this group, or a process did not stop; all
                processes then continue.
        """
        for folder in self.folders:
            for name, values, state, reached in _FREEZERS:
                if os.path.exists(os.path.join(folder, name)):
                    _write(folder, name, values[frozen])
                    if frozen:
                        self._await_freeze(folder, state, reached)
                    return
        raise OSError("no controller of this control group can freeze processes")

    def _await_freeze(self, folder: str, state: str, reached: str) -> None:
        deadline = time.monotonic() + _FREEZE_PATIENCE
        # In version 1, reading the state is also what makes the kernel finish freezing.
        while reached not in _read(folder, state):
            if time.monotonic() > deadline:
                self.freeze(False)
                raise OSError(f"a process did not stop within {_FREEZE_PATIENCE:g} s")
            time.sleep(0.002)

    @property
    def can_freeze(self) -> bool:
        """Whether the kernel has a freezer for this group."""
        return any(
            os.path.exists(os.path.join(folder, name))
            for folder in self.folders
            for name, _, _, _ in _FREEZERS
        )

    def kill(self) -> None:
        """Kill every process in the group, including those that are forked meanwhile."""
        for folder in self.folders:
            if os.path.exists(os.path.join(folder, "cgroup.kill")):
                _write(folder, "cgroup.kill", "1")
                return
        for _ in range(1000):
            pids = self.pids()
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, _SIGKILL)
                except ProcessLookupError:
                    continue
            if self.can_freeze:
                # In version 1, a frozen process does not die before it is thawed.
                self.freeze(False)
            time.sleep(0.001)

    def remove(self, timeout: float = 5.0) -> None:
        """Wait until the killed processes are gone, and remove the group. Repeating it is harmless.

        Raises:
            OSError: The group still has processes after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        for folder in self.folders:
            for path, _, _ in os.walk(folder, topdown=False):
                while True:
                    try:
                        os.rmdir(path)
                        break
                    except FileNotFoundError:
                        break
                    except OSError as error:
                        if time.monotonic() > deadline:
                            raise OSError(f"cannot remove {path!r}: {error}") from None
                        time.sleep(0.002)


def create(name: str, *, memory: int | None = None, pids: int | None = None) -> Cgroup:
    """Make a group with limits.

    Args:
        name: A unique name, for example the machine's id.
        memory: Bytes, summed over the tree, swap included.
        pids: Processes and threads, summed over the tree.

    Raises:
        OSError: This user may not create groups, or a controller is missing. No group is left
            behind.
    """
    own = _own_groups()
    unified = os.path.exists(os.path.join(_MOUNT, "cgroup.controllers"))
    folders = [_place(own)] if unified else [_place_v1(own, name) for name in _CONTROLLERS]
    if not unified and "freezer" in own:
        # Only pausing needs the freezer, so a host without it still gets limits.
        folders.append(_place_v1(own, "freezer"))
    group = Cgroup([os.path.join(folder, name) for folder in folders])
    made: list[str] = []
    try:
        for folder in group.folders:
            os.mkdir(folder)
            made.append(folder)
            _limit(folder, memory=memory, pids=pids)
    except OSError as error:
        Cgroup(made).remove()
        raise OSError(f"control groups cannot be used here: {error}") from None
    return group


def _limit(folder: str, *, memory: int | None, pids: int | None) -> None:
    def has(name: str) -> bool:
        return os.path.exists(os.path.join(folder, name))

    if memory is not None and has("memory.max"):
        _write(folder, "memory.max", str(memory))
        if has("memory.swap.max"):
            _write(folder, "memory.swap.max", "0")
    if memory is not None and has("memory.limit_in_bytes"):
        _write(folder, "memory.limit_in_bytes", str(memory))
        if has("memory.memsw.limit_in_bytes"):
            _write(folder, "memory.memsw.limit_in_bytes", str(memory))
    if pids is not None and has("pids.max"):
        _write(folder, "pids.max", str(pids))


def _own_groups() -> dict[str, str]:
    """This process's group for each controller; the empty name is version 2."""
    groups: dict[str, str] = {}
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            for line in file:
                _, names, path = line.rstrip("\n").split(":", 2)
                for name in names.split(","):
                    groups[name] = path
    except OSError as error:
        raise OSError(f"control groups cannot be used here: {error}") from None
    return groups


def _place(own: dict[str, str]) -> str:
    """Version 2: the nearest group above this process that delegates both controllers."""
    path = own.get("", "/")
    while True:
        folder = os.path.join(_MOUNT, path.strip("/")).rstrip("/")
        delegated = _read(folder, "cgroup.subtree_control").split()
        if all(name in delegated for name in _CONTROLLERS) and os.access(folder, os.W_OK):
            return folder
        if path in ("/", ""):
            raise OSError(
                "no control group above this process delegates the memory and pids controllers to "
                "this user"
            )
        path = os.path.dirname(path)


def _place_v1(own: dict[str, str], name: str) -> str:
    folder = os.path.join(_MOUNT, name, own.get(name, "/").strip("/")).rstrip("/")
    if name not in own or not os.path.isdir(folder):
        raise OSError(f"the {name} controller is not mounted under {_MOUNT}")
    return folder


def _read(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _write(folder: str, name: str, value: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(value)
