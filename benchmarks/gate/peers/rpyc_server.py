# pyright: basic
# The libraries used here have no type hints.
"""RPyC: a service in a threaded server on a Unix socket."""

from __future__ import annotations

import sys
from typing import Any

import rpyc
from rpyc.utils.server import ThreadedServer

from benchmarks.gate import _work


class Work(rpyc.Service):
    """See `_work`. A list would become a proxy with a round trip per item; a tuple is a value."""

    def exposed_small(self, x: int) -> int:
        return _work.small(x)

    def exposed_floats(self, n: int) -> tuple[float, ...]:
        return tuple(_work.floats(n))

    def exposed_take(self, values: tuple[float, ...]) -> float:
        return _work.take(list(values))

    def exposed_array(self, nbytes: int, stamp: int) -> Any:
        return _work.array(nbytes, stamp).tobytes()

    def exposed_fail(self, message: str) -> None:
        _work.fail(message)


if __name__ == "__main__":
    ThreadedServer(Work, socket_path=sys.argv[1], backlog=512).start()
