"""Which NVIDIA GPUs this host has."""

import subprocess
from pathlib import Path

_PROC = Path("/proc/driver/nvidia/gpus")


def host_gpus() -> list[str]:
    """The names of this host's GPUs, in the order in which CUDA counts them; empty for none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _from_driver()
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return names if done.returncode == 0 and names else _from_driver()


def _from_driver() -> list[str]:
    names: list[str] = []
    for file in sorted(_PROC.glob("*/information")):
        for line in file.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                names.append(value.strip())
    return names
