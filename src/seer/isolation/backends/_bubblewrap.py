"""The `bubblewrap` backend: a jail of Linux namespaces, built by the `bwrap` program.

As root, bwrap keeps the host's user namespace, so that it can mount folders that only root can
reach. `setpriv` in the jail then becomes an unprivileged user permanently. As an ordinary user,
bwrap makes a user namespace. Its arguments are in a memory file, because every user can read the
process list.

The jail's programs run outside the mount namespace in which their files are mounted. The first
program opens the root of that namespace, moves to a copy of the namespace, and uses the opened root
as its own. Programs notice no difference, but their mount tables, which would show where each
folder is on the host's disk, are empty. A shell stays as process 1 to keep the first namespace
alive.
"""

import os
import shlex
import shutil
from collections.abc import Sequence

from seer.errors import IsolationError, IsolationUnavailableError
from seer.isolation._limits import (
    namespace_limits,
    prlimit_arguments,
    rlimits,
    shared_rlimits,
)
from seer.isolation._mounts import masks_within, resolve_mounts
from seer.isolation._policy import BackendName, Mount, Policy, Users
from seer.isolation._system import HOSTNAME, JAIL_UIDS, USERS_AGENT, SystemView, system_view
from seer.isolation.backends._base import Backend, Launch, Need, memory_file
from seer.isolation.backends._seccomp import filter_program

_SETPRIV = "/usr/bin/setpriv"
_PRLIMIT = "/usr/bin/prlimit"
_ENV = "/usr/bin/env"
_UNSHARE = "/usr/bin/unshare"
_SHELL = "/bin/sh"
_ENTER = (
    "exec {ns}</proc/self/ns/mnt {root}</ || exit 125; "
    'exec {unshare} --mount --propagation unchanged --root=/proc/self/fd/{root} -- "$@"'
)
# The shell's standard error is /dev/null: the shell would otherwise report there that a signal
# ended a child.
_FIRST = 'exec {root}>&2 2>/dev/null; (exec "$@" 2>&{root} {root}>&- {ns}<&-); exit $?'
# For a jail with several users, see `Users`. The jail's own user creates the namespace, because the
# kernel charges the namespace's owner for its resources. Root writes the id map. This happens
# before the first program changes its root, because the kernel allows no new user namespace after
# that.
_MAKE_USERS = (
    "{hold} & pid=$!; while read x </proc/$pid/uid_map; do "
    'read p n state r </proc/$pid/stat; [ "$state" != Z ] || exit 125; done; '
    "printf '{ids}' >/proc/$pid/gid_map && printf '{ids}' >/proc/$pid/uid_map "
    "&& exec {users}</proc/$pid/ns/user || exit 125; "
    'kill -9 $pid; wait; exec "$@"'
)
_ENTER_USERS = 'echo 0 >/proc/sys/user/max_user_namespaces || exit 125; exec {users}<&-; exec "$@"'
_SETS = ("inh-caps", "ambient-caps", "bounding-set")
_NSENTER = "/usr/bin/nsenter"
_SLEEP = "/usr/bin/sleep"
_USERS_CAPABILITIES = [
    *("+chown", "+dac_override", "+fowner", "+fsetid", "+kill", "+setgid", "+setuid"),
]
_INNER_UID = USERS_AGENT
_PROBE = ("/usr/bin/cat", "/proc/self/status", "/proc/self/net/dev")
_INSTALL = "install it with your package manager (Debian, Ubuntu: `apt install bubblewrap`)"


