"""Helpers for tests of copies: their list, and a function that blocks one until a file exists."""

from typing import Any

from tests.rpc.serving import Served

WAIT_FOR = """
    import os
    import time
    from pathlib import Path

    @expose(stateful=False)
    def wait_for(path: str) -> int:
        Path(path + f".{os.getpid()}").touch()
        while not os.path.exists(path):
            time.sleep(0.002)
        return os.getpid()
"""


def copies(served: Served) -> list[dict[str, Any]]:
    """The copies, as the control socket lists them."""
    return served.control("GET", "/v1/health")["copies"]


def pids(served: Served) -> set[int]:
    """The processes of the copies that are ready."""
    return {copy["pid"] for copy in copies(served) if copy["state"] == "ready"}
