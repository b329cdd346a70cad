"""Progress of something that takes a while and has phases.

On a terminal there is a live line per phase, with a bar, bytes and rate where bytes are counted;
elsewhere one plain line when a phase ends. `SEER_PROGRESS` (`auto`, `live`, `plain`, `off`)
overrides the choice. Everything goes to standard error, so that a program's output stays its own.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TextIO

from seer.console._output import say
from seer.errors import ConfigError, visible

Mode = Literal["auto", "live", "plain", "off"]


class Phase:
    """One phase that is under way. Its methods may be called from any thread."""

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
        """How long the phase has been under way."""
        return time.monotonic() - self._began

    def say(self, detail: str) -> None:
        """Show what the phase is doing just now."""
        self.detail = visible(" ".join(detail.split()))
        self._display.refresh(self._key, self)

    def bytes(self, done: int, total: int) -> None:
        """Show how many bytes have come, of how many."""
        self.done, self.total = done, total
        self._display.refresh(self._key, self)

    def end(self, *, failed: bool) -> None:
        """Show that the phase is over. `Progress.phase` calls this."""
        self._display.close(self._key, self, failed=failed)


class Progress:
    """The phases of one undertaking."""

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
    """The phase within which the caller runs, for those who wait far below it; None outside."""
    return _CURRENT.get()


class Display(ABC):
    """Where phases are shown."""

    @abstractmethod
    def open(self, name: str) -> int:
        """Show a new phase; the number stands for it from now on."""

    @abstractmethod
    def refresh(self, key: int, phase: Phase) -> None:
        """Show a phase's new state."""

    @abstractmethod
    def close(self, key: int, phase: Phase, *, failed: bool) -> None:
        """Show that a phase is over."""


class _Silent(Display):
    def open(self, name: str) -> int:
        return 0

    def refresh(self, key: int, phase: Phase) -> None:
        """Show nothing."""

    def close(self, key: int, phase: Phase, *, failed: bool) -> None:
        """Show nothing."""


class _Plain(Display):
    def __init__(self, title: str, file: TextIO) -> None:
        self._title = title
        self._file = file

    def open(self, name: str) -> int:
        return 0

    def refresh(self, key: int, phase: Phase) -> None:
        """Say nothing before the end: a log is no place for a moving bar."""

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
) -> Generator[Progress]:
    """Show the phases of an undertaking.

    Args:
        title: What is under way, such as `sandbox on local`.
        mode: How to show it; by default `SEER_PROGRESS`, and without that whatever fits `file`.
        file: Where to show it; standard error by default.

    Raises:
        ConfigError: `SEER_PROGRESS` has an unknown value.
    """
    stream: TextIO = sys.stderr if file is None else file
    title = visible(title)
    chosen = _choose(mode, stream)
    if chosen == "live":
        # Imported on use: rich takes longer to import than a small sandbox to start.
        from seer.console._live import live_display

        with live_display(title, stream) as display:
            yield Progress(display)
    else:
        yield Progress(_Plain(title, stream) if chosen == "plain" else _Silent())


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
