"""The `container` backend: for a machine that is rented for one sandbox and is itself the boundary.

A vendor's container (Modal, RunPod) holds one sandbox and nothing else, and keeps it from all that
is outside. It seldom lets its root make namespaces or use Landlock, so what is left inside is to
keep the sandbox's programs from Seer's own: they run as an unprivileged user without capabilities
and without the calls that reach into other processes or the kernel. The keeper, which ends the
machine, stays root and out of their reach. `auto` chooses it only on a machine that its provider
has marked as such a one.

What it does not do: hide paths, or give a network of its own. With `network="none"` no internet
socket can be made at all.
"""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from seer.errors import IsolationError
from seer.isolation._limits import rlimits
from seer.isolation._policy import BackendName, Mount, Policy
from seer.isolation._system import JAIL_UIDS
from seer.isolation.backends._base import Backend, Launch, Need, in_view
from seer.isolation.backends._landlock import launcher_launch
from seer.isolation.backends._launch_order import Order
from seer.isolation.backends._seccomp import filter_program

MARK = Path("/etc/seer-rented")
"""A file that is there on machines that were rented for one sandbox. Only root can make it."""


def is_rented() -> bool:
    """Whether this machine was rented for one sandbox and holds nothing else."""
    return MARK.exists()


_REFUSALS: dict[Need, str] = {
    "hidden": (
        "a rented container has no paths of its own to hide a model's origin behind; "
        "use a provider on which isolation='bubblewrap' works"
    ),
    "proxy": (
        "a rented container has no network of its own in which only the proxy can be reached; "
        "the provider's own network rules apply"
    ),
    "users": "only bubblewrap can give a jail users of its own; use isolation='bubblewrap'",
}


class Container(Backend):
    """Programs run as an unprivileged user of a machine that is theirs alone."""

    name: BackendName = "container"

    def unavailable(self) -> str | None:
        """Why it cannot be used here; None when it can."""
        if not sys.platform.startswith("linux") or os.geteuid() != 0:
            return "it needs the root of a Linux container, to become another user"
        return None

    def refuses(self, need: Need) -> str | None:
        """Why it must not be used where `need` matters."""
        return _REFUSALS.get(need)

    def view(self, mounts: Sequence[Mount]) -> dict[str, str]:
        """The machine's own paths."""
        return {mount.target: os.path.realpath(mount.source) for mount in mounts}

    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` as an unprivileged user; see `Backend.launch`.

        The folders that lead to the policy's mounts become passable to that user (not listable):
        in a machine that holds nothing else, they need not be closed to it.
        """
        if policy.network == "proxy":
            raise IsolationError(_REFUSALS["proxy"])
        uid = policy.uid or JAIL_UIDS[0]
        view = self.view(policy.mounts)
        for source in view.values():
            _let_pass(Path(source))
        order: Order = {
            "argv": [os.fsencode(item) for item in argv],
            "env": {os.fsencode(k): os.fsencode(v) for k, v in policy.env.items()},
            "cwd": os.fsencode(in_view(view, policy.cwd)),
            "rlimits": rlimits(policy.limits, own_count=True, own_user=True),
            "keep": list(policy.pass_fds),
            "uid": uid,
            "stage": None,
            "landlock": None,
            "filter": filter_program(
                "namespaced",
                internet=policy.network != "none",
                memory_files=policy.limits.memory_files,
                keep_cores=policy.limits.keep_cores,
            ),
        }
        return launcher_launch(order, policy, view)


def _let_pass(path: Path) -> None:
    for folder in path.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
