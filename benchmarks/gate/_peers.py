"""Peers: other ways to call a Python function in another process, each in its best set-up.

A peer consists of two small modules, `peers/<name>_server` and `peers/<name>_client`, which run in
the environment of `benchmarks/requirements.txt`. This module only describes them; it imports no
peer's library. A library that supports Unix sockets uses one.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from typing import TYPE_CHECKING, ClassVar

from benchmarks.gate._adapter import Contestant
from benchmarks.gate._probes import BENCH_PYTHON, Probe, bench_env, end, probe_argv

if TYPE_CHECKING:
    from pathlib import Path

_JSON_ONLY = "JSON only: 30 million numbers as text take tens of seconds"
_STDIO = "64 calls at once in one session (a stdio server has one client)"


class Peer(Contestant):
    """A peer whose server is a process that listens at an address made from the folder."""

    kind = "peer"
    scheme: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.scheme}{self.folder}/socket"

    def serve(self) -> None:
        module = f"benchmarks.gate.peers.{self.name}_server"
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(BENCH_PYTHON), "-m", module, self.address],
                env=self.env(),
                stdout=log,
                stderr=log,
            )

    def probe(self) -> Probe:
        module = f"benchmarks.gate.peers.{self.name}_client"
        argv = probe_argv(str(BENCH_PYTHON), module)
        return Probe(argv, env=self.env(), log=self.folder / "client.log")

    def env(self) -> dict[str, str]:
        """Environment of server and clients."""
        return bench_env()

    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None
        (self.folder / "socket").unlink(missing_ok=True)


class Plain(Peer):
    """The obvious design."""

    name = "plain"
    title = "plain design: http.server + requests + JSON"
    lacks = {"drop": _JSON_ONLY, "keep": _JSON_ONLY}
    note = "ThreadingHTTPServer, requests.post, loopback TCP; listen backlog raised for 64 clients"

    @property
    def address(self) -> str:
        # http.server and requests support only TCP; the server writes its port to the file.
        return str(self.folder / "port")

    def stop(self) -> None:
        super().stop()
        (self.folder / "port").unlink(missing_ok=True)


class FastApi(Peer):
    """The usual web stack."""

    name = "fastapi"
    title = "FastAPI/uvicorn + httpx"
    validates = True
    note = "uvloop and httptools, Unix socket, plain `def` endpoints, arrays as raw bytes"


class Grpc(Peer):
    """Typed messages over HTTP/2."""

    name = "grpc"
    title = "gRPC"
    validates = True
    scheme = "unix:"
    note = "protobuf messages (packed doubles, bytes for arrays), thread pool, Unix socket"


class Pyro(Peer):
    """Remote objects."""

    name = "pyro"
    title = "Pyro5"
    scheme = "./u:"
    note = "Unix socket, msgpack serializer, multiplex server"


class Rpyc(Peer):
    """Transparent proxies."""

    name = "rpyc"
    title = "RPyC"
    note = "Unix socket, threaded server; lists by value as tuples, arrays as bytes"


class ZeroMq(Peer):
    """Messages without a framework."""

    name = "zeromq"
    title = "ZeroMQ + msgpack"
    scheme = "ipc://"
    note = "REQ/REP over ipc, msgpack, arrays as a second frame without a copy"


class Ray(Peer):
    """Actors with a shared-memory object store."""

    name = "ray"
    title = "Ray actor"
    note = (
        "one named actor; started together with its cluster; the 64 clients are 4 drivers with "
        "16 threads; stopped while others are measured, because it is never idle"
    )
    suspend = True
    slow_start = True

    def env(self) -> dict[str, str]:
        """A cluster needs a token. This one is made here, and never leaves the folder."""
        token = self.folder / "token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(secrets.token_hex(32))
        return {
            **bench_env(),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's processes are stopped for minutes while others are measured.
            "RAY_health_check_timeout_ms": "600000",
            "RAY_health_check_period_ms": "600000",
        }


class McpStdio(Peer):
    """The official SDK, a stdio server: also the floor of the row through MCP."""

    name = "mcp"
    title = "mcp SDK, stdio"
    validates = True
    lacks = {"drop": _JSON_ONLY, "keep": _JSON_ONLY}
    note = _STDIO
    server_module: ClassVar[str] = "benchmarks.gate.peers.mcp_server"

    @property
    def address(self) -> str:
        """The client starts the server: the address is its command line."""
        return json.dumps(
            {"command": str(BENCH_PYTHON), "args": ["-m", self.server_module], "env": bench_env()}
        )

    def serve(self) -> None:
        return


class FastMcp(McpStdio):
    """The framework over the SDK."""

    name = "fastmcp"
    title = "FastMCP, stdio"
    server_module = "benchmarks.gate.peers.fastmcp_server"


PEERS: tuple[type[Peer], ...] = (
    Plain,
    FastApi,
    Grpc,
    Pyro,
    Rpyc,
    ZeroMq,
    Ray,
    McpStdio,
    FastMcp,
)
