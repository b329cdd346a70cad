"""Seer in evaluations of Inspect: its sandboxes as `sandbox="seer"`, served functions as tools.

Needs the extra `inspect`. Inspect finds the sandbox by an entry point, without an import of this.
Logs of runs are written by `seer.runs.export_inspect`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seer.inspect._sandbox import SeerConfig, SeerSandboxEnvironment
    from seer.inspect._tools import tools

__all__ = ["SeerConfig", "SeerSandboxEnvironment", "tools"]


def __getattr__(name: str) -> object:
    # Inspect takes seconds to import, and may not be installed.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seer.errors import MissingExtraError

    try:
        if name == "tools":
            from seer.inspect._tools import tools

            return tools
        from seer.inspect import _sandbox
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error}; install Inspect with: pip install 'seer-interp[inspect]'"
        ) from error
    return getattr(_sandbox, name)
