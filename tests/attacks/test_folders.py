"""Folders that an agent works in, handed by their user to another sandbox or session."""

from pathlib import Path

import pytest

from seer.environment._fill import _read  # pyright: ignore[reportPrivateUsage]
from seer.errors import PathEscapeError
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

    # As if it had been a plain file at the moment of the check.
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
