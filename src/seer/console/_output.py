"""Lines, tables and questions. All text passes the filter on its way out."""

import contextlib
import json
import logging
import sys
from collections.abc import Generator, Iterable, Sequence
from typing import Any, TextIO, cast

from seer.errors import visible


def say(text: object = "", *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print a text, with what could act on a terminal made visible.

    Args:
        text: The text, or what has one; it may be hostile.
        file: Where to print; standard output by default.
        end: What follows it.
    """
    stream = sys.stdout if file is None else file
    FittingStream(stream).write(visible(str(text)) + end)
    stream.flush()


def say_json(value: object) -> None:
    """Print one JSON document on standard output, for other programs."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    say(visible(text, as_json=True))


def confirm(question: str) -> bool:
    """Ask on standard error; only `y` or `yes` on standard input agrees."""
    say(f"{question} [y/N] ", file=sys.stderr, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    file: TextIO | None = None,
) -> None:
    """Print a table; numbers are aligned to the right.

    Args:
        columns: The headings.
        rows: One sequence of cells per row.
        title: A line above it.
        file: Where to print; standard output by default.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = sys.stdout if file is None else file
    # As plain text: a cell with brackets in it is no markup.
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    rendered = Table(
        title=Text(visible(title)) if title else None, box=box.SIMPLE_HEAD, title_justify="left"
    )
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        rendered.add_column(Text(column), justify="right" if numeric else "left")
    for row in cells:
        rendered.add_row(*map(Text, row))
    # Without a terminal nothing is cut: a log has no width.
    width = None if stream.isatty() else max(80, 4 + sum(_widths(columns, cells)))
    Console(file=cast("TextIO", FittingStream(stream)), width=width).print(rendered)


def log_to_terminal(level: int) -> None:
    """Show the log of this process on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_VisibleFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


@contextlib.contextmanager
def filtered_output() -> Generator[None]:
    """Within the block, also what other code prints in this process passes the filter."""
    with (
        contextlib.redirect_stdout(cast("TextIO", _FilteredStream(sys.stdout))),
        contextlib.redirect_stderr(cast("TextIO", _FilteredStream(sys.stderr))),
    ):
        yield


class FittingStream:
    """A text stream that writes letters which its encoding lacks as escapes, and never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
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
