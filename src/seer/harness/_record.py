"""Decides what a run of an agent writes to its record, and when."""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seer._redact import is_secret_name, register_secrets
from seer._settings import dotenv_file, read_dotenv
from seer.errors import RecordError, SeerError
from seer.events import Event, FinishReason, RunFinished
from seer.events._events import raw_json
from seer.harness._agent import Agent, AgentRequest
from seer.harness._request import SessionLike
from seer.harness._servers import ServerSpec
from seer.isolation import read_bytes
from seer.runs import Run, RunRecord, runs_root
from seer.runs._gate_calls import CallCollector, Followed
from seer.runs._info import Program, RunInfo
from seer.runs._tool_calls import ToolCalls
from seer.runs.export._tracing import Tracing
from seer.tools._sets import InterfaceTools

logger = logging.getLogger(__name__)

NAME_VARIABLE = "SEER_RUN_NAME"
"""Replaces the name that a program gives its runs; `seer run --name` sets it."""
_GENERATED = re.compile(r"[a-z]+-[0-9a-f]{6}")
"""A generated name of a session."""
_SHORTEST = 8
"""Shorter values of variables whose names sound secret are often ordinary words."""


class Recording:
    """The record of one run; does nothing if the user wants no record."""

    def __init__(self, where: bool | Path | str, *, name: str | None) -> None:
        self._root = None if where is False else runs_root(None if where is True else where)
        self._name = name
        self._record: RunRecord | None = None
        self._collector: CallCollector | None = None
        self._totals: dict[str, Any] = {}
        self._missing = ""
        self._tracing = Tracing()
        self.tool_calls = ToolCalls()
        """Maps the tokens that calls of the gate carry to the run's tool calls."""
        self._broken = False
        self._notebook: Path | None = None
        self._gates: list[Followed] = []
        self.folder: Path | None = None
        self.replayed: Run | None = None
        """The run whose machine is replayed; its artifacts become artifacts of this run."""

    def open(
        self,
        agent: Agent,
        request: AgentRequest,
        *,
        session: SessionLike | None,
        servers: Sequence[ServerSpec] = (),
    ) -> None:
        """Start the record.

        Raises:
            RecordError: It cannot be written.
        """
        if self._root is None:
            return
        register_secrets((*agent.secrets(request), *_environment_secrets()))
        self._record = RunRecord.create(
            self._root,
            request.run_id,
            meta=RunInfo(
                name=os.environ.get(NAME_VARIABLE) or self._name or _own_name(session),
                provider=agent.name,
                agent=request.agent,
                asked_provider=request.provider,
                model=agent.model_name(request),
                task=request.task,
                system_prompt=request.system_prompt,
                session=session.session_id if session is not None else None,
                limits=request.limits.as_dict(),
                program=Program(
                    argv=tuple(sys.argv), command=tuple(sys.orig_argv), cwd=str(Path.cwd())
                ),
                replay_of=os.environ.get("SEER_REPLAY") or None,
                fork_of=agent.fork_of,
                jail={} if session is None else session.about(),
                callers=dict(request.callers),
            ),
        )
        self.folder = self._record.folder
        self._notebook = None if session is None else session.notebook_path
        self._gates = _gates(session, servers)

    async def follow(self) -> None:
        """Ask the gates that the run can reach to record its calls.

        Raises:
            RecordError: The record cannot be written.
        """
        if self._record is None:
            return
        if self._notebook is not None:
            self._record.update(notebook=str(self._notebook))
        self._collector = CallCollector(
            self._record, on_call=self._tracing.call, tool_calls=self.tool_calls
        )
        await self._collector.follow(self._gates)

    def event(self, event: Event) -> None:
        """Write one event.

        Raises:
            RecordError: The event, or a call of a gate before it, cannot be written. This is raised
                once; later events are not recorded.
        """
        self._tracing.event(event)
        if self._record is None or self._broken:
            return
        data = event.to_json()
        if event.raw is not None and (raw := raw_json(event.raw)) is not None:
            data["raw"] = raw
        try:
            self._check_calls()
            self._record.event(data)
        except RecordError:
            # The run ends because of this; its last events must not fail again.
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

    def _check_calls(self) -> None:
        if self._collector is not None and self._collector.failure is not None:
            raise self._collector.failure

    def limits(self, limits: Mapping[str, float | None]) -> None:
        """Record limits that were changed during the run."""
        if self._record is not None:
            self._record.update(limits=limits)

    async def settle(self, running: str = "") -> str:
        """Record the last calls of the gates, which write them with a delay.

        Args:
            running: Code of the agent that could not be stopped; its next calls are missing.

        Returns:
            Which calls are missing from the record; empty if none are, or if the run already failed
            because the record cannot be written.

        Raises:
            RecordError: Something cannot be written.
        """
        missing = "" if self._collector is None else await self._collector.stop()
        if running:
            stuck = f"could not stop the code of session {running}"
            missing = f"{missing}; {stuck}" if missing else stuck
        if missing:
            self._missing = missing
        try:
            self._check_calls()
            self._keep_files()
        except RecordError as error:
            if not self._broken:
                self._broken = True
                raise
            logger.info("the record of a run is not complete: %s", error)
        return "" if self._broken else missing

    def _keep_files(self) -> None:
        """Copy the notebook into the record, or the artifacts of the replayed run."""
        if self._record is None:
            return
        if self.replayed is not None:
            for path in self.replayed.artifacts():
                content = (self.replayed.folder / "artifacts" / path).read_bytes()
                self._record.artifact(str(path), content)
        elif self._notebook is not None:
            path = self._notebook
            try:
                # Others can write to that folder, so links in it are not followed.
                text = read_bytes(path.parent, path.name).decode("utf-8", "surrogateescape")
            except (OSError, SeerError) as error:
                logger.warning("the notebook %s is not in the record: %s", path, error)
            else:
                self._record.artifact("notebook.ipynb", text)

    def close(self, reason: FinishReason, message: str) -> None:
        """End the record."""
        if self._record is None:
            return
        try:
            self._record.close(
                reason, {"message": message, "missing": self._missing, **self._totals}
            )
        except RecordError as error:
            if not self._broken:
                raise
            logger.info("the record of a run could not be closed: %s", error)


