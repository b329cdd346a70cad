"""The process that talks to Ray for a controller: a child, which Ray calls a driver.

Requests are lines of JSON on standard input, `{"id", "op", ...}`; answers are lines on standard
output, `{"id", "ok"}` or `{"id", "error", "kind"}`, and before that `{"id", "waiting"}` while the
request waits. The driver sends `{"lost": name, "reason"}` when an actor has died. When its input
closes, the controller has ended. The driver then ends too, and stops a Ray that it started. Ray has
its own process because it allows only one cluster per process and changes the process's signal
handlers.
"""

import contextlib
import importlib
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from seer._transient import TransientFolder
from seer.providers.ray import actor as actor_module

NAMESPACE = "seer"
_PREFIX = "sandbox-"
_LOOK = 1.0
_SLOW_LOOK = 20.0
_OBJECT_STORE = 80 << 20
_END_PATIENCE = 30.0


class Driver:
    """The connection to a cluster, and this controller's actors."""

    def __init__(self, address: str, say: Any) -> None:
        """Connect.

        Args:
            address: The cluster's address; empty to start a cluster here.
            say: Writes a line to the controller.
        """
        self._say = say
        self._operations: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "contact": self._contact,
            "end": self._end,
            "ended": self._ended,
            "list": self._list,
            "nodes": self._nodes,
            "place": self._place,
            "started": self._started,
        }
        self._folder = None if address else TransientFolder("ray")
        self._ray: Any = importlib.import_module("ray")
        self._name = secrets.token_hex(8)
        self._actors: dict[str, Any] = {}
        self._lives: dict[str, Any] = {}
        self._unwanted: set[str] = set()
        own: dict[str, Any] = {
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE,
            "_temp_dir": str(self._folder.path) if self._folder else None,
        }
        self._ray.init(
            address or "local",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            **({} if address else own),
        )
        # Nodes have Ray, but not Seer.
        self._ray.cloudpickle.register_pickle_by_value(actor_module)

    def close(self) -> None:
        """Disconnect, and stop a Ray that was started here."""
        self._ray.shutdown()
        if self._folder is not None:
            self._folder.remove()

    def handle(self, request: Mapping[str, Any]) -> None:
        """Perform a request and answer it."""
        number: int = request["id"]
        errors: Any = self._ray.exceptions
        try:
            answer = self._operations[request["op"]](request)
        except errors.RayActorError as error:
            self._say({"id": number, "kind": "lost", "error": _words(error)})
        except errors.GetTimeoutError as error:
            self._say({"id": number, "kind": "slow", "error": _words(error)})
        except Exception as error:  # at the edge of this process, the controller gets every error
            self._say({"id": number, "kind": type(error).__name__, "error": _words(error)})
        else:
            self._say({"id": number, "ok": answer})

    # --- operations ---------------------------------------------------------------------------

    def _nodes(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"id": node["NodeID"], "resources": node["Resources"]}
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def _place(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Create an actor, and wait until a node has the resources for it."""
        name: str = request["name"]
        made = (
            self._ray.remote(actor_module.Holder)
            .options(
                name=_PREFIX + name,
                # The actor must outlive this driver if its machine is detached or has another
                # holder. `watch` tells the actor when drivers are gone.
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                **self._room(request["wants"]),
            )
            .remote(request["settings"])
        )
        self._register(name, made)
        if name in self._unwanted:
            self._ray.kill(made)
        coming = made.way.remote()
        while not self._ray.wait([coming], timeout=_LOOK)[0]:
            self._say({"id": request["id"], "waiting": self._look()})
        return self._ray.get(coming)

    def _room(self, wants: Mapping[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {
            "num_cpus": wants["cpus"],
            "num_gpus": wants["gpus"],
            "resources": wants["resources"],
        }
        if wants["memory"]:
            options["memory"] = wants["memory"]
        if wants["kind"]:
            options["accelerator_type"] = wants["kind"]
        if wants["labels"]:
            options["label_selector"] = wants["labels"]
        if wants["node"]:
            options["scheduling_strategy"] = self._on(wants["node"])
        return options

    def _on(self, node: str) -> Any:
        fitting = [
            each["NodeID"]
            for each in self._ray.nodes()
            if each["Alive"] and each["NodeID"].startswith(node)
        ]
        if len(fitting) != 1:
            raise LookupError(f"{len(fitting)} running nodes have an id that begins with {node!r}")
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(fitting[0], soft=False)

    def _look(self) -> dict[str, Any]:
        """The cluster's free resources, and how many requests wait for them."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        names = {name for node in nodes for name in node}
        largest = {name: max(node.get(name, 0.0) for node in nodes) for name in names}
        return {
            "free": dict(self._ray.available_resources()),
            "largest": largest,
            "waiting": self._waiting(),
        }

    def _waiting(self) -> int:
        sdk: Any = importlib.import_module("ray.autoscaler.v2.sdk")
        status = sdk.get_cluster_status(self._ray.get_runtime_context().gcs_address)
        return sum(
            bundle.count
            for demand in status.resource_demands.ray_task_actor_demand
            for bundle in demand.bundles_by_count
        )

    def _register(self, name: str, found: Any) -> None:
        """Register this driver with an actor, and watch for the actor's end."""
        if name in self._lives:
            return
        life = found.stay.remote()
        self._actors[name], self._lives[name] = found, life
        found.watch.remote(self._name, [life])
        threading.Thread(target=self._watch_end, args=(name, life), daemon=True).start()

    def _watch_end(self, name: str, life: Any) -> None:
        try:
            self._ray.get(life)
        except self._ray.exceptions.RayError as error:
            self._lives.pop(name, None)
            self._actors.pop(name, None)
            self._say({"lost": name, "reason": _words(error)})

    def _find(self, name: str) -> Any:
        found = self._actors.get(name)
        if found is None:
            found = self._ray.get_actor(_PREFIX + name, namespace=NAMESPACE)
        return found

    def _contact(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """How to reach an existing actor; None if there is none."""
        try:
            found = self._find(request["name"])
        except ValueError:
            return None
        if request["hold"]:
            self._register(request["name"], found)
        try:
            return self._ray.get(found.way.remote(), timeout=_SLOW_LOOK)
        except self._ray.exceptions.RayActorError:
            return None

    def _started(self, request: Mapping[str, Any]) -> None:
        found = self._find(request["name"])
        self._ray.get(found.born.remote(request["machine"]), timeout=_END_PATIENCE)

    def _end(self, request: Mapping[str, Any]) -> None:
        """End an actor and its machine, or cancel its wait for resources."""
        errors: Any = self._ray.exceptions
        # The actor may be ended before it is created.
        self._unwanted.add(request["name"])
        try:
            found = self._find(request["name"])
        except ValueError:
            return
        with contextlib.suppress(errors.RayActorError, errors.GetTimeoutError):
            if request["gently"]:
                self._ray.get(found.end.remote(), timeout=_END_PATIENCE)
        self._ray.kill(found)

    def _list(self, request: Mapping[str, Any]) -> list[str]:
        return [
            found["name"].removeprefix(_PREFIX)
            for found in self._ray.util.list_named_actors(all_namespaces=True)
            if found["namespace"] == NAMESPACE and found["name"].startswith(_PREFIX)
        ]

    def _ended(self, request: Mapping[str, Any]) -> str | None:
        """How a machine ended, according to its node's records."""
        try:
            where = self._on(request["node"])
        except LookupError:
            return "its node has left the cluster"
        task = self._ray.remote(actor_module.how_it_ended).options(
            num_cpus=0, max_retries=0, scheduling_strategy=where
        )
        asked = task.remote(request["root"], request["machine"])
        return self._ray.get(asked, timeout=_SLOW_LOOK)


def _words(error: BaseException) -> str:
    """The beginning of Ray's message, which can be long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:1000] or type(error).__name__


def main() -> None:
    """Connect to the cluster that the first line names, then perform the other requests."""
    # Ray's output goes to standard error. Answers have their own stream.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(message: Mapping[str, Any]) -> None:
        with lock, contextlib.suppress(OSError, ValueError):
            answers.write(json.dumps(message) + "\n")
            answers.flush()

    first = json.loads(sys.stdin.readline() or "{}")
    if "address" not in first:
        return
    try:
        driver = Driver(first["address"], say)
    except Exception as error:  # the edge of this process
        say({"id": 0, "kind": type(error).__name__, "error": _words(error)})
        os._exit(1)
    try:
        say({"id": 0, "ok": None})
        for line in sys.stdin:
            threading.Thread(target=driver.handle, args=(json.loads(line),), daemon=True).start()
    finally:
        driver.close()
    os._exit(0)


if __name__ == "__main__":
    main()
