"""Names and places of runs."""

import os
import secrets
import time
from pathlib import Path

ROOT_VARIABLE = "SEER_RUNS"


def new_run_id() -> str:
    """A fresh id that sorts by time: `20261115-093000-4f2a9c1b`."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(4)


def runs_root(given: Path | str | None = None) -> Path:
    """The folder that holds run folders: `given`, else `$SEER_RUNS`, else `./outputs/runs`."""
    return Path(given or os.environ.get(ROOT_VARIABLE) or Path("outputs") / "runs").absolute()
