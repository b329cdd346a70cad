"""The jail in which packages are fetched and built: other people's code may run there.

It sees an interpreter, uv, the package sources and its own folders, but no other files of the user.
If packages come from the network, it reaches the index server and nothing else.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence

from seer.environment._process import Finished, run_program
from seer.environment.packages._index_server import IndexServer
from seer.errors import IsolationUnavailableError, PackageError
from seer.isolation import JAIL_UIDS, Backend, JailLimits, Mount, Policy, choose, interpreter_env
from seer.isolation._mounts import in_view
from seer.isolation.backends._container import is_rented

_UID = JAIL_UIDS[-1]
"""The user id of builds that root starts. Machines use the other ids of the block."""
PYTHON = "/seer/python"
"""Where a build finds the interpreter; mount it there with `interpreter_mounts`."""
_INDEX = "/seer/index"
_LIMITS = JailLimits(processes=1024, file_size=64 << 30)
_SPARE = 512 << 20
_CHOOM = "/usr/bin/choom"


class BuildJail:
    """The jail of one build: what it sees, and where."""

    def __init__(
        self,
        *,
        mounts: Sequence[Mount],
        env: Mapping[str, str],
        path_env: Mapping[str, str],
        index: IndexServer | None,
    ) -> None:
        """Choose a backend; nothing runs yet.

        Args:
            mounts: What the jail sees.
            env: The jail's environment.
            path_env: Variables whose values are paths below a mount's target.
            index: The only server that the jail can reach; None for no network.

        Raises:
            IsolationUnavailableError: No kind of jail on this machine can enforce this.
        """
        self._backend = _choose(index)
        self._index = index
        self._mounts = tuple(mounts)
        if index is not None:
            self._mounts += (Mount(index.folder, _INDEX),)
        self._writable = [mount.source for mount in mounts if mount.writable]
        self._view = self._backend.view(self._mounts)
        self._env = {
            **{name: self.translate(value) for name, value in env.items()},
            **{name: self.path(target) for name, target in path_env.items()},
            **interpreter_env(PYTHON, self._view),
        }

    def path(self, target: str) -> str:
        """The path at which the jail sees `target`: a mount's target, or a path below one."""
        return in_view(self._view, target)

    def translate(self, text: str) -> str:
        """`text` with the targets of mounts replaced by the paths at which the jail sees them."""
        return _replace_paths(text, self._view)

    def restore(self, text: str) -> str:
        """Undo `translate`."""
        return _replace_paths(text, {seen: target for target, seen in self._view.items()})

    @property
    def has_shared_memory(self) -> bool:
        """Whether programs in it can use `multiprocessing`."""
        return self._backend.name == "bubblewrap"

    def set(self, name: str, value: str) -> None:
        """Add a variable to the jail's environment."""
        self._env[name] = value

    async def run(
        self, argv: Sequence[str], *, on_stderr: Callable[[str], None] | None = None
    ) -> Finished:
        """Run a program in the jail; paths in `argv` must come from `path`."""
        root = os.geteuid() == 0
        if root:
            for folder in self._writable:
                os.chown(folder, _UID, _UID)
        network = "none"
        if self._index is not None:
            network = "host" if is_rented() else "proxy"
            forward = (self.path(f"{_INDEX}/forward.py"), self.path(f"{_INDEX}/socket"))
            python = self.path(f"{PYTHON}/bin/python3")
            argv = [python, "-I", "-S", *forward, str(self._index.port), *argv]
        policy = Policy(
            mounts=self._mounts,
            env=self._env,
            network=network,
            limits=_LIMITS,
            uid=_UID if root else None,
        )
        launch = self._backend.launch(policy, argv)
        try:
            running = run_program(
                # If memory runs out, the kernel kills a build first.
                [*_first_victim(), *launch.argv],
                env=launch.env,
                pass_fds=launch.pass_fds,
                on_stderr=on_stderr,
            )
            return await self._unless_disk_fills(running)
        finally:
            launch.close()

    async def _unless_disk_fills(self, running: Coroutine[object, object, Finished]) -> Finished:
        task = asyncio.ensure_future(running)
        try:
            while not (await asyncio.wait({task}, timeout=1.0))[0]:
                where = self._writable[0]
                if shutil.disk_usage(where).free < _SPARE:
                    raise PackageError(
                        f"the build was stopped: less than {_SPARE >> 20} MiB are free on the "
                        f"disk of {str(where)!r}; free some space, or do without the package"
                    )
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _first_victim() -> Sequence[str]:
    """A command prefix that makes the kernel kill a program first when memory runs out."""
    # Some containers show /proc read-only.
    usable = os.access(_CHOOM, os.X_OK) and os.access("/proc/self/oom_score_adj", os.W_OK)
    return (_CHOOM, "-n", "1000", "--") if usable else ()


def _choose(index: IndexServer | None) -> Backend:
    # A rented container holds one sandbox, and cannot give a jail its own network.
    if index is None or is_rented():
        return choose("auto")
    try:
        return choose("auto", needs=frozenset({"proxy"}))
    except IsolationUnavailableError as error:
        raise IsolationUnavailableError(
            "packages from an index are fetched in a jail that can reach only the index. This "
            "needs bubblewrap; install it (Debian, Ubuntu: `apt install bubblewrap`), or install "
            "the packages in Seer's own environment, which Seer reuses without a jail"
        ) from error


def _replace_paths(text: str, view: Mapping[str, str]) -> str:
    if not view:
        return text
    # Mounts with unchanged paths count too: they may be below a mount whose path changed.
    longest_first = "|".join(re.escape(old) for old in sorted(view, key=len, reverse=True))
    # Whole paths only, on their own or in a file:// address.
    pattern = rf"(?:(?<=://)|(?<![\w./-]))({longest_first})(?![\w.-])"
    return re.sub(pattern, lambda match: view[match[1]], text)
