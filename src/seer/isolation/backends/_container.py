"""The `container` backend: for a rented machine that holds one sandbox and is itself the boundary.

A vendor's container (Modal, RunPod) isolates the sandbox from everything outside. Its root user can
rarely create namespaces or use Landlock. So this backend only separates the sandbox's programs from
Seer's: they run as an unprivileged user without capabilities, and without the system calls that
reach into other processes or the kernel. The keeper, which ends the machine, stays root, and they
cannot reach it. `auto` chooses this backend only on machines that their provider has marked.

The backend does not hide paths and has no network namespace. With `network="none"`, programs cannot
create internet sockets.
"""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from seer.errors import IsolationError
from seer.isolation._limits import rlimits
from seer.isolation._policy import BackendName, Policy
from seer.isolation._system import JAIL_UIDS
from seer.isolation.backends._base import Backend, Launch
from seer.isolation.backends._launch_order import launch_by_script
from seer.isolation.backends._seccomp import filter_program

MARK = Path("/etc/seer-rented")
"""This file exists on machines that were rented for one sandbox. Only root can create it."""


def is_rented() -> bool:
    """Whether this machine was rented for one sandbox and holds nothing else."""
    return MARK.exists()


class Container(Backend):
    """Programs run as an unprivileged user of a machine that holds only this sandbox."""

    name: BackendName = "container"
    refusals = {
        "hidden": (
            "a rented container cannot hide a model's origin, because it shows the host's paths; "
            "use a provider on which isolation='bubblewrap' works"
        ),
        "proxy": (
            "a rented container has no network namespace from which only the proxy can be reached; "
            "the provider's own network rules apply"
        ),
        "users": "only bubblewrap can give a jail users of its own; use isolation='bubblewrap'",
    }

    def probe(self) -> str | None:
        """Why this backend cannot be used here; None if it can."""
        if not sys.platform.startswith("linux") or os.geteuid() != 0:
            return "it needs to be root in a Linux container, to become another user"
        return None

    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` as an unprivileged user; see `Backend.launch`.

        It lets that user traverse, but not list, the folders above the policy's mounts. The machine
        holds nothing else, so the folders need not be closed.
        """
        if policy.network == "proxy":
            raise IsolationError(self.refusals["proxy"])
        view = self.view(policy.mounts)
        for source in view.values():
            _let_pass(Path(source))
        return launch_by_script(
            policy,
            argv,
            view=view,
            limits=rlimits(policy.limits, own_count=True, own_user=True),
            uid=policy.uid or JAIL_UIDS[0],
            system_calls=filter_program(
                "namespaced",
                internet=policy.network != "none",
                memory_files=policy.limits.memory_files,
                keep_cores=policy.limits.keep_cores,
            ),
        )


def _let_pass(path: Path) -> None:
    for folder in path.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
