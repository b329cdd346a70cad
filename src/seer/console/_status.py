"""A status line that is replaced as it changes."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from seer.console._output import say


@contextmanager
def status_line(file: TextIO | None = None) -> Generator[Callable[[str], None]]:
    """Give a function that shows one line of text in place of the one before.

    If the stream is not a terminal, each new text is printed as a line of its own.

    Args:
        file: The stream; standard error by default.
    """
    stream: TextIO = sys.stderr if file is None else file
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
