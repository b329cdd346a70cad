"""The `local` provider: machines are jailed process trees on this host."""

from seer.providers.local._provider import LocalProvider, launch

__all__ = ["LocalProvider", "launch"]
