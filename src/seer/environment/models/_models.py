"""Get models ready for a sandbox: find or download them, and make the folder that it will see.

Downloading is `_model_download`'s work, what the folder looks like `_model_view`'s. Here is what
stands between: aliases and names.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seer.environment._handles import ModelHandle
from seer.environment.config._config import ModelConfig, assign_var_names
from seer.environment.models._download import OnBytes, download
from seer.environment.models._names import is_local_model, model_env_name, model_slug
from seer.environment.models._origins import ModelOrigin
from seer.environment.models._view import ModelSource, View, make_view
from seer.errors import ConfigError, ModelError
from seer.isolation import Mount

logger = logging.getLogger(__name__)

ALIASES = "SEER_MODEL_ALIASES"


class ModelPlace(ABC):
    """The host on which models are made ready."""

    @abstractmethod
    async def folder(self, path: Path) -> Path:
        """A model's folder of this host, where that host has it."""

    @abstractmethod
    async def download(
        self, name: str, revision: str, *, token: str | None, on_bytes: OnBytes
    ) -> tuple[Path, str | None]:
        """A model of the hub: its folder there, and its commit if it has one.

        Raises:
            ModelError: It could not be had.
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
        """The folder of a model as a sandbox sees it; see `make_view`."""


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model on this machine, ready to be mounted."""

    config: ModelConfig
    host_path: Path
    """The folder that the sandbox sees."""
    handle: ModelHandle
    mounts: tuple[Mount, ...]
    """All that the sandbox needs mounted for this model, its base included."""
    commit: str | None
    """The commit on the hub; None for a folder of this machine."""
    base_commit: str | None
    """The same of its base model."""
    origin: ModelOrigin


@dataclass(frozen=True)
class ModelNames:
    """How one model of a configuration appears in a sandbox."""

    visible: str
    folder: str
    base_folder: str | None


def assign_names(models: Sequence[ModelConfig]) -> tuple[ModelNames, ...]:
    """One set of names per model. Hidden ones are counted: `model_0`, `model_1`, ..."""
    result: list[ModelNames] = []
    taken: set[str] = set()
    hidden = 0

    def free(folder: str) -> str:
        candidate, number = folder, 1
        while candidate in taken:
            candidate, number = f"{folder}-{number}", number + 1
        taken.add(candidate)
        return candidate

    for model in models:
        if model.hidden:
            visible = f"model_{hidden}"
            hidden += 1
            folder, base = free(visible), f"{visible}_base"
        else:
            visible = model.name
            folder, base = free(model_slug(model.name)), model_slug(model.base_model or "")
        result.append(ModelNames(visible, folder, free(base) if model.base_model else None))
    return tuple(result)


def read_aliases(environ: Mapping[str, str]) -> dict[str, str]:
    """The aliases in `SEER_MODEL_ALIASES`: `name=other,name=other`.

    Raises:
        ConfigError: An entry has no two sides, or a name stands there twice.
    """
    aliases: dict[str, str] = {}
    for entry in environ.get(ALIASES, "").split(","):
        if not entry.strip():
            continue
        name, equals, other = (part.strip() for part in entry.partition("="))
        if not (name and equals and other):
            raise ConfigError(ALIASES, entry, "must be written as 'name=other,name=other'")
        if name in aliases:
            raise ConfigError(ALIASES, name, "is given two aliases")
        aliases[name] = other
    return aliases


async def prepare_models(
    models: Sequence[ModelConfig],
    *,
    place: ModelPlace | None = None,
    models_root: str = "/models",
    token: str | None = None,
    on_bytes: OnBytes | None = None,
) -> tuple[PreparedModel, ...]:
    """Prepare all models of a configuration, one after the other.

    Args:
        models: The models.
        place: Where to; None is this host.
        models_root: The folder in the sandbox under which they will appear.
        token: The hub token to use instead of the one that the hub's library finds.
        on_bytes: Called while bytes arrive, with sums over all models so far.

    Raises:
        ModelError: A model could not be had; the message says why and what to do.
        ConfigError: `SEER_MODEL_ALIASES` does not parse.
    """
    tally = _Tally(on_bytes)
    aliases = read_aliases(os.environ)
    variables = assign_var_names(models)
    prepared: list[PreparedModel] = []
    for config, names, variable in zip(models, assign_names(models), variables, strict=True):
        prepared.append(
            await _prepare(
                config,
                names,
                variable,
                root=models_root.rstrip("/"),
                aliases=aliases,
                token=token,
                tally=tally,
                place=place or ModelsHere(),
            )
        )
    return tuple(prepared)


