"""Shows the progress of a task that has phases, such as the start of a sandbox.

A terminal shows one live line per phase, with a bar, bytes and rate if the phase counts bytes. A
log gets one line when a phase ends. `SEER_PROGRESS` (`auto`, `live`, `plain`, `off`) overrides the
choice. The output goes to standard error, so it does not mix with a program's own output.
"""

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TextIO

from seer.console._output import say
from seer.errors import ConfigError, visible

Mode = Literal["auto", "live", "plain", "off"]


class Phase:
    """A phase that is running. Its methods may be called from any thread."""

    def __init__(self, name: str, display: "Display") -> None:
        self.name = name
        self._display = display
        self._began = time.monotonic()
        self._key = display.open(name)
        self.detail = ""
        self.done = 0
        self.total = 0

    @property
    def seconds(self) -> float:
        """How long the phase has been running."""
        return time.monotonic() - self._began

    def say(self, detail: str) -> None:
        """Show what the phase is doing now."""
        self.detail = visible(" ".join(detail.split()))
        self._display.refresh(self._key, self)

    def bytes(self, done: int, total: int) -> None:
        """Show how many bytes are done, and how many there are in total."""
        self.done, self.total = done, total
        self._display.refresh(self._key, self)

    def end(self, *, failed: bool) -> None:
        """Show that the phase is over. `Phases.phase` calls this."""
        self._display.close(self._key, self, failed=failed)


class Phases:
    """The phases of one task."""

    def __init__(self, display: "Display") -> None:
        self._display = display

    @contextmanager
    def phase(self, name: str) -> Generator[Phase]:
        """Show a phase for as long as the block runs; an exception marks it as failed."""
        phase = Phase(visible(name), self._display)
        outer = _CURRENT.get()
        _CURRENT.set(phase)
        try:
            yield phase
        except BaseException:
            phase.end(failed=True)
            raise
        finally:
            _CURRENT.set(outer)
        phase.end(failed=False)


_CURRENT: ContextVar[Phase | None] = ContextVar("seer_phase", default=None)


def current_phase() -> Phase | None:
    """The phase in which the caller runs; None outside of phases.

    Code deep below the phase uses it to report what it waits for.
    """
    return _CURRENT.get()


class Display:
    """Shows phases. This base class shows nothing."""

    def open(self, name: str) -> int:
        """Show a new phase, and return a key for it."""
        return 0

    def refresh(self, key: int, phase: Phase) -> None:
        """Show a phase's new state."""

    def close(self, key: int, phase: Phase, *, failed: bool) -> None:
        """Show that a phase is over."""


class _Plain(Display):
    """Writes one line to a log when a phase ends."""

    def __init__(self, title: str, file: TextIO) -> None:
        self._title = title
        self._file = file

    def close(self, key: int, phase: Phase, *, failed: bool) -> None:
        words = [f"{self._title}: {phase.name}"]
        words.append("failed after" if failed else "took")
        words.append(f"{phase.seconds:.1f} s")
        if phase.done:
            rate = phase.done / max(phase.seconds, 1e-6)
            words.append(f"({_size(phase.done)}, {_size(rate)}/s)")
        say(" ".join(words), file=self._file)


@contextmanager
def progress(
    title: str, *, mode: Mode | None = None, file: TextIO | None = None
) -> Generator[Phases]:
    """Show the phases of a task.

    Args:
        title: The task, such as `sandbox on local`.
        mode: How to show it; by default `SEER_PROGRESS`, or else what suits `file`.
        file: The stream; standard error by default.

    Raises:
        ConfigError: `SEER_PROGRESS` has an unknown value.
    """
    stream: TextIO = sys.stderr if file is None else file
    title = visible(title)
    chosen = _choose(mode, stream)
    if chosen == "live":
        # Imported on use: importing rich takes longer than starting a small sandbox.
        from seer.console._live import live_display

        with live_display(title, stream) as display:
            yield Phases(display)
    else:
        yield Phases(_Plain(title, stream) if chosen == "plain" else Display())


def _choose(mode: Mode | None, file: TextIO) -> Literal["live", "plain", "off"]:
    wanted = mode if mode is not None else os.environ.get("SEER_PROGRESS", "auto")
    if wanted in ("live", "plain", "off"):
        return wanted
    if wanted != "auto":
        raise ConfigError("SEER_PROGRESS", wanted, "must be 'auto', 'live', 'plain' or 'off'")
    return "live" if file.isatty() and os.environ.get("TERM") != "dumb" else "plain"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
