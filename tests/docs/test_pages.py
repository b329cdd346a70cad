"""Every code block of the documentation runs.

A page is one program: its `python` blocks run in order in one interpreter, in an empty folder. A
block with a `title` is a file of that name, and `bash` blocks run where they stand. Other blocks
(`console`, `text`, `json`, `toml`) show output, and are not run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(python|bash)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)


def program_of(page: Path) -> str:
    """The page's blocks as one Python program, with the page's own line numbers."""
    text = page.read_text()
    parts: list[str] = []
    for kind, title, code in _BLOCK.findall(text):
        line = text[: text.index(code)].count("\n")
        if title:
            parts.append(f"__import__('pathlib').Path({title!r}).write_text({code!r})")
        elif kind == "bash":
            parts.append(f"__import__('subprocess').run(['bash', '-ec', {code!r}], check=True)")
        else:
            source = "\n" * line + code
            parts.append(f"exec(compile({source!r}, {page.name!r}, 'exec'), globals())")
    return "\n".join(parts)


PAGES = sorted(page for page in DOCS.rglob("*.md") if "decisions" not in page.parts)
RUNNABLE = [page for page in PAGES if _BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(program_of(page))
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "SEER_PROVIDER": "local",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
