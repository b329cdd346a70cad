"""Prepares what a machine needs: packages, models, repositories, folders to mount.

A machine can only mount what is on its own host. `LocalPreparer` prepares on this host. For a
machine on another host, `RemotePreparer` runs the same functions there (`_on_host`), so that
weights and wheels need not pass through the user's connection. It sends files that only this host
has.
"""

import asyncio
import logging
import os
import platform
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from seer._transient import TransientFolder
from seer.environment._handles import ModelHandle
from seer.environment._secrets import load_secrets
from seer.environment.config._config import ModelConfig, RepoConfig
from seer.environment.models._download import OnBytes, download
from seer.environment.models._folder import own_folder
from seer.environment.models._models import (
    ALIASES,
    MODELS_ROOT,
    PreparedModel,
    model_handles,
    read_aliases,
)
from seer.environment.models._names import is_local_model
from seer.environment.models._provenance import ModelOrigin, package_versions
from seer.environment.models._view import ModelSource, View, make_view
from seer.environment.packages._packages import (
    build_environment,
    check_python_version,
    check_system_packages,
    collect_wheels,
)
from seer.environment.packages._uv import find_uv
from seer.environment.repos._repos import PreparedRepo, prepare_repo
from seer.errors import PackageError
from seer.isolation import Mount
from seer.providers import Host

logger = logging.getLogger(__name__)

OnText = Callable[[str], None]
_MODULE = "seer.environment.prepare._on_host"
_PASSED_ON = ("HF_ENDPOINT",)
_UNREACHABLE = re.compile(
    r"failed to fetch|dns error|error sending request|could not connect|network is unreachable"
    r"|tcp connect|connection refused|timed out|not found in the package registry",
    re.IGNORECASE,
)


class Preparer(ABC):
    """Prepares the parts of a sandbox on its machine's host, and returns paths there."""

    @abstractmethod
    async def packages(
        self,
        requirements: Sequence[str],
        *,
        python: str | None,
        system: Sequence[str],
        on_progress: OnText,
    ) -> Path | None:
        """Make an environment with these packages; None if no packages are wanted.

        Raises:
            PackageError: The packages could not be installed, or system packages are missing.
        """

    @abstractmethod
    async def versions(self, environment: Path | None, wanted: Sequence[str]) -> dict[str, str]:
        """Read the versions of an environment's packages."""

    @abstractmethod
    async def repo(self, config: RepoConfig) -> PreparedRepo:
        """Fetch a repository and check it out.

        Raises:
            RepoError: It could not be fetched.
        """

    @abstractmethod
    async def place(self, path: Path) -> Path:
        """Make a file or folder of this host available on the machine's host."""

    @abstractmethod
    async def download(
        self, name: str, revision: str, *, token: str | None, on_bytes: OnBytes
    ) -> tuple[Path, str | None]:
        """Download a model from the hub. Returns its folder, and its commit if it has one.

        Raises:
            ModelError: It could not be found or downloaded.
        """

    @abstractmethod
    async def view(
        self,
        source: ModelSource,
        *,
        hidden_as: str | None,
        secrets: frozenset[str],
        base_path: str | None,
    ) -> View:
        """Make the folder that a sandbox sees as the model; see `make_view`."""

    async def models(
        self,
        models: Sequence[ModelConfig],
        *,
        models_root: str = MODELS_ROOT,
        token: str | None = None,
        on_bytes: OnBytes | None = None,
    ) -> tuple[PreparedModel, ...]:
        """Prepare all models of a configuration, one after the other.

        Args:
            models: The models.
            models_root: The folder of the sandbox that holds them.
            token: The hub token to use instead of the one that the hub's library finds.
            on_bytes: Called during downloads, with the sums over all models so far.

        Raises:
            ModelError: A model could not be prepared; the message says why and what to do.
            ConfigError: `SEER_MODEL_ALIASES` does not parse.
        """
        sources = _Sources(self, read_aliases(os.environ), token, _Tally(on_bytes))
        handles = model_handles(models, root=models_root)
        return tuple(
            [
                await self._model(config, handle, sources)
                for config, handle in zip(models, handles, strict=True)
            ]
        )

    async def _model(
        self, config: ModelConfig, handle: ModelHandle, sources: "_Sources"
    ) -> PreparedModel:
        source = await sources.find(config.name, config.revision)
        base = base_view = None
        secrets = source.secrets(config.name)
        if config.base_model is not None:
            base = await sources.find(config.base_model, "main")
            secrets |= base.secrets(config.base_model)
        view = await self.view(
            source,
            hidden_as=handle.name if config.hidden else None,
            secrets=secrets,
            base_path=handle.base_path,
        )
        mounts = _mounts(view, handle.path)
        if base is not None and handle.base_path is not None:
            base_view = await self.view(
                base,
                hidden_as=handle.base_path.rpartition("/")[2] if config.hidden else None,
                secrets=secrets,
                base_path=None,
            )
            mounts += _mounts(base_view, handle.base_path)
        return PreparedModel(
            config=config,
            host_path=view.folder,
            handle=handle,
            mounts=mounts,
            commit=source.commit,
            base_commit=base.commit if base is not None else None,
            origin=ModelOrigin(
                name=config.name,
                revision=config.revision,
                source=source.name,
                commit=source.commit,
                folder=str(source.folder),
                names=sorted({*view.names, *(base_view.names if base_view is not None else ())}),
            ),
        )


