"""A temporary folder that goes with its process, also when that is killed."""

import os
import subprocess
import tempfile
from pathlib import Path


class TransientFolder:
    """Removed by `remove`, or by a small process of its own as soon as this one is gone."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # It waits for the end of its input, which this process holds open and nobody inherits.
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; exec rm -rf -- "$1"', "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
        )

    def remove(self) -> None:
        """Remove the folder and all in it; blocks. Removing twice is harmless."""
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        self._remover.wait(timeout=60)
