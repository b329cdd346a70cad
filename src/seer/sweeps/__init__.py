"""Many runs of one experiment: agents, tool sets, models and seeds crossed, and what came of it.

A sweep runs the experiment's own program once per cell, each in a process and a folder of its own.
What happened is a journal on disk, so a sweep that was killed goes on where it stopped.

    # in the experiment
    cell = current_cell()
    ...
    report(score=1.0)

    # around it
    sweep = run("main.py", Matrix(agents=["claude", "openai"], seeds=5), folder="sweeps/first")
"""

from seer.sweeps._cell import Cell, current_cell, report
from seer.sweeps._here import Here
from seer.sweeps._journal import Attempt, Outcome
from seer.sweeps._matrix import Matrix
from seer.sweeps._place import Place
from seer.sweeps._plot import plot
from seer.sweeps._policy import Retry
from seer.sweeps._ray import Ray
from seer.sweeps._results import SweepResult, read_sweep
from seer.sweeps._run import Progress, arun, run, set_concurrency
from seer.sweeps._summary import Difference, Group, Summary, summarize

__all__ = [
    "Attempt",
    "Cell",
    "Difference",
    "Group",
    "Here",
    "Matrix",
    "Outcome",
    "Place",
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
