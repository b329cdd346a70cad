"""Machines on a Ray cluster. Ray finds the node and tracks resources; the rest is in `remote`.

One actor per machine holds its CPUs, GPUs and memory, and gives access to its node:

    controller --lines of JSON--> driver (a child: the one process that talks to Ray)
                                     `--Ray--> actor on the node that had room
    controller --TLS, pinned------------------> the actor's listener
                                                  |-- runs `operations.py`, which starts the machine
                                                  `-- carries streams to its session server

Modules without an underscore run in other processes: `actor.py` in Ray's worker on the node, which
has Ray and Python but no Seer, and `driver.py` in the child. Modules with an underscore run in the
controller.
"""

from seer.providers.ray._provider import RayOptions, RayProvider

__all__ = ["RayOptions", "RayProvider"]
