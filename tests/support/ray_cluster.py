"""A real Ray cluster on this machine: several nodes, one of which can be killed.

    with RayCluster(nodes=3, cpus=2) as cluster:
        os.environ.update(cluster.environment)   # the address, and the token that it asks for
        cluster.kill_node(1)                     # every process of Ray's on it, at once

Each node is a raylet of its own with its own workers and resources; all have this machine's
address. The nodes belong to a child process (`ray_nodes.py`), so that the process that tests is
free to be Ray's driver or to know nothing of Ray. To start one takes ten to thirty seconds: share
it between tests.

A process's Ray reads its token once, so every cluster that a process starts has the same one: that
of `RAY_AUTH_TOKEN_PATH` where the environment already names a file, else one made for the process.
"""

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from seer.errors import ProviderError
from tests.support.folders import remove_at_end

_NODES = Path(__file__).with_name("ray_nodes.py")
_LOG_TAIL = 4000
_ATTEMPTS = 3
_END_PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """One node of the cluster."""

    id: str
    """As Ray writes it, in hexadecimal."""
    pid: int
    """Its raylet."""


@functools.cache
def _token() -> str:
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named is not None and Path(named).is_file():
        return Path(named).read_text(encoding="utf-8")
    return secrets.token_hex(32)


class RayCluster:
    """A Ray cluster for tests."""

    def __init__(
        self,
        *,
        nodes: int = 3,
        cpus: float = 2,
        gpus: int = 0,
        memory: int | None = None,
        resources: Mapping[str, float] | Sequence[Mapping[str, float]] = (),
        home: Path | None = None,
    ) -> None:
        """Describe it.

        Args:
            nodes: How many; the first is the head, to which drivers of this machine connect.
            cpus: Of each node, as Ray counts them; there need not be as many.
            gpus: Of each node, likewise.
            memory: Bytes of each node; what the machine has by default.
            resources: Custom resources of each node, or one mapping for every node.
            home: The home folder of what runs on the nodes; this user's own by default.
        """
        if nodes < 1:
            raise ValueError(f"nodes={nodes!r}: a cluster has one or more")
        each = [resources] * nodes if isinstance(resources, Mapping) else list(resources)
        if each and len(each) != nodes:
            raise ValueError(f"resources: {len(each)} mappings for {nodes} nodes")
        self._wanted = [
            {"cpus": cpus, "gpus": gpus, "memory": memory, "resources": dict(custom)}
            for custom in each or [{}] * nodes
        ]
        self._home = home
        self._child: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        """Everything that the cluster writes; removed at its end."""
        self.address = ""
        self.nodes: list[RayNode] = []
        """The nodes in order; those that were killed keep their place."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables for processes that use the cluster."""
        return {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
        }

    def __enter__(self) -> Self:
        """Start it, and wait until all nodes are there."""
        # Short: the addresses of Ray's sockets have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="seer-ray-"))
        remove_at_end(self.folder)
        try:
            token = os.open(self.folder / "token", os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(token, _token().encode())
            os.close(token)
            for attempt in range(_ATTEMPTS):
                try:
                    self._start()
                    break
                except ProviderError as error:
                    # Ray gives a node 30 s to start, and this cannot be set; a busy machine needs
                    # more.
                    if "timed out during startup" not in str(error) or attempt == _ATTEMPTS - 1:
                        raise
                    self._end_child()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it and remove its files."""
        self.close()

    def _start(self) -> None:
        given = {
            **os.environ,
            **self.environment,
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            # A busy machine may take longer than Ray waits by itself.
            "RAY_agent_register_timeout_ms": "120000",
            "RAY_worker_register_timeout_seconds": "120",
        }
        del given["RAY_ADDRESS"]
        if self._home is not None:
            given["HOME"] = str(self._home)
        with (self.folder / "nodes.log").open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, _NODES, json.dumps(self._wanted)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=given,
                start_new_session=True,
            )
        answer = self._answer()
        self.address = answer["address"]
        self.nodes = [RayNode(**node) for node in answer["nodes"]]

    def _answer(self) -> dict[str, Any]:
        line = self._stream("stdout").readline()
        if not line:
            log = (self.folder / "nodes.log").read_text(errors="replace")
            raise ProviderError(f"the Ray cluster did not obey: {log[-_LOG_TAIL:].strip()}")
        return json.loads(line)

    def _stream(self, name: str) -> IO[bytes]:
        stream = getattr(self._child, name)
        assert stream is not None, "it is entered first"
        return stream

    def kill_node(self, index: int) -> None:
        """Kill every process of Ray's on a node, without a warning; returns when they are gone.

        Args:
            index: Its place in `nodes`. The head, 0, carries the whole cluster.
        """
        self._tell({"kill": index})

    def add_node(
        self,
        *,
        cpus: float = 2,
        gpus: int = 0,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> RayNode:
        """Start another node, and wait until it is there."""
        wanted = {"cpus": cpus, "gpus": gpus, "memory": memory, "resources": dict(resources or {})}
        self.nodes.append(RayNode(**self._tell({"add": wanted})))
        return self.nodes[-1]

    def _tell(self, request: Mapping[str, object]) -> dict[str, Any]:
        stdin = self._stream("stdin")
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it and remove its files. Closing twice is harmless."""
        self._end_child()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None and child.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_END_PATIENCE)
            # All of Ray's processes are in the child's process group, even orphans.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()
