"""The resources that a machine needs from a cluster, and messages while it waits for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seer.errors import HostUnsuitableError
from seer.providers._gpus import is_kind
from seer.providers._spec import MachineSpec
from seer.providers.ray._options import RayOptions

_KIND = "accelerator_type:"
STARTING = "Ray has found a node, and starts a worker on it"
_SCHEDULED = ("CPU", "GPU", "memory")


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """The resources of one machine, in Ray's terms."""

    cpus: float
    gpus: int
    memory: int
    kind: str
    """Ray's name of the GPU's kind; empty for any, or none."""
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    node: str

    def request(self) -> dict[str, object]:
        """As plain data, for the driver."""
        return {
            "cpus": self.cpus,
            "gpus": self.gpus,
            "memory": self.memory,
            "kind": self.kind,
            "resources": dict(self.resources),
            "labels": dict(self.labels),
            "node": self.node,
        }

    def totals(self) -> dict[str, float]:
        """The amount of each of Ray's resources."""
        taken = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory, **self.resources}
        return {name: amount for name, amount in taken.items() if amount}


def resources_of(
    spec: MachineSpec, options: RayOptions, nodes: Sequence[Mapping[str, float]]
) -> ResourceRequest:
    """The resources that a spec needs.

    Args:
        spec: What is to be started.
        options: The provider's options.
        nodes: The resources of the cluster's nodes, all of them.

    Raises:
        HostUnsuitableError: The cluster has no GPU of the kind.
    """
    return ResourceRequest(
        cpus=options.cpus if spec.cpus is None else spec.cpus,
        gpus=spec.gpu_count if spec.gpu is not None else 0,
        memory=spec.memory or 0,
        kind="" if spec.gpu is None else _kind_of(spec.gpu, nodes),
        resources=options.resources,
        labels=options.labels,
        node=options.node,
    )


def _kind_of(gpu: str, nodes: Sequence[Mapping[str, float]]) -> str:
    """Ray's name for a kind of GPU: the most frequent of those that match."""
    there: dict[str, float] = {}
    for node in nodes:
        for name in node:
            if name.startswith(_KIND) and node.get("GPU", 0):
                kind = name.removeprefix(_KIND)
                there[kind] = there.get(kind, 0.0) + node["GPU"]
    fitting = {kind: count for kind, count in there.items() if is_kind(gpu, kind)}
    if fitting:
        return max(fitting, key=lambda kind: fitting[kind])
    names = ", ".join(f"{kind} ({count:g})" for kind, count in sorted(there.items()))
    raise HostUnsuitableError(
        f"gpu={gpu!r} was asked for; the Ray cluster has: {names or 'no GPU of a known kind'}"
    )


def describe_waiting(wants: ResourceRequest, seen: Mapping[str, Any]) -> str:
    """One line about a machine that waits for resources.

    Args:
        wants: What it waits for.
        seen: `free` and `largest` (resource -> amount, in the cluster and of one node), and
            `waiting` (how many requests wait in the cluster).
    """
    if not seen["waiting"]:
        return STARTING
    asked = wants.totals()
    free: Mapping[str, float] = seen["free"]
    largest: Mapping[str, float] = seen["largest"]
    shown = [*(name for name in _SCHEDULED if name in asked), *sorted(wants.resources)]
    needs = ", ".join(_amount(name, asked[name]) for name in shown) or "room"
    has = ", ".join(_amount(name, free.get(name, 0.0)) for name in shown)
    words = f"Ray: waiting for {needs}; free in the cluster: {has or 'nothing'}"
    waiting = int(seen["waiting"])
    words += f"; {waiting} wait{'s' if waiting == 1 else ''} in the cluster"
    small = [name for name in shown if largest.get(name, 0.0) < asked[name]]
    if small:
        most = ", ".join(_amount(name, largest.get(name, 0.0)) for name in small)
        words += f"; no node is as large (the largest has {most})"
    return words


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / (1 << 30):.1f} GiB"
    return f"{amount:g} {name}"
