"""Lines and tables."""

import io

import pytest

from seer.console import say, table


def test_a_line_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
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
