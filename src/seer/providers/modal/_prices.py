"""The prices of Modal's machines. Modal has no API for them, so this is a table with a date."""

from seer.providers._gpus import spelled_by

PRICES_OF = "2026-06-27"
"""The day when the table was compared with Modal's pricing page."""
_GPU_SECOND = {
    "T4": 0.000164,
    "L4": 0.000222,
    "A10": 0.000306,
    "A10G": 0.000306,
    "L40S": 0.000542,
    "A100": 0.000583,
    "A100-40GB": 0.000583,
    "A100-80GB": 0.000694,
    "RTX-PRO-6000": 0.000842,
    "H100": 0.001097,
    "H100!": 0.001097,
    "H200": 0.001261,
    "B200": 0.001736,
    "B200+": 0.001736,
}
GPUS = tuple(_GPU_SECOND)
"""Modal's names of its GPUs."""
_CORE_SECOND = 0.00003942
"""The price of a sandbox's physical core. Sandboxes cost more than functions."""
_GIB_SECOND = 0.00000672
_CORES, _GIB = 0.125, 0.125
"""The cores and GiB that a sandbox reserves by default."""


def price_per_second(
    gpu: str | None, count: int, *, cores: float | None, memory: int | None
) -> float | None:
    """US dollars per second for a reservation; None for a GPU that is not in the table."""
    base = (cores or _CORES) * _CORE_SECOND
    base += (memory / (1 << 30) if memory else _GIB) * _GIB_SECOND
    if gpu is None:
        return base
    unit = _GPU_SECOND.get(spelled_by(gpu, GPUS))
    return None if unit is None else base + unit * count
