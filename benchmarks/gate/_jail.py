"""The jails of the floors.

`launch` makes the same jail that a session gets (namespaces, unprivileged user, system-call
filter), so that a floor includes a jailed caller's costs outside the gate. `bare_argv` is the
simplest jail that still isolates, the reference for starting.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.gate._probes import BENCH_PYTHON, ROOT
from seer.isolation import Mount, Policy, choose
from seer.isolation.backends._base import Launch

SHARED = "/run/bench"
"""The path of the folder that both jails share, which has the sockets."""
_PYTHON = "/opt/python"
_SITE = "/opt/site"
_SOURCE = "/opt/bench"
_USER = 59999

PYTHON = f"{_PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
"""The interpreter's path in the jail."""


def launch(command: list[str], *, shared: Path) -> Launch:
    """Prepare to run `command` in a jail with the host's folder `shared` writable at `SHARED`."""
    if os.geteuid() == 0:
        os.chown(shared, _USER, _USER)
        shared.chmod(0o755)  # bwrap enters it before it switches to the unprivileged user
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = BENCH_PYTHON.parents[1] / "lib" / version / "site-packages"
    mounts = [
        Mount(Path(sys.base_prefix).resolve(), _PYTHON),
        Mount(ROOT / "benchmarks", f"{_SOURCE}/benchmarks"),
        Mount(shared, SHARED, writable=True),
    ]
    if site.exists():  # only arrays need packages
        mounts.append(Mount(site, _SITE))
    policy = Policy(
        mounts=tuple(mounts),
        env={
            "PYTHONPATH": f"{_SOURCE}:{_SITE}",
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        cwd=SHARED,
        uid=_USER if os.geteuid() == 0 else None,
    )
    return choose("bubblewrap").launch(policy, command)


def bare_argv(command: list[str]) -> list[str]:
    """Command line of a jail with own namespaces, a system folder, /proc, /dev and /tmp."""
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "bin"):
        argv += ["--symlink", f"usr/{name}", f"/{name}"]
    return [*argv, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--", *command]
