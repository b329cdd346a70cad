"""Options of machines on a Ray cluster."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from seer.errors import ConfigError
from seer.providers._options import options_from


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Options for `provider="ray"`."""

    address: str = ""
    """`host:port` of the cluster's head, or `auto` for the cluster on this machine; empty means
    `RAY_ADDRESS`. Without either, Seer starts a Ray cluster on this machine, which ends with the
    program."""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Custom resources that a sandbox uses, by the names that the cluster's nodes declare."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels that the node must have, in the syntax of Ray's label selectors."""
    node: str = ""
    """The id of the node to use, or a prefix of it; if empty, Ray chooses."""
    cpus: float = 1.0
    """Ray CPUs for a sandbox whose configuration has no `cpus`."""
    root: str = ""
    """Seer's folder on the nodes; empty means `~/.seer`."""
    python: str = ""
    """The Python interpreter on the nodes, 3.11 or newer; empty means Ray's own."""
    models: str = ""
    """A folder on the nodes that already has models: by name, or in the hub cache's layout."""
    price_per_hour: float = 0.0
    """US dollars per hour for a sandbox, for listings and records; 0 for none."""


def read_options(given: object) -> RayOptions:
    """Read a configuration's options, and complete them from the environment.

    Raises:
        ConfigError: There is no such option, or a value is not valid.
    """
    options = options_from(RayOptions, given, vendor="ray")
    address = options.address or os.environ.get("RAY_ADDRESS", "").strip()
    if address.startswith("ray://"):
        raise ConfigError(
            "provider_options['address']",
            address,
            "is an address of Ray Client, through which nodes cannot be reached; run on a machine "
            "of the cluster and give the head's host:port",
        )
    for name in ("resources", "labels"):
        if not isinstance(getattr(options, name), Mapping):
            value: object = getattr(options, name)
            raise ConfigError(f"provider_options[{name!r}]", value, "must be a mapping")
    for name in ("cpus", "price_per_hour"):
        number: float = getattr(options, name)
        if not _is_number(number) or number < 0:
            raise ConfigError(f"provider_options[{name!r}]", number, "must be a number, 0 or more")
    for name, amount in options.resources.items():
        if not _is_number(amount) or amount <= 0:
            where = f"provider_options['resources'][{name!r}]"
            raise ConfigError(where, amount, "must be a number above zero")
        if name in ("CPU", "GPU", "memory"):
            where = f"provider_options['resources'][{name!r}]"
            raise ConfigError(where, amount, "is set by cpus, gpu_count and memory")
    return replace(options, address=address)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
