"""The nodes of a test cluster: run as a child by `ray_cluster`, obeys lines of JSON.

    argument             a list of what each node has
    says                 {"address": ..., "nodes": [{"id": ..., "pid": ...}]}
    {"kill": 1}          kills a node; says {}
    {"add": {...}}       starts another; says {"id": ..., "pid": ...}

The end of its input ends the cluster. It uses Ray's own `Cluster`, which is meant for tests.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ray.cluster_utils import Cluster

_OBJECT_STORE = 80 << 20


class Nodes:
    """A cluster whose nodes are known by their place."""

    def __init__(self, wanted: list[Mapping[str, Any]]) -> None:
        self._cluster = Cluster()
        # One after the other: nodes that start at the same time choose the same sockets.
        self._nodes = [self._add(each, head=not place) for place, each in enumerate(wanted)]
        self._cluster.wait_for_nodes(timeout=120)

    def _add(self, wanted: Mapping[str, Any], *, head: bool = False) -> Any:
        settings: dict[str, Any] = {
            "num_cpus": wanted["cpus"],
            "num_gpus": wanted["gpus"],
            "resources": wanted["resources"],
            "object_store_memory": _OBJECT_STORE,
            "include_dashboard": False,
            "include_log_monitor": False,
            "wait": False,
        }
        if wanted["memory"] is not None:
            settings["memory"] = wanted["memory"]
        if head:
            settings["no_monitor"] = True
        return cast(Any, self._cluster).add_node(**settings)

    def describe(self) -> dict[str, object]:
        """Where the cluster is, and its nodes."""
        nodes = [_described(node) for node in self._nodes]
        return {"address": cast(Any, self._cluster).address, "nodes": nodes}

    def add(self, wanted: Mapping[str, Any]) -> dict[str, object]:
        """Start another node."""
        self._nodes.append(self._add(wanted))
        self._cluster.wait_for_nodes(timeout=120)
        return _described(self._nodes[-1])

    def kill(self, index: int) -> dict[str, object]:
        """Kill a node's raylet, its agents and its workers, as when its power fails."""
        node = self._nodes[index]
        below = [pid for pid in _descendants(_raylet(node)) if _is_ray(pid)]
        for pid in (_raylet(node), *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        cast(Any, self._cluster).remove_node(node, allow_graceful=False)
        return {}

    def end(self) -> None:
        """End all nodes."""
        cast(Any, self._cluster).shutdown()


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _described(node: Any) -> dict[str, object]:
    return {"id": str(node.node_id), "pid": _raylet(node)}


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(status[1]), []).append(int(folder.name))
    found, left = list[int](), [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def _is_ray(pid: int) -> bool:
    """Whether it is Ray's and not a program that a worker started, which a real node would take
    with it; here those have to notice the worker's end themselves."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::") or b"/ray/" in command


def main() -> None:
    """Start the nodes, say so, and obey."""
    # Ray's output goes to the log; the answers have their own stream.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    nodes = Nodes(json.loads(sys.argv[1]))
    try:
        answers.write(json.dumps(nodes.describe()) + "\n")
        answers.flush()
        for line in sys.stdin:
            request = json.loads(line)
            answer = nodes.kill(request["kill"]) if "kill" in request else nodes.add(request["add"])
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        nodes.end()


if __name__ == "__main__":
    main()
