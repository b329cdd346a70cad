"""What local and notebook sessions share: Python in a kernel, which can die."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from seer._sync import on_loop, run_sync
from seer.errors import RemoteFileError, SandboxLostError, StartError, visible
from seer.execution._capture import Capture
from seer.execution._machine import MEMORY, PACKAGES, Isolation, JailOptions, PreparedMachine
from seer.execution._prepare import SessionParts, prepare_session
from seer.execution._result import (
    MAX_SIDE,
    ExecutionError,
    Image,
    RichOutput,
    Status,
    read_image,
)
from seer.execution._session import Session, SessionKind
from seer.execution._turns import Execution
from seer.execution.kernel._kernel import Kernel, KernelDied
from seer.execution.kernel._messages import Signer
from seer.workspace import Workspace

logger = logging.getLogger(__name__)

FRESH = "this is a fresh kernel: variables and imports of earlier code are gone"


class KernelSession(Session):
    """A session with one IPython kernel. A kernel that dies is replaced at the next execution."""

    def __init__(self, parts: SessionParts) -> None:
        super().__init__(parts)
        self._signer = Signer()
        self._kernel: Kernel | None = None
        self._starts = 0
        self._notes: list[str] = []
        """Notes for the agent, which its next result will contain."""

    async def begin(self) -> None:
        """Start the kernel, or close the session when that fails.

        Raises:
            StartError: The kernel does not start.
        """
        try:
            # In a replay, the record answers the agent's tools, and no kernel can run.
            if not self._machines.runs_nothing:
                await self._living_kernel()
        except KernelDied as error:
            await self._shut_down()
            raise StartError("kernel", f"it ended before the session was open: {error}") from None
        except BaseException:
            await self._shut_down()
            raise
        self._opened()

    async def _start_kernel(self) -> Kernel:
        """A new kernel, with the workspace's own code already run in it.

        Raises:
            StartError: It does not start.
        """
        prepared = await self._machines.prepared()
        self._starts += 1
        folder = f"{prepared.machine.layout.run}/k{self._starts}-{self.session_id[-6:]}"
        try:
            await prepared.machine.make_dir(folder, mode=0o700)
            kernel = await Kernel.start(
                prepared.machine,
                folder=folder,
                launcher=f"{prepared.inside}/kernel_main.py",
                path=[prepared.libraries],
                env=prepared.env,
                signer=self._signer,
            )
        except SandboxLostError:
            await self._machines.lost()
            raise
        self._kernel = kernel
        return kernel

    async def _warm_up(self, kernel: Kernel) -> None:
        """Run the code that must run before the agent's."""
        code = self.workspace.custom_init_code
        if code:
            await self._run_first(kernel, "custom_init_code", code)

    async def _run_first(self, kernel: Kernel, what: str, code: str) -> None:
        """Run the user's code before the agent's; the next result reports a failure."""
        capture = Capture(f"init-{self._starts}", self._private.outputs)
        await kernel.execute(code, capture)
        if capture.error is not None:
            text = capture.error.traceback or capture.error.message
            logger.error("%s of session %r failed:\n%s", what, self.name, visible(text))
            self._notes.append(f"{what} failed: {capture.error.name}: {capture.error.message}")

    async def _living_kernel(self) -> Kernel:
        kernel = self._kernel
        if kernel is not None and kernel.death is None:
            return kernel
        if kernel is not None:
            self._notes.append(FRESH)
            await kernel.close()
            self._kernel = None
            if await self._machine_is_gone():
                await self._machines.lost()
        kernel = await self._start_kernel()
        await self._warm_up(kernel)
        return kernel

    async def _run(self, execution: Execution) -> Status:
        capture = execution.capture
        try:
            kernel = await self._living_kernel()
            for note in self._notes:
                capture.note(note)
            self._notes.clear()
            status = await kernel.execute(execution.code, capture, tool_call=execution.tool_call)
        except (KernelDied, SandboxLostError, StartError) as error:
            capture.fail(ExecutionError(name="KernelDied", message=str(error)))
            capture.note("the kernel is gone; the next execution gets a fresh one")
            return "died"
        await self._shrink_images(capture)
        return "ok" if status == "ok" else "error"

    async def _send_interrupt(self, execution: Execution) -> None:
        if self._kernel is not None:
            await self._kernel.interrupt()

    async def _kill(self, execution: Execution) -> None:
        if self._kernel is not None:
            await self._kernel.close()

    async def _begin_afresh(self) -> None:
        if self._kernel is not None:
            await self._kernel.close()
            self._kernel = None

    async def _shut_down(self) -> None:
        try:
            if self._kernel is not None:
                await self._kernel.close()
        finally:
            await self._machines.close()

    async def _machine_is_gone(self) -> bool:
        prepared = await self._machines.prepared()
        try:
            await prepared.machine.exec(["true"], timeout=10)
        except SandboxLostError:
            return True
        return False

    async def _shrink_images(self, capture: Capture) -> None:
        """Scale large images down in the machine, the only place that decodes them."""
        for index, output in list(enumerate(capture.outputs)):
            if isinstance(output, RichOutput) and output.image and output.image.is_large:
                small = await self._shrink(await self._machines.prepared(), output.image)
                if small is None:
                    capture.note("a large image could not be scaled down and is left out")
                # A thread of the code may have cleared or replaced its output meanwhile.
                if index < len(capture.outputs) and capture.outputs[index] is output:
                    capture.outputs[index] = replace(output, image=small)

    async def _shrink(self, prepared: PreparedMachine, image: Image) -> Image | None:
        machine = prepared.machine
        argv = [machine.layout.python, f"{prepared.inside}/shrink_image.py", str(MAX_SIDE)]
        try:
            done = await machine.exec(argv, stdin=image.data, timeout=60)
        except (SandboxLostError, RemoteFileError) as error:
            logger.warning("an image could not be scaled down: %s", error)
            return None
        small = read_image(done.stdout) if done.exit_code == 0 else None
        return small if small is not None and not small.is_large else None


