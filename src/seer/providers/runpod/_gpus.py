"""Which of RunPod's GPUs a name stands for, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from seer.errors import UnknownGpuError
from seer.providers._gpus import is_kind
from seer.providers.runpod._api import request

_QUERY = """
query GpuTypes($price: GpuLowestPriceInput) {
  gpuTypes {
    id
    displayName
    memoryInGb
    securePrice
    communityPrice
    lowestPrice(input: $price) { uninterruptablePrice stockStatus }
  }
}
"""


@dataclass(frozen=True)
class GpuOffer:
    """A kind of GPU that RunPod rents out."""

    id: str
    name: str
    memory: int
    price: float | None
    """US dollars per hour for one; None where RunPod names none."""
    in_stock: bool


async def offers(count: int, *, cloud: str) -> list[GpuOffer]:
    """All kinds of GPU, with today's prices."""
    data = await request(_QUERY, {"price": {"gpuCount": count}}, repeat=True)
    found = cast("list[dict[str, Any]]", data.get("gpuTypes") or [])
    return [_offer(each, cloud) for each in found]


def _offer(found: dict[str, Any], cloud: str) -> GpuOffer:
    secure, community = found.get("securePrice"), found.get("communityPrice")
    price = secure if cloud == "SECURE" else community or secure
    lowest = cast("dict[str, Any]", found.get("lowestPrice") or {})
    return GpuOffer(
        found["id"],
        found.get("displayName") or found["id"],
        found.get("memoryInGb") or 0,
        float(price) if price else None,
        bool(lowest.get("uninterruptablePrice")),
    )


def choose(wanted: str, found: Sequence[GpuOffer]) -> list[GpuOffer]:
    """The offers that a name stands for: those in stock first, then the cheapest.

    RunPod's own name is taken as it is. `A100` stands for every A100, `A100-80GB` for those with
    80 GB.

    Raises:
        UnknownGpuError: There is none; the message names those there are.
    """
    exact = [offer for offer in found if wanted in (offer.id, offer.name)]
    fitting = exact or [
        offer
        for offer in found
        if any(is_kind(wanted, name, memory_gib=offer.memory) for name in (offer.id, offer.name))
    ]
    if not fitting:
        names = ", ".join(sorted(offer.name for offer in found))
        raise UnknownGpuError(f"gpu={wanted!r}: RunPod has {names}")
    return sorted(fitting, key=lambda o: (not o.in_stock, o.price is None, o.price or 0.0))
