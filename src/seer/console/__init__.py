"""Terminal output. This package is the only one that imports rich, and the only one that prints.

Agents, models and packages write much of the text that is shown. So every text passes the filter
`visible`, which replaces control characters by escapes.
"""

from seer.console._output import confirm, say, say_json, table
from seer.console._progress import progress
from seer.errors import visible

__all__ = [
    "confirm",
    "progress",
    "say",
    "say_json",
    "table",
    "visible",
]
