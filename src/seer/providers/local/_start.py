"""Start a machine on this host: its folder, its jail's launch, and the keeper that spawns it.

Processes of the machine get their settings through memory files and inherited descriptors, so no
secret is on a command line or in a file.
"""

import fcntl
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from seer._paths import state_dir
from seer._unix_sockets import listen
from seer.errors import HostUnsuitableError, IsolationError, ProviderError
from seer.isolation import JAIL_UIDS, Backend, JailLimits, Policy, choose, interpreter_env
from seer.isolation._policy import JailNetwork, Users
from seer.isolation._system import USERS_AGENT, make_etc
from seer.isolation._users import MACHINE_UIDS, take_user
from seer.isolation.backends._base import Launch, Need, memory_file
from seer.isolation.backends._container import is_rented
from seer.isolation.network._network import PROXY_PORT, proxy_environment, proxy_launch
from seer.providers import _gpus
from seer.providers._spec import MachineSpec
from seer.providers.agent import wire
from seer.providers.local._folder import (
    LIB,
    PROXY,
    PYTHON,
    WORKDIR,
    MachineView,
    discard,
    environment,
    fill_folder,
    machine_files,
)
from seer.providers.local._groups import group_prefix, group_refusal
from seer.providers.local._orphans import being_made, lock_folder
from seer.providers.local._record import LocalRecord, machines_dir, write_record

logger = logging.getLogger(__name__)

PROCESSES = 2048
"""The most processes and threads of a machine."""
OPEN_FILES = 4096
"""The most files that an agent's program may have open. An interface has its user's limit."""
BYTES_PER_FILE = 16384
"""The disk limit permits one file, folder or link per this many bytes, as in a typical file system.
At least 65,536 files are permitted."""
_CPU_SECONDS = 30 * 24 * 3600
"""CPU seconds of one process per core, if the machine has no timeout."""
_MORE_USERS = 12
"""The number of host user ids for a machine with several users: root, and the users that root can
add."""
_STEWARD = "from seer_machine.steward import main; main()"
_FORWARD = (
    "import socket; from forward import Forwarder; "
    "Forwarder(socket.socket(fileno=int(sys.argv[2])), sys.argv[1]).run()"
)
_KEEPER = "from seer_machine.keeper import main; main()"


@dataclass(frozen=True, kw_only=True)
class StartedKeeper:
    """A machine with a spawned keeper. Its steward may still fail to start."""

    folder: Path
    record: LocalRecord
    control: socket.socket
    """The controller's connection to the keeper."""
    ready: int
    """A pipe to which the steward writes its version when it is ready. It closes early if the start
    fails."""
    spawned: subprocess.Popen[bytes]


def start_keeper(spec: MachineSpec) -> StartedKeeper:
    """Make a machine's folder and spawn its keeper, which spawns the jail. Blocks.

    Raises:
        ProviderError: The spec cannot be met.
        IsolationError: The jail cannot be set up.
    """
    backend = _choose(spec)
    if spec.gpu is None or spec.devices is not None:
        return _make(spec, backend)
    with _gpus.choosing():
        return _make(_with_devices(spec), backend)


def _make(spec: MachineSpec, backend: Backend) -> StartedKeeper:
    machine_id = f"sb-{secrets.token_hex(8)}"
    folder = machines_dir() / machine_id
    with ExitStack() as undo:
        undo.callback(discard, folder)
        with ExitStack() as opened:
            with being_made():
                folder.mkdir(mode=0o700)
                lock = _owned(opened, lock_folder(folder))
            started = _spawn(spec, backend, folder, opened=opened, undo=undo, lock=lock)
        undo.pop_all()
    return started


def _choose(spec: MachineSpec) -> Backend:
    needs: set[Need] = set()
    if spec.hidden:
        needs.add("hidden")
    if _jail_network(spec) == "proxy":
        needs.add("proxy")
    if spec.users:
        needs.add("users")
    return choose(spec.isolation, needs=frozenset(needs))


def _owned(opened: ExitStack, fd: int) -> int:
    """The same descriptor, registered for `opened` to close."""
    opened.callback(os.close, fd)
    return fd


