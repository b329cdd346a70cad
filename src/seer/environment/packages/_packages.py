"""Package environments: folders of Python packages, built once per set of requirements.

An environment is a relocatable virtual environment for the interpreter that jails have at
`/seer/python`. Packages that the machine already has are linked into it, and uv fetches the rest in
a build jail. Machines mount it read-only.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seer._paths import cache_dir
from seer._transient import TransientFolder
from seer.environment._cache import draft_prefix, locked, prune
from seer.environment._process import run_program
from seer.environment.config._config import RepoConfig
from seer.environment.packages._assemble import open_folders, take_over, write_skeleton
from seer.environment.packages._index_server import IndexServer
from seer.environment.packages._indexes import IndexSettings, read_index_settings
from seer.environment.packages._installed import (
    Installed,
    fingerprint,
    installed_packages,
    link_package,
    write_stubs,
)
from seer.environment.packages._uv import (
    BuildFailed,
    Target,
    UvBuild,
    resolve_offline,
    source_address,
)
from seer.environment.repos._repos import prepare_repo
from seer.errors import ConfigError, PackageError, RepoError

logger = logging.getLogger(__name__)

_FORMAT = 2
_LIFE = 60 * 24 * 3600.0
OnText = Callable[[str], None]


async def build_environment(
    requirements: Sequence[str], *, python: str | None = None, on_progress: OnText | None = None
) -> Path:
    """Make, or find, the environment that meets the requirements.

    Args:
        requirements: Packages in PEP 508 form.
        python: The Python version wanted; None is the version that Seer runs under.
        on_progress: Called with short messages about the progress.

    Returns:
        The environment's folder; its packages are in `lib/python3.X/site-packages`.

    Raises:
        PackageError: A package cannot be resolved, fetched or built; has the resolver's message.
        IsolationUnavailableError: A package must be fetched, and this machine has no jail for it.
    """
    check_python_version(python)
    say: OnText = on_progress if on_progress is not None else _say_nothing
    wanted = sorted(dict.fromkeys(requirement.strip() for requirement in requirements))
    settings, local = _sources(wanted)
    root = cache_dir() / "envs"
    root.mkdir(mode=0o700, exist_ok=True)
    key = _key(wanted, settings, [_state(path) for path in local])
    environment = root / key
    async with locked(root / f"{key}.lock"):
        if not environment.is_dir():
            draft = await asyncio.to_thread(TransientFolder, draft_prefix(key), inside=root)
            try:
                await _Build(wanted, settings, draft.path, say).run()
                await asyncio.to_thread((draft.path / "env").rename, environment)
                await asyncio.to_thread(prune, root, life=_LIFE)
            finally:
                await asyncio.to_thread(draft.remove)
        os.utime(environment)
    return environment


def _say_nothing(_: str) -> None:
    pass


def check_python_version(wanted: str | None) -> None:
    """Refuse a Python version other than the one that Seer runs under.

    Raises:
        PackageError: This machine's sandboxes cannot have that version.
    """
    running = platform.python_version()
    if wanted is not None and wanted != running and not running.startswith(f"{wanted}."):
        raise PackageError(
            f"python_version={wanted!r}: sandboxes on this machine run Python {running}; "
            f"run Seer under Python {wanted}, or use a remote provider"
        )


async def check_system_packages(names: Sequence[str]) -> None:
    """Check that Debian packages are installed on this machine.

    Raises:
        PackageError: Some are not; the message has the command that installs them.
    """
    if not names:
        return
    if shutil.which("dpkg-query") is None:
        raise PackageError(
            f"system_packages={list(names)!r} cannot be checked: this machine has no dpkg-query"
        )
    ended = await run_program(
        ["dpkg-query", "--show", "--showformat=${Package}\t${db:Status-Status}\n", "--", *names],
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    present = {
        line.partition("\t")[0]
        for line in ended.stdout.splitlines()
        if line.endswith("\tinstalled")
    }
    missing = [name for name in names if name not in present]
    if missing:
        raise PackageError(
            f"system packages are not installed: {', '.join(missing)}; "
            f"install them with: sudo apt install {' '.join(missing)}"
        )


def _sources(requirements: Sequence[str]) -> tuple[IndexSettings, list[Path]]:
    """The user's index settings, and the files and folders that requirements point at."""
    settings = read_index_settings(os.environ)
    local = _local_requirements(requirements)
    # A build gets copies of project folders, so only single files are mounted in place.
    files = tuple(path for path in local if path.is_file())
    return replace(settings, paths=(*settings.paths, *files)), local


