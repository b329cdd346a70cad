"""Options for machines that are reached with SSH."""

import shlex
from dataclasses import dataclass

from seer.errors import ConfigError
from seer.providers._options import options_from

PREFIX = "SEER_SSH_"


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """Options for `provider="ssh"`. Missing options come from variables such as `SEER_SSH_HOST`."""

    host: str = ""
    """A host name, or an alias from the SSH configuration."""
    user: str = ""
    port: int = 0
    """0 means the SSH configuration's port, or 22."""
    config: str = ""
    """The SSH configuration file; empty means `~/.ssh/config`."""
    identity: str = ""
    """A private key file; empty means the SSH configuration's keys, the agent's, or the usual
    files."""
    known_hosts: str = ""
    """A known-hosts file; empty means the SSH configuration's. Host keys are always checked."""
    root: str = ""
    """Seer's folder on the host; empty means `~/.seer`."""
    python: str = ""
    """The Python interpreter on the host, 3.11 or newer; empty means the first one found."""
    launcher: str = ""
    """A command to start machines with, such as `srun --gres=gpu:1`."""
    share_gpus: bool = False
    """Whether a machine may get a GPU that is in use."""
    price_per_hour: float = 0.0
    """US dollars per hour for a machine, for listings and records; 0 for none."""
    connect_timeout: float = 20.0
    """The most seconds for connecting, and for logging in."""
    models: str = ""
    """A folder on the host that already has models: by name, or in the hub cache's layout."""


def read_options(given: object) -> SshOptions:
    """Read a configuration's options, and complete them from the environment.

    Args:
        given: None, a mapping, or `SshOptions`.

    Raises:
        ConfigError: There is no such option, or a value has the wrong type.
    """
    options = options_from(SshOptions, given, vendor="ssh", prefix=PREFIX)
    if not options.host:
        reason = f"no host is named; set {PREFIX}HOST or provider_options['host']"
        raise ConfigError("provider_options['host']", "", reason)
    try:
        shlex.split(options.launcher)
    except ValueError as error:
        raise ConfigError(
            "provider_options['launcher']", options.launcher, f"is not a command line: {error}"
        ) from None
    return options
