"""The `landlock` backend: Landlock, a system-call filter and rlimits, with nothing installed.

It is for computers without bubblewrap, or with user namespaces disabled. Landlock controls which
files can be opened. The filter refuses what Landlock does not cover: sockets, chmod, queues, limits
of other processes. The security page lists what neither of them stops. `refuses` excludes this
backend if that matters.

As an ordinary user, the jail sees the host's paths. As root with CAP_SYS_ADMIN, it gets its own
namespaces, with the mounts under one neutral folder. As root without CAP_SYS_ADMIN, it becomes an
unprivileged user, and that user must be able to reach the paths.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from seer.errors import IsolationError
from seer.isolation._limits import rlimits
from seer.isolation._mounts import Resolved, masks_within, resolve_mounts
from seer.isolation._policy import BackendName, Mount, Policy
from seer.isolation._system import HOSTNAME, JAIL_UIDS, SystemView, system_view
from seer.isolation.backends import _launcher
from seer.isolation.backends._base import Backend, Launch, Need
from seer.isolation.backends._launch_order import (
    LAUNCHER,
    Bind,
    Mask,
    Rules,
    Stage,
    launch_by_script,
)
from seer.isolation.backends._seccomp import filter_program

_MINIMUM_ABI = 6
_CAP_SYS_ADMIN = 21
_STAGES = ("/mnt", "/srv", "/media")
_KEPT = frozenset({"usr", "proc", "bin", "sbin", "lib", "lib32", "lib64", "libx32"})

_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_ALL = (1 << 16) - 1
_LOOK = _EXECUTE | _READ | _LIST
_CHANGE = _ALL & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL)
_DEVICE = _READ | _WRITE | _IOCTL
_TCP = 0b11
_SCOPES = 0b11

# Files of /proc that programs need and that show no process.
_PROC = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "vmstat")
_PUBLIC = ("/etc/debian_version", "/etc/lsb-release", "/etc/redhat-release", "/etc/mime.types")
"""Files of the distribution that pip and Python read. Both fail if such a file exists but cannot be
opened."""
_PROC_SYS = ("kernel/osrelease", "kernel/pid_max", "kernel/cap_last_cap", "vm/overcommit_memory")

_PROBE = 'cat "$1" >/dev/null 2>&1 && exit 3; kill -0 "$2" 2>/dev/null && exit 4; exit 0'
_PROBE_MEANING = {3: "a file outside could be read", 4: "a process outside could be signalled"}

_REFUSALS: dict[Need, str] = {
    "hidden": (
        "landlock cannot hide names, sizes and times of files outside the jail, so a hidden "
        "model's origin could be found; install bubblewrap"
    ),
    "proxy": (
        "landlock has no network namespace from which only the proxy can be reached; "
        "install bubblewrap, or use network='none'"
    ),
    "users": "only bubblewrap can give a jail users of its own; use isolation='bubblewrap'",
}
_NO_GPU = (
    "CUDA needs /proc/self, which landlock cannot show to an ordinary user's jail without the "
    "host's other processes; install bubblewrap"
)


class Landlock(Backend):
    """Jails made of Landlock rules and a system-call filter."""

    name: BackendName = "landlock"
    refusals = _REFUSALS

    @property
    def covers(self) -> bool:
        """Only if root can mount: Landlock rules can grant access but not remove it."""
        return _stage_root() is not None

    def probe(self) -> str | None:
        """Why Landlock cannot be used here, and the fix; None if it works."""
        if not sys.platform.startswith("linux"):
            return "landlock needs Linux; use a remote provider, or a Linux machine"
        version = _launcher.abi()
        if version < _MINIMUM_ABI:
            have = f"version {version}" if version else "none, or it is disabled"
            return (
                f"the kernel's Landlock ({have}) cannot keep a jail from signalling other "
                f"processes of its user; Linux 6.12 or newer is needed, or install bubblewrap"
            )
        if os.geteuid() == 0 and _stage_root() is None:
            blocked = unreachable(sys.base_prefix, JAIL_UIDS[0])
            if blocked is not None:
                return (
                    f"root lacks CAP_SYS_ADMIN to mount folders, and an unprivileged user cannot "
                    f"enter {blocked!r} to reach the interpreter in {sys.base_prefix!r}; grant the "
                    f"capability, run as an ordinary user, or open the folder (`chmod o+x`)"
                )
        program = ("/bin/sh", "-c", _PROBE, "sh", LAUNCHER, str(os.getpid()))
        try:
            done = self.run_trial(program)
        except IsolationError as error:
            return f"{error}; install bubblewrap"
        if done.returncode == 0:
            return None
        said = done.stderr.decode(errors="replace").strip()
        meaning = _PROBE_MEANING.get(done.returncode, said or f"exit {done.returncode}")
        return f"a trial jail failed ({meaning}); install bubblewrap"

    def view(self, mounts: Sequence[Mount]) -> dict[str, str]:
        """Host paths, or paths under the neutral folder if root can mount."""
        stage = _stage_root()
        if stage is None:
            return super().view(mounts)
        return {mount.target: stage + mount.target for mount in mounts}

    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` under Landlock; see `Backend.launch`."""
        if policy.network == "proxy":
            raise IsolationError(_REFUSALS["proxy"])
        root = os.geteuid() == 0
        stage = _stage_root()
        if policy.gpu and stage is None:
            raise IsolationError(_NO_GPU)
        uid = (policy.uid or JAIL_UIDS[0]) if root else None
        own_user = root and policy.uid is not None
        system = system_view(policy, uid=uid or os.getuid(), gid=uid or os.getgid())
        view = self.view(policy.mounts)
        mounts = resolve_mounts(policy)
        env = dict(policy.env)
        if stage is None:
            # git fails on a file that it may not read, but not on a missing one.
            env.setdefault("GIT_CONFIG_NOSYSTEM", "1")
            if uid is not None:
                _check_reach(mounts, uid)
            rules = [*_host_rules(policy, system), *_mount_rules(mounts)]
        else:
            rules = _staged_rules(policy, system, view)
        rights: Rules = {
            "fs": _ALL,
            "net": 0 if policy.network == "host" else _TCP,
            "scoped": _SCOPES,
            "rules": [(os.fsencode(path), allowed) for path, allowed in rules],
        }
        return launch_by_script(
            policy,
            argv,
            view=view,
            env=env,
            limits=rlimits(policy.limits, own_count=own_user, own_user=own_user),
            uid=uid,
            stage=None if stage is None else _staging(policy, system, mounts, stage),
            landlock=rights,
            system_calls=filter_program(
                "shared",
                sockets=policy.network == "host",
                memory_files=policy.limits.memory_files,
                keep_cores=policy.limits.keep_cores,
                freeze_metadata=stage is None,
            ),
        )