class Bubblewrap(Backend):
    """Jails in Linux namespaces."""

    name: BackendName = "bubblewrap"

    @property
    def covers(self) -> bool:
        """Always: a jail has its own file system tree."""
        return True

    def probe(self) -> str | None:
        """Why bwrap cannot be used here, and the fix; None if it works."""
        if os.uname().sysname != "Linux":
            return "bubblewrap needs Linux; use a remote provider, or a Linux machine"
        if _find() is None:
            return f"bwrap is not on PATH; {_INSTALL}"
        tools = (_PRLIMIT, _SETPRIV, _UNSHARE, _ENV, _SHELL, _PROBE[0])
        missing = [tool for tool in tools if not os.access(tool, os.X_OK)]
        if missing:
            return f"{', '.join(missing)} missing; install util-linux and coreutils"
        try:
            done = self.run_trial(_PROBE)
        except IsolationUnavailableError:
            raise
        except IsolationError as error:
            return f"{error}; {_INSTALL}"
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            return f"bwrap failed ({said or f'exit {done.returncode}'}); {_advice(said)}"
        loose = _unconfined(done.stdout.decode(errors="replace"))
        if loose:
            return f"bwrap ran, but did not confine the program ({loose}); {_INSTALL}"
        return None

    def refuses(self, need: Need) -> str | None:
        """Refuse several users if Seer is not root. Namespaces meet every other need."""
        if need == "users" and os.geteuid() != 0:
            return "only root can give a jail several user ids; start Seer as root"
        return None

    def view(self, mounts: Sequence[Mount]) -> dict[str, str]:
        """The targets themselves, because a jail has its own file system tree."""
        return {mount.target: mount.target for mount in mounts}

    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` under bwrap; see `Backend.launch`."""
        program = _find()
        if program is None:
            raise IsolationError(f"bwrap is not on PATH; {_INSTALL}")
        root = os.geteuid() == 0
        uid = (policy.uid or JAIL_UIDS[0]) if root else _INNER_UID
        if policy.users is not None and (not root or policy.uid is None):
            raise IsolationError("a jail with several users needs root, and a user id of its own")
        inner = uid if policy.users is None else _INNER_UID
        system = system_view(policy, uid=inner, gid=inner)
        own = root and policy.uid is not None
        values = rlimits(policy.limits, own_count=own or not root, own_user=own)
        # Change to the folder inside the jail, because only the jail's user may be able to enter
        # it.
        program_line = [_ENV, "--chdir", policy.cwd, _PRLIMIT, *prlimit_arguments(values), *argv]
        inner_argv = _enter(policy, program_line, root, uid)
        before: list[str] = []
        if not root:
            before = [_PRLIMIT, *prlimit_arguments(shared_rlimits(policy.limits))]
        fds: list[int] = []
        try:
            arguments = _Arguments(fds)
            _namespaces(arguments, policy, root=root)
            if policy.users is not None:
                arguments.add("--bind", str(policy.users.etc), "/etc")
                arguments.taken("/etc")
            _system(arguments, system, writable_etc=policy.users is not None)
            _mounts(arguments, policy, system)
            arguments.add("--remount-ro", "/", "--chdir", "/", "--clearenv")
            for key, value in policy.env.items():
                arguments.add("--setenv", key, value)
            program_filter = filter_program(
                "namespaced",
                enters=True,
                users=policy.users is not None,
                memory_files=policy.limits.memory_files,
                keep_cores=policy.limits.keep_cores,
            )
            arguments.add("--seccomp", arguments.file("seer-filter", program_filter))
            block = b"\0".join(os.fsencode(text) for text in arguments.items) + b"\0"
            fd = memory_file("seer-args", block)
            fds.append(fd)
        except BaseException:
            for opened in fds:
                os.close(opened)
            raise
        return Launch(
            argv=(*before, program, "--args", str(fd), "--", *inner_argv),
            env={},
            pass_fds=(*fds, *policy.pass_fds),
            own_fds=fds,
        )


class _Arguments:
    """A list of bwrap arguments under construction, and the memory files that they refer to."""

    def __init__(self, fds: list[int]) -> None:
        self.items: list[str] = []
        self._fds = fds
        self._folders = {"/"}

    def add(self, *items: str) -> None:
        if any("\0" in item for item in items):
            raise IsolationError(f"a jail's arguments cannot hold NUL characters: {items[0]!r}")
        self.items += items

    def file(self, name: str, content: bytes) -> str:
        fd = memory_file(name, content)
        self._fds.append(fd)
        return str(fd)

    def parents(self, path: str) -> None:
        """Make the folders above `path`; bwrap itself would make them private to root."""
        end = path.find("/", 1)
        while end != -1:
            self.folder(path[:end])
            end = path.find("/", end + 1)

    def folder(self, path: str) -> None:
        if path not in self._folders:
            self._folders.add(path)
            self.add("--perms", "0755", "--dir", path)

    def taken(self, path: str) -> None:
        """Record that `path` is a mount, so that no folder is made there."""
        self._folders.add(path)


def _namespaces(arguments: _Arguments, policy: Policy, *, root: bool) -> None:
    arguments.add("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    if policy.network != "host":
        arguments.add("--unshare-net")
    arguments.add("--cap-drop", "ALL")
    for name in ("SETPCAP", "SYS_ADMIN", "SYS_CHROOT"):
        arguments.add("--cap-add", f"CAP_{name}")
    if root:
        arguments.add("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        if policy.users is not None:
            # These assign ids in another user's namespace, open it, and kill the process that held
            # it.
            for name in ("DAC_OVERRIDE", "KILL", "SYS_PTRACE"):
                arguments.add("--cap-add", f"CAP_{name}")
    else:
        arguments.add("--unshare-user", "--disable-userns", "--cap-add", "CAP_SYS_RESOURCE")
        arguments.add("--uid", str(_INNER_UID), "--gid", str(_INNER_UID))
    # Do not use bwrap's own process 1, which would stay in the namespace that must be hidden. As
    # root, process 1 must belong to root: when bwrap's parent process dies, bwrap has no
    # capabilities left, and the kernel lets it signal only processes of root.
    arguments.add("--as-pid-1", "--hostname", HOSTNAME, "--die-with-parent", "--new-session")


def _enter(policy: Policy, argv: Sequence[str], root: bool, uid: int) -> list[str]:
    """The commands that run in the jail before `argv`; see the top of this file."""
    spare = [number for number in range(9, 2, -1) if number not in policy.pass_fds]
    if len(spare) < 3:
        raise IsolationError(
            "a jail needs three of the descriptors 3 to 9 itself; pass it other descriptors"
        )
    names = {"ns": spare[0], "root": spare[1], "users": spare[2], "unshare": _UNSHARE}
    enter = _ENTER.format_map(names)
    first = [_SHELL, "-c", _FIRST.format_map(names), "sh"]
    if policy.users is not None:
        hold = shlex.join([_SETPRIV, *_as_user(uid), _UNSHARE, "--user", _SLEEP, "1000"])
        ids = _ids(policy.users, uid)
        make = _MAKE_USERS.format(hold=hold, ids=ids, users=spare[2])
        return [
            *(_SHELL, "-c", make, "sh"),
            _SETPRIV,
            *(f"--{kind}=-dac_override,-kill,-sys_ptrace" for kind in _SETS),
            *(_SHELL, "-c", enter, "sh", *first),
            *(_NSENTER, f"--user=/proc/self/fd/{spare[2]}", "--"),
            *(_SHELL, "-c", _ENTER_USERS.format_map(names), "sh"),
            *(_SETPRIV, *_as_user(0), "--inh-caps=-all", "--ambient-caps=-all"),
            *("--bounding-set=" + ",".join(["-all", *_USERS_CAPABILITIES]), "--no-new-privs"),
            *argv,
        ]
    if root:
        return [_SHELL, "-c", enter, "sh", *first, *_drop_privileges(uid), *argv]
    settings = namespace_limits(policy.limits)
    written = "".join(f"echo {n} >/proc/sys/user/{name}; " for name, n in settings.items())
    drop = [_SETPRIV, "--bounding-set=-all", "--ambient-caps=-all", "--inh-caps=-all"]
    return [
        _SHELL,
        "-c",
        "set -e; " + written + enter,
        "sh",
        *drop,
        "--no-new-privs",
        *first,
        *argv,
    ]


def _system(arguments: _Arguments, system: SystemView, *, writable_etc: bool) -> None:
    for path in system.read_only:
        arguments.parents(path)
        arguments.add("--ro-bind", path, path)
        arguments.taken(path)
        for hidden in system.hidden:
            if hidden.startswith(path + "/") and os.path.isdir(hidden):  # noqa: PTH112 (hot path)
                arguments.add("--perms", "0755", "--tmpfs", hidden)
                arguments.taken(hidden)
    for target, path in system.links:
        arguments.parents(path)
        arguments.add("--symlink", target, path)
    for path, content in () if writable_etc else system.files.items():
        arguments.parents(path)
        arguments.add("--perms", "0644", "--file")
        arguments.add(arguments.file("seer-file", content.encode()), path)
    arguments.add("--proc", "/proc", "--dev", "/dev")
    arguments.add("--perms", "1777", "--size", str(system.shm_bytes), "--tmpfs", "/dev/shm")
    for path in system.gpu_devices:
        arguments.add("--dev-bind", path, path)
    arguments.add("--remount-ro", "/dev")


def _mounts(arguments: _Arguments, policy: Policy, system: SystemView) -> None:
    frozen = list(filter(os.path.isdir, system.hidden))
    for path in system.read_only:
        frozen += _mask(arguments, path, path)
    for mount in resolve_mounts(policy):
        arguments.parents(mount.target)
        arguments.add("--bind" if mount.writable else "--ro-bind", mount.source, mount.target)
        arguments.taken(mount.target)
        frozen += _mask(arguments, mount.source, mount.target)
    # This comes last, because mounts inside a masked folder need it to be writable.
    for path in frozen:
        arguments.add("--remount-ro", path)


def _mask(arguments: _Arguments, source: str, target: str) -> list[str]:
    """Cover the paths that must be invisible. Returns the covered folders."""
    folders: list[str] = []
    for relative, is_folder in masks_within(source):
        path = f"{target.rstrip('/')}/{relative}"
        if is_folder:
            arguments.add("--perms", "0755", "--tmpfs", path)
            folders.append(path)
        else:
            arguments.add("--perms", "0444", "--ro-bind-data")
            arguments.add(arguments.file("seer-mask", b""), path)
    return folders


def _as_user(uid: int) -> list[str]:
    return ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]


def _drop_privileges(uid: int) -> list[str]:
    return [
        *(_SETPRIV, *_as_user(uid)),
        *("--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"),
    ]


def _ids(users: Users, uid: int) -> str:
    """The id map of a jail's user namespace, as an argument of `printf`."""
    inside = {0: users.root, _INNER_UID: uid}
    inside |= {_INNER_UID + 1 + number: other for number, other in enumerate(users.others)}
    return "".join(f"{inner} {outer} 1\\n" for inner, outer in inside.items())


def _find() -> str | None:
    found = shutil.which("bwrap")
    return found if found is not None and found.startswith("/") else None


def _unconfined(output: str) -> str | None:
    """The protections that are missing according to the probe's output."""
    fields = dict(line.split(":\t", 1) for line in output.splitlines() if ":\t" in line)
    expected = {"NSpid": ("1", "2"), "NoNewPrivs": ("1",), "Seccomp": ("2",)}
    wrong = [key for key, values in expected.items() if fields.get(key) not in values]
    wrong += [key for key in ("CapEff", "CapPrm", "CapBnd") if int(fields.get(key, "1"), 16)]
    interfaces = [line.split(":")[0].strip() for line in output.splitlines() if ": " in line]
    if set(interfaces) - {"lo"}:
        wrong.append("network")
    return ", ".join(wrong) or None


def _advice(said: str) -> str:
    if os.geteuid() == 0:
        return (
            "root in a container needs CAP_SYS_ADMIN for bwrap (for example "
            "`docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined`)"
        )
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts user namespaces: give bwrap a profile with `userns,` or set "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    if _sysctl("kernel/unprivileged_userns_clone") == "0":
        return "user namespaces are disabled: `sysctl kernel.unprivileged_userns_clone=1`"
    if _sysctl("user/max_user_namespaces") == "0":
        return "user namespaces are disabled: `sysctl user.max_user_namespaces=10000`"
    if "nknown option" in said:
        return "bubblewrap 0.8 or newer is needed"
    return "ordinary users must be allowed to create user namespaces"


def _sysctl(name: str) -> str | None:
    try:
        with open(f"/proc/sys/{name}", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return None
