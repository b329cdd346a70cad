"""Connects Jupyter's kernel manager to the session's kernel, which the controller owns.

This module launches nothing. The kernel's sockets appear in this process's working folder, and the
controller relays them to the kernel in its jail. Interrupts and restarts are requests to the
controller. The only kernel specification and the only provisioner are made in memory, so no name
and no file can select another kernel.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any, ClassVar, NoReturn

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from jupyter_server.services.kernels.kernelmanager import (
    AsyncMappingKernelManager,
    ServerKernelManager,
)

from seer.execution.notebook.jupyter.controller import ControllerPipe

KERNEL = "python3"
"""The usual name, so that notebooks that are saved here open and run elsewhere."""
_RESOURCES = "/dev/null/kernel"
"""The folder in which Jupyter looks for a kernel's icons and scripts; it does not exist."""


class SessionSpecs(KernelSpecManager):
    """Knows only the session's kernel, and searches no folder."""

    def find_kernel_specs(self) -> dict[str, str]:
        """The session's kernel, as the only specification."""
        return {KERNEL: _RESOURCES}

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The session's kernel.

        Raises:
            NoSuchKernel: Another kernel is requested.
        """
        if kernel_name != KERNEL:
            raise NoSuchKernel(kernel_name)
        return KernelSpec(
            argv=[KERNEL],
            name=KERNEL,
            display_name="Python 3 (Seer)",
            language="python",
            resource_dir=_RESOURCES,
        )

    def get_all_specs(self) -> dict[str, Any]:
        """The session's kernel alone."""
        spec = self.get_kernel_spec(KERNEL)
        return {KERNEL: {"resource_dir": _RESOURCES, "spec": spec.to_dict()}}

    def remove_kernel_spec(self, name: str) -> NoReturn:
        """Refused."""
        raise NoSuchKernel(name)

    def install_kernel_spec(self, *_: object, **__: object) -> NoReturn:
        """Refused."""
        raise NoSuchKernel("another kernel")


class SessionKernels(AsyncMappingKernelManager):
    """Has at most one kernel: a request for another returns the existing one."""

    _starting = asyncio.Lock()

    async def _async_start_kernel(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, kernel_id: str | None = None, path: str | None = None, **kwargs: Any
    ) -> str:
        name = kwargs.get("kernel_name")
        if name not in (None, KERNEL):
            raise NoSuchKernel(str(name))
        async with self._starting:
            known = self.list_kernel_ids()
            if known:
                return known[0]
            return await super()._async_start_kernel(kernel_name=KERNEL)

    start_kernel = _async_start_kernel  # pyright: ignore[reportAssignmentType]


class RelayKernelManager(ServerKernelManager):
    """Jupyter's manager for sockets that belong to the controller."""

    def cleanup_ipc_files(self) -> None:
        """Leave the sockets alone: the controller listens on them."""


class RelayProvisioner(KernelProvisionerBase):
    """Represents the session's kernel."""

    controller: ClassVar[ControllerPipe]
    _attached = False

    @property
    def has_process(self) -> bool:
        """Whether Jupyter may use the kernel."""
        return self._attached

    async def poll(self) -> int | None:
        """None while attached: the controller replaces a kernel that dies."""
        return None if self._attached else 0

    async def wait(self) -> int | None:
        """There is nothing to wait for."""
        return 0

    async def send_signal(self, signum: int) -> None:
        """Forward an interrupt; no other signal reaches the kernel."""
        if signum == signal.SIGINT:
            self.controller.say({"event": "interrupt"})

    async def kill(self, restart: bool = False) -> None:
        """Detach from the kernel, which continues. For a restart, ask for a new one, once."""
        if restart and self._attached:
            self.controller.say({"event": "restart"})
        self._attached = False

    async def terminate(self, restart: bool = False) -> None:
        """The same as `kill`."""
        await self.kill(restart)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Detach, because a shutdown request must not reach the agent's kernel."""
        await self.kill(restart)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Attach to the kernel."""
        self._attached = True
        manager: Any = self.parent
        return manager.get_connection_info()

    async def cleanup(self, restart: bool = False) -> None:
        """Do nothing, because nothing is left behind."""
        await asyncio.sleep(0)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Point the manager at the relayed sockets."""
        manager: Any = self.parent
        manager.transport = "ipc"
        manager.ip = "k"
        for index, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1):
            setattr(manager, f"{name}_port", index)
        manager.session.key = self.controller.settings["key"].encode()
        return await super().pre_launch(cmd=[KERNEL], **kwargs)


class RelayFactory(KernelProvisionerFactory):
    """Makes the same provisioner for every specification."""

    def is_provisioner_available(self, kernel_spec: KernelSpec) -> bool:
        """Always."""
        return True

    def create_provisioner_instance(
        self, kernel_id: str, kernel_spec: KernelSpec, parent: Any
    ) -> KernelProvisionerBase:
        """A provisioner for the session's kernel."""
        return RelayProvisioner(kernel_id=kernel_id, kernel_spec=kernel_spec, parent=parent)