def _stage_root() -> str | None:
    """The folder for mounts; None if this process cannot mount."""
    if os.geteuid() != 0 or not _may_mount():
        return None
    return next((path for path in _STAGES if os.path.isdir(path)), None)  # noqa: PTH112


def _may_mount() -> bool:
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def _check_reach(mounts: Sequence[Resolved], uid: int) -> None:
    for mount in mounts:
        blocked = unreachable(mount.source, uid)
        if blocked is not None:
            raise IsolationError(
                f"the jail's user {uid} cannot enter {blocked!r} to reach {mount.source!r}, and "
                f"without CAP_SYS_ADMIN it cannot be mounted elsewhere; install bubblewrap, run "
                f"as an ordinary user, or open the folder (`chmod o+x`)"
            )


def unreachable(path: str, uid: int) -> str | None:
    """The first folder above `path` that `uid` cannot enter; None if it can reach `path`."""
    for folder in reversed(Path(path).parents):
        found = folder.stat()
        needed = 0o100 if found.st_uid == uid else 0o001
        if not found.st_mode & needed:
            return str(folder)
    return None


def _host_rules(policy: Policy, system: SystemView) -> Iterator[tuple[str, int]]:
    """The rules for the system's files, at the host's paths."""
    for path in system.read_only:
        hidden = [(item[len(path) + 1 :], True) for item in system.hidden if item.startswith(path)]
        for allowed in _around(path, [*hidden, *masks_within(path)]):
            yield allowed, _LOOK
    shown = [*_PUBLIC, *(("/etc/nsswitch.conf",) if policy.network == "host" else ())]
    for path in filter(os.path.exists, shown):
        yield path, _LOOK
    for name in _PROC:
        if os.path.exists(f"/proc/{name}"):  # noqa: PTH110
            yield f"/proc/{name}", _LOOK
    for name in _PROC_SYS:
        yield f"/proc/sys/{name}", _LOOK
    yield from _device_rules(system)


