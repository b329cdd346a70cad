"""Lines and tables on standard output."""

import sys
from collections.abc import Sequence
from typing import TextIO


def say(text: str = "", *, file: TextIO | None = None) -> None:
    """Print one line, exactly as given."""
    stream = sys.stdout if file is None else file
    stream.write(text + "\n")
    stream.flush()


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
    rendered = Table(
        title=Text(title) if title else None, box=box.SIMPLE_HEAD, title_justify="left"
    )
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        rendered.add_column(Text(column), justify="right" if numeric else "left")
    for row in rows:
        # As plain text: a cell with brackets in it is no markup.
        rendered.add_row(*(Text(str(cell)) for cell in row))
    # Without a terminal nothing is cut: a log has no width.
    width = None if stream.isatty() else max(80, 4 + sum(_widths(columns, rows)))
    Console(file=stream, width=width).print(rendered)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int]:
    return [
        3 + max(len(str(cell)) for cell in (column, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]
