"""Collect the wheels that a host elsewhere needs and cannot fetch by itself.

Only wheels: no code of a package runs here, and what fits the other host is known by its name.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from seer.environment._assemble import site_packages
from seer.environment._packages import build_environment
from seer.environment._process import run_program
from seer.errors import PackageError


async def collect_wheels(
    requirements: Sequence[str],
    folder: Path,
    target: Mapping[str, str],
    *,
    on_progress: Callable[[str], None],
) -> None:
    """Download wheels for another host, with all that they need, into a folder.

    Args:
        requirements: What is wanted.
        folder: Where the wheels go.
        target: The other host's `python`, `machine` and `libc` version.
        on_progress: Called with what is being done.

    Raises:
        PackageError: There is no wheel of something for that host.
    """
    on_progress("collecting wheels")
    environment = await build_environment(["pip"])
    platforms: list[str] = []
    for tag in _platforms(target["machine"], target["libc"]):
        platforms += ["--platform", tag]
    ended = await run_program(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--only-binary", ":all:", "--implementation", "cp", "--implementation", "py"),
            *("--python-version", target["python"], *platforms, "--dest", str(folder)),
            "--",
            *requirements,
        ],
        env={**os.environ, **_pip_settings(os.environ), "PYTHONPATH": site_packages(environment)},
    )
    if ended.exit_code != 0:
        raise PackageError(
            f"packages {list(requirements)!r}: wheels for Python {target['python']} on "
            f"{target['machine']} cannot be had:\n{ended.stderr.strip()[-3000:]}"
        )


def _platforms(machine: str, libc: str) -> list[str]:
    """The wheel tags that fit a host with this C library, best first."""
    major, _, minor = libc.partition(".")
    newest = int(minor) if major == "2" and minor.isdigit() else 17
    tags = [f"manylinux_2_{number}_{machine}" for number in range(newest, 4, -1)]
    return [*tags, f"manylinux2014_{machine}", f"linux_{machine}"]


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """uv's settings of where packages come from, for pip, where the user has only those."""
    pairs = {
        "PIP_INDEX_URL": environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL", ""),
        "PIP_EXTRA_INDEX_URL": environ.get("UV_EXTRA_INDEX_URL", ""),
        "PIP_FIND_LINKS": environ.get("UV_FIND_LINKS", ""),
    }
    return {name: value for name, value in pairs.items() if value and name not in environ}
