"""Seer's distribution is `seer-interp`; `seer` on the package index is another project."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import seer

ROOT = Path(seer.__file__).parents[2]
TEXTS = {".md", ".py", ".toml", ".txt", ".yml", ".js", ".html", ""}
PLACES = ("src", "compat", "docs", "experiments", "scripts", "tests", "benchmarks")
# `seer[viewer]`, `pip install seer`, `uv add seer`: all of them name the other project.
OTHER = re.compile(
    r"(?<![\w.-])[Ss]eer\[[a-z{]|\b(?:pip|pipx|uv|uvx)(?: \w+)*?(?: -[\w-]+)* ['\"]?seer(?![\w-])"
)
ALLOWED = {
    "src/seer/_name_conflict.py": "says how to remove it",
    "scripts/setup": "removes it",
    "tests/project/test_name.py": "this",
}


def texts() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for place in PLACES:
        found += [path for path in (ROOT / place).rglob("*") if path.is_file()]
    return [
        path
        for path in found
        if path.suffix in TEXTS
        and "__pycache__" not in path.parts
        and str(path.relative_to(ROOT)) not in ALLOWED
    ]


def test_no_text_names_the_other_project() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if OTHER.search(line)
    ]
    assert not lines, "write seer-interp:\n" + "\n".join(lines)


def test_the_project_and_its_aliases_agree_on_the_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    aliases = tomllib.loads((ROOT / "compat" / "pyproject.toml").read_text())["project"]
    assert project["name"] == seer.__distribution__ == "seer-interp"
    assert aliases["dependencies"] == ["seer-interp"]
    assert all("seer-interp[" in line for line in project["optional-dependencies"]["all"])


def test_a_module_of_the_other_project_in_our_place_is_named(tmp_path: Path) -> None:
    """The other project's `seer/__init__.py` has replaced ours."""
    package = tmp_path / "seer"
    package.mkdir()
    (package / "__init__.py").write_text(f"__path__.append({str(Path(seer.__file__).parent)!r})\n")
    for code in ("import seer.environment", "import seer.cli"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "pip uninstall -y seer" in done.stderr.splitlines()[-1]
        assert ("Traceback" in done.stderr) is (code == "import seer.environment")
