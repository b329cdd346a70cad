"""Where a session's code runs: its own machine on this host, or the machine of a sandbox.

A machine source prepares what both need: libraries on the path, workspace files in the folder, and
a socket to each served interface. It does not know what runs there (a kernel, shells).
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Literal, Protocol

from seer._files import write_files
from seer.console import progress
from seer.console._progress import Phase
from seer.environment import ModelHandle
from seer.environment.models._provenance import package_versions
from seer.environment.packages._packages import build_environment
from seer.errors import (
    InterfaceDiedError,
    IsolationError,
    ProviderError,
    RemoteFileError,
    SandboxLostError,
)
from seer.execution._folders import PrivateFolder
from seer.execution._sockets import ReverseTunnel
from seer.isolation import BackendName, Mount
from seer.providers import Machine, MachineSpec, get_provider
from seer.providers._label import write_label
from seer.workspace import Gate, Workspace
from seer.workspace._gate import Dependent, GateSocket
from seer.workspace._install import install_files, install_libraries
from seer.workspace._names import SESSION_PACKAGES

logger = logging.getLogger(__name__)

PACKAGES = ("ipykernel", *SESSION_PACKAGES)
"""What every local session can import."""

MEMORY = 8 * 1024**3
DISK = 8 * 1024**3
_CODE = "/seer/code"
_INSIDE = Path(__file__).parent / "_inside"
_INSIDE_FILES = ("kernel_main.py", "preload_models.py", "shrink_image.py")

Isolation = BackendName | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class JailOptions:
    """Options of a jail on this host; a session in a sandbox takes none of them."""

    workspace_dir: str | os.PathLike[str] | None = None
    packages: Sequence[str] = ()
    isolation: Isolation = "auto"
    memory: int | None = MEMORY


class SandboxLike(Protocol):
    """What a session needs from a sandbox."""

    @property
    def machine(self) -> Machine: ...
    @property
    def model_handles(self) -> Sequence[ModelHandle]: ...
    def add_dependent(self, dependent: Dependent) -> None: ...


@dataclass(frozen=True, kw_only=True)
class PreparedMachine:
    """A machine with everything that a session needs."""

    machine: Machine
    inside: str
    """The folder with Seer's own programs, as seen in the machine."""
    libraries: str
    """The folder that belongs on `sys.path`, as seen in the machine."""
    env: Mapping[str, str]
    """Environment variables for everything that the session runs."""


class MachineSource(ABC):
    """Gives a session its machine, and another one when that machine is lost."""

    runs_nothing = False
    """Whether the machine replays a recorded one, so that no program can run in it."""

    sandbox: SandboxLike | None = None
    """The sandbox that the machine belongs to; None for the session's own machine."""

    def __init__(self, workspace: Workspace, *, session_id: str, name: str) -> None:
        self._workspace = workspace
        self._session_id = session_id
        self._name = name
        self._callers: dict[str, GateSocket] = {}
        self._prepared: PreparedMachine | None = None
        self._lock = asyncio.Lock()

    @property
    @abstractmethod
    def workspace_dir(self) -> PurePath:
        """The session's folder."""

    @property
    def callers(self) -> dict[str, str]:
        """The caller's name under which each served library's gate records this session's calls."""
        return {library: caller.name for library, caller in self._callers.items()}

    def about(self) -> dict[str, Any]:
        """The limits and the machine of the session, as plain data for the records of runs."""
        machine = {} if self._prepared is None else self._prepared.machine.about()
        return {"workspace_dir": str(self.workspace_dir), "machine": machine}

    @property
    def owners(self) -> list[Gate | SandboxLike]:
        """What the session depends on: its sandbox, and its libraries' interfaces."""
        gates = [library.gate for library in self._workspace.libraries if library.gate is not None]
        return [*gates, *([self.sandbox] if self.sandbox is not None else [])]

    @property
    def _hides_model(self) -> bool:
        """Whether a library uses a model whose name the agent must not learn."""
        gates = [library.gate for library in self._workspace.libraries]
        return any(gate is not None and gate.hides_model for gate in gates)

    async def prepared(self) -> PreparedMachine:
        """The machine; the first call prepares it.

        Raises:
            StartError, ProviderError, IsolationError, PackageError: There is no machine.
            InterfaceDiedError: The interface of a library has ended.
            SandboxLostError: The sandbox of the machine, or of a library, is gone.
        """
        async with self._lock:
            if self._prepared is None:
                for library in self._workspace.libraries:
                    if library.gate is not None and library.name not in self._callers:
                        caller = await library.gate.open_caller(self._name)
                        self._callers[library.name] = caller
                self._prepared = await self._prepare()
            return self._prepared

    async def lost(self) -> None:
        """Forget a machine that is gone; the next `prepared` call starts another one."""
        async with self._lock:
            if self._prepared is not None:
                await self._release(self._prepared)
            self._prepared = None

    async def close(self) -> None:
        """Release the machine and close every caller's socket."""
        try:
            await self.lost()
        finally:
            while self._callers:
                name, caller = next(iter(self._callers.items()))
                await caller.aclose()
                del self._callers[name]

    @abstractmethod
    async def _prepare(self) -> PreparedMachine:
        """Prepare a machine; the sockets in `self._callers` are open."""

    @abstractmethod
    async def _release(self, prepared: PreparedMachine) -> None:
        """Release what `_prepare` made."""


