"""Shared parts of the benchmarks: facts about the machine, medians, tables, result files.

Results describe the machine by its hardware only, without host names, paths or addresses.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = Path(__file__).resolve().parent / "results"

_VERSIONS = (
    "import importlib.metadata as m, json, sys\n"
    "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
)


def median(values: Sequence[float]) -> float:
    """The median, under one name for all benchmarks."""
    return statistics.median(values)


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Installed versions of `packages` in the environment of `python`."""
    done = subprocess.run(
        [str(python), "-c", _VERSIONS, *packages], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def machine() -> dict[str, str]:
    """Processor, cores, memory, kernel and interpreter."""
    model = platform.machine()
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    total = next(
        (int(line.split()[1]) for line in _lines(Path("/proc/meminfo")) if "MemTotal" in line), 0
    )
    return {
        "processor": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{total / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def commit() -> str:
    """The commit of this checkout; a `+` marks uncommitted changes. Empty without git."""
    git = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def header(title: str, packages: Mapping[str, str], where: Mapping[str, str]) -> str:
    """The head of a result page: title, date, commit, machine and packages."""
    lines = [f"# {title}", ""]
    lines.append(f"Measured on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.")
    lines.append("")
    if made_from := commit():
        lines.append(f"- commit: {made_from}")
    lines += [f"- {key}: {value}" for key, value in where.items()]
    if packages:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
        lines.append(f"- packages: {listed}")
    return "\n".join([*lines, ""])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column is aligned to the left, the others to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, ""])


def write_results(name: str, markdown: str, data: Mapping[str, Any], *, folder: Path) -> None:
    """Write `<name>.md` and `<name>.json` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(markdown.rstrip() + "\n")
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
