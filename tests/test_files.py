"""A file is replaced as a whole, or not at all."""

import stat
from pathlib import Path

import pytest

from seer._files import replace_file


def test_the_content_and_the_mode_are_as_given_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "kept.json"
    target.write_text("old")
    replace_file(target, "new \ud800 é", mode=0o640, durable=True)
    assert target.read_text(encoding="utf-8") == "new ? é"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_replacement_leaves_the_old_content_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "kept.json"
    target.write_text("old")

    def fail(self: Path, other: Path) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        replace_file(target, b"new")
    assert [(path, path.read_text()) for path in tmp_path.iterdir()] == [(target, "old")]
