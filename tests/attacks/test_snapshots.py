"""Files that an agent plants to attack a snapshot or its restore.

It reads the stored archive and lowers limits that have no public setting.
"""

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from seer.environment import ExecutionMode, Sandbox, SandboxConfig, _snapshots
from seer.errors import SnapshotError, StartError

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

CONFIG = SandboxConfig(gpu=None, provider="local", execution_mode=ExecutionMode.CLI, disk="64MB")


class _Usage(NamedTuple):
    free: int


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with Sandbox(CONFIG) as started:
        yield started


PLANT = """
import os, socket
secret, folder = {secret!r}, {folder!r}
os.symlink(secret, "link")
os.symlink(folder, "linked-folder")
os.symlink("../../../../../../../../etc/passwd", "climbing")
os.makedirs("closed/inner")
open("closed/inner/file", "w").write("x")
os.chmod("closed", 0)
open("closed-file", "w").write("x")
os.chmod("closed-file", 0)
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
open("a", "w").write("kept")
os.link("a", "b")
os.chmod("a", 0o4755)
open("line\\nbreak ; touch $(hi)", "w").write("x")
open("-rf", "w").write("x")
with open("sparse", "wb") as file:
    file.truncate(60 << 20)
"""


def test_an_agent_plants_links_pipes_and_closed_files_before_a_snapshot(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    sandbox.exec_python(PLANT.format(secret=str(secret), folder=str(tmp_path)))
    kept = sandbox.snapshot("planted")
    archive = _snapshots.snapshots_dir() / kept / "workdir.tar"
    assert archive.stat().st_size < 1 << 20
    assert b"of the host" not in archive.read_bytes()
    with tarfile.open(archive) as members:
        kinds = {member.name.removeprefix("./"): member for member in members}
    assert kinds["link"].issym()
    assert kinds["linked-folder"].issym()
    assert not [name for name in kinds if name.startswith("linked-folder/")]
    with Sandbox.from_snapshot(kept) as restored:
        shown = restored.exec("cat b; stat -c %s sparse; cat link climbing || true", check=False)
        assert str(shown).startswith("kept62914560")
        assert "of the host" not in shown
        assert restored.exec("readlink link").strip() == str(secret)
    assert secret.read_text() == "of the host"


def test_a_snapshot_fills_the_disk_of_the_host(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.exec("head -c 48000000 /dev/urandom > large")

    def usage(_: object) -> _Usage:
        return _Usage(free=_snapshots._SPARE + (8 << 20))  # pyright: ignore[reportPrivateUsage]

    # The disk's real free space changes with everything that runs at the same time.
    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(SnapshotError, match="is larger than"):
        sandbox.snapshot("too large")
    assert not list(_snapshots.snapshots_dir().iterdir())


STOP = """
import os, signal
open("ready", "w").close()
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe").endswith("/tar"):
                os.kill(int(pid), signal.SIGSTOP)
        except OSError:
            pass
"""


def test_an_agent_stops_the_program_that_packs(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_snapshots, "_STALLED_AFTER", 3.0)
    # Something to pack, so that there is time to stop it.
    sandbox.exec("head -c 48000000 /dev/urandom > large")
    sandbox.write_file("stop.py", STOP.encode())
    started = "setsid python3 stop.py > /dev/null 2>&1 &"
    sandbox.exec(f"{started} until [ -e ready ]; do sleep 0.05; done", timeout=60)
    with pytest.raises(SnapshotError, match="made no progress"):
        sandbox.snapshot("stopped")
    assert not list(_snapshots.snapshots_dir().iterdir())
    assert sandbox.exec("echo alive").strip() == "alive"


def test_a_forged_archive_unpacks_into_its_own_machine_only(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    kept = sandbox.snapshot("forged")
    target = tmp_path / "outside"
    target.mkdir(mode=0o777)
    with tarfile.open(_snapshots.snapshots_dir() / kept / "workdir.tar", "w") as archive:
        for name, kind, link in (
            ("./out", tarfile.SYMTYPE, str(target)),
            ("./out/through-link", tarfile.REGTYPE, ""),
            ("../../../../climbed", tarfile.REGTYPE, ""),
            (f"{target}/absolute", tarfile.REGTYPE, ""),
            ("./hard", tarfile.LNKTYPE, "/etc/passwd"),
            ("./fine", tarfile.REGTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, 0o4777
            archive.addfile(member)
    with pytest.raises(Exception, match="unpacking"):
        Sandbox.from_snapshot(kept).start()
    assert not list(target.iterdir())


def test_a_damaged_snapshot_fails_with_what_tar_says(sandbox: Sandbox) -> None:
    kept = sandbox.snapshot()
    archive = _snapshots.snapshots_dir() / kept / "workdir.tar"
    # tar stops at the first bytes, and the rest does not fit into a pipe.
    archive.write_bytes(b"\x1f\x8b\x08" + bytes(20_000_000))
    with pytest.raises(StartError, match="unpacking .* Archive is compressed"):
        Sandbox.from_snapshot(kept).start()
