"""Seer's own contestants: the gate, with server and callers in their real jails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gate._adapter import WORKS, Contestant
from benchmarks.gate._jail import SHARED
from benchmarks.gate._probes import BENCH_PYTHON, ROOT, Probe, bench_env, end, probe_argv
from seer.environment import SandboxConfig, ScopedSandbox
from seer.isolation import Mount, Policy, choose
from seer.isolation.backends._base import Launch
from seer.rpc._bundles import client_bundle, server_bundle

_USER = 59998
_PYTHON = "/opt/python"
_SITE = "/opt/site"
_SOURCE = "/opt/bench"
_BUNDLE = "/opt/bundle"
PYTHON = f"{_PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


class Ours(Contestant):
    """The gate as a jailed session uses it: shipped code on both sides, and one caller's socket."""

    name = "ours"
    title = "Seer's gate, jailed"
    kind = "ours"
    validates = True
    note = (
        "`python -m seer.rpc.server` in one jail (supervisor and interface process), the shipped "
        "client in another; arguments checked by their hints, budgets counted, results kept"
    )

    record = ""
    """The path for recorded calls in the server's jail; empty for no record."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._server = folder / "server"
        self._client = folder / "client"
        self._shared = folder / "run"

    def prepare(self) -> None:
        for target, bundle in ((self._server, server_bundle()), (self._client, client_bundle())):
            for name, source in bundle.items():
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, path)
            # A bundle is made once per version, so later starts find its byte code.
            compiled = [sys.executable, "-m", "compileall", "-q", str(target)]
            subprocess.run(compiled, check=True)
        self._shared.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            os.chown(self._shared, _USER, _USER)
        config = {
            "name": "work",
            "file": f"{_SOURCE}/benchmarks/gate/ours_interface.py",
            "control": f"{SHARED}/control.sock",
            "callers": [{"name": "bench", "socket": f"{SHARED}/caller.sock"}],
            "record": self.record,
        }
        (self._shared / "config.json").write_text(json.dumps(config))

    def _launch(self, command: list[str], bundle: Path) -> Launch:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = BENCH_PYTHON.parents[1] / "lib" / version / "site-packages"
        mounts = [
            Mount(Path(sys.base_prefix).resolve(), _PYTHON),
            Mount(ROOT / "benchmarks", f"{_SOURCE}/benchmarks"),
            Mount(bundle, _BUNDLE),
            Mount(self._shared, SHARED, writable=True),
        ]
        if site.exists():
            mounts.append(Mount(site, _SITE))
        policy = Policy(
            mounts=tuple(mounts),
            env={
                "PYTHONPATH": f"{_BUNDLE}:{_SOURCE}:{_SITE}",
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            cwd=SHARED,
            uid=_USER if os.geteuid() == 0 else None,
        )
        return choose("bubblewrap").launch(policy, command)

    @property
    def address(self) -> str:
        return f"{SHARED}/caller.sock"

    def serve(self) -> None:
        command = [PYTHON, "-m", "seer.rpc.server", f"{SHARED}/config.json"]
        jail = self._launch(command, self._server)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                jail.argv, env=jail.env, pass_fds=jail.pass_fds, stdout=log, stderr=log
            )
        jail.close()

    def probe(self) -> Probe:
        command = probe_argv(PYTHON, "benchmarks.gate.ours_client")
        jail = self._launch(command, self._client)
        try:
            log = self.folder / "client.log"
            return Probe(jail.argv, env=jail.env, log=log, pass_fds=jail.pass_fds)
        finally:
            jail.close()

    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, grace=0.5)
            self._process = None
        for name in ("caller.sock", "control.sock"):
            (self._shared / name).unlink(missing_ok=True)


_SMALL_ONLY = {work: "measured for small calls only" for work in WORKS if work != "small"}


class OursRecorded(Ours):
    """The gate with a record of every call, to measure its cost."""

    name = "ours_recorded"
    title = "Seer's gate, jailed, recording"
    note = "arguments and results of every call recorded; no run takes the record meanwhile"
    lacks = _SMALL_ONLY
    record = f"{SHARED}/record"


class OursMcp(Contestant):
    """`expose_as="mcp"`: the tools of a scoped sandbox, through the MCP server that agents use."""

    name = "ours_mcp"
    title = "Seer, exposed as MCP tools, stdio"
    kind = "ours"
    validates = True
    note = (
        "`ScopedSandbox.serve(..., expose_as='mcp')`: the SDK's client, Seer's stdio command, the "
        "controller, the gate in its jail, and back"
    )
    lacks = _SMALL_ONLY

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._sandbox: ScopedSandbox | None = None
        self._address = ""

    def prepare(self) -> None:
        if self._sandbox is None:
            config = SandboxConfig(gpu=None, provider="local")
            self._sandbox = ScopedSandbox(config).start()

    def serve(self) -> None:
        assert self._sandbox is not None
        file = self.folder / "work.py"
        file.write_text(_MCP_INTERFACE)
        command = self._sandbox.serve(file, "mcp", "work")["work"]
        self._address = json.dumps({key: command[key] for key in ("command", "args", "env")})

    @property
    def address(self) -> str:
        return self._address

    def probe(self) -> Probe:
        argv = probe_argv(str(BENCH_PYTHON), "benchmarks.gate.peers.mcp_client")
        return Probe(argv, env=bench_env(), log=self.folder / "client.log")

    def pids(self) -> list[int]:
        """This process and its descendants, because this process connects agent and gate."""
        return [os.getpid()]

    def stop(self) -> None:
        return

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.terminate()
            self._sandbox = None


_MCP_INTERFACE = '''"""The smallest tool."""


@expose
def small(x: int) -> int:
    """Do next to nothing."""
    return x + 1
'''

CONTESTANTS: tuple[type[Contestant], ...] = (Ours, OursRecorded, OursMcp)
