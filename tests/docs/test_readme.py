"""The program in the README runs unchanged, with settings that replace its model and its agent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seer.testing import make_tiny_model

ROOT = Path(__file__).parents[2]
STEPS = """
[[steps]]
[[steps.calls]]
tool = "python"
expect = { contains = "32" }
arguments = { code = "import model_tools; print(len(model_tools.get_embedding('hello')))" }

[[steps]]
text = "They are alike."
"""


def blocks() -> dict[str, str]:
    """The README's Python files, by the name in their first line."""
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    return {code.split("\n")[0].removeprefix("# "): code for code in found}


def test_the_readme_shows_one_whole_program_in_thirty_lines() -> None:
    files = blocks()
    assert set(files) == {"interface.py", "main.py"}
    assert sum(len(code.splitlines()) for code in files.values()) <= 32


def test_the_home_page_shows_the_same_program() -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    shown = re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', page, re.M | re.S)
    assert dict(shown) == blocks()


def test_the_readmes_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert not [target for target in targets if not (ROOT / target).exists()]


@pytest.mark.full
def test_the_readmes_program_runs(tmp_path: Path) -> None:
    for name, code in blocks().items():
        (tmp_path / name).write_text(code)
    (tmp_path / "steps.toml").write_text(STEPS)
    model = make_tiny_model(tmp_path / "tiny")
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "SEER_PROVIDER": "local",
            "SEER_MODEL_ALIASES": f"google/gemma-2-9b={model}",
            "SEER_AGENT": "scripted:steps.toml",
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "They are alike." in done.stdout
