"""Prepares what a machine on another host is given, on that host.

`_on_host` runs there and uses the functions of this host, so that weights and wheels need not pass
through the user's connection. What only this host has is sent.
"""

import asyncio
import logging
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seer._transient import TransientFolder
from seer.environment._secrets import load_secrets
from seer.environment.config._config import RepoConfig
from seer.environment.models._download import OnBytes
from seer.environment.models._view import ModelSource, View
from seer.environment.packages._uv import find_uv
from seer.environment.packages._wheels import collect_wheels
from seer.environment.prepare._preparer import OnText, Preparer
from seer.environment.repos._repos import PreparedRepo, prepare_repo
from seer.errors import PackageError
from seer.providers import Host

logger = logging.getLogger(__name__)

_MODULE = "seer.environment.prepare._on_host"
_PASSED_ON = ("HF_ENDPOINT",)
_UNREACHABLE = re.compile(
    r"failed to fetch|dns error|error sending request|could not connect|network is unreachable"
    r"|tcp connect|connection refused|timed out|not found in the package registry",
    re.IGNORECASE,
)


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
            # A host without uv gets this one's.
            self._uv = await self._push_uv(str(found["machine"]))
            return await self._ask(operation, request, on_message=on_message)
        return found["result"]

    async def _push_uv(self, machine: str) -> str:
        if machine != platform.machine():
            raise PackageError(
                f"{self._host.name} has no uv, and this host's is for {platform.machine()} while "
                f"that one is {machine}; install it there: python3 -m pip install uv"
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
        """An environment with these packages, made there."""
        request = {"requirements": list(requirements), "python": python, "system": list(system)}

        def show(message: Mapping[str, Any]) -> None:
            on_progress(str(message["text"]))

        try:
            found = await self._ask("packages", {**request, "wheels": None}, on_message=show)
        except PackageError as error:
            if not _UNREACHABLE.search(str(error)):
                raise
            logger.warning("%s reaches no package index; it gets wheels from here", self._host.name)
            target = await self._ask("target", {})
            with TransientFolder("wheels") as folder:
                await collect_wheels(requirements, folder, target, on_progress=on_progress)
                on_progress("sending wheels")
                wheels = await self._host.push(folder)
            found = await self._ask("packages", {**request, "wheels": str(wheels)}, on_message=show)
        return Path(found) if found is not None else None

    async def versions(self, environment: Path | None, wanted: Sequence[str]) -> dict[str, str]:
        """The versions of an environment's packages, read there."""
        where = str(environment) if environment is not None else None
        return await self._ask("versions", {"environment": where, "wanted": list(wanted)})

    async def repo(self, config: RepoConfig) -> PreparedRepo:
        """A repository, fetched there; one of this host's is sent."""
        if _is_here(config.url):
            made = await prepare_repo(config)
            return PreparedRepo(
                host_path=await self._host.push(made.host_path),
                name=made.name,
                ref=made.ref,
                commit=made.commit,
            )
        secrets = load_secrets([config.token_secret] if config.token_secret else [], required=True)
        token = secrets.get(config.token_secret or "")
        fields = await self._ask("repo", {"config": asdict(config), "token": token})
        return PreparedRepo(
            host_path=Path(fields["host_path"]),
            name=fields["name"],
            ref=fields["ref"],
            commit=fields["commit"],
        )

    async def place(self, path: Path) -> Path:
        """A folder of this host, sent there."""
        return await self._host.push(path)

    async def download(
        self, name: str, revision: str, *, token: str | None, on_bytes: OnBytes
    ) -> tuple[Path, str | None]:
        """A model of the hub, downloaded there."""

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
        """The folder of a model as a sandbox sees it, made there."""
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
    """Whether a repository lies in a folder of this host."""
    path = Path(url.removeprefix("file://")).expanduser()
    return path.is_absolute() and path.is_dir()
