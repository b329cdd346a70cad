"""A person's terminal: reads lines, prints text, and reports keys that interrupt.

Only this module imports `prompt_toolkit`. Text of agents is hostile; `seer.console` filters it.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from seer._paths import state_dir
from seer.console import say, visible
from seer.errors import MissingExtraError

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

_ESCAPE_WAIT = 0.05


class Terminal(ABC):
    """A person's terminal."""

    @abstractmethod
    async def ask(self, mark: str) -> str | None:
        """Read one line; None when the person has left."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show a line, or several. The text may be hostile."""

    @abstractmethod
    def watch(self, on_interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        """While the agent works, call `on_interrupt` when the person wants it to stop."""

    @abstractmethod
    def complete(self, words: Sequence[str]) -> None:
        """Offer these words for completion, if the terminal can."""

    @abstractmethod
    def status(self, line: Callable[[], str]) -> None:
        """Keep this line visible, if the terminal can."""


class LineTerminal(Terminal):
    """Plain lines, for input that is not a terminal: a pipe, a file, a test."""

    def __init__(self, source: TextIO | None = None, target: TextIO | None = None) -> None:
        self._source = source or sys.stdin
        self._target = target

    async def ask(self, mark: str) -> str | None:
        """The next line."""
        line = await asyncio.to_thread(self._source.readline)
        return line.rstrip("\n") if line else None

    def say(self, text: str) -> None:
        """Write the text."""
        say(text, file=self._target)

    def watch(self, on_interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        """Do nothing, because there are no keys to watch."""
        return nullcontext()

    def complete(self, words: Sequence[str]) -> None:
        """Do nothing, because lines are not completed."""

    def status(self, line: Callable[[], str]) -> None:
        """Do nothing, because there is no status line."""


class PromptTerminal(Terminal):
    """A real terminal: history, completion, a status line, Escape and Ctrl-C."""

    def __init__(
        self,
        *,
        history: Path | None = None,
        source: "Input | None" = None,
        target: "Output | None" = None,
    ) -> None:
        """Take the terminal.

        Raises:
            MissingExtraError: `prompt_toolkit` is not installed.
        """
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.history import FileHistory, InMemoryHistory
        except ImportError as error:
            raise MissingExtraError(
                'a chat in the terminal needs prompt_toolkit: pip install "seer-interp[chat]"'
            ) from error
        if history is not None:
            history.parent.mkdir(parents=True, exist_ok=True)
        self._words: Sequence[str] = ()
        self._line: Callable[[], str] | None = None
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)) if history is not None else InMemoryHistory(),
            input=source,
            output=target,
        )

    async def ask(self, mark: str) -> str | None:
        """Let the person write; Ctrl-C clears the line, Ctrl-D leaves."""
        from prompt_toolkit.completion import WordCompleter

        while True:
            try:
                return await self._session.prompt_async(
                    mark,
                    completer=WordCompleter(list(self._words), WORD=True),
                    complete_while_typing=False,
                    bottom_toolbar=self._line,
                    handle_sigint=False,
                )
            except EOFError:
                return None
            except KeyboardInterrupt:
                continue

    def say(self, text: str) -> None:
        """Print it above the prompt."""
        say(text)

    def complete(self, words: Sequence[str]) -> None:
        """Offer words on Tab."""
        self._words = words

    def status(self, line: Callable[[], str]) -> None:
        """Show the line below the prompt."""
        self._line = lambda: visible(line())

    def watch(self, on_interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        """Watch for Escape and Ctrl-C."""
        return _watch_keys(self._session.app.input, on_interrupt)


@contextmanager
def _watch_keys(source: "Input", on_interrupt: Callable[[], None]) -> Generator[None, None, None]:
    """Read keys while the agent works, without a prompt."""
    from prompt_toolkit.keys import Keys

    loop = asyncio.get_running_loop()

    def take(presses: Sequence[object]) -> None:
        for press in presses:
            if getattr(press, "key", None) in {Keys.Escape, Keys.ControlC}:
                on_interrupt()

    def ready() -> None:
        take(source.read_keys())
        # Escape can be the start of an arrow key; it is a key of its own if nothing follows.
        loop.call_later(_ESCAPE_WAIT, lambda: take(source.flush_keys()))

    with source.raw_mode(), source.attach(ready):
        yield


def open_terminal() -> Terminal:
    """The terminal of this process, or plain lines if it has none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return LineTerminal()
    return PromptTerminal(history=state_dir() / "chat_history")