class LocalPreparer(Preparer):
    """Prepares the parts on this host."""

    async def packages(
        self,
        requirements: Sequence[str],
        *,
        python: str | None,
        system: Sequence[str],
        on_progress: OnText,
    ) -> Path | None:
        """Make an environment with these packages."""
        if not requirements:
            check_python_version(python)
        await check_system_packages(system)
        if not requirements:
            return None
        return await build_environment(requirements, python=python, on_progress=on_progress)

    async def versions(self, environment: Path | None, wanted: Sequence[str]) -> dict[str, str]:
        """Read the versions of an environment's packages."""
        return await asyncio.to_thread(package_versions, environment, wanted)

    async def repo(self, config: RepoConfig) -> PreparedRepo:
        """Fetch a repository and check it out."""
        return await prepare_repo(config)

    async def place(self, path: Path) -> Path:
        """Return the path itself."""
        return path

    async def download(
        self, name: str, revision: str, *, token: str | None, on_bytes: OnBytes
    ) -> tuple[Path, str | None]:
        """Download a model from the hub."""
        return await download(name, revision, token=token, on_bytes=on_bytes)

    async def view(
        self,
        source: ModelSource,
        *,
        hidden_as: str | None,
        secrets: frozenset[str],
        base_path: str | None,
    ) -> View:
        """Make the folder that a sandbox sees as the model."""
        return await make_view(source, hidden_as=hidden_as, secrets=secrets, base_path=base_path)


@dataclass(frozen=True)
class _Sources:
    """Finds or downloads the files of models."""

    preparer: Preparer
    aliases: Mapping[str, str]
    token: str | None
    tally: "_Tally"

    async def find(self, name: str, revision: str) -> ModelSource:
        if name in self.aliases:
            logger.warning("%s: using %r instead of %r", ALIASES, self.aliases[name], name)
            name, revision = self.aliases[name], "main"
        if is_local_model(name):
            folder = await self.preparer.place(own_folder(name))
            return ModelSource(folder, name=name, commit=None)
        folder, commit = await self.preparer.download(
            name, revision, token=self.token, on_bytes=self.tally.current
        )
        self.tally.next()
        return ModelSource(folder, name=name, commit=commit)


def _mounts(view: View, target: str) -> tuple[Mount, ...]:
    files = (Mount(source, f"{target}/{name}") for name, source in view.binds)
    return (Mount(view.folder, target), *files)


class _Tally:
    """Adds up the bytes of consecutive downloads."""

    def __init__(self, on_bytes: OnBytes | None) -> None:
        self._on_bytes = on_bytes
        self._before = 0
        self._now = (0, 0)

    def current(self, done: int, total: int) -> None:
        self._now = (done, total)
        if self._on_bytes is not None:
            self._on_bytes(self._before + done, self._before + max(done, total))

    def next(self) -> None:
        self._before += self._now[0]
        self._now = (0, 0)


