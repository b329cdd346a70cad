"""What a person sees in a terminal. The only importer of rich, and the only place that prints."""

from seer.console._output import say, table
from seer.console._progress import Phase, Progress, current_phase, progress
from seer.console._status import status_line

__all__ = ["Phase", "Progress", "current_phase", "progress", "say", "status_line", "table"]
