"""Explains why pip cannot download anything in a machine without a network.

A copy is in such a machine's virtual environment, and the machine's interpreters import it.
"""

import os
import sys


def _explain() -> None:
    words = sys.orig_argv[1:]
    names = [os.path.basename(word) for word in words]
    started = [n for n, name in enumerate(names) if name in ("pip", "pip3")]
    if started and {"install", "download", "wheel"} & set(words[started[0] + 1 :]):
        sys.stderr.write(
            "this sandbox has no network: pip can install only from local files; "
            "to download packages, start it with SandboxConfig(network=...)\n"
        )


_explain()
