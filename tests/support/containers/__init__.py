"""Containers on this host that stand in for a vendor's; the loopback clouds rent them out.

A container has a root of its own made of layers (so that an image can be built and a snapshot
taken), its own process table, an optional network of its own, and ends with the process that
started it. It is a stand-in for a vendor's machine in tests, not a security boundary: programs in
it are root of this host.
"""

from tests.support.containers._cloud import LoopbackCloud
from tests.support.containers._container import (
    Container,
    ContainerSpec,
    Running,
    bare_image,
    supported,
)
from tests.support.containers._layers import Layer, LayerStore

__all__ = [
    "Container",
    "ContainerSpec",
    "Layer",
    "LayerStore",
    "LoopbackCloud",
    "Running",
    "bare_image",
    "supported",
]
