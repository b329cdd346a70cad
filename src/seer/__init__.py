"""Seer gives an AI agent a model to study: a whole machine, or only the functions that you choose.

The main names are available here, such as `seer.Sandbox` and `seer.run_agent`. Each is imported on
its first use, so `import seer` takes almost no time.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.environment import (
        ExecutionMode,
        ModelConfig,
        RepoConfig,
        Sandbox,
        SandboxConfig,
        ScopedSandbox,
    )
    from seer.execution import create_cli_session, create_local_session, create_notebook_session
    from seer.harness import Limits, run_agent, run_agent_interactive
    from seer.rpc import Budget, Handle, expose
    from seer.workspace import Library, Skill, Workspace

__all__ = [
    "Budget",
    "ExecutionMode",
    "Handle",
    "Library",
    "Limits",
    "ModelConfig",
    "RepoConfig",
    "Sandbox",
    "SandboxConfig",
    "ScopedSandbox",
    "Skill",
    "Workspace",
    "create_cli_session",
    "create_local_session",
    "create_notebook_session",
    "expose",
    "run_agent",
    "run_agent_interactive",
]

__version__ = "0.1.0"
__distribution__ = "seer-interp"

_PACKAGES = {
    "environment": (
        *("ExecutionMode", "ModelConfig", "RepoConfig"),
        *("Sandbox", "SandboxConfig", "ScopedSandbox"),
    ),
    "execution": ("create_cli_session", "create_local_session", "create_notebook_session"),
    "harness": ("Limits", "run_agent", "run_agent_interactive"),
    "rpc": ("Budget", "Handle", "expose"),
    "workspace": ("Library", "Skill", "Workspace"),
}


def __getattr__(name: str) -> object:
    for package, names in _PACKAGES.items():
        if name in names:
            import importlib

            value = getattr(importlib.import_module(f"seer.{package}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'seer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
