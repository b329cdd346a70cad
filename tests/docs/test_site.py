"""The site builds without a warning, and every page is in its navigation."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named == {page for page in there if not page.startswith("decisions/")}


def test_every_command_is_described() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "seer", "--help"], capture_output=True, text=True, check=True
    ).stdout
    commands = re.findall(r"^  ([a-z]+)  +\S", help_text, re.MULTILINE)
    assert {"demo", "runs", "stop"} <= set(commands)
    page = (ROOT / "docs" / "cli.md").read_text()
    assert not [name for name in commands if f"| `seer {name}" not in page]


@pytest.mark.full
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for part in ("docs", "src", "mkdocs.yml"):
        source = ROOT / part
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(source, tmp_path / part, ignore=ignore)
        else:
            shutil.copy(source, tmp_path / part)
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [zensical, "build", "--strict", "-f", "mkdocs.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "create_local_session" in (tmp_path / "site/reference/execution/index.html").read_text()
