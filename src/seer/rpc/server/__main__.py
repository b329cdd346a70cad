"""`python -m seer.rpc.server CONFIG`: serve the interface that a configuration file describes."""

from __future__ import annotations

import sys


def main() -> int:
    """Read the configuration and supervise the interface."""
    from ._config import ServerConfig
    from ._supervisor import OneProcess, Supervisor

    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m seer.rpc.server CONFIG.json\n")
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 (import time)
            config = ServerConfig.from_json(file.read())
    except (OSError, ValueError, TypeError) as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        return 2
    sys.argv = [config.file]
    workers = OneProcess
    if config.replicas > 1:
        from seer.rpc.replicas._supervision import Replicas

        workers = Replicas
    return Supervisor(config, workers).run()


if __name__ == "__main__":
    sys.exit(main())
