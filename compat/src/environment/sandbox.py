"""`Sandbox` as the original spells it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import seer.environment
from seer.environment import ExecutionMode, Output
from seer.environment._snapshots import find_snapshot
from seer.environment._start import _packages_for  # pyright: ignore[reportPrivateUsage]
from seer.workspace import Workspace
from src._old import without_meaning
from src.environment.handles import ModelHandle, RepoHandle

NOTEBOOK_PACKAGES = ("pandas", "matplotlib", "seaborn", "datasets", "requests", "pillow")
"""The packages of the original's notebooks."""


class OldSandbox(seer.environment.Sandbox):
    """The original's spellings that both kinds of sandbox share."""

    workspace: Workspace | None = None
    """The workspace of sessions that are created without one."""

    def start(
        self,
        name: str | None = None,
        snapshot_image: str | None = None,
        workspace: Workspace | None = None,
    ) -> Self:
        """As in `seer.environment`; also takes a snapshot, and a workspace for its sessions."""
        without_meaning("start()", {"name": name})
        if snapshot_image is not None:
            self._snapshot = find_snapshot(snapshot_image)
        self.workspace = workspace
        return super().start()

    def terminate(self, save_snapshot: bool = False) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As in `seer.environment`; returns the id of the snapshot, if `save_snapshot` is set."""
        saved = self.snapshot() if save_snapshot else None
        super().terminate()
        return saved

    @classmethod
    def from_id(
        cls,
        sandbox_id: str,
        config: seer.environment.SandboxConfig | None = None,
        *,
        provider: str | None = None,
    ) -> Self:
        """As in `seer.environment`; only the provider of `config` is used."""
        where = provider if provider is not None else config.provider if config else None
        return super().from_id(sandbox_id, **({} if where is None else {"provider": where}))

    @classmethod
    def from_snapshot(
        cls,
        snapshot_id: str,
        config: seer.environment.SandboxConfig | None = None,
        name: str | None = None,
    ) -> Self:
        """As in `seer.environment`; with `name`, it also starts the sandbox, as in the original."""
        made = super().from_snapshot(snapshot_id, config)
        return made if name is None else made.start()

    @property
    def model_handles(self) -> tuple[ModelHandle, ...]:
        """The models in the sandbox."""
        pairs = zip(super().model_handles, self._running.config.models, strict=True)
        return tuple(ModelHandle.of(handle, config) for handle, config in pairs)

    @property
    def repo_handles(self) -> tuple[RepoHandle, ...]:
        """The repositories in the sandbox."""
        return tuple(RepoHandle(**dataclasses.asdict(handle)) for handle in super().repo_handles)

    def exec(self, cmd: str, timeout: float | None = None, **options: Any) -> Output:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As in `seer.environment`; the timeout may also be the second positional argument."""
        return super().exec(cmd, timeout=timeout, **options)

    def write_file(
        self, path: str, data: bytes | str | None = None, content: bytes | str | None = None
    ) -> None:
        """As in `seer.environment`; `content` is another name for `data`."""
        given = data if data is not None else content
        if given is None:
            raise TypeError("write_file() needs data or content")
        super().write_file(path, given)


class Sandbox(OldSandbox):
    """A `seer.environment.Sandbox` with the original's spellings."""

    def start(
        self,
        name: str | None = None,
        snapshot_image: str | None = None,
        workspace: Workspace | None = None,
    ) -> Self:
        """As in `OldSandbox`; a notebook machine also has the packages of the original's."""
        if self.config.execution_mode is ExecutionMode.NOTEBOOK:
            known: Mapping[str, None] = dict.fromkeys(_packages_for(self.config, notebook=False))
            packages = [*known, *(name for name in NOTEBOOK_PACKAGES if name not in known)]
            plain: dict[str, Any] = {
                field.name: getattr(self.config, field.name)
                for field in dataclasses.fields(self.config)
            }
            plain["python_packages"] = packages
            self.config = seer.environment.SandboxConfig(**plain)
        return super().start(name, snapshot_image, workspace)
