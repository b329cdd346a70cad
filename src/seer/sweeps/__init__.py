"""Sweeps: one experiment, run for every combination of agents, tool sets, models and seeds.

A sweep runs the experiment's program once per cell (one combination), each time in its own process
and folder. It keeps a journal on disk, so a sweep that was killed continues where it stopped.

    # in the experiment
    cell = current_cell()
    ...
    report(score=1.0)

    # around it
    sweep = run("main.py", Matrix(agents=["claude", "openai"], seeds=5), folder="sweeps/first")
"""

from seer.sweeps._cell import Cell, current_cell, report
from seer.sweeps._executor import Executor, Local
from seer.sweeps._journal import Attempt
from seer.sweeps._matrix import Matrix
from seer.sweeps._ray import Ray
from seer.sweeps._results import SweepResult, read_sweep
from seer.sweeps._run import Progress, Retry, arun, run, set_concurrency
from seer.sweeps._summary import Summary, plot, summarize

__all__ = [
    "Attempt",
    "Cell",
    "Executor",
    "Local",
    "Matrix",
    "Progress",
    "Ray",
    "Retry",
    "Summary",
    "SweepResult",
    "arun",
    "current_cell",
    "plot",
    "read_sweep",
    "report",
    "run",
    "set_concurrency",
    "summarize",
]
