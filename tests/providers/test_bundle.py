"""Bundles are named by content, made once, and complete."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seer.providers._bundle import bundle


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_bundle_holds_copies_that_can_be_imported(tmp_path: Path) -> None:
    files = {
        "pack/__init__.py": _write(tmp_path, "a.py", ""),
        "pack/one.py": _write(tmp_path, "b.py", "VALUE = 42\n"),
        "data.txt": _write(tmp_path, "c.txt", "text"),
    }
    made = bundle(files)
    code = (
        f"import sys; sys.path.insert(0, {str(made)!r}); from pack.one import VALUE; print(VALUE)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    assert done.stdout == b"42\n"
    assert (made / "data.txt").read_text() == "text"
    assert list((made / "pack" / "__pycache__").glob("one.*.pyc"))
    assert (made / "pack" / "one.py").stat().st_mode & 0o777 == 0o644
    assert made.stat().st_mode & 0o777 == 0o755


def test_the_same_content_is_the_same_bundle_and_other_content_another(tmp_path: Path) -> None:
    one, same = (_write(tmp_path, name, "x = 1\n") for name in ("one.py", "same.py"))
    other = _write(tmp_path, "other.py", "x = 2\n")
    assert bundle({"m.py": one}) == bundle({"m.py": same})
    assert bundle({"m.py": one}) != bundle({"m.py": other})
    assert bundle({"m.py": one}) != bundle({"n.py": one})


def test_a_bundle_that_was_removed_is_made_again(tmp_path: Path) -> None:
    import shutil

    files = {"m.py": _write(tmp_path, "m.py", "x = 1\n")}
    shutil.rmtree(bundle(files))
    assert (bundle(files) / "m.py").is_file()


def test_many_at_once_make_one(tmp_path: Path) -> None:
    files = {"m.py": _write(tmp_path, "m.py", "x = 3\n")}
    with ThreadPoolExecutor(16) as pool:
        made = set(pool.map(bundle, [files] * 32))
    assert len(made) == 1
    assert [path.name for path in made.pop().parent.iterdir()] != []
    drafts = list((tmp_path / "cache/seer/bundles").glob("draft-*"))
    assert not drafts


def test_a_file_that_does_not_compile_leaves_nothing(tmp_path: Path) -> None:
    import py_compile

    with pytest.raises(py_compile.PyCompileError):
        bundle({"m.py": _write(tmp_path, "m.py", "def broken(:\n")})
    assert list((tmp_path / "cache/seer/bundles").iterdir()) == []
