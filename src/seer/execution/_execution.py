"""One piece of code on its way through a session: queued, running, ended."""

import asyncio
import time
from pathlib import Path
from typing import Literal

from seer.execution._capture import Capture, OnOutput
from seer.execution._result import ExecutionResult, Status

StopReason = Literal["interrupted", "timeout"]


class Execution:
    """The submitted code and its state so far. Only Seer's loop uses it."""

    def __init__(
        self,
        result_id: str,
        code: str,
        *,
        folder: Path,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        background: bool = False,
        cell: str = "",
    ) -> None:
        self.result_id = result_id
        self.code = code
        self.timeout = timeout
        self.capture = Capture(result_id, folder, on_output)
        self.status: Status = "queued"
        self.exit_code: int | None = None
        self.extra: dict[str, str] = {}
        self.stop_reason: StopReason | None = None
        self.background = background
        """Whether it runs in the background instead of waiting for its turn."""
        self.cell = cell
        """In a notebook: the id of the cell it runs."""
        self._started = 0.0
        self._ended = 0.0
        self.done = asyncio.Event()

    def start(self) -> None:
        """Mark it as running."""
        self.status = "running"
        self._started = time.monotonic()

    def end(self, status: Status) -> None:
        """Mark it as ended, and as interrupted or timed out if that is why."""
        stopped = self.stop_reason is not None and status in ("error", "died")
        self.status = self.stop_reason if stopped and self.stop_reason else status
        self._ended = time.monotonic()
        self._started = self._started or self._ended
        self.capture.transcript.close()
        self.done.set()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.done.is_set()

    def result(self) -> ExecutionResult:
        """Its state so far, or how it ended."""
        capture = self.capture
        until = self._ended or (time.monotonic() if self._started else 0.0)
        text = capture.transcript.shown(self.result_id)
        if capture.notes:
            text = "\n".join([*(f"[{note}]" for note in capture.notes), text])
        return ExecutionResult(
            result_id=self.result_id,
            status=self.status,
            outputs=tuple(capture.outputs),
            error=capture.error,
            duration=until - self._started,
            notes=tuple(capture.notes),
            text=text,
            exit_code=self.exit_code,
            extra=dict(self.extra),
        )
