"""The `none` backend: no jail, at the user's request. Choosing it logs a warning.

Programs still get a clean environment, no inherited descriptors and resource limits, and they end
with their parent.
"""

from collections.abc import Sequence

from seer.errors import IsolationError
from seer.isolation._limits import rlimits
from seer.isolation._policy import BackendName, Policy
from seer.isolation.backends._base import Backend, Launch
from seer.isolation.backends._launch_order import launch_by_script


class NoJail(Backend):
    """Programs run as this user and can reach everything that this user can."""

    name: BackendName = "none"
    refusals = {
        "hidden": "without a jail nothing is hidden; use isolation='bubblewrap'",
        "proxy": "without a jail the network is the host's; use network='host', or a jail",
        "users": "only bubblewrap can give a jail users of its own; use isolation='bubblewrap'",
    }

    def probe(self) -> str | None:
        """None, because it needs nothing."""
        return None

    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` without a jail; see `Backend.launch`."""
        if policy.network == "proxy":
            raise IsolationError(self.refusals["proxy"])
        limits = rlimits(policy.limits, own_count=False, own_user=True)
        return launch_by_script(policy, argv, view=self.view(policy.mounts), limits=limits)
