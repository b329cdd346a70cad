"""Libraries: their sources, what they refuse, and the docs from their code."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from seer.errors import ConfigError
from seer.workspace import Library, Skill, Workspace

HELPERS = '''
"""Small helpers."""

import os

def format_result(data: dict, *, title: str = "Result") -> str:
    """Format a result dict as markdown.

    Args:
        data: What to format.
    """
    return os.linesep.join(data)

async def fetch(x, /, y: "int | None" = None, *args: float, **kw) -> list[str]: ...

def _secret(): ...

class Box(dict):
    """Holds things."""

    size: int = 3
    _hidden: int = 4

    def __init__(self, size: int) -> None: ...
    @staticmethod
    def make(n: int) -> "Box": ...
    @property
    def width(self) -> int:
        "How wide."
        return 1
    def _inner(self): ...
'''


def test_a_file_becomes_a_module_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "helpers.py"
    path.write_text(HELPERS)
    library = Library.from_file(path)
    assert library.name == "helpers"
    assert dict(library.files) == {"helpers.py": HELPERS.encode()}
    assert Library.from_file(str(path), name="other").name == "other"


def test_docs_show_public_signatures_and_docstrings_and_no_private_names() -> None:
    docs = Library.from_code("helpers", HELPERS).docs
    assert "## `helpers`" in docs
    assert "Small helpers." in docs
    assert "def format_result(data: dict, *, title: str='Result') -> str:" in docs
    assert "        data: What to format." in docs
    assert "async def fetch(x, /, y: 'int | None'=None, *args: float, **kw) -> list[str]:" in docs
    assert "class Box(dict):" in docs
    assert "def __init__(size: int) -> None:" in docs
    assert "@staticmethod\n    def make(n: int) -> 'Box':" in docs
    assert "size: int = 3" in docs
    assert "_secret" not in docs
    assert "_hidden" not in docs
    assert "_inner" not in docs


def test_a_literal_all_decides_what_is_public() -> None:
    code = '__all__ = ["_odd"]\ndef _odd(): ...\ndef other(): ...\n'
    docs = Library.from_code("things", code).docs
    assert "def _odd()" in docs
    assert "other" not in docs


def test_making_a_library_executes_nothing_of_it(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    Library.from_code("evil", f"open({str(marker)!r}, 'w')\nraise SystemExit")
    assert not marker.exists()


def test_docs_survive_quotes_and_backslashes_in_docstrings() -> None:
    code = "def f():\n    r'''Say \"\"\"hi\"\"\" to C:\\\\temp.'''\n"
    docs = Library.from_code("quoting", code).docs
    body = docs.split("```python\n")[1].split("\n```")[0]
    compile(body, "docs", "exec")


def test_a_folder_becomes_a_package_with_its_data_and_without_caches(tmp_path: Path) -> None:
    root = tmp_path / "toolbox"
    (root / "sub" / "__pycache__").mkdir(parents=True)
    (root / "__init__.py").write_text('"""Tools."""\n')
    (root / "sub" / "__init__.py").write_text("")
    (root / "sub" / "deep.py").write_text("def dig(n: int) -> int: ...\n")
    (root / "_private.py").write_text("def hush(): ...\n")
    (root / "table.csv").write_bytes(b"a,b\n")
    (root / "sub" / "__pycache__" / "deep.cpython-311.pyc").write_bytes(b"x")
    (root / "link.py").symlink_to(tmp_path / "elsewhere.py")
    library = Library.from_directory(root)
    assert set(library.files) == {
        "toolbox/__init__.py",
        "toolbox/_private.py",
        "toolbox/sub/__init__.py",
        "toolbox/sub/deep.py",
        "toolbox/table.csv",
    }
    assert "## `toolbox.sub.deep`" in library.docs
    assert "hush" not in library.docs


def test_a_skill_folder_with_code_becomes_a_documented_library(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text(
        "---\nname: token-tools\ndescription: Count tokens\n---\n# How to count\n"
    )
    (tmp_path / "code.py").write_text("def count(text: str) -> int: ...\n")
    library = Library.from_skill_dir(tmp_path)
    assert library.name == "token_tools"
    assert list(library.files) == ["token_tools.py"]
    assert library.docs.startswith("# How to count")
    assert "def count(text: str) -> int:" in library.docs


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-helpers", "'my_helpers'"),
        ("1st", "'_1st'"),
        ("class", "keyword"),
        ("json", "standard library"),
        ("ipykernel", "kernel"),
        ("numpy", "every local session"),
        ("", "identifier"),
        ("a.b", "identifier"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="Library.name=") as caught:
        Library.from_code(name, "x = 1")
    assert reason in str(caught.value)
    assert caught.value.value == name


def test_a_syntax_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef f(:\n")
    with pytest.raises(ConfigError, match=r"broken\.py.*line 2"):
        Library.from_file(path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.py", "a//b.py", "./a.py", "", "a\0.py"])
def test_files_outside_of_the_library_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="a relative path such as"):
        Library(name="a", files={"a.py": b"", path: b""})


def test_a_library_without_its_own_module_is_refused() -> None:
    with pytest.raises(ConfigError, match="import a"):
        Library(name="a", files={"b.py": b""})


def _of_skills(path: Path) -> Workspace:
    return Workspace(skill_dirs=[path])


LOADS: tuple[Callable[[Path], object], ...] = (
    Library.from_file,
    Library.from_directory,
    Library.from_skill_dir,
    Skill.from_dir,
    _of_skills,
)


@pytest.mark.parametrize("load", LOADS)
def test_a_source_that_does_not_exist_is_said_not_to(
    load: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"none\.py': does not exist"):
        load(tmp_path / "none.py")


def test_missing_sources_are_named(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("")
    with pytest.raises(ConfigError, match="is not a .py file"):
        Library.from_file(text)
    with pytest.raises(ConfigError, match="from_directory"):
        Library.from_file(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        Library.from_directory(text)
    with pytest.raises(ConfigError, match="has no .py file"):
        Library.from_directory(tmp_path)
    with pytest.raises(ConfigError, match="has no SKILL.md"):
        Library.from_skill_dir(tmp_path)


def test_a_null_byte_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="Library 'a'"):
        Library.from_code("a", "x = '\0'")


def test_a_folder_of_many_files_points_to_local_dirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "b.bin").write_bytes(b"12345678")
    monkeypatch.setattr("seer.workspace._library.MAX_BYTES", 4)
    with pytest.raises(ConfigError, match="keep large data out of this folder"):
        Library.from_directory(tmp_path, name="big")


def test_files_cannot_be_changed_afterwards() -> None:
    files = {"a.py": b"x = 1"}
    library = Library(name="a", files=files)
    files["a.py"] = b"x = 2"
    assert library.files["a.py"] == b"x = 1"
    with pytest.raises(TypeError):
        library.files["a.py"] = b""  # pyright: ignore[reportIndexIssue]


def test_a_fault_of_the_parser_while_others_parse_is_not_the_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse, faults = ast.parse, ["AST constructor recursion depth mismatch (before=48, after=151)"]

    def sometimes(source: bytes, filename: str = "") -> ast.Module:
        if faults:
            raise SystemError(faults.pop())
        return parse(source, filename)

    monkeypatch.setattr(ast, "parse", sometimes)
    assert Library(name="a", files={"a.py": b"x = 1"}).files
    assert not faults
    faults.append("another fault")
    with pytest.raises(SystemError, match="another fault"):
        Library(name="a", files={"a.py": b"x = 1"})
