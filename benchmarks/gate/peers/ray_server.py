# pyright: basic
# The libraries used here have no type hints.
"""Ray: a local cluster with one named actor; writes the cluster's address to a file."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import ray

from benchmarks.gate import _work

OBJECT_STORE_BYTES = 3 << 30


@ray.remote(num_cpus=0)
class Work:
    """See `_work`."""

    def small(self, x: int) -> int:
        return _work.small(x)

    def floats(self, n: int) -> list[float]:
        return _work.floats(n)

    def take(self, values: list[float]) -> float:
        return _work.take(values)

    def array(self, nbytes: int, stamp: int) -> Any:
        return _work.array(nbytes, stamp)

    def fail(self, message: str) -> None:
        _work.fail(message)


def main(address: str) -> None:
    """Serve until a signal ends the process."""
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    context: Any = ray.init(
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        logging_level=logging.ERROR,
        log_to_driver=False,
        namespace="bench",
    )
    actor: Any = Work.options(name="work").remote()
    ray.get(actor.small.remote(1))
    partial = Path(address + ".part")
    partial.write_text(context.address_info["gcs_address"])
    partial.rename(address)
    done.wait()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
