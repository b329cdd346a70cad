"""The `none` backend: no jail, because the user asked for none. It warns.

What is left: a clean environment, no inherited descriptors, rlimits, and an end with the parent.
"""

import os
from collections.abc import Sequence

from seer.errors import IsolationError
from seer.isolation._limits import rlimits
from seer.isolation._policy import BackendName, Mount, Policy
from seer.isolation.backends._base import Backend, Launch, Need, in_view
from seer.isolation.backends._landlock import launcher_launch
from seer.isolation.backends._launch_order import Order

_REFUSALS: dict[Need, str] = {
    "hidden": "without a jail nothing is hidden; use isolation='bubblewrap'",
    "proxy": "without a jail the network is the host's; use network='host', or a jail",
    "users": "only bubblewrap can give a jail users of its own; use isolation='bubblewrap'",
}


class NoJail(Backend):
    """Programs run as this user, with everything this user can reach."""

    name: BackendName = "none"

    def unavailable(self) -> str | None:
        """Nothing: it asks for nothing."""
        return None

    def refuses(self, need: Need) -> str | None:
        """Why no jail must not be used where `need` matters."""
        return _REFUSALS.get(need)

    def view(self, mounts: Sequence[Mount]) -> dict[str, str]:
        """The host's own paths."""
        return {mount.target: os.path.realpath(mount.source) for mount in mounts}

    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` without a jail; see `Backend.launch`."""
        if policy.network == "proxy":
            raise IsolationError(_REFUSALS["proxy"])
        view = self.view(policy.mounts)
        order: Order = {
            "argv": [os.fsencode(item) for item in argv],
            "env": {os.fsencode(k): os.fsencode(v) for k, v in policy.env.items()},
            "cwd": os.fsencode(in_view(view, policy.cwd)),
            "rlimits": rlimits(policy.limits, own_count=False, own_user=True),
            "keep": list(policy.pass_fds),
            "uid": None,
            "stage": None,
            "landlock": None,
            "filter": b"",
        }
        return launcher_launch(order, policy, view)
