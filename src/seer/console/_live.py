"""The live progress display on a terminal. All tasks of one process share it."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from seer.console._output import FittingStream
from seer.console._progress import Display, Phase

_lock = threading.Lock()
_shared: RichProgress | None = None
_users = 0


class _Field(ProgressColumn):
    """Shows a field that is a `Text`, so that rich does not interpret markup in it."""

    def __init__(self, name: str, column: Column | None = None) -> None:
        super().__init__(column or Column(no_wrap=True))
        self._name = name

    def render(self, task: Task) -> Text:
        return task.fields[self._name]


class _OnlyBytes(ProgressColumn):
    """Shows another column only while a task counts bytes."""

    def __init__(self, inner: ProgressColumn) -> None:
        super().__init__(inner.get_table_column())
        self._inner = inner

    def render(self, task: Task) -> Text:
        if not task.fields["counts"]:
            return Text("")
        return self._inner.render(task)  # pyright: ignore[reportReturnType]


class _Live(Display):
    def __init__(self, title: str, rich: RichProgress) -> None:
        self._title = title
        self._rich = rich

    def open(self, name: str) -> int:
        return self._rich.add_task(
            "",
            total=None,
            label=Text.assemble((self._title, "dim"), " ", name),
            detail=Text(""),
            counts=False,
            mark=Text(" "),
        )

    def refresh(self, key: int, phase: Phase) -> None:
        self._rich.update(
            TaskID(key),
            completed=phase.done,
            total=phase.total or None,
            detail=Text(phase.detail),
            counts=phase.total > 0,
        )

    def close(self, key: int, phase: Phase, *, failed: bool) -> None:
        self._rich.update(
            TaskID(key),
            completed=max(phase.done, 1),
            total=max(phase.done, 1),
            detail=Text(phase.detail if failed else ""),
            mark=Text("✗", "red") if failed else Text("✓", "green"),
        )
        self._rich.stop_task(TaskID(key))


@contextmanager
def live_display(title: str, file: TextIO) -> Generator[Display]:
    """Use the shared live display. It starts with its first user and ends with its last."""
    global _shared, _users
    with _lock:
        if _shared is None:
            _shared = _make(file)
            _shared.start()
        _users += 1
        rich = _shared
    try:
        yield _Live(title, rich)
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                rich.stop()
                _shared = None


class _Progress(RichProgress):
    def get_renderable(self) -> RenderableType:
        return _Narrow(super().get_renderable())


class _Narrow:
    """Leaves the last columns of the terminal free.

    A terminal echoes Ctrl-C as `^C` after the last line. After a full line, the echo would wrap to
    a new line, and the display would leave a copy of its first line behind.
    """

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - len("^C^C^C"))
        yield from console.render(self._inner, options.update_width(width))


def _make(file: TextIO) -> RichProgress:
    return _Progress(
        SpinnerColumn(finished_text=" "),
        _Field("mark"),
        _Field("label"),
        _OnlyBytes(BarColumn(bar_width=24)),
        _OnlyBytes(DownloadColumn()),
        _OnlyBytes(TransferSpeedColumn()),
        TimeElapsedColumn(),
        _Field("detail", Column(style="dim", no_wrap=True, overflow="ellipsis", ratio=1)),
        console=Console(file=cast("TextIO", FittingStream(file))),
        refresh_per_second=8,
        expand=True,
    )
