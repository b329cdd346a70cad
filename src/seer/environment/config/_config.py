"""The configuration of a sandbox: frozen dataclasses that check their fields when created.

Nothing here starts, downloads or looks up anything. Lists that the user passes in are copied.
"""

import dataclasses
import enum
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

from seer.environment.config import _checks as check
from seer.environment.models._names import is_local_model, model_env_name
from seer.environment.repos._url import check_ref, check_url, repo_name, sends_token_safely
from seer.errors import ConfigError
from seer.providers import DEFAULT


class LocalPath(NamedTuple):
    """A file or folder of this machine, and where it goes in the sandbox."""

    source: Path
    target: str
    """Relative targets start at the sandbox's working folder."""


PathSpec = LocalPath | tuple[str | Path, str] | str | Path
"""What a user may write: a local path that keeps its name, or (local path, sandbox path)."""


def local_paths(where: str, value: object) -> tuple[LocalPath, ...]:
    """Convert every member of a list to a `LocalPath`.

    Raises:
        ConfigError: A member is not a path, or its target leads out of the sandbox's folder.
    """
    given = check.members_of(where, value, "paths or (local path, sandbox path) pairs")
    return tuple(_local_path(f"{where}[{index}]", item) for index, item in enumerate(given))


def _local_path(where: str, item: object) -> LocalPath:
    pair = cast("tuple[object, ...]", item) if isinstance(item, tuple) else (item, None)
    if len(pair) != 2:
        raise ConfigError(where, pair, "must be a path or a pair (local path, sandbox path)")
    source, target = pair
    if not isinstance(source, (str, Path)):
        check.wrong_type(where, source, "a path")
    path = Path(source).expanduser().absolute()
    there = path.name if target is None else check.text(where, target)
    if ".." in PurePosixPath(there).parts or not PurePosixPath(there).name:
        raise ConfigError(where, there, "is not a path in the sandbox (and '..' is not allowed)")
    return LocalPath(path, there)


Isolation = Literal["auto", "bubblewrap", "landlock", "none"]
NetworkMode = Literal["full", "none", "host"]


class ExecutionMode(enum.Enum):
    """How an agent works with a `Sandbox`."""

    NOTEBOOK = "notebook"
    """In a Jupyter notebook on the machine; Jupyter starts on first use."""
    CLI = "cli"
    """In a shell on the machine; no Jupyter."""
    LOCAL = "local"
    """Outside the machine, which only answers calls."""


class ProviderOptions(Protocol):
    """Options of one provider: any dataclass that the provider defines."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class ModelConfig:
    """A model to have in the sandbox."""

    name: str
    """A hub id such as `google/gemma-2-9b`, or the path of a folder."""
    revision: str = "main"
    """A branch, tag or commit on the hub."""
    var_name: str = "model"
    """The model's variable in a notebook. Models that share the default are numbered."""
    hidden: bool = False
    """Whether to hide the model's name and origin from everything that an agent can reach."""
    is_peft: bool = False
    """The model is a PEFT adapter on top of `base_model`."""
    base_model: str | None = None
    """The hub id or folder of the model that an adapter belongs to."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: A field has an invalid value.
        """
        name = os.fspath(self.name) if isinstance(self.name, os.PathLike) else self.name
        object.__setattr__(self, "name", _model_name("ModelConfig.name", name))
        check.revision("ModelConfig.revision", self.revision)
        check.variable_name("ModelConfig.var_name", self.var_name)
        check.flag("ModelConfig.hidden", self.hidden)
        check.flag("ModelConfig.is_peft", self.is_peft)
        if self.is_local and self.revision != "main":
            raise ConfigError("ModelConfig.revision", self.revision, "a folder has no revisions")
        if self.base_model is not None:
            object.__setattr__(
                self, "base_model", _model_name("ModelConfig.base_model", self.base_model)
            )
        if self.is_peft and self.base_model is None:
            raise ConfigError("ModelConfig.base_model", None, "is needed with is_peft=True")
        if self.base_model is not None and not self.is_peft:
            raise ConfigError(
                "ModelConfig.base_model", self.base_model, "is used only with is_peft=True"
            )

    @property
    def is_local(self) -> bool:
        """Whether `name` is a folder on this machine, not a hub id."""
        return is_local_model(self.name)


