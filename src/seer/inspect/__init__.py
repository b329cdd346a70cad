"""Seer in Inspect evaluations: sandboxes as `sandbox="seer"`, and served functions as tools.

This needs the extra `inspect`. Inspect finds the sandbox through an entry point, so a task does not
import this package for it. `seer.runs.export_inspect` writes Inspect logs.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seer.inspect._sandbox import SeerConfig, SeerSandboxEnvironment
    from seer.inspect._tools import tools

__all__ = ["SeerConfig", "SeerSandboxEnvironment", "tools"]


def __getattr__(name: str) -> object:
    # Imported on use: Inspect takes seconds to import, and may not be installed.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seer.errors import MissingExtraError

    module = "_tools" if name == "tools" else "_sandbox"
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error}; install Inspect with: pip install 'seer-interp[inspect]'"
        ) from error
