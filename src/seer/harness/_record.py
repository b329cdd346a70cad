"""Between a run of an agent and its record: what is written when."""

import os
from pathlib import Path
from typing import Any

from seer.harness._agent import Agent, AgentRequest
from seer.harness._events import Event, FinishReason, RunFinished, raw_json
from seer.harness._request import SessionLike
from seer.runs import Redactor, RunRecord, runs_root

_KEY_WORDS = ("_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_ACCESS_KEY")


class Recording:
    """The record of one run, or none where the user wants none."""

    def __init__(self, where: bool | Path | str, *, name: str | None, started: float) -> None:
        self._root = None if where is False else runs_root(None if where is True else where)
        self._name = name
        self._started = started
        self._record: RunRecord | None = None
        self._totals: dict[str, Any] = {}
        self.folder: Path | None = None

    def open(self, agent: Agent, request: AgentRequest, *, session: SessionLike | None) -> None:
        """Start the record.

        Raises:
            RecordError: It cannot be written.
        """
        if self._root is None:
            return
        self._record = RunRecord.create(
            self._root,
            request.run_id,
            meta={
                "name": self._name or (session.name if session is not None else ""),
                "provider": agent.name,
                "asked_provider": request.provider,
                "model": agent.model_name(request),
                "task": request.task,
                "system_prompt": request.system_prompt,
                "session": session.session_id if session is not None else None,
                "limits": request.limits.as_dict(),
            },
            redactor=Redactor((*agent.secrets(request), *_environment_secrets())),
        )
        self.folder = self._record.folder

    def event(self, event: Event) -> None:
        """Write one event."""
        if self._record is None:
            return
        data = event.to_json()
        if event.raw is not None and (raw := raw_json(event.raw)) is not None:
            data["raw"] = raw
        self._record.event(data)
        if isinstance(event, RunFinished):
            self._totals = {
                "result": event.result,
                "turns": event.turns,
                "tool_calls": event.tool_calls,
                "tokens": event.tokens,
                "cost_usd": event.cost_usd,
            }

    def close(self, reason: FinishReason, message: str) -> None:
        """End the record."""
        if self._record is not None:
            self._record.close(reason, {"message": message, **self._totals})


def _environment_secrets() -> tuple[str, ...]:
    """Values of variables that by their name hold credentials of this user."""
    return tuple(
        value for name, value in os.environ.items() if value and name.upper().endswith(_KEY_WORDS)
    )
