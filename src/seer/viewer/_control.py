"""The page's buttons that change a running run, in the terms of `seer.harness`."""

from collections.abc import Mapping
from typing import Any

from seer.errors import ConfigError
from seer.harness import control_run
from seer.runs import Run

_ACTIONS = {"stop", "conclude", "message", "limits", "approve"}


def control(run: Run, asked: Mapping[str, Any]) -> None:
    """Do what a request asks for.

    Raises:
        ConfigError: It asks for something that does not exist, or in the wrong form.
        RunControlError: The run does not run any more, or cannot be reached.
    """
    action = asked.get("action")
    if action not in _ACTIONS:
        raise ConfigError("action", action, f"must be one of {sorted(_ACTIONS)}")
    control_run(
        run.folder,
        action,
        text=asked.get("text"),
        limits=asked.get("limits"),
        call=asked.get("call"),
        approved=asked.get("approved", False),
    )
