"""The peers' virtual environment, separate from the project's; made again when pins change."""

from __future__ import annotations

import compileall
import hashlib
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.gate._probes import BENCH_PYTHON, ROOT

REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"


def packages() -> list[str]:
    """Names of the pinned packages."""
    return re.findall(r"^([A-Za-z0-9-]+)", REQUIREMENTS.read_text(), flags=re.MULTILINE)


def ensure_environment() -> None:
    """Make the environment, unless it exists with exactly these pins.

    Raises:
        SystemExit: pip could not install a pin, and has printed why.
    """
    folder = BENCH_PYTHON.parents[1]
    stamp = folder / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {folder.name} with the peers' packages (minutes, once)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        (folder / ".gitignore").write_text("*\n")
        install = [str(BENCH_PYTHON), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)]
        if subprocess.run(install, check=False).returncode != 0:
            raise SystemExit(f"could not install {REQUIREMENTS.name}; see pip's message above")
        stamp.write_text(wanted)
    # In a jail, the sources are read-only, so without compiled files every start would compile.
    compileall.compile_dir(Path(__file__).parent, quiet=2)
