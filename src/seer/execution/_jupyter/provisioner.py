"""Connects Jupyter's kernel manager to the session's kernel, which the controller owns.

Nothing is launched here. The kernel's sockets appear in this process's working folder, where the
controller relays them to the kernel in its jail; an interrupt or a restart is asked of the
controller.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, ClassVar

from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager


class Settings:
    """What the process was told at its start."""

    key: ClassVar[str] = ""
    tell: ClassVar[Callable[[str], None]]


class RelayKernelManager(ServerKernelManager):
    """Jupyter's manager, except that the sockets are not its own."""

    def cleanup_ipc_files(self) -> None:
        """Leave the sockets alone: the controller listens on them."""


class RelayProvisioner(KernelProvisionerBase):
    """Stands for the one kernel there is."""

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
            Settings.tell("interrupt")

    async def kill(self, restart: bool = False) -> None:
        """Let go of the kernel, which goes on; for a restart, ask for a fresh one, once."""
        if restart and self._attached:
            Settings.tell("restart")
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
        manager.session.key = Settings.key.encode()
        return await super().pre_launch(cmd=["seer"], **kwargs)
