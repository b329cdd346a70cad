# pyright: basic
# The libraries used here have no type hints.
"""Pyro5: an exposed object in a daemon on a Unix socket."""

from __future__ import annotations

import sys
from typing import Any

import Pyro5
import Pyro5.api

from benchmarks.gate import _work


@Pyro5.api.expose
class Work:
    """See `_work`."""

    def small(self, x: int) -> int:
        return _work.small(x)

    def floats(self, n: int) -> list[float]:
        return _work.floats(n)

    def take(self, values: list[float]) -> float:
        return _work.take(values)

    def array(self, nbytes: int, stamp: int) -> Any:
        return _work.array(nbytes, stamp).tobytes()

    def fail(self, message: str) -> None:
        _work.fail(message)


def main(address: str) -> None:
    """Serve forever at `./u:PATH`."""
    config: Any = Pyro5.config
    config.SERVERTYPE = "multiplex"  # a thread pool stops at 80 threads, which contend for the GIL
    config.SERIALIZER = "msgpack"
    daemon = Pyro5.api.Daemon(unixsocket=address.removeprefix("./u:"))
    daemon.register(Work(), "work")
    daemon.requestLoop()


if __name__ == "__main__":
    main(sys.argv[1])