def _device_rules(system: SystemView) -> Iterator[tuple[str, int]]:
    for path in system.devices:
        yield path, _READ | _WRITE
    for path in system.gpu_devices:
        yield path, _DEVICE | _LIST


def _mount_rules(mounts: Sequence[Resolved]) -> Iterator[tuple[str, int]]:
    for mount in mounts:
        for path in _around(mount.source, masks_within(mount.source)):
            yield path, _CHANGE if mount.writable else _LOOK


def _around(path: str, masks: Sequence[tuple[str, bool]]) -> Iterator[str]:
    """Paths that together make up `path` without its masked parts.

    Landlock can only grant access, so the folders above a masked part cannot be listed.
    """
    if not masks:
        yield path
        return
    heads: dict[str, list[tuple[str, bool]]] = {}
    for relative, is_folder in masks:
        head, _, rest = relative.partition("/")
        heads.setdefault(head, []).append((rest, is_folder))
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink():
                continue
            rest = heads.get(entry.name)
            if rest is None:
                yield entry.path
            elif all(inner for inner, _ in rest):
                yield from _around(entry.path, rest)


def _staged_rules(
    policy: Policy, system: SystemView, view: dict[str, str]
) -> list[tuple[str, int]]:
    rules = [(path, _LOOK) for path in (*system.read_only, "/etc", "/dev")]
    # CUDA names its threads by writing to /proc/self/task; only the jail's processes are there.
    rules.append(("/proc", _LOOK | _WRITE | _TRUNCATE))
    # Terminals are allowed here, because the jail has its own /dev/pts. The host's /dev/pts has the
    # user's terminals.
    rules += [("/dev/shm", _CHANGE), ("/dev/pts", _DEVICE | _LIST)]
    rules += _device_rules(system)
    for mount in policy.mounts:
        rules.append((view[mount.target], _CHANGE if mount.writable else _LOOK))
    return rules


def _staging(policy: Policy, system: SystemView, mounts: Sequence[Resolved], root: str) -> Stage:
    """What the launcher must mount, in order."""
    covers = [
        entry.path
        for entry in os.scandir("/")
        if entry.name not in _KEPT and entry.is_dir(follow_symlinks=False)
    ]
    covers += filter(os.path.isdir, system.hidden)
    binds: list[Bind] = []
    masks: list[Mask] = []
    for path in system.read_only:
        masked = [(f"{path}/{name}", folder) for name, folder in masks_within(path)]
        if path.count("/") > 1:
            binds.append(_bind(path, path, writable=False, masks=masked))
        else:  # /usr and the like are not covered, so they stay where they are
            masks += _encoded(masked)
    for mount in mounts:
        target = root + mount.target
        found = masks_within(mount.source)
        masked = [(f"{target}/{name}", folder) for name, folder in found]
        binds.append(_bind(mount.source, target, writable=mount.writable, masks=masked))
    links = [(to, path) for to, path in system.links if path.startswith("/etc/")]
    encode = os.fsencode
    return {
        "covers": [encode(path) for path in covers],
        "masks": masks,
        "binds": binds,
        "files": [(encode(path), content.encode()) for path, content in system.files.items()],
        "links": [(encode(to), encode(path)) for to, path in links],
        "devices": [encode(path) for path in (*system.devices, *system.gpu_devices)],
        "shm": system.shm_bytes,
        "hostname": HOSTNAME.encode(),
        "own_network": policy.network != "host",
    }


def _bind(source: str, target: str, *, writable: bool, masks: list[tuple[str, bool]]) -> Bind:
    return {
        "source": os.fsencode(source),
        "target": os.fsencode(target),
        "writable": writable,
        "is_folder": os.path.isdir(source),  # noqa: PTH112
        "masks": _encoded(masks),
    }


def _encoded(masks: list[tuple[str, bool]]) -> list[Mask]:
    return [(os.fsencode(path), is_folder) for path, is_folder in masks]