class LocalMachineSource(MachineSource):
    """A machine of the session's own, in a jail on this host."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        name: str,
        folder: Path,
        private: PrivateFolder,
        jail: JailOptions,
    ) -> None:
        super().__init__(workspace, session_id=private.name, name=name)
        self._folder = folder
        self._private = private
        self._jail = jail
        self._packages = (*PACKAGES, *jail.packages)
        self._versions: dict[str, str] = {}

    def about(self) -> dict[str, Any]:
        """See `MachineSource.about`."""
        return {**super().about(), "packages": self._versions}

    @property
    def workspace_dir(self) -> Path:
        """A folder of this host."""
        return self._folder

    async def _prepare(self) -> PreparedMachine:
        code = self._private.folder("code", 0o755)
        files = {f"inside/{name}": (_INSIDE / name).read_bytes() for name in _INSIDE_FILES}
        libraries = self._workspace.library_files()
        (code / "lib").mkdir(exist_ok=True)
        write_files(code, {**files, **{f"lib/{name}": it for name, it in libraries.items()}})
        environment = await self._build_environment()
        self._versions = package_versions(environment, self._packages)
        spec = MachineSpec(
            label=write_label("session"),
            note=self._name,
            workdir=self._folder,
            python_env=environment,
            mounts=(Mount(code, _CODE),),
            gates={name: caller.path for name, caller in self._callers.items()},
            relayed=frozenset(
                name
                for name, caller in self._callers.items()
                if caller.address.startswith("frames:")
            ),
            network="none",
            # An agent in a weaker jail could find the model's files on this host.
            hidden=self._hides_model,
            isolation=self._jail.isolation,
            memory=self._jail.memory,
            disk=DISK,
        )
        try:
            machine = await get_provider("local").start(spec)
        except ProviderError as error:
            await self._check_gates(error)
            raise
        try:
            await install_files(self._workspace, machine, root=machine.layout.workdir)
        except BaseException:
            await machine.terminate()
            raise
        seen = machine.path(_CODE)
        return PreparedMachine(
            machine=machine, inside=f"{seen}/inside", libraries=f"{seen}/lib", env={}
        )

    async def _build_environment(self) -> Path:
        """The environment with the packages. Its phase is shown if it has to be built."""
        with ExitStack() as shown:
            phase: Phase | None = None

            def say(detail: str) -> None:
                nonlocal phase
                if phase is None:
                    display = shown.enter_context(progress(f"session {self._name}"))
                    phase = shown.enter_context(display.phase("packages"))
                phase.say(detail)

            return await build_environment(self._packages, on_progress=say)

    async def _check_gates(self, refused: ProviderError) -> None:
        """Raise an error that explains the failed start, if the interface of a library has ended.

        The socket of an interface that has ended is gone.

        Raises:
            InterfaceDiedError, SandboxLostError: An interface has ended.
        """
        for library in self._workspace.libraries:
            caller = self._callers.get(library.name)
            if library.gate is None or caller is None or caller.path.is_socket():
                continue
            if ended := await library.gate.how_it_ended():
                raise InterfaceDiedError(ended) from refused

    async def _release(self, prepared: PreparedMachine) -> None:
        await prepared.machine.terminate()


class SandboxMachineSource(MachineSource):
    """The machine of a `Sandbox`, which belongs to the program that started it."""

    def __init__(
        self, workspace: Workspace, sandbox: SandboxLike, *, session_id: str, name: str
    ) -> None:
        super().__init__(workspace, session_id=session_id, name=name)
        self.sandbox = self._sandbox = sandbox
        self.runs_nothing = sandbox.machine.runs_nothing
        self._tunnels: list[ReverseTunnel] = []

    @property
    def workspace_dir(self) -> PurePosixPath:
        """A folder in the sandbox."""
        return PurePosixPath(self._sandbox.machine.layout.workdir)

    async def _prepare(self) -> PreparedMachine:
        machine = self._sandbox.machine
        isolation = machine.about().get("isolation")
        if self._hides_model and isolation in ("landlock", "none"):
            raise IsolationError(
                f"a library of a hidden model cannot be used in a sandbox with "
                f"isolation={isolation!r}, where the model's origin could be found; "
                f"use isolation='bubblewrap'"
            )
        base = self._base(machine)
        for name in _INSIDE_FILES:
            await machine.write_file(f"{base}/inside/{name}", (_INSIDE / name).read_bytes())
        await install_libraries(self._workspace, machine, root=f"{base}/lib")
        await install_files(self._workspace, machine, root=machine.layout.workdir)
        env: dict[str, str] = {}
        # A machine that runs nothing makes no calls.
        callers = {} if self.runs_nothing else self._callers
        try:
            for name, caller in callers.items():
                path = f"{base}/{name}.sock"
                self._tunnels.append(await ReverseTunnel.open(machine, path, caller.path))
                env[f"SEER_GATE_{name.upper()}"] = f"frames:path:{path}"
        except BaseException:
            await self._close_tunnels()
            raise
        return PreparedMachine(
            machine=machine, inside=f"{base}/inside", libraries=f"{base}/lib", env=env
        )

    async def _release(self, prepared: PreparedMachine) -> None:
        await self._close_tunnels()
        try:
            await prepared.machine.remove(self._base(prepared.machine), recursive=True)
        except (SandboxLostError, RemoteFileError) as error:
            logger.debug("the sandbox and the session's files in it are gone: %s", error)

    async def _close_tunnels(self) -> None:
        tunnels, self._tunnels = self._tunnels, []
        for tunnel in tunnels:
            await tunnel.close()

    def _base(self, machine: Machine) -> str:
        return f"{machine.layout.run}/{self._session_id}"
