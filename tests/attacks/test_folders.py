"""Folders that an agent can write to, which the user gives to another sandbox or session.

It calls the readers themselves, which a session calls only with its own folders.
"""

import os
from pathlib import Path

import pytest

from seer.environment.prepare._files import _read  # pyright: ignore[reportPrivateUsage]
from seer.errors import ConfigError, PathEscapeError
from seer.execution import create_local_session
from seer.isolation import JAIL_UIDS
from seer.workspace import Workspace
from seer.workspace._library import read_folder


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_takes_the_place_of_a_file_that_was_just_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key.txt").write_text("of the host")
    folder = tmp_path / "folder"
    folder.mkdir()
    if kind == "file":
        name = "key.txt"
        (folder / name).symlink_to(secrets / name)
    else:
        name = "inner/key.txt"
        (folder / "inner").symlink_to(secrets)

    def never(_: Path) -> bool:
        return False

    # Simulates that it was a plain file at the moment of the check.
    monkeypatch.setattr(Path, "is_symlink", never)
    with pytest.raises(PathEscapeError):
        _read(folder, name)
    if kind == "file":
        with pytest.raises(PathEscapeError):
            read_folder("Workspace.local_dirs", folder)


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "plain").write_text("plain")
    assert read_folder("Workspace.local_dirs", folder) == {"plain": b"plain"}
    assert Workspace(local_dirs=[folder]).local_dirs


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    "how", ["link of an agent", "link to a link", "folder of an agent", "user"]
)
def test_the_way_to_a_workspace_is_laid_by_somebody_else(how: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "key").write_text("secret")
    shared = tmp_path / "shared"
    shared.mkdir()
    owner = JAIL_UIDS[20]
    if how == "user":
        shared.chmod(0o1777)
        owner = 1001
    else:
        os.chown(shared, owner, owner)
    named = shared / "sub"
    if how == "agent":
        named.mkdir()
    else:
        named.symlink_to(precious)
    os.chown(named, owner, owner, follow_symlinks=False)
    if how == "link to a link":
        named = tmp_path / "own"
        named.symlink_to("shared/../shared/sub")
    with pytest.raises(ConfigError, match="workspace_dir="):
        create_local_session(workspace_dir=named).exec("1")
    assert (precious.stat().st_uid, (precious / "key").stat().st_uid) == (0, 0)


@pytest.mark.full
def test_a_workspace_may_be_reached_over_links_of_its_owner(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with create_local_session(workspace_dir=tmp_path / "link" / "new") as session:
        assert session.workspace_dir == tmp_path / "real" / "new"
