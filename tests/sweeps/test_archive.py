"""Which files of an experiment are sent to nodes, and what `unpack` refuses.

This imports a private module: the archive format has no public API, and only a hostile archive
shows what `unpack` refuses.
"""

import io
import tarfile
from pathlib import Path

import pytest

from seer.sweeps import _archive


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_secrets_environments_sweeps_and_leftovers_stay_at_home(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "data/a.txt", ".env", ".git/config", "venv/pyvenv.cfg", "venv/b.py")
    write(tmp_path, "sweeps/first/sweep.json", "sweeps/first/token", "workspace/c.txt")
    write(tmp_path, "outputs/runs/d.json", "data/__pycache__/e.pyc")
    (tmp_path / "planted").symlink_to("/etc/passwd")
    (tmp_path / "planted-folder").symlink_to("/etc")
    found = [file.relative_to(tmp_path).as_posix() for file in _archive.source_files(tmp_path)]
    assert found == ["data/a.txt", "main.py"]


def test_a_folder_arrives_as_it_was_and_is_known_by_what_it_holds(tmp_path: Path) -> None:
    write(tmp_path / "a", "main.py", "deep/er/x.txt")
    files = list(_archive.all_files(tmp_path / "a"))
    wanted = _archive.manifest(tmp_path / "a", files)
    with (tmp_path / "a.tar").open("wb") as packed:
        _archive.pack(tmp_path / "a", files, packed, limit=1000)
    write(tmp_path / "b", "old.txt")
    _archive.unpack(tmp_path / "a.tar", tmp_path / "b")
    assert _archive.matches(tmp_path / "b", wanted)
    assert not (tmp_path / "b" / "old.txt").exists()
    (tmp_path / "b" / "main.py").write_text("other")
    assert not _archive.matches(tmp_path / "b", wanted)
    assert not _archive.matches(tmp_path / "c", wanted)


def test_more_than_the_limit_is_refused_and_the_largest_is_named(tmp_path: Path) -> None:
    write(tmp_path, "small.txt")
    (tmp_path / "large.bin").write_bytes(bytes(5000))
    with pytest.raises(
        _archive.TooLargeError, match=r"5,009 bytes; the limit is 1,000.*: large\.bin"
    ):
        _archive.pack(tmp_path, list(_archive.all_files(tmp_path)), io.BytesIO(), limit=1000)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("/tmp/outside", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("hard", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
    ],
)
def test_what_has_no_business_in_a_folder_is_refused(
    tmp_path: Path, name: str, kind: bytes
) -> None:
    target = tmp_path / "in" / "target"
    write(target, "before.txt")
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = "/etc/passwd"
        archive.addfile(member)
    if name.startswith("/"):
        # An absolute path is treated as one below the target, where it does no harm.
        _archive.unpack(tmp_path / "bad.tar", target)
        assert (target / "tmp" / "outside").exists()
        return
    with pytest.raises(tarfile.TarError):
        _archive.unpack(tmp_path / "bad.tar", target)
    assert [p.name for p in target.iterdir()] == ["before.txt"]
    assert sorted(p.name for p in tmp_path.rglob("*outside*")) == []
