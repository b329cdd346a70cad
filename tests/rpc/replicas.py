"""What tests of copies share: who they are, and a function that keeps one until a file is there."""

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
    """The copies, as the control socket tells of them."""
    return served.control("GET", "/v1/health")["copies"]


def pids(served: Served) -> set[int]:
    """The processes of the copies that are ready."""
    return {copy["pid"] for copy in copies(served) if copy["state"] == "ready"}
