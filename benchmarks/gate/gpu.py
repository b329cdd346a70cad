"""A GPU's tensors through the gate, on a machine with one: `python benchmarks/gate/gpu.py`.

This serves an interface that returns a 120 MB float32 activation from the GPU, and measures the
time until the caller has it as a numpy array, against a copy into pinned memory plus one memcpy. It
checks that the values are right, that a CUDA error that breaks the process ends it with that
reason, and that GPU time is counted. There are no jails, because this measures copies.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    sys.path.insert(1, str(ROOT / "src"))
    os.environ["PYTHONPATH"] = f"{ROOT}/src:{ROOT}"  # for the server that this starts

SOURCE = """
    import torch

    device = torch.device("cuda")
    values = torch.arange(30_000_000, dtype=torch.float32, device=device)

    @expose
    def activation(stamp: int) -> torch.Tensor:
        values[0] = stamp
        return values

    @expose
    def total(x: torch.Tensor) -> float:
        return float(x.to(device).sum())

    @expose
    def work(n: int) -> float:
        x = torch.ones(4096, 4096, device=device)
        for _ in range(n):
            x = (x @ x).clamp(max=1.0)
        return float(x[0, 0])

    @expose
    def poison() -> None:
        index = torch.tensor([10**9], device=device)
        torch.zeros(10, device=device)[index].sum().item()

    @expose
    def small(x: int) -> int:
        return x + 1
"""


def _timed(call: Callable[[], object], times: int) -> float:
    taken: list[float] = []
    for _ in range(times):
        gc.collect()
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[len(taken) // 2] * 1e3


def _floor() -> dict[str, float]:
    import numpy as np
    import torch

    values = torch.arange(30_000_000, dtype=torch.float32, device="cuda")
    pinned = torch.empty(30_000_000, dtype=torch.float32, pin_memory=True)
    pageable = torch.empty(30_000_000, dtype=torch.float32)
    source, target = np.ones(30_000_000, np.float32), np.ones(30_000_000, np.float32)

    def copy(to: torch.Tensor) -> None:
        to.copy_(values)
        torch.cuda.synchronize()

    copy(pinned)
    return {
        "copy to pinned memory": _timed(lambda: copy(pinned), 15),
        "copy to pageable memory": _timed(lambda: copy(pageable), 5),
        "memcpy": _timed(lambda: np.copyto(target, source), 15),
    }


def main() -> int:
    """Measure, check, print."""
    import numpy as np
    import torch

    from tests.rpc.serving import serving

    found = _floor()
    with serving(SOURCE, restart="on-failure", callers={"a": {}, "b": {"gpu_seconds": 100.0}}) as s:
        gate = s.gate()
        stamp = 0

        def call() -> None:
            nonlocal stamp
            stamp += 1
            array = gate.call("activation", (stamp,))
            if array[0] != stamp or array[-1] != 29_999_999 or array.dtype != np.float32:
                raise AssertionError("the array is not what the GPU had")

        call()
        found["first call"] = _timed(call, 1)
        for _ in range(5):
            call()
        found["through the gate, dropped"] = _timed(call, 15)
        kept = [gate.call("activation", (i,)) for i in range(3)]
        begin = time.perf_counter()
        kept += [gate.call("activation", (i,)) for i in range(8)]
        found["through the gate, kept"] = (time.perf_counter() - begin) / 8 * 1e3
        del kept
        sent = np.ones(30_000_000, np.float32)
        assert gate.call("total", (sent,)) == 30_000_000
        found["sent to the GPU"] = _timed(lambda: gate.call("total", (sent,)), 5)
        tensor = gate.call("activation", (1,), tensors=True)
        assert isinstance(tensor, torch.Tensor)
        other = s.gate("b")
        other.call("work", (200,))
        used = other.budget()["caller"]["used"]
        assert used["gpu_seconds"] > 0.001, used
        try:
            gate.call("poison")
        except Exception as error:
            found["poison"] = 0.0
            print("poison:", type(error).__name__, str(error)[:200].replace("\n", " "))
        for _ in range(50):
            try:
                assert gate.call("small", (1,)) == 2
                break
            except ConnectionError as error:
                print("after:", type(error).__name__, str(error)[:300])
    bound = found["copy to pinned memory"] + found["memcpy"]
    ratio = found["through the gate, dropped"] / bound
    for name, value in found.items():
        print(f"{name:28} {value:8.2f} ms")
    print(f"through the gate / (pinned copy + memcpy) = {ratio:.2f} (bar: at most 2)")
    print(json.dumps({"device": torch.cuda.get_device_name(), "ms": found, "ratio": ratio}))
    return 0 if ratio <= 2 else 1


if __name__ == "__main__":
    raise SystemExit(main())
