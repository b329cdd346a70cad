"""What can go wrong with a container that stands in for a vendor's machine."""

from seer.errors import SeerError


class ContainerError(SeerError, OSError):
    """A stand-in for a vendor's machine could not be started or used on this host."""
