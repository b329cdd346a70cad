"""The record of a run: write it, read it, find it, export it, run it again."""

from typing import TYPE_CHECKING

from seer.runs._calls import GateCall
from seer.runs._compare import Comparison, compare_runs
from seer.runs._index import RunFilter, RunIndex, RunSummary
from seer.runs._info import RunInfo
from seer.runs._places import new_run_id, runs_root
from seer.runs._reader import Run, delete_run, open_run
from seer.runs._record import RunRecord

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

_REPLAY = {"ReplayProvider", "replay_environment"}


def __getattr__(name: str) -> object:
    # These import machines and the gate's wire, which most programs that write records do not need.
    if name in _REPLAY:
        from seer.runs.replay import _provider as _replay_provider

        return getattr(_replay_provider, name)
    if name == "export_inspect":
        from seer.runs.export._inspect import export_inspect

        return export_inspect
    if name == "export_arrays":
        from seer.runs.export._arrays import export_arrays

        return export_arrays
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
