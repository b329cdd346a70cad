"""The workspace: frozen, checked when it is made, and safely installed.

It calls the installer itself, with a machine in memory.
"""

import errno
from pathlib import Path
from typing import Any

import pytest

from seer.errors import ConfigError, RemoteFileError
from seer.workspace import Library, Skill, Workspace
from seer.workspace._install import install_files, install_libraries

A = Library.from_code("alpha", 'def go(x: int) -> int:\n    """Go."""\n')
B = Library.from_code("beta", "")
SKILL = Skill.from_text("be-kind", description="How to be kind.", body="Be kind.")


class MemoryFiles:
    """A machine's file API over a dict."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.writes: list[str] = []

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if path.endswith("forbidden"):
            raise RemoteFileError(errno.EACCES, "denied", path)
        if path not in self.files:
            raise RemoteFileError(errno.ENOENT, "no such file", path)
        end = None if length is None else offset + length
        return self.files[path][offset:end]

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        self.writes.append(path)
        self.files[path] = data


def test_an_empty_workspace_has_no_docs() -> None:
    assert Workspace().get_library_docs() == ""
    assert Workspace().get_skill_docs() == ""


def test_docs_cover_all_libraries_and_skills() -> None:
    workspace = Workspace(libraries=[A, B], skills=[SKILL])
    docs = workspace.get_library_docs()
    assert "`import alpha`, `import beta`" in docs
    assert "def go(x: int) -> int:" in docs
    assert "## `beta`" in docs
    assert "**be-kind**: How to be kind." in workspace.get_skill_docs()


def test_lists_given_are_copied_and_the_workspace_is_frozen() -> None:
    libraries = [A]
    workspace = Workspace(libraries=libraries)
    libraries.append(B)
    assert workspace.libraries == (A,)
    with pytest.raises(AttributeError):
        workspace.libraries = ()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("libraries", ["a"]),
        ("libraries", A),
        ("local_files", "file"),
        ("skills", ["a"]),
        ("skill_dirs", "folder"),
        ("skill_dirs", [3]),
        ("local_dirs", [3]),
        ("local_files", [None]),
        ("custom_init_code", b"1"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_its_field(field: str, value: object) -> None:
    given: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=rf"^Workspace\.{field}.*: must be "):
        Workspace(**given)


def test_names_used_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Workspace\.libraries='alpha'"):
        Workspace(libraries=[A, Library.from_code("alpha", "x = 1")])
    with pytest.raises(ConfigError, match=r"Workspace\.skills='be-kind'"):
        Workspace(skills=[SKILL, SKILL])


def test_libraries_may_share_a_file_only_when_it_is_the_same() -> None:
    one = Library(name="one", files={"one.py": b"", "_shared.py": b"x = 1"})
    two = Library(name="two", files={"two.py": b"", "_shared.py": b"x = 1"})
    three = Library(name="three", files={"three.py": b"", "_shared.py": b"x = 2"})
    assert set(Workspace(libraries=[one, two]).library_files()) == {
        "one.py",
        "two.py",
        "_shared.py",
    }
    with pytest.raises(ConfigError, match=r"'three'.*_shared\.py"):
        Workspace(libraries=[one, two, three])


def test_paths_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Workspace(local_files=[tmp_path / "none"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        Workspace(local_dirs=[tmp_path / "file"])
    with pytest.raises(ConfigError, match="a relative path such as"):
        Workspace(local_files=[(tmp_path / "file", "../up")])
    with pytest.raises(ConfigError, match="has no SKILL.md"):
        Workspace(skill_dirs=[tmp_path])


def test_init_code_that_does_not_parse_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"custom_init_code.*line 1"):
        Workspace(custom_init_code="def (")


def test_skill_dirs_are_skills_or_folders_of_skills(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\n")
    names = [skill.name for skill in Workspace(skill_dirs=[tmp_path]).skills]
    assert names == ["one", "two"]
    assert [skill.name for skill in Workspace(skill_dirs=[tmp_path / "two"]).skills] == ["two"]


async def test_files_are_installed_where_they_belong(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a.bin").write_bytes(b"\0\1")
    (tmp_path / "notes.md").write_text("hi")
    workspace = Workspace(
        libraries=[A],
        skills=[SKILL],
        local_dirs=[tmp_path / "data", (tmp_path / "data", "again/here")],
        local_files=[tmp_path / "notes.md", (str(tmp_path / "notes.md"), "docs/other.md")],
    )
    machine = MemoryFiles()
    await install_files(workspace, machine, root="/work")
    await install_libraries(workspace, machine, root="/lib/")
    assert machine.files["/work/data/deep/a.bin"] == b"\0\1"
    assert machine.files["/work/again/here/deep/a.bin"] == b"\0\1"
    assert machine.files["/work/notes.md"] == b"hi"
    assert machine.files["/work/docs/other.md"] == b"hi"
    assert machine.files["/work/.claude/skills/be-kind/SKILL.md"] == SKILL.files["SKILL.md"]
    assert machine.files["/work/.agents/skills/be-kind/SKILL.md"] == SKILL.files["SKILL.md"]
    assert machine.files["/lib/alpha.py"] == A.files["alpha.py"]


async def test_installing_twice_writes_nothing_the_second_time() -> None:
    machine = MemoryFiles()
    workspace = Workspace(libraries=[A, B])
    first = await install_libraries(workspace, machine, root="/lib")
    assert set(first.written) == {"alpha.py", "beta.py"}
    machine.writes.clear()
    second = await install_libraries(workspace, machine, root="/lib")
    assert set(second.unchanged) == {"alpha.py", "beta.py"}
    assert machine.writes == []


async def test_a_changed_file_is_kept_and_named(caplog: pytest.LogCaptureFixture) -> None:
    machine = MemoryFiles()
    await install_libraries(Workspace(libraries=[A]), machine, root="/lib")
    machine.files["/lib/alpha.py"] = b"the agent was here"
    report = await install_libraries(Workspace(libraries=[A]), machine, root="/lib")
    assert report.kept == ("alpha.py",)
    assert machine.files["/lib/alpha.py"] == b"the agent was here"
    assert "alpha.py was changed" in caplog.text


async def test_an_untouched_file_is_brought_up_to_date() -> None:
    machine = MemoryFiles()
    await install_libraries(Workspace(libraries=[A]), machine, root="/lib")
    newer = Library.from_code("alpha", "x = 2")
    report = await install_libraries(Workspace(libraries=[newer]), machine, root="/lib")
    assert report.written == ("alpha.py",)
    assert machine.files["/lib/alpha.py"] == b"x = 2"


@pytest.mark.parametrize("manifest", [b"\xff", b"[1]", b'{"alpha.py": 3}', b"[" * 100_000])
async def test_a_forged_record_of_what_was_installed_does_no_harm(manifest: bytes) -> None:
    machine = MemoryFiles()
    machine.files["/lib/.seer/installed.json"] = manifest
    machine.files["/lib/alpha.py"] = b"mine"
    report = await install_libraries(Workspace(libraries=[A]), machine, root="/lib")
    assert report.kept == ("alpha.py",)


async def test_a_file_that_cannot_be_read_is_an_error() -> None:
    library = Library(name="alpha", files={"alpha.py": b"", "alpha/forbidden": b""})
    with pytest.raises(RemoteFileError):
        await install_libraries(Workspace(libraries=[library]), MemoryFiles(), root="/lib")
