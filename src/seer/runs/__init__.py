"""The record of a run: write it, read it, find it, export it, run it again."""

import importlib
from typing import TYPE_CHECKING

from seer.runs._calls import GateCall
from seer.runs._compare import Comparison, compare_runs
from seer.runs._index import RunFilter, RunIndex, RunSummary
from seer.runs._info import RunInfo
from seer.runs._reader import Run, delete_run, open_run
from seer.runs._record import RunRecord, new_run_id, runs_root

if TYPE_CHECKING:
    from seer.runs.export._arrays import export_arrays
    from seer.runs.export._inspect import export_inspect
    from seer.runs.replay._provider import ReplayProvider, replay_environment

__all__ = [
    "Comparison",
    "GateCall",
    "ReplayProvider",
    "Run",
    "RunFilter",
    "RunIndex",
    "RunInfo",
    "RunRecord",
    "RunSummary",
    "compare_runs",
    "delete_run",
    "export_arrays",
    "export_inspect",
    "new_run_id",
    "open_run",
    "replay_environment",
    "runs_root",
]

_MODULES = {
    "ReplayProvider": "replay._provider",
    "export_arrays": "export._arrays",
    "export_inspect": "export._inspect",
    "replay_environment": "replay._provider",
}


def __getattr__(name: str) -> object:
    # These import machines and the gate's wire, which most programs that write records do not need.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
