"""Where a vendor's agent process runs: an empty folder, a private home, its own environment.

The process finds no settings, instructions, plugins or keys of other services. Where bubblewrap
works, it also runs in a jail with only the system's files, and it can connect only to the vendor's
endpoint. The folder is removed when the run ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio

from seer._sockets import accept
from seer._unix_sockets import listen, peer_credentials
from seer.errors import IsolationUnavailableError
from seer.execution._folders import PrivateFolder
from seer.harness.confinement._endpoint_proxy import EndpointProxy
from seer.isolation import (
    JAIL_UIDS,
    Backend,
    JailLimits,
    Mount,
    Policy,
    choose,
    interpreter_env,
    interpreter_mounts,
    interpreter_path,
    script,
)
from seer.isolation.network._network import PROXY_PORT

logger = logging.getLogger(__name__)

_PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy")
_UID = JAIL_UIDS[1]
_LIMITS = JailLimits(processes=512, open_files=4096)
_PYTHON = "/agent/python"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The program that a launcher becomes."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    fds: tuple[int, ...] = ()
    done: Callable[[], None] = lambda: None
    """Called after the plan was sent."""


Planner = Callable[[Sequence[str], Mapping[str, str]], Plan]
"""Makes a plan from the SDK's arguments and variables."""


@dataclass
class Confinement:
    """A place prepared for one vendor's process."""

    folder: Path
    """The process's empty working folder."""
    launcher: Path
    """The command to start instead of the vendor's program."""
    launch_socket: LaunchSocket
    _lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=30))

    def stderr(self, line: str) -> None:
        """Keep the process's standard error."""
        self._lines.append(line)

    def kill(self) -> None:
        """Kill the process now; an SDK lets it run on for a while."""
        self.launch_socket.kill()

    def said(self) -> str:
        """The process's last output, for an error message."""
        text = "\n".join(self._lines).strip()
        return f"; last output:\n{text[-2000:]}" if text else ""


@asynccontextmanager
async def confined(
    program: Path, *, env: Mapping[str, str], endpoints: Sequence[str]
) -> AsyncGenerator[Confinement, None]:
    """Prepare a place for `program`.

    Args:
        program: The vendor's program; the SDK's arguments are added.
        env: Its environment variables, in addition to a short list of harmless ones.
        endpoints: The URLs that it may reach.
    """
    private = PrivateFolder("agent")  # a folder that the next process removes if this one is killed
    root = private.path
    try:
        async with AsyncExitStack() as stack:
            start = _furnish(root)
            backend = _backend()
            if backend is not None:
                proxy = EndpointProxy(endpoints, upstream=_upstream())
                await proxy.start(root / "net" / "proxy")
                stack.push_async_callback(proxy.close)
                planner = _jailed(root, program, env=env, backend=backend)
            else:
                planner = _bare(root, program, env=env)
            launch_socket = LaunchSocket(start, planner)
            stack.push_async_callback(launch_socket.close)
            yield Confinement(
                folder=root / "work",
                launcher=start / "launch",
                launch_socket=launch_socket,
            )
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(private.remove)


def _furnish(root: Path) -> Path:
    """Make the folders; returns the launcher's folder."""
    own = ("work", "home", "tmp")
    for name in (*own, "net", "start", "lib"):
        # The root folder is private; the jail's user must be able to enter the folders in it.
        (root / name).mkdir()
        (root / name).chmod(0o755)
    if os.geteuid() == 0:
        for name in own:
            os.chown(root / name, _UID, _UID)
    here = Path(__file__).parent
    start = root / "start"
    (start / "python").symlink_to(sys.executable)
    shutil.copyfile(here / "_launch.py", start / "launch.py")
    shutil.copyfile(here / "_launch.sh", start / "launch")
    (start / "launch").chmod(0o700)
    shutil.copyfile(here / "_jail_init.py", root / "lib" / "init.py")
    shutil.copyfile(script("forward"), root / "lib" / "forward.py")
    return start


