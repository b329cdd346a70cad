"""`Sandbox`: a machine with models, packages and repositories, used through blocking calls.

This is the object a user holds. How a machine is made ready stands in `_start`, its life in
`_lifetime`, what is done in it in `_commands`, and what a machine can do in `seer.providers`.
"""

import importlib
from typing import Self, cast

from seer._sync import on_loop, run_sync
from seer.environment._commands import Commands
from seer.environment._handles import ModelHandle, RepoHandle
from seer.environment._lifetime import Notebook
from seer.environment._snapshots import find_snapshot, take_snapshot
from seer.environment.config._config import ExecutionMode, SandboxConfig
from seer.errors import SandboxStateError


class Sandbox(Commands):
    """A whole machine for an agent: with a GPU where there is one, models and packages.

    Example:
        with Sandbox(SandboxConfig(gpu=None, python_packages=["numpy"])) as sandbox:
            print(sandbox.exec("nproc"))
    """

    @property
    def model_handles(self) -> tuple[ModelHandle, ...]:
        """The models in the sandbox."""
        return self._running.models

    @property
    def repo_handles(self) -> tuple[RepoHandle, ...]:
        """The repositories in the sandbox."""
        return self._running.repos

    @property
    def jupyter_url(self) -> str:
        """Where a person can work in this sandbox with JupyterLab; it starts on first use.

        Raises:
            SandboxStateError: The execution mode has no notebook, or the sandbox does not run.
        """
        if self.config.execution_mode is not ExecutionMode.NOTEBOOK or self._kind != "sandbox":
            raise SandboxStateError(
                "this sandbox has no notebook; use Sandbox with ExecutionMode.NOTEBOOK"
            )
        _ = self._running
        if self._notebook is None:
            # Loaded by name: sessions lie above this package.
            sessions = importlib.import_module("seer.execution")
            self._notebook = cast("Notebook", sessions.create_notebook_session(self))
        return self._notebook.jupyter_url

    # --- snapshots -------------------------------------------------------------------------------

    def snapshot(self, description: str = "") -> str:
        """Keep the sandbox's files (working folder, home, installed packages) as they are now.

        Models are not copied; a sandbox made from the snapshot gets them as this one did.

        Returns:
            The snapshot's id, for `from_snapshot`.

        Raises:
            SnapshotError: It could not be taken; nothing of it is left.
        """
        return run_sync(take_snapshot(self._running, description))

    async def asnapshot(self, description: str = "") -> str:
        """The twin of `snapshot`."""
        return await on_loop(take_snapshot(self._running, description))

    @classmethod
    def from_snapshot(cls, snapshot_id: str, config: SandboxConfig | None = None) -> Self:
        """A sandbox that will start with the files of a snapshot. The snapshot stays as it is.

        Args:
            snapshot_id: What `snapshot` returned.
            config: Another configuration than that of the sandbox the snapshot was taken of.

        Raises:
            SnapshotError: There is no such snapshot.
        """
        snapshot = find_snapshot(snapshot_id)
        sandbox = cls(config if config is not None else snapshot.config)
        sandbox._snapshot = snapshot
        return sandbox