def _local_requirements(requirements: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for requirement in requirements:
        parts = urlsplit(Requirement(requirement).url or "")
        if parts.scheme in ("file", "git+file"):
            # A version control address may end in "@ref".
            path = Path(unquote(parts.path.partition("@")[0]))
            if not path.exists():
                raise PackageError(f"package {requirement!r}: {str(path)!r} does not exist")
            found.append(path)
    return found


def _state(path: Path) -> list[object]:
    """A value that changes when a local package changes."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]


def _key(requirements: Sequence[str], settings: IndexSettings, local: Sequence[object]) -> str:
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    status = base.stat()
    identity = [
        _FORMAT,
        [list(requirements), list(local)],
        [sorted(settings.env.items()), settings.find_links, settings.no_index],
        [path.read_text() for path in settings.config_files],
        sys.version,
        platform.machine(),
        platform.libc_ver(),
        [str(base), status.st_size, status.st_mtime_ns],
        fingerprint(),
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class _Plan:
    """The result of a resolution: packages to link, and pins to fetch."""

    linked: tuple[Installed, ...]
    fetched: tuple[str, ...]


class _Build:
    """One build, in a temporary folder of its own."""

    def __init__(
        self, requirements: Sequence[str], settings: IndexSettings, draft: Path, say: OnText
    ) -> None:
        self._requirements = requirements
        self._settings = settings
        self._draft = draft
        self._say = say
        self._installed: dict[str, Installed] = {}

    async def run(self) -> None:
        self._installed = await asyncio.to_thread(installed_packages)
        for _ in range(1 + len(self._installed)):
            stubs = self._draft / "stubs"
            shutil.rmtree(stubs, ignore_errors=True)
            stubs.mkdir(mode=0o755)
            await asyncio.to_thread(write_stubs, self._installed.values(), stubs)
            plan, fetched = await self._resolve(stubs)
            try:
                await asyncio.to_thread(self._assemble, plan, fetched)
                return
            except _BrokenPackage as broken:
                # Files of the package are missing, so resolve again without it.
                logger.warning(
                    "the installed package %s is damaged, and is not reused", broken.name
                )
                del self._installed[broken.name]

    async def _resolve(self, stubs: Path) -> tuple[_Plan, Path | None]:
        pins = [package.pin for package in self._installed.values()]
        resolved = None
        if not any(Requirement(r).url for r in self._requirements):
            self._say("resolving")
            resolved = await resolve_offline(self._requirements, pins, stubs)
        if resolved is not None:
            plan = self._plan(resolved)
            if not plan.fetched:
                return plan, None
        return await self._fetch(pins, stubs)

    async def _fetch(self, pins: Sequence[str], stubs: Path) -> tuple[_Plan, Path]:
        with contextlib.ExitStack() as stack:
            index = (
                stack.enter_context(IndexServer(self._settings)) if self._settings.online else None
            )
            try:
                wanted, folders = await _place_sources(self._requirements, index)
                build = await asyncio.to_thread(
                    UvBuild,
                    self._settings,
                    self._draft,
                    stubs,
                    index=index,
                    folders=folders,
                    on_progress=self._say,
                )
                self._say("resolving")
                plan = self._plan(await build.resolve(wanted, pins))
                self._say(f"installing {len(plan.fetched)} packages")
                return plan, await build.install(plan.fetched)
            except (BuildFailed, ConfigError, RepoError) as error:
                raise PackageError(
                    f"packages {list(self._requirements)!r} cannot be installed:\n{error}"
                ) from None

    def _plan(self, resolved: Sequence[str]) -> _Plan:
        linked: list[Installed] = []
        fetched: list[str] = []
        for line in resolved:
            requirement = Requirement(line)
            package = self._installed.get(canonicalize_name(requirement.name))
            if package is not None and str(requirement.specifier) == f"=={package.version}":
                linked.append(package)
            else:
                fetched.append(line)
        return _Plan(tuple(linked), tuple(fetched))

    def _assemble(self, plan: _Plan, fetched: Path | None) -> None:
        environment = self._draft / "env"
        shutil.rmtree(environment, ignore_errors=True)
        write_skeleton(environment)
        copied = 0
        for number, package in enumerate(plan.linked, 1):
            self._say(f"linking {package.name} ({number}/{len(plan.linked)})")
            try:
                copied += link_package(package, environment)
            except FileNotFoundError:
                raise _BrokenPackage(package.name) from None
        if copied > 10**8:
            logger.warning(
                "%d MB of installed packages were copied, because Seer's cache is on another "
                "filesystem; set XDG_CACHE_HOME to a folder on the same filesystem",
                copied // 10**6,
            )
        if fetched is not None:
            take_over(fetched, environment)
        open_folders(environment)


async def collect_wheels(
    requirements: Sequence[str],
    folder: Path,
    target: Mapping[str, str],
    *,
    on_progress: Callable[[str], None],
) -> None:
    """Collect the wheels that a remote host needs and cannot download itself.

    The packages and their dependencies are resolved as on that host. A package without a wheel is
    built here; its wheel must fit the host.

    Args:
        requirements: Packages in PEP 508 form.
        folder: Where the wheels go.
        target: The remote host's `python`, `machine` and `libc` version.
        on_progress: Called with short messages about the progress.

    Raises:
        PackageError: A package has no wheel that fits the host.
    """
    on_progress("collecting wheels")
    settings, _ = await asyncio.to_thread(_sources, requirements)
    with TransientFolder("wheels") as draft, contextlib.ExitStack() as stack:
        index = stack.enter_context(IndexServer(settings)) if settings.online else None
        stubs = draft / "stubs"
        stubs.mkdir(mode=0o755)
        wanted, folders = await _place_sources(requirements, index)
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


async def _place_sources(
    requirements: Sequence[str], index: IndexServer | None
) -> tuple[list[str], list[Path]]:
    """The requirements as a build sees them, and the projects that it gets copies of.

    Repositories are fetched outside the build: git runs none of their code, and the build needs no
    network for them.
    """
    wanted: list[str] = []
    folders: list[Path] = []
    for text in requirements:
        requirement = Requirement(text)
        url = urlsplit(requirement.url or "")
        folder: Path | None = None
        if url.scheme.startswith("git+"):
            path, _, ref = url.path.partition("@")
            address = url._replace(scheme=url.scheme[4:], path=path, query="", fragment="")
            repo = await prepare_repo(RepoConfig(address.geturl(), ref or None))
            folder = repo.host_path
        elif url.scheme == "file" and await asyncio.to_thread(os.path.isdir, unquote(url.path)):
            folder = Path(unquote(url.path))
        elif url.scheme in ("http", "https") and index is not None:
            requirement.url = index.file_address(url.geturl())
        if folder is not None:
            inside = parse_qs(url.fragment).get("subdirectory", [""])[0]
            requirement.url = source_address(len(folders), inside)
            folders.append(folder)
        wanted.append(str(requirement) if requirement.url else text)
    return wanted, folders


class _BrokenPackage(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
