"""Collect the wheels that a remote host needs and cannot download itself.

They are resolved as that host would resolve them. A package without a wheel is built here, and is
sent if its wheel fits every machine.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from seer._transient import TransientFolder
from seer.environment.packages._index_server import IndexServer
from seer.environment.packages._indexes import read_index_settings
from seer.environment.packages._packages import local_requirements, place_sources
from seer.environment.packages._uv import BuildFailed, Target, UvBuild
from seer.errors import PackageError


async def collect_wheels(
    requirements: Sequence[str],
    folder: Path,
    target: Mapping[str, str],
    *,
    on_progress: Callable[[str], None],
) -> None:
    """Collect wheels for another host, with their dependencies, in a folder.

    Args:
        requirements: What is wanted.
        folder: Where the wheels go.
        target: The other host's `python`, `machine` and `libc` version.
        on_progress: Called with what is being done.

    Raises:
        PackageError: A package has no wheel for that host.
    """
    on_progress("collecting wheels")
    settings = read_index_settings(os.environ)
    local = await asyncio.to_thread(local_requirements, requirements)
    files = tuple(path for path in local if path.is_file())
    settings = replace(settings, paths=(*settings.paths, *files))
    with TransientFolder("wheels") as draft, contextlib.ExitStack() as stack:
        index = stack.enter_context(IndexServer(settings)) if settings.online else None
        stubs = draft / "stubs"
        stubs.mkdir(mode=0o755)
        wanted, folders = await place_sources(requirements, index)
        build = await asyncio.to_thread(
            UvBuild,
            settings,
            draft,
            stubs,
            index=index,
            folders=folders,
            target=Target(target["python"], target["machine"], target["libc"]),
            on_progress=on_progress,
        )
        try:
            wheels = await build.collect(await build.resolve(wanted, []))
        except BuildFailed as error:
            raise PackageError(
                f"packages {list(requirements)!r}: wheels for Python {target['python']} on "
                f"{target['machine']} are not available:\n{error}"
            ) from None
        await asyncio.to_thread(shutil.copytree, wheels, folder, dirs_exist_ok=True)
