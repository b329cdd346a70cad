"""What a person sees in a terminal. The only importer of rich, and the only place that prints.

Agents, models and packages write much of what is shown, so every text passes one filter here:
`visible`, which writes control characters as escapes.
"""

from seer.console._output import (
    confirm,
    filtered_output,
    is_watched,
    log_to_terminal,
    say,
    say_json,
    table,
)
from seer.console._progress import Phase, Progress, current_phase, progress
from seer.console._status import status_line
from seer.errors import visible

__all__ = [
    "Phase",
    "Progress",
    "confirm",
    "current_phase",
    "filtered_output",
    "is_watched",
    "log_to_terminal",
    "progress",
    "say",
    "say_json",
    "status_line",
    "table",
    "visible",
]
