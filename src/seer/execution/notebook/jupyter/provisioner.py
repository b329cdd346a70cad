"""Connects Jupyter's kernel manager to the session's kernel, which the controller owns.

Nothing is launched here. The kernel's sockets appear in this process's working folder, where the
controller relays them to the kernel in its jail; an interrupt or a restart is asked of the
controller. There is one kernel specification and one provisioner, both made in memory, so that no
name and no file can stand for another kernel.
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

from seer.execution.notebook.jupyter.controller import Controller

KERNEL = "python3"
"""As everywhere, so that notebooks saved here open and run elsewhere."""
_RESOURCES = "/dev/null/kernel"
"""Where Jupyter looks for a kernel's icons and scripts: nowhere."""


class SessionSpecs(KernelSpecManager):
    """Knows the session's kernel, and looks in no folder."""

    def find_kernel_specs(self) -> dict[str, str]:
        """The one name."""
        return {KERNEL: _RESOURCES}

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The session's kernel.

        Raises:
            NoSuchKernel: Any other name was asked for.
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
    """Has one kernel at most: to start another is to get the one that is there."""

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
    """Jupyter's manager, except that the sockets are not its own."""

    def cleanup_ipc_files(self) -> None:
        """Leave the sockets alone: the controller listens on them."""


class RelayProvisioner(KernelProvisionerBase):
    """Stands for the one kernel there is."""

    controller: ClassVar[Controller]
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
        """Pass an interrupt on; no other signal reaches the kernel."""
        if signum == signal.SIGINT:
            self.controller.say({"event": "interrupt"})

    async def kill(self, restart: bool = False) -> None:
        """Let go of the kernel, which goes on; for a restart, ask for a fresh one, once."""
        if restart and self._attached:
            self.controller.say({"event": "restart"})
        self._attached = False

    async def terminate(self, restart: bool = False) -> None:
        """The same as `kill`."""
        await self.kill(restart)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Before a polite shutdown, which must not reach the agent's kernel."""
        await self.kill(restart)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Attach to the kernel."""
        self._attached = True
        manager: Any = self.parent
        return manager.get_connection_info()

    async def cleanup(self, restart: bool = False) -> None:
        """Nothing is left behind."""
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
    """Makes relays, regardless of specifications and installed packages."""

    def is_provisioner_available(self, kernel_spec: KernelSpec) -> bool:
        """Always."""
        return True

    def create_provisioner_instance(
        self, kernel_id: str, kernel_spec: KernelSpec, parent: Any
    ) -> KernelProvisionerBase:
        """A relay to the session's kernel."""
        return RelayProvisioner(kernel_id=kernel_id, kernel_spec=kernel_spec, parent=parent)