@dataclass(frozen=True)
class RepoConfig:
    """A git repository to have in the sandbox."""

    url: str
    """An https, ssh or file URL, `git@host:path`, a folder, or `owner/name` on GitHub."""
    ref: str | None = None
    """A branch, tag or commit; None is the default branch."""
    install: str | None = None
    """A shell command to run in the checkout, inside the sandbox."""
    token_secret: str | None = None
    """The name of the secret that opens a private repository. It stays out of the sandbox."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: A field has an invalid value.
        """
        check_url("RepoConfig.url", self.url)
        if self.ref is not None:
            check_ref("RepoConfig.ref", self.ref)
        if self.install is not None:
            check.text("RepoConfig.install", self.install)
        if self.token_secret is not None:
            check.secret_name("RepoConfig.token_secret", self.token_secret)
            if not sends_token_safely(self.url):
                raise ConfigError(
                    "RepoConfig.token_secret", self.token_secret, f"{self.url!r} is not https"
                )

    @property
    def name(self) -> str:
        """The checkout's folder name."""
        return repo_name(self.url)


@dataclass(frozen=True)
class SandboxConfig:
    """A machine to start, and what to put on it."""

    gpu: str | None = "A100"
    """A GPU name; None means CPU. If the machine does not have it, the start fails. But if
    `provider` was left out or came from `SEER_PROVIDER`, the machine's own GPU or CPU is used, with
    a warning."""
    execution_mode: ExecutionMode = ExecutionMode.NOTEBOOK
    models: Sequence[ModelConfig] = ()
    repos: Sequence[RepoConfig] = ()
    python_packages: Sequence[str] = ()
    """Packages to install, in PEP 508 form. If the list is empty and there are models, the packages
    that load them are installed: torch, transformers, accelerate, numpy (and peft for adapters)."""
    secrets: Sequence[str] = field(default=(), kw_only=True)
    """Names of environment variables, looked up in the environment and in the project's `.env`. A
    secret that is not set is left out, with a warning."""
    require_secrets: bool = field(default=False, kw_only=True)
    """Whether a secret that is not set is an error."""
    provider: str = field(default=DEFAULT, kw_only=True)
    """Where the machine comes from. The default is what `SEER_PROVIDER` names, else Modal if its
    credentials are configured, else this machine. If you name a provider and it cannot be used, the
    start fails."""
    gpu_count: int = field(default=1, kw_only=True)
    system_packages: Sequence[str] = field(default=(), kw_only=True)
    """Debian packages."""
    python_version: str | None = field(default=None, kw_only=True)
    """None for the provider's version."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    """Seconds after which the sandbox ends, even while it is in use."""
    idle_timeout: float | None = field(default=None, kw_only=True)
    """Seconds without a command or call after which the sandbox ends."""
    start_timeout: float = field(default=600.0, kw_only=True)
    """Seconds that starting may take."""
    lease: float = field(default=60.0, kw_only=True)
    """Seconds that the sandbox outlives its controller."""
    local_files: Sequence[PathSpec] = field(default=(), kw_only=True)
    """Files to copy in: (local path, sandbox path), or a local path that keeps its name."""
    local_dirs: Sequence[PathSpec] = field(default=(), kw_only=True)
    """Folders to copy in, in the same forms."""
    memory: int | str | None = field(default=None, kw_only=True)
    """Bytes, or text such as `"16GiB"`."""
    disk: int | str | None = field(default=None, kw_only=True)
    """Bytes, or text such as `"100GiB"`."""
    cpus: float | None = field(default=None, kw_only=True)
    network: NetworkMode | Sequence[str] | None = field(default=None, kw_only=True)
    """`"full"`, `"none"`, `"host"` or a list of hosts. There, `"*.example.org"` means every
    subdomain of `example.org`, but not `example.org` itself. None is `"full"` for a `Sandbox` and
    `"none"` for a `ScopedSandbox`."""
    isolation: Isolation = field(default="auto", kw_only=True)
    provider_options: Mapping[str, object] | ProviderOptions | None = field(
        default=None, kw_only=True
    )
    """Options that only this provider has."""

    def __post_init__(self) -> None:
        """Check every field, and the fields against each other.

        Raises:
            ConfigError: A field has an invalid value.
        """
        self._check_resources()
        self._check_content()
        self._check_surroundings()
        self._check_collisions()

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes."""
        return None if self.memory is None else check.size("SandboxConfig.memory", self.memory)

    @property
    def disk_bytes(self) -> int | None:
        """`disk` in bytes."""
        return None if self.disk is None else check.size("SandboxConfig.disk", self.disk)

    @property
    def files(self) -> tuple[LocalPath, ...]:
        """`local_files` as `LocalPath` entries."""
        return local_paths("SandboxConfig.local_files", self.local_files)

    @property
    def dirs(self) -> tuple[LocalPath, ...]:
        """`local_dirs` as `LocalPath` entries."""
        return local_paths("SandboxConfig.local_dirs", self.local_dirs)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_resources(self) -> None:
        if self.gpu is not None:
            check.gpu("SandboxConfig.gpu", self.gpu)
        check.count("SandboxConfig.gpu_count", self.gpu_count)
        for name in ("memory", "disk"):
            value: object = getattr(self, name)
            if value is not None:
                self._set(name, check.size(f"SandboxConfig.{name}", value))
        for name, unit in (
            ("cpus", "CPUs"),
            ("timeout", "seconds"),
            ("idle_timeout", "seconds"),
            ("start_timeout", "seconds"),
            ("lease", "seconds"),
        ):
            value = getattr(self, name)
            if value is not None or name in ("start_timeout", "lease"):
                check.positive(f"SandboxConfig.{name}", value, unit=unit)

    def _check_content(self) -> None:
        if not isinstance(self.execution_mode, ExecutionMode):  # pyright: ignore[reportUnnecessaryIsInstance]
            check.wrong_type(
                "SandboxConfig.execution_mode", self.execution_mode, "an ExecutionMode member"
            )
        for name, kind in (("models", ModelConfig), ("repos", RepoConfig)):
            members = check.items_of(
                f"SandboxConfig.{name}", getattr(self, name), kind, f"{kind.__name__} objects"
            )
            self._set(name, members)
        for name, parse, wanted in (
            ("python_packages", check.requirement, "package names"),
            ("system_packages", check.debian_package, "Debian package names"),
        ):
            where = f"SandboxConfig.{name}"
            given = check.items_of(where, getattr(self, name), str, wanted)
            self._set(name, tuple(parse(f"{where}[{i}]", spec) for i, spec in enumerate(given)))
        for name, test in (("local_files", Path.is_file), ("local_dirs", Path.is_dir)):
            paths = local_paths(f"SandboxConfig.{name}", getattr(self, name))
            for path in paths:
                if not test(path.source):
                    kind_name = "file" if name == "local_files" else "folder"
                    raise ConfigError(
                        f"SandboxConfig.{name}", str(path.source), f"is not an existing {kind_name}"
                    )
            self._set(name, paths)

    def _check_surroundings(self) -> None:
        if not re.fullmatch(
            r"[a-z][a-z0-9_-]*", check.text("SandboxConfig.provider", self.provider)
        ):
            raise ConfigError(
                "SandboxConfig.provider", self.provider, "is not the name of a provider"
            )
        if self.python_version is not None:
            check.python_version("SandboxConfig.python_version", self.python_version)
        if self.isolation not in ("auto", "bubblewrap", "landlock", "none"):
            raise ConfigError(
                "SandboxConfig.isolation",
                self.isolation,
                "must be 'auto', 'bubblewrap', 'landlock' or 'none'",
            )
        self._set("env", _environment("SandboxConfig.env", self.env))
        check.flag("SandboxConfig.require_secrets", self.require_secrets)
        self._set("secrets", _secrets("SandboxConfig.secrets", self.secrets))
        if isinstance(self.network, str):
            if self.network not in ("full", "none", "host"):
                raise ConfigError(
                    "SandboxConfig.network",
                    self.network,
                    "must be 'full', 'none', 'host' or a list of host names",
                )
        elif self.network is not None:
            self._set("network", check.hosts("SandboxConfig.network", self.network))
        if isinstance(self.provider_options, Mapping):
            self._set("provider_options", check.FrozenMapping(self.provider_options))
        elif self.provider_options is not None and (
            not dataclasses.is_dataclass(self.provider_options)
            or isinstance(self.provider_options, type)
        ):
            check.wrong_type(
                "SandboxConfig.provider_options", self.provider_options, "a mapping or a dataclass"
            )

    def _check_collisions(self) -> None:
        assign_var_names(self.models)
        taken: dict[str, str] = {}
        for model in self.models:
            variable = model_env_name(model.name)
            if variable in taken:
                raise ConfigError(
                    "SandboxConfig.models",
                    model.name,
                    f"shares the variable {variable} with {taken[variable]!r}; "
                    "keep one of the two in this sandbox",
                )
            taken[variable] = model.name
        names: dict[str, str] = {}
        for repo in self.repos:
            if repo.name in names:
                raise ConfigError(
                    "SandboxConfig.repos",
                    repo.url,
                    f"shares the folder {repo.name!r} with {names[repo.name]!r}",
                )
            names[repo.name] = repo.url
        for variable in (*self.secrets, *taken):
            if variable in self.env:
                other = "a secret" if variable in self.secrets else "a model's path"
                raise ConfigError("SandboxConfig.env", variable, f"is also the name of {other}")