def _backend() -> Backend | None:
    """The jail to use, or None. Only namespaces can limit a process to one connection."""
    try:
        return choose("bubblewrap", needs=frozenset({"proxy"}))
    except IsolationUnavailableError as error:
        logger.warning("the agent's process runs without a jail: %s", error)
        return None


def _upstream() -> str | None:
    return os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or None


def _bare(root: Path, program: Path, *, env: Mapping[str, str]) -> Planner:
    """Plans without a jail: only the environment and the folders are separate."""
    passed = {name: os.environ[name] for name in (*_PASSED, *_PROXIES) if name in os.environ}
    folders = {"HOME": str(root / "home"), "TMPDIR": str(root / "tmp")}

    def plan(arguments: Sequence[str], own: Mapping[str, str]) -> Plan:
        return Plan(
            argv=(str(program), *arguments),
            env={**passed, **folders, **own, **env},
            cwd=str(root / "work"),
        )

    return plan


def _jailed(root: Path, program: Path, *, env: Mapping[str, str], backend: Backend) -> Planner:
    """Plans with a jail whose only network connection leads to the endpoint."""
    way_out = f"http://127.0.0.1:{PROXY_PORT}"
    mounts = (
        *interpreter_mounts(_PYTHON, backend),
        Mount(program, "/agent/bin/agent"),
        Mount(root / "lib", "/agent/lib"),
        Mount(root / "net", "/agent/net"),
        Mount(root / "work", "/agent/work", writable=True),
        Mount(root / "home", "/agent/home", writable=True),
        Mount(root / "tmp", "/tmp", writable=True),
    )
    view = backend.view(mounts)
    python = interpreter_path(_PYTHON, view)
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    variables = {
        **passed,
        "HOME": "/agent/home",
        "PATH": "/usr/bin:/bin",
        "TMPDIR": "/tmp",
        "HTTP_PROXY": way_out,
        "HTTPS_PROXY": way_out,
        **interpreter_env(_PYTHON, view),
    }

    def plan(arguments: Sequence[str], own: Mapping[str, str]) -> Plan:
        policy = Policy(
            mounts=mounts,
            env={**variables, **own, **env},
            cwd="/agent/work",
            network="proxy",
            limits=_LIMITS,
            uid=_UID if os.geteuid() == 0 else None,
        )
        init = [python, "-I", "-S", "/agent/lib/init.py", "/agent/net/proxy", str(PROXY_PORT)]
        launch = backend.launch(policy, [*init, "/agent/bin/agent", *arguments])
        return Plan(
            argv=launch.argv,
            env=launch.env,
            cwd="/",
            fds=launch.pass_fds,
            done=launch.close,
        )

    return plan


class LaunchSocket:
    """Answers the one request of a launcher (`_launch`), which asks what to run."""

    def __init__(self, folder: Path, plan: Planner) -> None:
        self._plan = plan
        self._pid: int | None = None
        self._listener = listen(folder / "server", 1)
        self._listener.setblocking(False)
        self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop answering. Closing twice is harmless."""
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])
        self._listener.close()

    def kill(self) -> None:
        """Kill the process that the launcher became."""
        if self._pid is not None:
            try:
                os.kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                logger.debug("the agent's process has ended already")

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        with await accept(self._listener) as peer:
            self._pid = peer_credentials(peer)[0]
            data = b""
            while not data.endswith(b"\n"):
                part = await loop.sock_recv(peer, 1 << 16)
                if not part:
                    return
                data += part
            asked = json.loads(data)
            plan = self._plan(
                cast("list[str]", asked["arguments"]), cast("dict[str, str]", asked["env"])
            )
            try:
                self._send(peer, plan)
            finally:
                plan.done()

    def _send(self, peer: socket.socket, plan: Plan) -> None:
        answer = {"argv": plan.argv, "env": dict(plan.env), "cwd": plan.cwd, "fds": plan.fds}
        data = json.dumps(answer).encode() + b"\n"
        peer.setblocking(True)
        peer.settimeout(5)
        sent = socket.send_fds(peer, [data], list(plan.fds)) if plan.fds else 0
        peer.sendall(data[sent:])
