"""Which GPUs of a host a new machine gets: free ones only, unless sharing was asked for.

A GPU is free when no machine of this host has it and no process computes on it, whoever's it is.
Runs on the host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from dataclasses import dataclass

from seer.errors import CapacityError, HostUnsuitableError

_QUERY = ("--query-gpu=index,uuid,name", "--format=csv,noheader")
_USED = ("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")


@dataclass(frozen=True)
class Gpu:
    """A GPU of the host."""

    index: int
    name: str
    busy: bool
    """Whether some process computes on it."""


def look() -> list[Gpu]:
    """The GPUs of this host; empty where there is no NVIDIA driver."""
    listed = _ask(*_QUERY)
    if listed is None:
        return []
    used = {line.partition(",")[0].strip() for line in _ask(*_USED) or ()}
    gpus: list[Gpu] = []
    for line in listed:
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and parts[0].isdigit():
            gpus.append(Gpu(int(parts[0]), parts[2], parts[1] in used))
    return gpus


def _ask(*arguments: str) -> list[str] | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def pick(
    gpus: Collection[Gpu], wanted: str, count: int, *, taken: Collection[int], share: bool
) -> tuple[int, ...]:
    """The GPUs for a new machine.

    Args:
        gpus: Those of the host.
        wanted: What kind, as configurations spell it.
        count: How many.
        taken: Those that machines of this host have.
        share: Whether GPUs that are taken or busy will do.

    Raises:
        HostUnsuitableError: The host does not have as many of this kind.
        CapacityError: It has, but they are in use.
    """
    fitting = [gpu for gpu in gpus if fits(wanted, gpu.name)]
    if len(fitting) < count:
        there = ", ".join(gpu.name for gpu in gpus) or "no NVIDIA GPU"
        raise HostUnsuitableError(
            f"gpu={wanted!r} (gpu_count={count}) was asked for; this host has: {there}"
        )
    free = [gpu for gpu in fitting if gpu.index not in taken and not gpu.busy]
    if share:
        free += [gpu for gpu in fitting if gpu not in free]
    if len(free) < count:
        ours = sum(gpu.index in taken for gpu in fitting)
        theirs = sum(gpu.busy and gpu.index not in taken for gpu in fitting)
        raise CapacityError(
            f"{count} free {wanted} wanted, {len(free)} of {len(fitting)} free: "
            f"{ours} in use by sandboxes, {theirs} by other processes"
        )
    return tuple(gpu.index for gpu in free[:count])


def fits(wanted: str, name: str) -> bool:
    """Whether a GPU's full name is of the kind that a configuration names."""
    plain = _plain(name)
    return all(_plain(part) in plain for part in wanted.split("-"))


def _plain(text: str) -> str:
    return "".join(c for c in text.upper() if c.isalnum())