def assign_var_names(models: Sequence[ModelConfig]) -> tuple[str, ...]:
    """One variable name per model. Default names are numbered; explicit names are kept.

    Raises:
        ConfigError: A name other than the default is given twice.
    """
    explicit: set[str] = set()
    for model in models:
        if model.var_name != "model":
            if model.var_name in explicit:
                raise ConfigError("ModelConfig.var_name", model.var_name, "is given to two models")
            explicit.add(model.var_name)
    names: list[str] = []
    number = 0
    for model in models:
        name = model.var_name
        if name == "model":
            name = "model" if number == 0 else f"model_{number}"
            while name in explicit:
                number += 1
                name = f"model_{number}"
            number += 1
        names.append(name)
    return tuple(names)


def _model_name(where: str, value: object) -> str:
    name = check.text(where, value)
    if not is_local_model(name):
        return check.hub_id(where, name)
    if not Path(name).expanduser().is_dir():
        raise ConfigError(where, name, "is not an existing folder")
    return name


def _environment(where: str, value: object) -> check.FrozenMapping[str]:
    if not isinstance(value, Mapping):
        check.wrong_type(where, value, "a mapping of names to values")
    given = cast("Mapping[object, object]", value)
    return check.FrozenMapping(
        {
            check.env_name(where, name): check.env_value(f"{where}[{name!r}]", content)
            for name, content in given.items()
        }
    )


def _secrets(where: str, value: object) -> tuple[str, ...]:
    names = check.items_of(where, value, str, "names of environment variables")
    for index, name in enumerate(names):
        check.secret_name(f"{where}[{index}]", name)
        if name in names[:index]:
            raise ConfigError(where, name, "is given twice")
    return names
