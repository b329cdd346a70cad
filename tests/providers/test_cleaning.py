"""Hostile folder trees are removed, and nothing else."""

import json
import os
from pathlib import Path

import pytest

from seer.providers.agent import cleaning
from seer.providers.local._record import how_it_ended


def _remove(path: Path) -> None:
    cleaning.remove_tree(os.fsencode(path))


def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(2200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
        here = below
    os.close(here)
    _remove(top)
    assert not top.exists()


def test_odd_names_and_locked_folders_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name in (b"a b", b"new\nline", b"\xff\xfe", b"-rf", b"...", b".seer-removing-1-1"):
        folder = top / os.fsdecode(name) / "below" / "further"
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        folder.parent.chmod(0)
    _remove(top)
    assert not top.exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    top = tmp_path / "top"
    (top / "below").mkdir(parents=True)
    (top / "link").symlink_to(precious)
    (top / "below" / "link").symlink_to(precious)
    (top / "hard").hardlink_to(precious / "file")
    _remove(top)
    assert not top.exists()
    assert (precious / "file").read_text() == "kept"


def test_a_link_in_place_of_the_tree_is_refused(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "link").symlink_to(precious)
    with pytest.raises(OSError, match="directory"):
        _remove(tmp_path / "link")
    assert precious.exists()


def test_what_cannot_be_removed_is_an_error_and_the_rest_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "top"
    (top / "below").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (top / "below" / name).write_text("x")
    unlink = os.unlink

    def stubborn(path: bytes, *, dir_fd: int | None = None) -> None:
        if path == b"two":
            raise PermissionError(1, "no", path)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", stubborn)
    with pytest.raises(PermissionError):
        _remove(top)
    assert [path.name for path in (top / "below").iterdir()] == ["two"]


def test_ends_are_recorded_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "seer"
    state.mkdir()
    words = 'odd "words" \\ in\nlines, ünï and 🙂'
    cleaning.record_end(os.fsencode(state), "sb-1", words, at=12.5)
    cleaning.record_end(os.fsencode(state), "sb-2", "terminated", at=13.0)
    assert how_it_ended("sb-1") == (words, 12.5)
    assert how_it_ended("sb-2") == ("terminated", 13.0)
    assert how_it_ended("sb-3") is None


def test_the_record_stays_short_and_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "seer"
    state.mkdir()
    for number in range(4000):
        cleaning.record_end(os.fsencode(state), f"sb-{number}", "x" * 50, at=float(number))
    file = state / "ended.jsonl"
    assert file.stat().st_size < 300 * 1024
    assert all(json.loads(line) for line in file.read_text().splitlines())
    assert how_it_ended("sb-3999") == ("x" * 50, 3999.0)
    assert how_it_ended("sb-0") is None


def test_a_damaged_record_is_read_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "seer"
    state.mkdir()
    (state / "ended.jsonl").write_bytes(b'{"id": "sb-1", "re\n\xff\xfe\n[]\n17\n')
    cleaning.record_end(os.fsencode(state), "sb-2", "terminated", at=1.0)
    assert how_it_ended("sb-1") is None
    assert how_it_ended("sb-2") == ("terminated", 1.0)
