"""The pinned versions fit together on every Python that Seer supports."""

import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from uv import find_uv_bin

import seer

ROOT = Path(seer.__file__).parents[2]
# The Pythons of Debian 12, Ubuntu 24.04 and Debian 13, and the next version.
VERSIONS = ("3.11.2", "3.12.0", "3.13.0", "3.14.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_package_has_one_pin_on_each_python(version: str) -> None:
    pins: dict[str, list[str]] = {}
    environment = {
        "python_full_version": version,
        "python_version": version.rpartition(".")[0],
    }
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            fits = pin.marker is None or pin.marker.evaluate(environment)
            pins.setdefault(pin.name.lower(), []).extend([line] if fits else [])
    assert not {name: lines for name, lines in pins.items() if len(lines) != 1}


@pytest.mark.full
@pytest.mark.campaign
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "what", [("--extra", "demo"), ("--extra", "all", "--group", "dev", "--group", "docs")]
)
def test_the_pins_resolve(version: str, what: tuple[str, ...]) -> None:
    """This asks the package index, so the usual suites leave it out."""
    command = [find_uv_bin(), "pip", "compile", "--quiet", "pyproject.toml", *what]
    command += ["--constraints", "constraints.txt", "--python-version", version]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
