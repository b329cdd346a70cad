"""The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them; CUDA is not asked."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def visible_gpus(environment: Mapping[str, str], devices: str = "/dev") -> list[str]:
    """The names of the GPUs, in their order; none where there are none.

    Args:
        environment: The process's.
        devices: Where device files are.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        found: list[str] = []
        for name in named.split(","):
            if name.strip() in ("", "-1", "NoDevFiles"):
                # As CUDA reads it: what follows a name that is none does not count.
                break
            found.append(name.strip())
        return found
    try:
        files = os.listdir(devices)  # noqa: PTH208 (import time)
    except OSError:
        return []
    # However the files are numbered, CUDA numbers what it sees from 0 on.
    count = sum(name.startswith("nvidia") and name[6:].isdigit() for name in files)
    return [str(i) for i in range(count)]


def least_used(gpus: list[str], used: Iterable[str | None]) -> str | None:
    """The GPU for one more copy, given those of the others; None where there are no GPUs."""
    taken = list(used)
    return min(gpus, key=taken.count) if gpus else None
