"""Lines and tables.

It imports internal helpers, because only Seer itself uses them.
"""

import io
import json
import re
import subprocess
import sys

import pytest

from seer.console import confirm, progress, say, say_json, table, visible
from seer.console._output import filtered_output, status_line
from seer.errors import CommandFailedError, RemoteError

HOSTILE = "a\x1b]0;t\x07\x9b2J\x7f\r\u202eb\udc9b\U000e0041"
SHOWN = "a\\x1b]0;t\\x07\\x9b2J\\x7f\\r\\u202eb\\udc9b\\U000e0041"


def test_a_line_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say("[bold]x[/bold]")
    say()
    assert capsys.readouterr().out == "[bold]x[/bold]\n\n"
    file = io.StringIO()
    say("y", file=file)
    assert file.getvalue() == "y\n"


def test_a_table_aligns_numbers_and_keeps_brackets() -> None:
    file = io.StringIO()
    table(["name", "count"], [["a[1]", 5], ["b", 100]], title="Things [x]", file=file)
    lines = [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]
    assert lines[0] == "Things [x]"
    assert "a[1]" in file.getvalue()
    assert lines[-2].endswith("  5")
    assert lines[-1].endswith("100")


def test_an_empty_table_has_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    table(["name", "count"], [])
    assert "name" in capsys.readouterr().out


def test_long_cells_are_not_cut_in_a_log() -> None:
    file = io.StringIO()
    table(["name", "text"], [["x", "y" * 300]], file=file)
    assert "y" * 300 in file.getvalue()


def test_the_filter_leaves_ordinary_text_alone() -> None:
    text = "Ünï—\tcödé\n日本語 عربي\u200cفارسی 👩\u200d🔬 \xa0 \ufe0f"
    assert visible(text) == text
    assert visible("dos\r\nline") == "dos\nline"
    assert visible(HOSTILE) == SHOWN


def test_whatever_prints_filters(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    table(["x"], [[HOSTILE]], title=HOSTILE)
    with status_line() as show:
        show(HOSTILE)
    with pytest.raises(ValueError), progress(HOSTILE, mode="plain") as shown:  # noqa: SIM117
        with shown.phase(HOSTILE) as phase:
            phase.say(HOSTILE)
            raise ValueError
    with filtered_output():
        sys.stdout.write(HOSTILE)
        sys.stderr.writelines([HOSTILE, "\n"])
    got = capsys.readouterr()
    assert not set("\x1b\x07\x9b\x7f\r\u202e\udc9b") & set(got.out + got.err)
    assert got.out.count(SHOWN) == 4
    assert got.err.count("\\u202eb\\udc9b") == 4


def test_a_live_display_filters() -> None:
    file = io.StringIO()
    with progress(HOSTILE, mode="live", file=file) as shown, shown.phase("[red]x") as phase:
        phase.say(HOSTILE)
    assert "[red]x" in file.getvalue()
    assert "\x1b]0;" not in file.getvalue()
    assert "\x9b" not in file.getvalue()


def test_json_stays_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"text": HOSTILE, "plain": "日本\r\n"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"text": HOSTILE, "plain": "日本\r\n"}
    assert "日本" in printed
    assert not set("\x9b\x7f\u202e") & set(printed)


def test_errors_and_their_tracebacks_are_filtered() -> None:
    error = CommandFailedError("cat", 1, "", HOSTILE)
    assert SHOWN in str(error)
    assert error.stderr == HOSTILE
    assert str(type("ValueError", (RemoteError, ValueError), {})(HOSTILE)) == SHOWN


def test_log_lines_are_filtered() -> None:
    code = (
        "import logging, sys; from seer.console._output import log_to_terminal; "
        "log_to_terminal(20); logging.getLogger('x').warning('said %s', sys.argv[1])"
    )
    command = [sys.executable, "-c", code, "a\x1b]0;t\x07"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "WARNING said a\\x1b]0;t\\x07\n"


def test_a_stream_that_lacks_a_letter_shows_its_number() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    say("é✓", file=file)
    table(["✓"], [["é"]], file=file)
    assert raw.getvalue().startswith(b"\\xe9\\u2713\n")


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)]
)
def test_only_yes_agrees(monkeypatch: pytest.MonkeyPatch, typed: str, agreed: bool) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert confirm("sure?") is agreed


class _Narrow(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_narrow_terminal_only_the_named_columns_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = _Narrow()
    rows = [("20260101-aaaaaaaa", "a long name " * 6, 12345)]
    table(["run", "name", "calls"], rows, file=shown, shorten={"name"})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    lines = [line for line in plain.splitlines() if line.strip()]
    assert len(lines) == 3 and max(map(len, lines)) <= 60
    assert "20260101-aaaaaaaa" in lines[2] and "12345" in lines[2] and "…" in lines[2]


def test_columns_stand_closer_where_that_saves_what_must_not_be_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "66")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = _Narrow()
    row = ("aaaaaaaa", "59 min", "completed", "a long name " * 6, "claude/opus", 12345, "$12.34")
    columns = ["run", "ago", "status", "name", "agent", "calls", "cost"]
    table(columns, [row], file=shown, shorten={"name", "agent"})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    lines = [line for line in plain.splitlines() if line.strip()]
    assert len(lines) == 3 and max(map(len, lines)) <= 66
    for whole in ("aaaaaaaa", "59 min", "completed", "12345", "$12.34"):
        assert whole in lines[2]


def test_a_title_longer_than_its_table_is_one_line() -> None:
    file = io.StringIO()
    table(["n"], [[1]], title="run 20261118-155215-2d45815e: completed", file=file)
    assert file.getvalue().splitlines()[0] == "run 20261118-155215-2d45815e: completed"
