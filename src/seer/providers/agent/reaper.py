"""Cleans up after a machine, even if its keeper is killed.

The reaper is the keeper's parent and subreaper: when the keeper is killed, the reaper inherits its
processes. Both hold the lock on the machine's folder. If the lock is free, both are gone, and the
next start or listing removes the folder.
"""

from __future__ import annotations

import os
import time

from . import tree, wire
from .c_modules import signal, socket, with_address
from .cleaning import record_end, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.isolation import _cgroup as cgroup
    from seer.isolation._ownership import chown_tree

    from .wire import Message
else:
    from . import cgroup
    from .ownership import chown_tree


class MachineResources:
    """The resources to remove when a machine ends: its processes, control group and folder."""

    def __init__(self, settings: Message) -> None:
        self.id = wire.get_text(settings, "id")
        self._state = wire.get_bytes(settings, "state")
        self._folder = wire.get_bytes(settings, "folder")
        self._group_name = wire.get_text(settings, "group")
        self._memory = wire.get_int(settings, "memory", 0) or None
        self._processes = wire.get_int(settings, "processes", 0) or None
        self._grouped = bool(wire.get_int(settings, "grouped", 0))
        self._user = wire.get_dict(settings, "user")
        self.group: cgroup.Cgroup | None = None

    def make_group(self) -> None:
        """Create the machine's control group, if this user may."""
        try:
            self.group = cgroup.create(self._group_name, memory=self._memory, pids=self._processes)
            with open(os.path.join(self._folder, b"group"), "w") as file:
                file.write("\n".join(self.group.folders))
        except OSError as error:
            if self._grouped:
                # The jail relies on the group to count memory that no process has mapped.
                self.record(f"its control group could not be created: {error}")
                self.remove()
                os._exit(1)
            # Instead of a group, the watchdog sums over the process tree.
            self.group = None

    def listen(self) -> socket.socket:
        """The socket on which the keeper accepts controllers."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with_address(os.path.join(self._folder, b"keeper.sock"), listener.bind)
        listener.listen(64)
        listener.setblocking(False)
        return listener

    def kill(self) -> None:
        """Kill every process of the machine. This process must be their subreaper."""
        if self.group is not None:
            for folder in self.group.folders:
                _forbid_forks(folder)
            self.group.kill()
        tree.kill_descendants()
        if self.group is not None:
            self.group.remove()

    def record(self, reason: str) -> None:
        """Record how the machine ended."""
        try:
            record_end(self._state, self.id, reason, at=time.time())
        except OSError:
            # Even on a full disk, the machine's folder must be removed.
            return

    def remove(self) -> None:
        """Return folders of the host to their owners, and remove the machine's folder."""
        self._give_back()
        try:
            remove_tree(self._folder)
        except FileNotFoundError:
            return

    def _give_back(self) -> None:
        """Give files that the machine's user created in other owners' folders to those owners."""
        if not self._user or not _is_last(wire.get_int(self._user, "lock")):
            return
        folders = self._user["folders"]
        for folder in folders if isinstance(folders, list) else []:
            if isinstance(folder, dict):
                owner = wire.get_int(folder, "uid"), wire.get_int(folder, "gid")
                try:
                    uid = wire.get_int(self._user, "uid")
                    chown_tree(wire.get_bytes(folder, "path"), *owner, only=uid)
                except OSError as error:
                    # The owner can still reclaim the folder. The machine's own folder must be
                    # removed anyway.
                    os.write(2, b"the owner of a folder was not restored: %a\n" % error)


def _is_last(lock: int) -> bool:
    """Whether no other machine uses this machine's user id."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _forbid_forks(folder: str) -> None:
    """Forbid forks in the group, so that a fork bomb cannot outrun the kill."""
    try:
        with open(os.path.join(folder, "pids.max"), "r+") as file:
            file.write("0")
    except FileNotFoundError:
        return


def wait(keeper: int, resources: MachineResources, settings: Message) -> None:
    """Wait for the keeper. If it failed or was killed, end the machine instead of it."""
    tree.set_name("seer-reaper")
    for key in ("control", "alive", "kill_socket"):
        os.close(wire.get_int(settings, key))
    proxy = wire.get_dict(settings, "proxy")
    for fd in (*wire.get_ints(settings, "pass_fds"), *wire.get_ints(proxy, "fds")):
        os.close(fd)
    if proxy:
        os.close(wire.get_int(proxy, "listener"))
    for connector in wire.get_dict(settings, "connectors").values():
        if isinstance(connector, dict):
            os.close(wire.get_int(connector, "fd"))
    # A signal to the process group must not end the process that cleans up.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == keeper:
            break
    code = os.waitstatus_to_exitcode(status)
    resources.kill()
    if code != 0:
        how = f"killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        resources.record(f"its keeper was {how}" if code < 0 else f"its keeper {how}")
    resources.remove()
