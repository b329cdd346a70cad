"""Puts the user's files, the hub's cache and repositories into a running machine."""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seer.console._progress import Phase
from seer.environment.config._config import SandboxConfig
from seer.environment.models._names import hub_cache_name, is_local_model
from seer.environment.repos._repos import PreparedRepo
from seer.errors import RepoError, visible
from seer.isolation import open_beneath
from seer.providers import Machine, Stream

logger = logging.getLogger(__name__)

REPOS = "/seer/repos"


async def copy_files(machine: Machine, config: SandboxConfig) -> None:
    """Copy the files and folders that a configuration names.

    Another agent may work in such a folder, so links in it are neither copied nor followed.

    Raises:
        PathEscapeError: A link replaced a file or folder during the copy.
    """
    for source, target in config.files:
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        await machine.write_file(target, await asyncio.to_thread(source.read_bytes), mode=mode)
    for source, target in config.dirs:
        await machine.make_dir(target)
        for file in sorted(source.rglob("*")):
            name = file.relative_to(source).as_posix()
            there = f"{target}/{name}"
            if file.is_symlink():
                logger.warning("a link is not copied into the sandbox: %s", visible(str(file)))
            elif file.is_dir():
                await machine.make_dir(there)
            elif file.is_file():
                data, mode = await asyncio.to_thread(_read, source, name)
                await machine.write_file(there, data, mode=mode)


def _read(folder: Path, name: str) -> tuple[bytes, int]:
    """Content and mode of a file in a folder, without leaving it."""
    fd = open_beneath(folder, name, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        return file.read(), os.fstat(fd).st_mode & 0o777


@dataclass(frozen=True)
class CachedModel:
    """A model to place in a machine's hub cache."""

    name: str
    """Its hub id, or a path. A path is not placed in the hub's cache."""
    revision: str
    commit: str | None
    path: str
    """The target of its mount."""


async def place_in_hub_cache(machine: Machine, models: Sequence[CachedModel]) -> None:
    """Let programs in the machine load mounted models by their hub ids.

    The hub's cache has a folder per model, with one folder of links per commit.
    """
    for model in models:
        if is_local_model(model.name):
            continue
        folder = f"{machine.layout.home}/.cache/huggingface/hub/{hub_cache_name(model.name)}"
        commit = model.commit or "0" * 40
        await machine.write_file(f"{folder}/refs/{model.revision}", commit.encode())
        await machine.make_dir(f"{folder}/snapshots")
        link = f"{folder}/snapshots/{commit}"
        linked = await machine.exec(["ln", "-sfn", machine.path(model.path), link])
        if linked.exit_code != 0:
            words = visible(linked.stderr.decode(errors="replace").strip())
            logger.warning(
                "%s can be loaded by its path in the sandbox, but not by its hub id: %s",
                model.name,
                words,
            )


async def check_out(
    machine: Machine, repo: PreparedRepo, install: str | None, phase: Phase
) -> None:
    """Copy a repository inside the machine, so that its agent can change it.

    Raises:
        RepoError: The repository could not be copied, or its install command failed.
    """
    source = machine.path(f"{REPOS}/{repo.name}")
    argv = ["cp", "-a", "--no-preserve=ownership", "--reflink=auto", source, repo.name]
    copied = await machine.exec(argv)
    if copied.exit_code != 0:
        raise RepoError(f"repository {repo.name!r}: {copied.stderr.decode(errors='replace')}")
    if install is None:
        return
    phase.say(install)

    def show(stream: Stream, data: bytes) -> None:
        lines = data.decode(errors="replace").strip().splitlines()
        if lines:
            phase.say(lines[-1])

    result = await machine.exec(["/bin/bash", "-ec", install], cwd=repo.name, on_output=show)
    if result.exit_code != 0:
        words = (result.stderr or result.stdout).decode(errors="replace").strip()[-4000:]
        raise RepoError(
            f"repository {repo.name!r}: {install!r} exited with {result.exit_code}\n{words}"
        )
