"""Machines, wherever they come from: one small protocol, and the providers that keep it."""

from seer.providers._base import Host, Machine, Provider
from seer.providers._bundle import bundle
from seer.providers._gpus import GPUS, suggest_gpu
from seer.providers._registry import (
    DEFAULT,
    get_provider,
    is_default_provider,
    provider_names,
    resolve_provider,
    why_unavailable,
)
from seer.providers._spec import (
    ExecResult,
    FileKind,
    FileStatus,
    Layout,
    MachineSpec,
    MachineStatus,
    Network,
    OnOutput,
    Stream,
    TerminalSize,
)
from seer.providers.client._exec import CAPTURE_LIMIT
from seer.providers.client._parts import Channel, Listener, Process, Way
from seer.providers.local._record import is_mounted

__all__ = [
    "CAPTURE_LIMIT",
    "DEFAULT",
    "GPUS",
    "Channel",
    "ExecResult",
    "FileKind",
    "FileStatus",
    "Host",
    "Layout",
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
    "Way",
    "bundle",
    "get_provider",
    "is_default_provider",
    "is_mounted",
    "provider_names",
    "resolve_provider",
    "suggest_gpu",
    "why_unavailable",
]