def _spawn(
    spec: MachineSpec,
    backend: Backend,
    folder: Path,
    *,
    opened: ExitStack,
    undo: ExitStack,
    lock: int,
) -> StartedKeeper:
    """Spawn the keeper. `opened` is always closed, `undo` only if this fails."""

    def keep(fd: int) -> int:
        return _owned(opened, _high(fd))

    wants_proxy = _jail_network(spec) == "proxy"
    written = [path for path in _written(spec) if path.is_dir()]
    owners = _owners(written)
    uid, user = None, -1
    if os.geteuid() == 0 and backend.name != "none":
        uid, taken = take_user(written)
        user = keep(taken)
    elif backend.name != "none":
        _warn_of_shared_user()
    users, user_locks = _users(folder, keep) if spec.users else (None, ())
    proxy = _proxy(spec, folder, opened, uid=uid) if wants_proxy else None
    root = users.root if users is not None else None
    inside = fill_folder(folder, spec, backend, uid=uid, proxy=wants_proxy, root=root)
    gpus = _gpu_environment(spec)
    grouped = group_refusal() is None
    listener = keep(listen(folder / "steward.sock", 4096).detach())
    alive, alive_held = (keep(fd) for fd in os.pipe())
    ready, ready_told = os.pipe()
    undo.callback(os.close, ready)
    ready_told = keep(ready_told)
    keeper_kill_socket, jail_kill_socket = (
        keep(end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    )
    connectors, gates = _connectors(spec, backend, opened)
    network = proxy_environment() if wants_proxy else {}
    variables = {**network, **environment(inside, spec, folder.name, gates), **(gpus or {})}
    for_steward: dict[str, wire.Encodable] = {
        "listen": listener,
        "alive": alive,
        "ready": ready_told,
        "kill_socket": jail_kill_socket,
        "env": variables,
        "cwd": inside.layout.workdir,
        "agent": USERS_AGENT if spec.users else 0,
        "connectors": [connector["jail"] for connector in connectors.values()],
        "forward": _forward(inside) if wants_proxy else {},
    }
    steward_settings = keep(memory_file("seer-steward", wire.encode(for_steward)))
    policy = Policy(
        mounts=inside.mounts,
        env=interpreter_env(PYTHON, inside.view),
        cwd=WORKDIR,
        network=_jail_network(spec),
        gpu=gpus is not None,
        limits=_limits(spec, grouped=grouped),
        uid=uid,
        users=users,
        pass_fds=(
            listener,
            alive,
            ready_told,
            steward_settings,
            jail_kill_socket,
            *(connector["jail"] for connector in connectors.values()),
        ),
    )
    code = f"import sys; sys.path.insert(0, {inside.view[LIB]!r}); {_STEWARD}"
    argv = [inside.interpreter, "-I", "-S", "-X", "utf8", "-c", code, str(steward_settings)]
    launch = backend.launch(policy, argv)
    opened.callback(launch.close)
    record = _record(spec, folder, backend, inside, uid=uid)
    write_record(folder, record)
    ours, other = socket.socketpair()
    undo.callback(ours.close)
    theirs = keep(other.detach())
    fields = _keeper_settings(spec, folder, launch, inside)
    fields["grouped"] = int(grouped)
    fields |= {
        "control": theirs,
        "alive": alive_held,
        "kill_socket": keeper_kill_socket,
        "connectors": {
            name: {"fd": connector["host"], "target": str(spec.gates[name])}
            for name, connector in connectors.items()
        },
    }
    passed = [lock, theirs, alive_held, keeper_kill_socket, *launch.pass_fds]
    if uid is not None:
        # The keeper and its reaper hold the user until the machine has ended.
        passed += [user, *user_locks]
        fields["user"] = {"uid": uid, "lock": user, "folders": owners}
    passed += [connector["host"] for connector in connectors.values()]
    if proxy is not None:
        # The first descriptor is the listener, which the keeper polls.
        fields["proxy"] = {
            "argv": list(proxy.argv),
            "listener": proxy.pass_fds[0],
            "fds": list(proxy.pass_fds[1:]),
        }
        passed += proxy.pass_fds
    if spec.lifeline is not None:
        fields["lifeline"] = spec.lifeline
        passed.append(spec.lifeline)
    settings = keep(memory_file("seer-keeper", wire.encode(fields)))
    spawned = _spawn_keeper(folder, settings, [settings, *passed])
    return StartedKeeper(folder=folder, record=record, control=ours, ready=ready, spawned=spawned)


def _record(
    spec: MachineSpec, folder: Path, backend: Backend, inside: MachineView, *, uid: int | None
) -> LocalRecord:
    return LocalRecord(
        id=folder.name,
        label=spec.label,
        note=spec.note,
        gpu=spec.gpu,
        devices=spec.devices or (),
        started_at=time.time(),
        isolation=backend.name,
        lease=spec.lease,
        idle_timeout=spec.idle_timeout,
        uid=uid,
        layout=inside.layout,
        mounts=inside.seen,
        policy={
            "network": spec.network,
            "memory": spec.memory,
            "processes": PROCESSES,
            "disk": spec.disk,
            "users": spec.users,
        },
    )


def _forward(inside: MachineView) -> "dict[str, wire.Encodable]":
    """The steward's settings for the forwarder, which makes the proxy reachable in the machine."""
    code = f"import sys; sys.path.insert(0, {inside.view[LIB]!r}); {_FORWARD}"
    argv = [inside.interpreter, "-I", "-S", "-c", code, inside.path(PROXY)]
    return {"port": PROXY_PORT, "argv": argv}


def _users(folder: Path, keep: Callable[[int], int]) -> tuple[Users, tuple[int, ...]]:
    """Make a machine's /etc, and reserve host ids for its users besides the first one.

    Returns:
        The users, and the descriptors that reserve their ids.
    """
    taken = [take_user() for _ in range(_MORE_USERS)]
    locks = tuple(keep(lock) for _, lock in taken)
    root, *others = (uid for uid, _ in taken)
    etc = folder / "etc"
    etc.mkdir(mode=0o755)
    make_etc(etc, root=root)
    return Users(root=root, others=tuple(others), etc=etc), locks


def _limits(spec: MachineSpec, *, grouped: bool) -> JailLimits:
    cores = os.cpu_count() or 1
    return JailLimits(
        memory=spec.memory,
        processes=PROCESSES,
        open_files=None if spec.serves else OPEN_FILES,
        disk=spec.disk,
        file_size=spec.disk,
        cpu_seconds=int(spec.timeout * cores) + 1 if spec.timeout else _CPU_SECONDS * cores,
        # Without a control group, nothing counts memory that no process has mapped.
        memory_files=grouped or spec.serves or spec.memory is None,
        share=0.5 if spec.serves else 0.25,
        keep_cores=spec.cpus is not None,
    )


def _keeper_settings(
    spec: MachineSpec, folder: Path, launch: Launch, inside: MachineView
) -> "dict[str, wire.Encodable]":
    written = [mount.source for mount in inside.seen if mount.writable]
    if spec.users:
        written.append(str(folder / "etc"))
    return {
        "id": folder.name,
        "state": os.fsencode(state_dir()),
        "folder": os.fsencode(folder),
        "group": group_prefix() + folder.name,
        "argv": [os.fsencode(item) for item in launch.argv],
        "env": dict(launch.env),
        "pass_fds": list(launch.pass_fds),
        "memory": spec.memory or 0,
        "processes": PROCESSES,
        "disk": spec.disk or 0,
        "files": max(spec.disk // BYTES_PER_FILE, 65536) if spec.disk else 0,
        "writable": [os.fsencode(path) for path in written],
        "gpu": int(bool(spec.devices)),
        "cpus_milli": int((spec.cpus or 0) * 1000),
        "lease_ms": int(spec.lease * 1000),
        "timeout_ms": int((spec.timeout or 0) * 1000),
        "idle_ms": int((spec.idle_timeout or 0) * 1000),
    }


def _spawn_keeper(folder: Path, settings: int, passed: list[int]) -> subprocess.Popen[bytes]:
    code = f"import sys; sys.path.insert(0, {str(machine_files())!r}); {_KEEPER}"
    log = os.open(folder / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [_interpreter(), "-I", "-S", "-X", "utf8", "-c", code, str(settings), folder.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env={},
            pass_fds=passed,
            start_new_session=True,
        )
    finally:
        os.close(log)


def _interpreter() -> str:
    # Not the virtual environment's interpreter, which would first search for its configuration.
    base: object = getattr(sys, "_base_executable", None)
    return base if isinstance(base, str) and base else sys.executable


def _high(fd: int) -> int:
    """Move a descriptor to a number that a jail's shell does not use."""
    if fd > 9:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return moved


def _connectors(
    spec: MachineSpec, backend: Backend, opened: ExitStack
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Connectors for jails that may not connect, and the address of each gate in the machine."""
    connectors: dict[str, dict[str, int]] = {}
    gates: dict[str, str] = {}
    for name in spec.gates:
        variable = f"SEER_GATE_{name.upper()}"
        if backend.name == "bubblewrap":
            gates[variable] = f"path:/run/seer/gates/{name}.sock"
            continue
        if backend.name in ("container", "none"):
            gates[variable] = f"path:{spec.gates[name]}"
            continue
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host, jail = (_owned(opened, _high(end.detach())) for end in ends)
        connectors[name] = {"host": host, "jail": jail}
        gates[variable] = f"fd:{jail}"
    for name in spec.relayed:
        variable = f"SEER_GATE_{name.upper()}"
        gates[variable] = f"frames:{gates[variable]}"
    return connectors, gates


@cache
def _warn_of_shared_user() -> None:
    logger.warning(
        "all machines of an ordinary user run as that user. They share half of that user's limits, "
        "so a hostile machine can starve the others. Machines that root starts each "
        "have their own user"
    )


def _written(spec: MachineSpec) -> list[Path]:
    """Folders of the host that the machine will write to, besides its own."""
    found = [mount.source for mount in spec.mounts if mount.writable]
    return [*found, spec.workdir] if spec.workdir is not None else found


def _owners(folders: Sequence[Path]) -> "list[wire.Encodable]":
    """The owner of each folder, to restore it when the machine has ended."""
    owners: list[wire.Encodable] = []
    for folder in folders:
        found = folder.stat()
        owner = (found.st_uid, found.st_gid)
        if found.st_uid in MACHINE_UIDS:
            # Another machine uses the folder now, or was killed before it restored the owner.
            owner = (os.getuid(), os.getgid())
        path = os.fsencode(folder.resolve())
        owners.append({"path": path, "uid": owner[0], "gid": owner[1]})
    return owners


def _proxy(spec: MachineSpec, folder: Path, opened: ExitStack, *, uid: int | None) -> Launch:
    listener = _owned(opened, _high(listen(folder / "proxy.sock", 4096).detach()))
    own = None
    if uid is not None:
        os.chown(folder / "proxy.sock", uid, uid)
        own = JAIL_UIDS[-2]
    hosts = None if isinstance(spec.network, str) else list(spec.network)
    launch = proxy_launch(
        listener,
        label=f"{spec.label} {folder.name}",
        hosts=hosts,
        log=state_dir() / "refused.jsonl",
        uid=own,
    )
    opened.callback(launch.close)
    return launch


def _jail_network(spec: MachineSpec) -> JailNetwork:
    match spec.network:
        case "host" | "none":
            return spec.network
        case _:
            return "proxy"


def _gpu_environment(spec: MachineSpec) -> dict[str, str] | None:
    """The variables that select the machine's GPUs; None if it has none."""
    if spec.gpu is None or spec.devices is None:
        return None
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.devices))}


def _with_devices(spec: MachineSpec) -> MachineSpec:
    """Choose GPUs for the spec. If a GPU is optional and the host has none, remove it.

    Raises:
        HostUnsuitableError: This host does not have the requested GPUs.
        CapacityError: This host has them, but they are in use.
    """
    assert spec.gpu is not None, "a machine without a GPU needs no choice"
    there, taken = _gpus.devices(), _gpus.taken()
    choose_gpus = partial(_gpus.pick, there, spec.gpu, taken=taken, share=spec.share_gpus)
    try:
        # A rented host has only its own GPUs, and a vendor may give a better kind than requested.
        chosen = choose_gpus(spec.gpu_count, any_kind=is_rented())
    except HostUnsuitableError as error:
        if not spec.gpu_optional:
            raise
        if not there:
            cores = os.cpu_count() or 1
            logger.warning("%s; using its CPU instead (%d cores)", error, cores)
            return replace(spec, gpu=None)
        logger.warning("%s; using that instead", error)
        chosen = choose_gpus(min(spec.gpu_count, len(there)), any_kind=True)
        spec = replace(spec, gpu=chosen[0].name)
    numbers = tuple(device.index for device in chosen)
    shared = [device.index for device in chosen if device.busy or device.index in taken]
    if shared and not is_rented():
        logger.warning("no GPU is free; GPU %s is shared", ", ".join(map(str, shared)))
    # The numbers are nvidia-smi's. By default, CUDA would number the fastest GPU first.
    return replace(spec, devices=numbers, env={**spec.env, **_gpus.ORDER})


def check_gpus(spec: MachineSpec) -> None:
    """Refuse GPUs that this host does not have.

    Raises:
        HostUnsuitableError: This host does not have them.
    """
    assert spec.gpu is not None, "a machine without a GPU needs no check"
    try:
        _gpus.pick(
            _gpus.devices(), spec.gpu, spec.gpu_count, taken=(), share=True, any_kind=is_rented()
        )
    except HostUnsuitableError as error:
        raise HostUnsuitableError(
            f"{error}; request a GPU that it has, gpu=None (the CPU), or another provider"
        ) from None


def check(spec: MachineSpec) -> None:
    """Refuse an impossible spec, and warn if the host has fewer CPUs than requested.

    Raises:
        ProviderError: A number is out of range.
    """
    for name in ("lease", "timeout", "idle_timeout", "start_timeout", "memory", "disk", "cpus"):
        value: float | None = getattr(spec, name)
        if value is not None and value <= 0:
            raise ProviderError(f"{name}={value!r}: give a number above zero")
    if spec.gpu_count < 1:
        raise ProviderError(f"gpu_count={spec.gpu_count!r}: give one or more, or gpu=None")
    if spec.users and (spec.serves or spec.hidden or spec.gates):
        raise IsolationError(
            "users=True: a machine that serves or calls an interface, or hides a model, can have "
            "only one user"
        )
    if spec.users and _written(spec):
        raise IsolationError(
            "users=True: a machine with several users cannot write to host folders"
        )
    if isinstance(spec.network, tuple) and not spec.network:
        raise IsolationError("network=(): name hosts, or use 'none'")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if spec.cpus is not None and cores is not None and spec.cpus > cores:
        logger.warning("cpus=%g was requested; this machine has %d", spec.cpus, cores)
