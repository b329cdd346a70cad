"""Floors without a server: one memcpy, a bare jail, a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks._common import median
from benchmarks.gate._jail import bare_argv
from benchmarks.gate._probes import BENCH_PYTHON, bench_env

_MEMCPY = """
import sys, time
import numpy as np
source = np.arange(int(sys.argv[1]) // 4, dtype=np.float32)
target = np.empty_like(source)
times = []
for _ in range(9):
    begin = time.perf_counter()
    np.copyto(target, source)
    times.append(time.perf_counter() - begin)
print(sorted(times[2:])[3])
"""


def memcpy(nbytes: int) -> float:
    """Seconds for one copy of `nbytes` between buffers that are in memory already."""
    argv = [str(BENCH_PYTHON), "-c", _MEMCPY, str(nbytes)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=bench_env())
    return float(done.stdout)


def _spawn(argv: list[str], times: int) -> float:
    taken: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run(argv, check=True, env=bench_env(), stdin=subprocess.DEVNULL)
        taken.append(time.perf_counter() - begin)
    return median(taken)


def bare_python(times: int = 5) -> float:
    """Seconds of `python -c pass` with the base interpreter, no environment around it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return _spawn([str(Path(sys.base_prefix) / "bin" / version), "-c", "pass"], times)


def bare_jail(times: int = 5) -> float:
    """Seconds to run `true` in a bare jail."""
    return _spawn(bare_argv(["/usr/bin/true"]), times)
