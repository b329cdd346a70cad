"""The `ssh` provider: machines on hosts that you can log in to."""

from seer.providers.ssh._provider import SshOptions, SshProvider, options_at, place_of

__all__ = ["SshOptions", "SshProvider", "options_at", "place_of"]