async def _prepare(
    config: ModelConfig,
    names: ModelNames,
    variable: str,
    *,
    root: str,
    aliases: Mapping[str, str],
    token: str | None,
    tally: "_Tally",
    place: ModelPlace,
) -> PreparedModel:
    find = _Finder(aliases, token, tally, place)
    source = await find(config.name, config.revision)
    base = base_view = None
    base_path = None
    secrets = source.secrets(config.name)
    if config.base_model is not None and names.base_folder is not None:
        base = await find(config.base_model, "main")
        base_path = f"{root}/{names.base_folder}"
        secrets |= base.secrets(config.base_model)
    view = await place.view(
        source,
        hidden_as=names.visible if config.hidden else None,
        secrets=secrets,
        base_path=base_path,
    )
    path = f"{root}/{names.folder}"
    mounts = _mounts(view, path)
    if base is not None and base_path is not None:
        base_view = await place.view(
            base,
            hidden_as=names.base_folder if config.hidden else None,
            secrets=secrets,
            base_path=None,
        )
        mounts += _mounts(base_view, base_path)
    handle = _handle(config, names, variable, root=root)
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


def model_handles(
    models: Sequence[ModelConfig], *, models_root: str = "/models"
) -> tuple[ModelHandle, ...]:
    """The handles that prepared models would have, without preparing any."""
    return tuple(
        _handle(config, names, variable, root=models_root)
        for config, names, variable in zip(
            models, assign_names(models), assign_var_names(models), strict=True
        )
    )


def _handle(config: ModelConfig, names: ModelNames, variable: str, *, root: str) -> ModelHandle:
    return ModelHandle(
        name=names.visible,
        path=f"{root}/{names.folder}",
        var_name=variable,
        env_name=model_env_name(names.visible),
        hidden=config.hidden,
        base_path=f"{root}/{names.base_folder}" if names.base_folder is not None else None,
    )


def _mounts(view: View, target: str) -> tuple[Mount, ...]:
    files = (Mount(source, f"{target}/{name}") for name, source in view.binds)
    return (Mount(view.folder, target), *files)


@dataclass(frozen=True)
class _Finder:
    """Finds the files of a model, or gets them."""

    aliases: Mapping[str, str]
    token: str | None
    tally: "_Tally"
    place: ModelPlace

    async def __call__(self, name: str, revision: str) -> ModelSource:
        if name in self.aliases:
            logger.warning("%s: %r is used in place of %r", ALIASES, self.aliases[name], name)
            name, revision = self.aliases[name], "main"
        if is_local_model(name):
            return ModelSource(await self.place.folder(_own_folder(name)), name=name, commit=None)
        folder, commit = await self.place.download(
            name, revision, token=self.token, on_bytes=self.tally.current
        )
        self.tally.next()
        return ModelSource(folder, name=name, commit=commit)


def _own_folder(name: str) -> Path:
    folder = Path(name).expanduser().resolve()
    if not folder.is_dir():
        raise ModelError(f"model {name!r}: {str(folder)!r} is no folder")
    return folder


class ModelsHere(ModelPlace):
    """This host."""

    async def folder(self, path: Path) -> Path:
        """Itself."""
        return path

    async def download(
        self, name: str, revision: str, *, token: str | None, on_bytes: OnBytes
    ) -> tuple[Path, str | None]:
        """A model of the hub."""
        return await download(name, revision, token=token, on_bytes=on_bytes)

    async def view(
        self,
        source: ModelSource,
        *,
        hidden_as: str | None,
        secrets: frozenset[str],
        base_path: str | None,
    ) -> View:
        """The folder of a model as a sandbox sees it."""
        return await make_view(source, hidden_as=hidden_as, secrets=secrets, base_path=base_path)


class _Tally:
    """Sums the bytes of one download after the other."""

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
