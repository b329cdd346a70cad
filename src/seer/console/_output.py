"""Prints lines and tables, and asks questions. All text passes the filter `visible`."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, TextIO, TypeVar, cast

from seer.errors import visible

_Cell = TypeVar("_Cell")
_NARROWEST = 6
"""The smallest width of a column that may be cut, in characters."""


def say(text: object = "", *, file: TextIO | None = None, end: str = "\n", style: str = "") -> None:
    """Print a text, with control characters replaced by escapes.

    Args:
        text: Any object; its `str` is printed. It may be hostile.
        file: The stream; standard output by default.
        end: Printed after the text.
        style: A style of rich for terminals, such as `dim` or `red`.
    """
    stream = sys.stdout if file is None else file
    if style and stream.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(file=cast("TextIO", FittingStream(stream)))
        console.print(Text(visible(str(text)), style), end=end, soft_wrap=True)
    else:
        FittingStream(stream).write(visible(str(text)) + end)
    stream.flush()


def is_watched() -> bool:
    """Whether a person watches: standard error is a terminal, and `SEER_QUIET` is not set."""
    return sys.stderr.isatty() and os.environ.get("SEER_QUIET", "") in ("", "0")


def say_json(value: object) -> None:
    """Print one JSON document on standard output, for other programs."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    say(visible(text, as_json=True))


def confirm(question: str) -> bool:
    """Ask a question on standard error. Only the answer `y` or `yes` on standard input is True."""
    say(f"{question} [y/N] ", file=sys.stderr, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    file: TextIO | None = None,
    shorten: Collection[str] = (),
    leave_out: Sequence[str] = (),
    colours: Mapping[str, str] | None = None,
) -> list[str]:
    """Print a table. Numbers are aligned to the right.

    Args:
        columns: The headings.
        rows: One sequence of cells per row.
        title: A line above the table.
        file: The stream; standard output by default.
        shorten: Columns whose cells are cut on a narrow terminal, so that each row is one line.
            Without such columns, cells are wrapped.
        leave_out: Columns that are left out, in this order, on a terminal that is too narrow to
            show all columns whole. This comes before `shorten`.
        colours: The colour of a cell on a terminal, by its whole text: `error` -> `red`.

    Returns:
        The columns that were left out.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = sys.stdout if file is None else file
    # `Text` below keeps rich from interpreting brackets in a cell as markup.
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    rendered = Table(box=box.SIMPLE_HEAD)
    widths = _widths(columns, cells)
    # A log has no width, so nothing is cut there.
    width = None if stream.isatty() else max(80, 4 + sum(widths))
    console = Console(file=cast("TextIO", FittingStream(stream)), width=width)
    gap = 3
    hidden: list[str] = []
    for column in leave_out:
        if sum(widths) - len(widths) + 1 <= console.width - 2:
            break
        hidden.append(column)
        at = list(columns).index(column)
        columns = _without([columns], at)[0]
        rows, cells = _without(rows, at), _without(cells, at)
        widths = _widths(columns, cells)
    if shorten:
        may_shrink = [column in shorten for column in columns]
        room = console.width - 2
        fitted = _fitted(widths, room, may_shrink, least=_NARROWEST + gap)
        if sum(fitted) > room:
            # Narrow the gaps between columns, so that ids and numbers are not cut.
            gap, rendered.collapse_padding = 2, True
            closer = [width - 1 for width in widths]
            closer[0] += 1  # rich takes the padding at the left edge from the first column
            fitted = _fitted(closer, room, may_shrink, least=_NARROWEST + gap)
        widths = fitted
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        rendered.add_column(
            Text(column),
            justify="right" if numeric else "left",
            no_wrap=bool(shorten),
            overflow="ellipsis" if shorten else "fold",
            width=widths[index] - gap if shorten else None,
        )
    for row in cells:
        rendered.add_row(*(Text(cell, style=(colours or {}).get(cell, "")) for cell in row))
    if title:
        # Printed separately, because rich wraps a table's title to the table's width.
        console.print(Text(visible(title)), soft_wrap=True)
    console.print(rendered)
    return hidden


def duration(seconds: float, *, short: bool = False) -> str:
    """A duration for people, such as `3 h 5 min`; with `short`, only its largest unit."""
    if short:
        return " ".join(duration(seconds).split()[:2])
    whole = int(max(seconds, 0))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def log_to_terminal(level: int) -> None:
    """Write the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_VisibleFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


@contextlib.contextmanager
def filtered_output() -> Generator[None]:
    """Within the block, everything that this process prints passes the filter."""
    with (
        contextlib.redirect_stdout(cast("TextIO", _FilteredStream(sys.stdout))),
        contextlib.redirect_stderr(cast("TextIO", _FilteredStream(sys.stderr))),
    ):
        yield


class FittingStream:
    """A text stream that writes characters outside its encoding as escapes, instead of failing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)


class _FilteredStream(FittingStream):
    def write(self, text: str) -> int:
        return super().write(visible(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        3 + max(len(cell) for cell in (column, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]


def _without(rows: Sequence[Sequence[_Cell]], at: int) -> list[list[_Cell]]:
    return [[*row[:at], *row[at + 1 :]] for row in rows]


def _fitted(widths: list[int], room: int, may_shrink: list[bool], *, least: int) -> list[int]:
    """Make the widest shrinkable columns narrower until all columns fit."""
    found = list(widths)
    while sum(found) > room:
        index = max((i for i, may in enumerate(may_shrink) if may), key=lambda i: found[i])
        if found[index] <= least:
            break
        found[index] -= 1
    return found


@contextlib.contextmanager
def status_line() -> Generator[Callable[[str], None]]:
    """Yield a function that shows a line on standard error, replacing the previous line.

    If standard error is not a terminal, each new text is printed on a line of its own.
    """
    stream = sys.stderr
    moving = stream.isatty()
    last = ""

    def show(text: str) -> None:
        nonlocal last
        if text == last:
            return
        last = text
        if moving:
            stream.write("\r\x1b[2K")
        say(" ".join(text.split()), file=stream, end="" if moving else "\n")

    try:
        yield show
    finally:
        if moving and last:
            stream.write("\n")
            stream.flush()
