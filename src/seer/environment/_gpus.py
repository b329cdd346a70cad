"""The GPU names a configuration may use, in one spelling for all providers.

A provider maps these names to its vendor's own. This table says nothing about which of them a
provider has, or what they cost.
"""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_gib: int
    """Memory of one device, in GiB as vendors state it."""


_TABLE = (
    Gpu("T4", 16),
    Gpu("V100", 16),
    Gpu("P100", 16),
    Gpu("L4", 24),
    Gpu("A10", 24),
    Gpu("A10G", 24),
    Gpu("A30", 24),
    Gpu("A40", 48),
    Gpu("L40", 48),
    Gpu("L40S", 48),
    Gpu("A100", 40),
    Gpu("A100-40GB", 40),
    Gpu("A100-80GB", 80),
    Gpu("H100", 80),
    Gpu("H100-NVL", 94),
    Gpu("GH200", 96),
    Gpu("H200", 141),
    Gpu("B200", 180),
    Gpu("B300", 288),
    Gpu("RTX3090", 24),
    Gpu("RTX4090", 24),
    Gpu("RTX5090", 32),
    Gpu("RTX4000-Ada", 20),
    Gpu("RTX6000-Ada", 48),
    Gpu("RTXA4000", 16),
    Gpu("RTXA5000", 24),
    Gpu("RTXA6000", 48),
    Gpu("RTXPRO6000", 96),
    Gpu("MI300X", 192),
)

GPUS = {gpu.name: gpu for gpu in _TABLE}
"""Every known GPU by name."""


def suggest_gpu(name: str) -> str | None:
    """The known GPU whose name is nearest to `name`, or None when nothing is near."""
    plain = {_plain(known): known for known in GPUS}
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return "".join(c for c in name.upper() if c.isalnum())
