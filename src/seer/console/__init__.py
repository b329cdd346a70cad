"""Terminal output. This package is the only one that imports rich, and the only one that prints.

Agents, models and packages write much of the text that is shown. So every text passes the filter
`visible`, which replaces control characters by escapes.
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
from seer.console._progress import Phase, Phases, current_phase, progress
from seer.console._status import status_line
from seer.errors import visible

__all__ = [
    "Phase",
    "Phases",
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