def _gates(session: SessionLike | None, servers: Sequence[ServerSpec]) -> list[Followed]:
    """The served interfaces that the run can reach, with the callers whose calls it records.

    These are the callers of its session and its tool servers, and the user's own script, without
    which the program could not run again from its record.
    """
    reached: dict[int, tuple[Any, set[str]]] = {}
    for library in () if session is None else session.workspace.libraries:
        gate: Any = library.gate
        if hasattr(gate, "follow"):
            reached[id(gate)] = (gate, set())
    for tools in (spec.tools for spec in servers):
        if isinstance(tools, InterfaceTools):
            reached.setdefault(id(tools.gate), (tools.gate, set()))[1].add(tools.caller)
    return [
        Followed(
            gate, _callers(gate.name, through_tools, session), prefix=f"{gate.name}-in-a-script-"
        )
        for gate, through_tools in reached.values()
    ]


def _callers(
    interface: str, through_tools: set[str], session: SessionLike | None
) -> Callable[[], Sequence[str]]:
    def callers() -> Sequence[str]:
        own = None if session is None else session.callers.get(interface)
        return sorted({*through_tools, *([own] if own else [])})

    return callers


def _own_name(session: SessionLike | None) -> str:
    """The session's name if the user chose it, else the name of the program's folder."""
    if session is not None and not _GENERATED.fullmatch(session.name):
        return session.name
    program = Path(sys.argv[0] if sys.argv else "").absolute()
    folder = program.parent.name if program.suffix == ".py" else ""
    if folder in ("site-packages", "dist-packages"):
        # This is the launcher of a notebook's kernel, whose current folder is the notebook's.
        folder = Path.cwd().name
    return folder or (session.name if session is not None else "")


def _environment_secrets() -> tuple[str, ...]:
    """Values of variables, also in `.env`, whose names sound like credentials."""
    given = {**read_dotenv(dotenv_file()), **os.environ}
    return tuple(
        value
        for name, value in given.items()
        if value and len(value) >= _SHORTEST and is_secret_name(name)
    )
