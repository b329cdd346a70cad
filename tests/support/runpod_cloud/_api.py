"""RunPod's GraphQL API over HTTP, as far as pods and prices go."""

import asyncio
import contextlib
import hmac
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from tests.support.runpod_cloud._graphql import Field, Json, QueryError, parse, select
from tests.support.runpod_cloud._pods import GPUS, Faults, Pods

_PATIENCE = 60.0


class Api:
    """Answers documents; runs on the cloud's loop."""

    def __init__(self, pods: Pods, *, key: str, faults: Faults) -> None:
        self._pods = pods
        self._key = key
        self._faults = faults
        self.requests: list[str] = []
        """The top field of every request so far."""

    def caller(self, header: str) -> str | None:
        """Who calls: "" is the account, an id is that pod; None is nobody known."""
        given = header.removeprefix("Bearer ").strip()
        if hmac.compare_digest(given, self._key):
            return None if self._faults.key_revoked else ""
        for pod in self._pods.by_id.values():
            if hmac.compare_digest(given, pod.key):
                return pod.id
        return None

    async def answer(self, body: bytes, caller: str) -> dict[str, Json]:
        """The answer to a request's body."""
        try:
            request = cast("dict[str, Any]", json.loads(body))
            fields = parse(str(request["query"]), request.get("variables") or {})
            data: dict[str, Json] = {}
            for wanted in fields:
                self.requests.append(wanted.name)
                data[wanted.name] = self._resolve(wanted, caller)
            return {"data": data}
        except (QueryError, KeyError, ValueError) as error:
            return {"errors": [{"message": str(error)}], "data": None}

    def _resolve(self, wanted: Field, caller: str) -> Json:
        given = wanted.arguments.get("input")
        arguments = given if isinstance(given, dict) else {}
        pod_id = str(arguments.get("podId") or "")
        if caller and (wanted.name not in ("pod", "podTerminate", "podStop") or pod_id != caller):
            raise QueryError("Unauthorized")
        resolvers: dict[str, Callable[[], Json]] = {
            "myself": lambda: {"id": "user", "pods": [p.describe() for p in self._pods.running()]},
            "pod": lambda: self._pod(pod_id),
            "gpuTypes": lambda: self._gpus(wanted, arguments),
            "podFindAndDeployOnDemand": lambda: self._pods.create(arguments).describe(),
            "deployCpuPod": lambda: self._deploy_cpu(arguments),
            "podTerminate": lambda: self._terminate(pod_id),
        }
        if wanted.name not in resolvers:
            raise QueryError(f'Cannot query field "{wanted.name}" on type "Query".')
        return select(resolvers[wanted.name](), wanted, wanted.name)

    def _pod(self, pod_id: str) -> Json:
        pod = self._pods.by_id.get(pod_id)
        return pod.describe() if pod is not None and pod.status != "TERMINATED" else None

    def _gpus(self, wanted: Field, arguments: dict[str, Json]) -> Json:
        count = 1
        for child in wanted.selection:
            price = child.arguments.get("input")
            if child.name == "lowestPrice" and isinstance(price, dict):
                number = price.get("gpuCount")
                count = number if isinstance(number, int) else 1
        chosen = [gpu for gpu in GPUS if arguments.get("id") in (None, gpu.id)]
        return [gpu.describe(count, stock=self._faults.capacity) for gpu in chosen]

    def _deploy_cpu(self, arguments: dict[str, Json]) -> Json:
        for name in ("volumeInGb", "gpuTypeId", "gpuCount"):
            if name in arguments:
                raise QueryError(f'Field "{name}" is not defined by type "deployCpuPodInput".')
        return self._pods.create(arguments).describe()

    def _terminate(self, pod_id: str) -> Json:
        self._pods.end(pod_id)
        return None

    @property
    def unavailable(self) -> bool:
        """Whether it gives no answer at all."""
        return self._faults.outage


class Server(ThreadingHTTPServer):
    """Hands requests to the loop on which the cloud lives."""

    daemon_threads = True

    def __init__(self, api: Api, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api
        self.loop = loop


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = cast(Server, self.server)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        caller = server.api.caller(self.headers.get("authorization") or "")
        if server.api.unavailable:
            self._send(503, {"errors": [{"message": "Service Unavailable"}]})
        elif self.path.partition("?")[0] != "/graphql":
            self._send(404, {"errors": [{"message": "Not Found"}]})
        elif caller is None:
            self._send(401, {"errors": [{"message": "Unauthorized"}]})
        else:
            waiting = asyncio.run_coroutine_threadsafe(server.api.answer(body, caller), server.loop)
            self._send(200, waiting.result(_PATIENCE))

    def _send(self, status: int, answer: Json) -> None:
        data = json.dumps(answer).encode()
        # A pod that ends itself is gone before it has its answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
