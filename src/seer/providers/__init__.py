"""Machines from any source: one small protocol, and the providers that implement it."""

from seer.providers._base import Host, Machine, Provider
from seer.providers._gpus import GPUS
from seer.providers._registry import (
    DEFAULT,
    get_provider,
    provider_names,
    resolve_provider,
    why_unavailable,
)
from seer.providers._spec import (
    ExecResult,
    FileStatus,
    MachineSpec,
    MachineStatus,
    Network,
    OnOutput,
    Stream,
    TerminalSize,
)
from seer.providers.client._interfaces import Channel, Listener, Process

__all__ = [
    "DEFAULT",
    "GPUS",
    "Channel",
    "ExecResult",
    "FileStatus",
    "Host",
    "Listener",
    "Machine",
    "MachineSpec",
    "MachineStatus",
    "Network",
    "OnOutput",
    "Process",
    "Provider",
    "Stream",
    "TerminalSize",
    "get_provider",
    "provider_names",
    "resolve_provider",
    "why_unavailable",
]
