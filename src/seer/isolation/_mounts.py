"""A policy's mounts, checked and with their sources resolved: the same for every backend."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seer.errors import IsolationError
from seer.isolation._masks import PACKAGE, inside, own_paths
from seer.isolation._policy import Mount, Policy


@dataclass(frozen=True)
class Resolved:
    """A mount that was checked."""

    source: str
    """The real path, without symbolic links."""
    target: str
    writable: bool


def resolve_mounts(policy: Policy) -> list[Resolved]:
    """The policy's mounts, outer targets first.

    Raises:
        IsolationError: A target that cannot be, a source that is missing or must stay invisible.
    """
    found: list[Resolved] = []
    for mount in sorted(policy.mounts, key=lambda mount: mount.target):
        _check_target(mount, found)
        source = os.path.realpath(mount.source)
        if not os.path.lexists(source):
            raise IsolationError(
                f"mount source {str(mount.source)!r} (for {mount.target!r}) does not exist; "
                f"make it first"
            )
        _check_source(source, mount, policy.masked)
        found.append(Resolved(source, mount.target, mount.writable))
    return found


def _check_target(mount: Mount, earlier: Sequence[Resolved]) -> None:
    target = mount.target
    if not target.startswith("/") or os.path.normpath(target) != target or target == "/":
        raise IsolationError(
            f"mount target {target!r} must be an absolute, normal path other than '/'"
        )
    for other in earlier:
        if target == other.target:
            raise IsolationError(f"two mounts have the target {target!r}; give each its own")
        # What is in a writable folder may be hostile: a planted link would redirect the mount.
        if other.writable and inside(target, other.target):
            raise IsolationError(
                f"mount target {target!r} lies inside the writable mount {other.target!r}; "
                f"choose a target outside it"
            )


def _check_source(source: str, mount: Mount, masked: Sequence[Path]) -> None:
    """A folder inside Seer's checkout may be mounted (experiments keep their workspaces there), the
    checkout as a whole and anything of the package may not."""
    for path in masked:
        if inside(source, os.path.realpath(path)):
            raise IsolationError(
                f"mount of {str(mount.source)!r} at {mount.target!r} contradicts the policy, "
                f"which masks {str(path)!r}; mount something else, or do not mask it"
            )
    if inside(source, str(PACKAGE)) or any(source == str(path) for path in own_paths()):
        raise IsolationError(
            f"mount of {str(mount.source)!r} at {mount.target!r} would show Seer's own files "
            f"to the jail; mount another folder"
        )