class LocalSession(KernelSession):
    """Python in a persistent IPython kernel, in a jail that reaches only the served libraries."""

    kind: ClassVar[SessionKind] = "local"

    def _describe(self) -> str:
        packages = ", ".join(PACKAGES[1:])
        return (
            "# Session\n\nYour Python code runs in a persistent IPython kernel: variables last "
            "from one call to the next. The working folder is your workspace; "
            f"{packages} are installed; there is no network. Plots and displayed images are "
            "shown to you."
        )


def create_local_session(
    workspace: Workspace | None = None,
    workspace_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    *,
    packages: Sequence[str] = (),
    isolation: Isolation = "auto",
    memory: int | None = MEMORY,
) -> LocalSession:
    """Open a session in a jail on this machine.

    Args:
        workspace: What the agent can import and read.
        workspace_dir: The agent's folder, created if it is missing; by default a new one under
            `./workspace`, which is removed at the end if it is empty.
        name: What to call it; generated by default.
        packages: Packages to install besides numpy, pandas, scipy and matplotlib.
        isolation: Which jail to use.
        memory: The memory limit of the whole session, in bytes.

    Raises:
        IsolationUnavailableError: No jail works here, so nothing was started.
        PackageError: The packages cannot be installed.
        StartError: The kernel did not start.
    """
    jail = JailOptions(
        workspace_dir=workspace_dir, packages=packages, isolation=isolation, memory=memory
    )
    return run_sync(_create(workspace, name, jail))


async def acreate_local_session(
    workspace: Workspace | None = None,
    workspace_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    *,
    packages: Sequence[str] = (),
    isolation: Isolation = "auto",
    memory: int | None = MEMORY,
) -> LocalSession:
    """Like `create_local_session`."""
    jail = JailOptions(
        workspace_dir=workspace_dir, packages=packages, isolation=isolation, memory=memory
    )
    return await on_loop(_create(workspace, name, jail))


async def _create(workspace: Workspace | None, name: str | None, jail: JailOptions) -> LocalSession:
    async with prepare_session("local", None, workspace, name=name, jail=jail) as parts:
        session = LocalSession(parts)
        await session.begin()
    return session
