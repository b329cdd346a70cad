"""Sandboxes: machines with models, packages and repositories, whole or scoped to functions."""

from seer import _name_conflict as _name_conflict
from seer.environment._handles import ModelHandle, RepoHandle
from seer.environment._sandbox import Output, Sandbox
from seer.environment._scoped import ScopedSandbox
from seer.environment.config._config import (
    ExecutionMode,
    ModelConfig,
    RepoConfig,
    SandboxConfig,
)
from seer.environment.serving._description import (
    CopyDescription,
    FunctionDescription,
    InterfaceDescription,
    InterfaceUsage,
)

__all__ = [
    "CopyDescription",
    "ExecutionMode",
    "FunctionDescription",
    "InterfaceDescription",
    "InterfaceUsage",
    "ModelConfig",
    "ModelHandle",
    "Output",
    "RepoConfig",
    "RepoHandle",
    "Sandbox",
    "SandboxConfig",
    "ScopedSandbox",
]