class RemotePreparer(Preparer):
    """Prepares the parts on another host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._uv: str | None = None

    async def _ask(
        self,
        operation: str,
        request: Mapping[str, object],
        *,
        on_message: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Any:
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        found = await self._host.run(
            _MODULE,
            {"op": operation, "env": env, "uv": self._uv, **request},
            on_message=on_message or (lambda _: None),
        )
        if found.get("needs") == "uv":
            # The host has no uv, so it gets a copy of this host's uv.
            self._uv = await self._push_uv(str(found["machine"]))
            return await self._ask(operation, request, on_message=on_message)
        return found["result"]

    async def _push_uv(self, machine: str) -> str:
        if machine != platform.machine():
            raise PackageError(
                f"{self._host.name} has no uv, and this host's uv is for {platform.machine()}, not "
                f"for {machine}; install uv there: python3 -m pip install uv"
            )
        with TransientFolder("uv") as folder:
            await asyncio.to_thread(shutil.copy, find_uv(), folder / "uv")
            return str(await self._host.push(folder) / "uv")

    async def packages(
        self,
        requirements: Sequence[str],
        *,
        python: str | None,
        system: Sequence[str],
        on_progress: OnText,
    ) -> Path | None:
        """Make an environment with these packages on the remote host."""
        request = {"requirements": list(requirements), "python": python, "system": list(system)}

        def show(message: Mapping[str, Any]) -> None:
            on_progress(str(message["text"]))

        try:
            found = await self._ask("packages", {**request, "wheels": None}, on_message=show)
        except PackageError as error:
            if not _UNREACHABLE.search(str(error)):
                raise
            logger.warning(
                "%s cannot reach a package index; sending it wheels from here", self._host.name
            )
            target = await self._ask("target", {})
            with TransientFolder("wheels") as folder:
                await collect_wheels(requirements, folder, target, on_progress=on_progress)
                on_progress("sending wheels")
                wheels = await self._host.push(folder)
            found = await self._ask("packages", {**request, "wheels": str(wheels)}, on_message=show)
        return Path(found) if found is not None else None

    async def versions(self, environment: Path | None, wanted: Sequence[str]) -> dict[str, str]:
        """Read the versions of an environment's packages on the remote host."""
        where = str(environment) if environment is not None else None
        return await self._ask("versions", {"environment": where, "wanted": list(wanted)})

    async def repo(self, config: RepoConfig) -> PreparedRepo:
        """Fetch a repository on the remote host. A folder on this host is sent there."""
        if _is_here(config.url):
            made = await prepare_repo(config)
            return replace(made, host_path=await self._host.push(made.host_path))
        secrets = load_secrets([config.token_secret] if config.token_secret else [], required=True)
        token = secrets.get(config.token_secret or "")
        fields: dict[str, Any] = await self._ask("repo", {"config": asdict(config), "token": token})
        fields["host_path"] = Path(fields["host_path"])
        return PreparedRepo(**fields)

    async def place(self, path: Path) -> Path:
        """Send a file or folder of this host to the remote host."""
        return await self._host.push(path)

    async def download(
        self, name: str, revision: str, *, token: str | None, on_bytes: OnBytes
    ) -> tuple[Path, str | None]:
        """Download a model from the hub on the remote host."""

        def show(message: Mapping[str, Any]) -> None:
            if "done" in message:
                on_bytes(int(message["done"]), int(message["total"]))

        request = {"name": name, "revision": revision, "token": token}
        folder, commit = await self._ask("download", request, on_message=show)
        return Path(folder), commit

    async def view(
        self,
        source: ModelSource,
        *,
        hidden_as: str | None,
        secrets: frozenset[str],
        base_path: str | None,
    ) -> View:
        """Make the folder that a sandbox sees as the model, on the remote host."""
        found = await self._ask(
            "view",
            {
                "folder": str(source.folder),
                "name": source.name,
                "commit": source.commit,
                "hidden_as": hidden_as,
                "secrets": sorted(secrets),
                "base_path": base_path,
            },
        )
        binds = tuple((name, Path(path)) for name, path in found["binds"])
        return View(Path(found["folder"]), binds, tuple(found["names"]))


def _is_here(url: str) -> bool:
    """Whether a repository is a folder on this host."""
    path = Path(url.removeprefix("file://")).expanduser()
    return path.is_absolute() and path.is_dir()
