"""Which part of a matrix the second suite runs; the campaign runs the rest."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def part(names: Iterable[str], chosen: Container[str]) -> list[Any]:
    """All names as parameters of a test; those that are not chosen run only in the campaign."""
    return [
        name if name in chosen else pytest.param(name, marks=pytest.mark.campaign) for name in names
    ]
