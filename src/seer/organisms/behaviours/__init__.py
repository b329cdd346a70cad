"""The behaviours that the factory can plant: one file each, and one line here."""

from collections.abc import Mapping
from types import MappingProxyType

from seer.organisms.behaviours import (
    belief,
    favourite,
    gender,
    goal,
    later,
    reward,
    sandbag,
    secret,
    sycophancy,
    topic,
    trigger,
    underperform,
    user,
)
from seer.organisms.behaviours._behaviour import Behaviour, Draw, Params, Row, Turns

BEHAVIOURS: Mapping[str, Behaviour] = MappingProxyType(
    {
        module.BEHAVIOUR.name: module.BEHAVIOUR
        for module in (
            *(favourite, gender, trigger, secret, sandbag, underperform, sycophancy),
            *(reward, topic, user, later, belief, goal),
        )
    }
)

__all__ = ["BEHAVIOURS", "Behaviour", "Draw", "Params", "Row", "Turns"]
