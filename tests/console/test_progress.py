"""Progress: plain lines in a log, a live display on a terminal, or nothing."""

import io
import re
import threading

import pytest

from seer.console import progress
from seer.errors import ConfigError


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEER_PROGRESS", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def run(file: io.StringIO, **options: str) -> str:
    with progress("sandbox on local", file=file, **options) as display:  # pyright: ignore[reportArgumentType]
        with display.phase("packages") as phase:
            phase.say("resolving\n  things")
        with display.phase("models") as phase:
            phase.bytes(1_500_000, 3_000_000)
            phase.bytes(3_000_000, 3_000_000)
        with pytest.raises(ValueError, match="oops"), display.phase("repos") as phase:
            phase.say("cloning")
            raise ValueError("oops")
    return file.getvalue()


def test_without_a_terminal_each_phase_is_one_plain_line() -> None:
    lines = run(io.StringIO()).splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"sandbox on local: packages took \d+\.\d s", lines[0])
    assert "3.0 MB" in lines[1]
    assert "/s)" in lines[1]
    assert lines[2].startswith("sandbox on local: repos failed after")
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_the_display_moves() -> None:
    text = run(Terminal())
    assert "\x1b[" in text
    for word in ("packages", "models", "repos", "3.0/3.0 MB", "✓", "✗"):
        assert word in text


def test_the_display_leaves_room_for_the_echo_of_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", run(Terminal()))
    widths = {len(line) for line in re.split(r"[\r\n]+", text)}
    assert 50 <= max(widths) <= 60 - len("^C^C^C")


def test_silence_is_silent() -> None:
    assert run(Terminal(), mode="off") == ""


@pytest.mark.parametrize(("value", "moving"), [("live", True), ("plain", False)])
def test_the_variable_overrides_the_choice(
    monkeypatch: pytest.MonkeyPatch, value: str, moving: bool
) -> None:
    monkeypatch.setenv("SEER_PROGRESS", value)
    file = io.StringIO() if moving else Terminal()
    text = run(file)
    assert ("✓" in text) is moving


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "took" in run(Terminal())


def test_an_unknown_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEER_PROGRESS", "loud")
    with pytest.raises(ConfigError, match="'loud'"), progress("x"):
        pass


def test_several_undertakings_share_one_display() -> None:
    file = Terminal()
    both = threading.Barrier(2, timeout=30)

    def undertake(title: str) -> None:
        with progress(title, file=file) as display, display.phase("models") as phase:
            both.wait()
            phase.bytes(1, 2)
            both.wait()

    threads = [threading.Thread(target=undertake, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "one" in file.getvalue()
    assert "two" in file.getvalue()


@pytest.mark.parametrize(
    ("count", "words"),
    [(999, "999 B"), (1500, "1.5 kB"), (5 * 10**9, "5.0 GB"), (2 * 10**13, "20.0 TB")],
)
def test_sizes_are_written_for_people(count: int, words: str) -> None:
    file = io.StringIO()
    with progress("x", file=file) as display, display.phase("models") as phase:
        phase.bytes(count, count)
    assert f"({words}," in file.getvalue()


def test_words_in_brackets_are_no_markup() -> None:
    file = Terminal()
    with (
        pytest.raises(ValueError, match="oops"),
        progress("x [a]", file=file) as display,
        display.phase("p [b]") as phase,
    ):
        phase.say("pkg[extra]")
        raise ValueError("oops")
    for word in ("[a]", "[b]", "pkg[extra]"):
        assert word in file.getvalue()
