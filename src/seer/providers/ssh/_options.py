"""Options of machines that are reached with SSH."""

import shlex
from dataclasses import dataclass

from seer.errors import ConfigError
from seer.providers._options import options_from

PREFIX = "SEER_SSH_"


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """Options of `provider="ssh"`. Missing ones come from variables such as `SEER_SSH_HOST`."""

    host: str = ""
    """A host name, or an alias of the SSH configuration."""
    user: str = ""
    port: int = 0
    """0 is the SSH configuration's, or 22."""
    config: str = ""
    """The SSH configuration; empty is `~/.ssh/config`."""
    identity: str = ""
    """A private key; empty is the SSH configuration's, the agent's, or the usual files."""
    known_hosts: str = ""
    """Keys of known hosts; empty is the SSH configuration's. They are always checked."""
    root: str = ""
    """The folder there that holds everything of Seer's; empty is `~/.seer`."""
    python: str = ""
    """The interpreter there, 3.11 or newer; empty is the first that is found."""
    launcher: str = ""
    """A command to start machines with, such as `srun --gres=gpu:1`."""
    share_gpus: bool = False
    """Whether a machine may get a GPU that is in use."""
    price_per_hour: float = 0.0
    """US dollars, for listings and records; 0 for none."""
    connect_timeout: float = 20.0
    """Seconds that connecting and logging in may take."""
    models: str = ""
    """A folder there that holds models already: by name, or in the layout of the hub's cache."""


def read_options(given: object) -> SshOptions:
    """Options from the configuration, completed from the environment.

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
