"""Start a sandbox in phases, or adopt a running one.

Each phase has a name, shows its progress, and logs how long it took. If a phase fails, the start
fails with the name of the phase and the reason, and nothing is left running.
"""

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seer.console import progress
from seer.console._progress import Phase, Phases
from seer.environment._adoption import Note, read_note, write_note
from seer.environment._handles import ModelHandle, RepoHandle
from seer.environment._secrets import Secrets, load_secrets, missing_secrets
from seer.environment._snapshots import Snapshot, restore_snapshot
from seer.environment.config._config import ExecutionMode, SandboxConfig
from seer.environment.models._download import look_up
from seer.environment.models._folder import own_folder, weight_bytes
from seer.environment.models._models import PreparedModel, model_handles, read_aliases
from seer.environment.models._names import is_local_model
from seer.environment.models._provenance import ModelOrigin
from seer.environment.packages._packages import check_python_version
from seer.environment.prepare._files import (
    REPOS,
    CachedModel,
    check_out,
    copy_files,
    place_in_hub_cache,
)
from seer.environment.prepare._preparer import LocalPreparer, Preparer, RemotePreparer
from seer.environment.repos._repos import PreparedRepo
from seer.errors import SandboxNotFoundError, SeerError, StartError
from seer.isolation import Mount
from seer.providers import (
    Host,
    Machine,
    MachineSpec,
    Network,
    Provider,
    get_provider,
    resolve_provider,
)
from seer.providers._gpus import free_memory
from seer.providers._label import write_label
from seer.providers._registry import is_default_provider

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Started:
    """A running sandbox: its machine, and what is on it."""

    machine: Machine
    config: SandboxConfig
    models: tuple[ModelHandle, ...]
    repos: tuple[RepoHandle, ...]
    model_paths: dict[str, str] = field(default_factory=dict[str, str])
    """The folder of each model in the machine, by every name that an interface may use."""
    hidden_names: dict[str, str] = field(default_factory=dict[str, str])
    """Names of models that no agent may learn, each with its replacement."""
    origins: tuple[ModelOrigin, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    """The versions of the requested packages."""


async def start(
    config: SandboxConfig,
    *,
    kind: str,
    network: Network,
    snapshot: Snapshot | None = None,
    mounts: Sequence[Mount] = (),
) -> Started:
    """Start a sandbox.

    Args:
        config: What to start.
        kind: `sandbox` or `scoped`.
        network: The network policy, with the kind's default filled in.
        snapshot: Files to start with.
        mounts: The mounts besides those of the configuration's models and repositories.

    Raises:
        StartError: A phase failed, or `start_timeout` passed.
        SecretMissingError: A secret is not set.
        ProviderError: The provider did not say whether it stores the missing secrets.
    """
    provider = get_provider(resolve_provider(config.provider))
    secrets, kept = Secrets({}), ()
    if not provider.runs_nothing:
        missing = missing_secrets(config.secrets)
        if missing:
            kept = await provider.kept_secrets(missing, config.provider_options)
        here = [name for name in config.secrets if name not in kept]
        secrets = load_secrets(here, required=config.require_secrets)
    if (secrets.names or kept) and kind == "sandbox":
        readable = [*secrets.names, *(f"{name} (kept at {provider.name})" for name in kept)]
        logger.warning("the agent in this sandbox can read: %s", ", ".join(readable))
    starter = _Starter(
        config,
        kind,
        network,
        snapshot,
        provider=provider,
        secrets=secrets,
        kept_secrets=kept,
        mounts=mounts,
    )
    with progress(f"{kind} on {provider.name}") as display:
        return await starter.run(display)


async def adopt(sandbox_id: str, *, provider: str, kind: str) -> Started:
    """Adopt a running sandbox.

    Raises:
        SandboxNotFoundError: It is not running, or it is a sandbox of the other kind.
    """
    machine = await get_provider(resolve_provider(provider)).find(sandbox_id)
    try:
        note = read_note(machine.note)
        if note.kind != kind:
            other = "ScopedSandbox" if note.kind == "scoped" else "Sandbox"
            raise SandboxNotFoundError(f"{sandbox_id!r} is a {other}; use {other}.from_id")
        if machine.paused:
            await machine.resume()
        return _started(machine, note)
    except BaseException:
        # A sandbox that was detached must not end with this process.
        await asyncio.shield(machine.let_go())
        raise


class _Starter:
    """One start: what is prepared so far, and what must be undone if the start fails."""

    def __init__(
        self,
        config: SandboxConfig,
        kind: str,
        network: Network,
        snapshot: Snapshot | None,
        *,
        provider: Provider,
        secrets: Secrets,
        kept_secrets: tuple[str, ...],
        mounts: Sequence[Mount],
    ) -> None:
        self._config = config
        self._mounts = mounts
        self._kind = kind
        self._network: Network = network
        self._snapshot = snapshot
        self._provider = provider
        self._secrets = secrets
        self._kept_secrets = kept_secrets
        self._phase = "machine"
        self._host: Host | None = None
        self._preparer: Preparer = LocalPreparer()
        self._versions: dict[str, str] = {}

    async def run(self, display: Phases) -> Started:
        config = self._config
        machine: Machine | None = None
        try:
            async with asyncio.timeout(config.start_timeout):
                await self._check()
                environment, models, repos = await self._prepare(display)
                await self._compare_memory(models)
                note = self._note(models, repos)
                async with self._in_phase(display, "machine"):
                    machine = await self._provider.start(
                        self._spec(note, environment, models, repos)
                    )
                await self._add_files(display, machine, models, repos)
                return _started(machine, note)
        except BaseException as error:
            if machine is not None:
                # Even a start that is cancelled must not leave its machine running.
                await asyncio.shield(machine.terminate())
            elif self._host is not None:
                await asyncio.shield(self._host.release())
            if isinstance(error, TimeoutError) and not isinstance(error, SeerError):
                reason = f"it took longer than start_timeout={config.start_timeout:g} s in all"
                raise StartError(self._phase, reason) from error
            if isinstance(error, SeerError) and not isinstance(error, StartError):
                raise StartError(self._phase, self._secrets.redact(str(error))) from error
            raise

    async def _check(self) -> None:
        """Check what can fail before anything is built, downloaded or rented."""
        if self._provider.runs_nothing:
            return
        await self._provider.check(self._bare_spec())
        self._phase = "models"
        aliases = read_aliases(os.environ)
        for model in self._config.models:
            wanted = [(model.name, model.revision)]
            if model.base_model is not None:
                wanted.append((model.base_model, "main"))
            for name, revision in wanted:
                if name in aliases:
                    name, revision = aliases[name], "main"
                if is_local_model(name):
                    await asyncio.to_thread(own_folder, name)
                elif self._provider.rents and "HF_TOKEN" not in self._kept_secrets:
                    await look_up(name, revision, token=self._secrets.get("HF_TOKEN"))
        self._phase = "machine"

    async def _compare_memory(self, models: Sequence[PreparedModel]) -> None:
        """Warn if the weights, as they are stored, do not fit into this host's GPUs."""
        config = self._config
        if config.gpu is None or not models or not self._provider.shares_host:
            return
        free = await asyncio.to_thread(free_memory, config.gpu_count)
        size = sum([await asyncio.to_thread(weight_bytes, model.host_path) for model in models])
        if free is not None and size > free:
            logger.warning(
                "the models' weights take %.1f GB, but the GPU has %.1f GB free; load them in "
                "fewer bits, or free memory (nvidia-smi shows which processes use it)",
                size / 1e9,
                free / 1e9,
            )

    @asynccontextmanager
    async def _in_phase(self, display: Phases, name: str) -> AsyncGenerator[Phase]:
        self._phase = name
        began = time.monotonic()
        try:
            with display.phase(name) as phase:
                yield phase
        except SeerError as error:
            # Use `name`: `self._phase` may be that of a concurrent phase.
            if isinstance(error, StartError):
                raise
            raise StartError(name, self._secrets.redact(str(error))) from error
        logger.info("phase %s took %.3f s", name, time.monotonic() - began)

    async def _prepare(
        self, display: Phases
    ) -> tuple[Path | None, tuple[PreparedModel, ...], tuple[PreparedRepo, ...]]:
        if self._provider.runs_nothing:
            return None, (), ()
        if not self._provider.shares_host:
            async with self._in_phase(display, "host"):
                self._host = await self._provider.host(self._bare_spec())
        if self._host is not None:
            self._preparer = RemotePreparer(self._host)
        # The parts do not depend on each other, so they run at the same time.
        parts = (
            asyncio.ensure_future(self._packages(display)),
            asyncio.ensure_future(self._models(display)),
            asyncio.ensure_future(self._repos(display)),
            asyncio.ensure_future(self._place_mounts()),
        )
        try:
            environment, models, repos, self._mounts = await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        return environment, models, repos

    async def _place_mounts(self) -> "list[Mount]":
        places = [await self._preparer.place(mount.source) for mount in self._mounts]
        return [
            dataclasses.replace(mount, source=place)
            for mount, place in zip(self._mounts, places, strict=True)
        ]

    async def _packages(self, display: Phases) -> Path | None:
        config = self._config
        packages = _packages_for(config, notebook=self._kind == "sandbox")
        if not packages and not config.system_packages and self._host is None:
            check_python_version(config.python_version)
            self._versions = await self._preparer.versions(None, config.python_packages)
            return None
        async with self._in_phase(display, "packages") as phase:
            environment = await self._preparer.packages(
                packages,
                python=config.python_version,
                system=config.system_packages,
                on_progress=phase.say,
            )
            self._versions = await self._preparer.versions(environment, config.python_packages)
            return environment

    async def _models(self, display: Phases) -> tuple[PreparedModel, ...]:
        if not self._config.models:
            return ()
        async with self._in_phase(display, "models") as phase:
            return await self._preparer.models(
                self._config.models,
                token=self._secrets.get("HF_TOKEN"),
                on_bytes=phase.bytes,
            )

    async def _repos(self, display: Phases) -> tuple[PreparedRepo, ...]:
        if not self._config.repos:
            return ()
        async with self._in_phase(display, "repos") as phase:
            prepared: list[PreparedRepo] = []
            for repo in self._config.repos:
                phase.say(repo.url)
                prepared.append(await self._preparer.repo(repo))
            return tuple(prepared)

    def _note(self, models: Sequence[PreparedModel], repos: Sequence[PreparedRepo]) -> Note:
        config = self._config
        handles = tuple(model.handle for model in models)
        if self._provider.runs_nothing:
            handles = model_handles(config.models)
        return Note(
            kind=self._kind,
            config=config,
            models=handles,
            repos=_repo_handles(config, repos),
            origins=tuple(model.origin for model in models),
            packages=self._versions,
        )

    def _spec(
        self,
        note: Note,
        environment: Path | None,
        models: Sequence[PreparedModel],
        repos: Sequence[PreparedRepo],
    ) -> MachineSpec:
        mounts = [*self._mounts, *(mount for model in models for mount in model.mounts)]
        mounts += [Mount(repo.host_path, f"{REPOS}/{repo.name}") for repo in repos]
        return dataclasses.replace(
            self._bare_spec(),
            note=write_note(note),
            env={**self._config.env, **self._secrets.values()},
            path_env={handle.env_name: handle.path for handle in note.models},
            mounts=tuple(mounts),
            python_env=environment,
            hidden=any(handle.hidden for handle in note.models),
            host=self._host,
        )

    def _bare_spec(self) -> MachineSpec:
        """The part of the spec that is known before anything is prepared."""
        config = self._config
        return MachineSpec(
            label=_label(self._kind, config),
            serves=self._kind == "scoped",
            kept_secrets=self._kept_secrets,
            installs=self._kind == "sandbox",
            gpu=config.gpu,
            gpu_count=config.gpu_count,
            gpu_optional=self._provider.shares_host and self._provider_is_resolved(),
            cpus=config.cpus,
            memory=config.memory_bytes,
            disk=config.disk_bytes,
            network=self._network,
            isolation=config.isolation,
            python_version=config.python_version,
            system_packages=tuple(config.system_packages),
            options=config.provider_options,
            lease=config.lease,
            timeout=config.timeout,
            idle_timeout=config.idle_timeout,
            start_timeout=config.start_timeout,
        )

    def _provider_is_resolved(self) -> bool:
        """Whether Seer chose the provider, rather than the configuration."""
        written = self._config.provider
        return is_default_provider(written) or self._provider.name != written

    async def _add_files(
        self,
        display: Phases,
        machine: Machine,
        models: Sequence[PreparedModel],
        repos: Sequence[PreparedRepo],
    ) -> None:
        """Put the user's files, the hub's cache and the repositories into the machine."""
        config = self._config
        if self._snapshot is not None or config.files or config.dirs:
            async with self._in_phase(display, "files"):
                if self._snapshot is not None:
                    await restore_snapshot(machine, self._snapshot)
                await copy_files(machine, config)
        await place_in_hub_cache(machine, _cached(models))
        for repo, wanted in zip(repos, config.repos, strict=not self._provider.runs_nothing):
            async with self._in_phase(display, f"repo {repo.name}") as phase:
                await check_out(machine, repo, wanted.install, phase)


def _cached(models: Sequence[PreparedModel]) -> list[CachedModel]:
    """The models that are not hidden, with the base models of adapters, for the hub's cache."""
    found: list[CachedModel] = []
    for model in models:
        config, handle = model.config, model.handle
        if handle.hidden:
            continue
        if config.base_model is not None and handle.base_path is not None:
            base = CachedModel(config.base_model, "main", model.base_commit, handle.base_path)
            found.append(base)
        found.append(CachedModel(config.name, config.revision, model.commit, handle.path))
    return found


def _packages_for(config: SandboxConfig, *, notebook: bool) -> tuple[str, ...]:
    """The configuration's packages, and those that its models and execution mode need."""
    packages = tuple(config.python_packages)
    if config.models and not packages:
        packages = ("torch", "transformers", "accelerate", "numpy")
        if any(model.is_peft for model in config.models):
            packages += ("peft",)
        logger.info("python_packages is empty; for the models: %s", ", ".join(packages))
    if notebook and config.execution_mode is ExecutionMode.NOTEBOOK:
        packages += ("ipykernel",)
    if notebook and config.execution_mode is not ExecutionMode.LOCAL:
        # Agents expect it on a machine of their own.
        packages += ("pip",)
    return packages


def _started(machine: Machine, note: Note) -> Started:
    models = tuple(
        dataclasses.replace(
            handle,
            path=machine.path(handle.path),
            base_path=machine.path(handle.base_path) if handle.base_path else None,
        )
        for handle in note.models
    )
    paths: dict[str, str] = {}
    hidden: dict[str, str] = {}
    others = {origin.name: origin.names for origin in note.origins}
    for model, handle in zip(note.config.models, models, strict=True):
        # The interface's source, which no agent sees, uses the real name of a hidden model.
        paths[model.name] = paths[handle.name] = handle.path
        if handle.hidden:
            hidden[model.name] = handle.name
        if model.base_model is not None and handle.base_path is not None:
            paths[model.base_model] = paths[f"{handle.name}_base"] = handle.base_path
            if handle.hidden:
                hidden[model.base_model] = f"{handle.name}_base"
        if handle.hidden:
            for name in others.get(model.name, ()):
                hidden.setdefault(name, handle.name)
    workdir = machine.layout.workdir
    return Started(
        machine=machine,
        config=note.config,
        models=models,
        repos=tuple(dataclasses.replace(r, path=f"{workdir}/{r.path}") for r in note.repos),
        model_paths=paths,
        hidden_names=hidden,
        origins=note.origins,
        packages=note.packages,
    )


def _repo_handles(config: SandboxConfig, repos: Sequence[PreparedRepo]) -> tuple[RepoHandle, ...]:
    """Handles whose paths are relative to the working folder, which only the machine knows."""
    return tuple(
        RepoHandle(
            name=repo.name, path=repo.name, url=wanted.url, ref=wanted.ref, commit=repo.commit
        )
        for repo, wanted in zip(repos, config.repos, strict=False)
    )


def _label(kind: str, config: SandboxConfig) -> str:
    """A machine's description in `seer ps`. It does not name a hidden model."""
    models = [
        f"model_{number}" if model.hidden else model.name.rpartition("/")[2]
        for number, model in enumerate(config.models)
    ]
    return write_label(kind, models)
