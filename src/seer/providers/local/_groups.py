"""Removes control groups that machines left behind. It finds them by record or by name."""

import contextlib
import hashlib
import os
import secrets
from functools import cache
from pathlib import Path

from seer.isolation._cgroup import Cgroup, create
from seer.providers.local._record import machines_dir


def group_prefix() -> str:
    """The prefix of the control groups of this state folder's machines."""
    return f"seer-{hashlib.sha256(os.fsencode(machines_dir())).hexdigest()[:8]}-"


def remove_group(machine: Path) -> None:
    """Kill and remove the groups that the `group` file in a machine's folder names.

    Raises:
        OSError: A process in a group does not die.
    """
    with contextlib.suppress(FileNotFoundError):
        folders = (machine / "group").read_text().splitlines()
        _end(Cgroup([folder for folder in folders if os.path.isdir(folder)]))  # noqa: PTH112


@cache
def group_refusal() -> str | None:
    """Why this user's machines get no control groups; None if they do."""
    try:
        probe = create(f"{group_prefix()}{_probe_name()}")
    except OSError as error:
        return str(error)
    probe.remove()
    return None


def remove_unrecorded_groups() -> None:
    """Remove groups whose machine was killed before it could record them."""
    prefix = group_prefix()
    try:
        probe = create(f"{prefix}{_probe_name()}")
    except OSError:
        return  # no control groups are available here, so none were left
    probe.remove()
    for parent in {Path(folder).parent for folder in probe.folders}:
        for folder in parent.glob(f"{prefix}*"):
            if not _is_in_use(folder.name.removeprefix(prefix)):
                with contextlib.suppress(OSError):
                    _end(Cgroup([str(folder)]))


def _probe_name() -> str:
    return f"probe-{os.getpid()}-{secrets.token_hex(4)}"


def _is_in_use(name: str) -> bool:
    if name.startswith("probe-"):
        # A process created it to find the parent group, and may have been killed before removing
        # it.
        return Path("/proc", name.split("-")[1]).exists()
    return (machines_dir() / name).exists()


def _end(group: Cgroup) -> None:
    group.kill()
    group.remove()
