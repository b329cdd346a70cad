"""Between a run of an agent and its record: what is written when."""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from seer.errors import SeerError
from seer.harness._agent import Agent, AgentRequest
from seer.harness._events import Event, FinishReason, RunFinished, raw_json
from seer.harness._request import SessionLike, open_sessions
from seer.isolation import read_bytes
from seer.runs import (
    CallCollector,
    RecordedGate,
    RecordError,
    Redactor,
    RunRecord,
    Tracing,
    runs_root,
)

logger = logging.getLogger(__name__)

_SECRET_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE)


class Recording:
    """The record of one run, or none where the user wants none."""

    def __init__(self, where: bool | Path | str, *, name: str | None) -> None:
        self._root = None if where is False else runs_root(None if where is True else where)
        self._name = name
        self._record: RunRecord | None = None
        self._collector: CallCollector | None = None
        self._totals: dict[str, Any] = {}
        self._tracing = Tracing()
        self._broken = False
        self._notebook: Path | None = None
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
                "program": {"argv": sys.argv, "cwd": str(Path.cwd())},
            },
            redactor=Redactor((*agent.secrets(request), *_environment_secrets())),
        )
        self.folder = self._record.folder
        self._notebook = getattr(session, "notebook_path", None)
        if self._notebook is not None:
            self._record.update({"notebook": str(self._notebook)})
        self._collector = CallCollector(
            self._record, wanted=_own_callers(session), on_call=self._tracing.call
        )
        self._collector.follow(_gates(session))

    def event(self, event: Event) -> None:
        """Write one event."""
        data = event.to_json()
        self._tracing.event(data)
        if self._record is None or self._broken:
            return
        if event.raw is not None and (raw := raw_json(event.raw)) is not None:
            data["raw"] = raw
        try:
            self._record.event(data)
        except RecordError:
            # The run ends because of this; what it still has to say must not fail again.
            self._broken = True
            raise
        if isinstance(event, RunFinished):
            self._totals = {
                "result": event.result,
                "turns": event.turns,
                "tool_calls": event.tool_calls,
                "tokens": event.tokens,
                "cost_usd": event.cost_usd,
            }

    def limits(self, limits: Mapping[str, float | None]) -> None:
        """Note limits that were changed while the run runs."""
        if self._record is not None:
            self._record.update({"limits": limits})

    async def settle(self) -> None:
        """Take the last calls of the gates, which write theirs down with a delay."""
        if self._collector is not None:
            await self._collector.stop()
        if self._record is not None and self._notebook is not None:
            self._keep_notebook(self._record, self._notebook)

    def _keep_notebook(self, record: RunRecord, path: Path) -> None:
        try:
            # Others write into that folder too, so no link in it is followed.
            content = read_bytes(path.parent, path.name)
            record.artifact("notebook.ipynb", content.decode("utf-8", "surrogateescape"))
        except (OSError, SeerError) as error:
            logger.warning("the notebook %s is not in the record: %s", path, error)

    def close(self, reason: FinishReason, message: str) -> None:
        """End the record."""
        if self._record is None:
            return
        try:
            self._record.close(reason, {"message": message, **self._totals})
        except RecordError:
            if not self._broken:
                raise
            logger.exception("the record of a run could not be closed")


def _gates(session: SessionLike | None) -> list[RecordedGate]:
    """The served interfaces whose calls belong into the record."""
    workspace = getattr(session, "workspace", None)
    libraries: Sequence[Any] = getattr(workspace, "libraries", ())
    found: list[Any] = [library.gate for library in libraries]
    # Nobody serves an interface who has not imported the package.
    environment = sys.modules.get("seer.environment")
    found += getattr(environment, "recorded_gates", list)()
    gates = {id(gate): gate for gate in found if hasattr(gate, "read_blob")}
    return list(gates.values())


def _own_callers(session: SessionLike | None) -> Callable[[str], bool]:
    """Whose calls belong into the record: all but those of other sessions."""
    others = [
        re.compile(re.sub(r"[^A-Za-z0-9_.-]", "-", other.name)[:60] + r"-\d+")
        for other in open_sessions()
        if session is not None and other.session_id != session.session_id
    ]
    return lambda caller: not any(pattern.fullmatch(caller) for pattern in others)


def _environment_secrets() -> tuple[str, ...]:
    """Values of variables, also in `.env`, that by their name are credentials of this user."""
    given: dict[str, str | None] = {**os.environ}
    file = Path(".env")
    if file.is_file():
        given = {**dotenv_values(file, interpolate=False), **given}
    return tuple(value for name, value in given.items() if value and _SECRET_NAMES.search(name))
