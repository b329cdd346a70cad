"""Drive uv: resolve requirements, build what has no wheel, and install wheels, each in a jail.

Resolving and building may run code of packages. Each such jail has a cache of its own, and only a
list of pins or one wheel leaves it. Installing runs no code of any package: it has wheels only, and
bytecode is compiled by an interpreter that reads no `.pth` file.

Which packages the machine has already is told to uv as wheels without content (`stubs`), so it
can choose them like any other; they are never what it installs.
"""

import os
import re
import shutil
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from seer._transient import TransientFolder
from seer.environment._build_jail import PYTHON, BuildFolder, BuildJail
from seer.environment._index_server import IndexServer
from seer.environment._indexes import IndexSettings
from seer.environment._process import run_program
from seer.errors import PackageError
from seer.isolation import Mount, interpreter_mounts, open_beneath, read_bytes

_UV = "/seer/uv/uv"
_WORK = "/seer/build"
_CACHE = "/seer/cache"
_STUBS = "/seer/stubs"
_HOME = "/seer/home"
_WHEELS = "/seer/wheels"
_SOURCES = "/seer/sources"
_SYSTEM_CONFIG = Path("/etc/uv/uv.toml")
_COMPILE = ("pip", "compile", "--no-header", "--no-annotate", "--no-strip-extras")


_DOWNLOAD = "import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])"
_COPY = (
    "import shutil, sys; ignored = shutil.ignore_patterns(*sys.argv[3:]); "
    "shutil.copytree(sys.argv[1], sys.argv[2], symlinks=True, ignore=ignored)"
)
_NOT_COPIED = (".venv", ".tox", ".nox", "__pycache__", "node_modules")
_LONGEST_LIST = 64 << 20


class BuildFailed(Exception):
    """uv could not do it; the message has its own words."""


def find_uv() -> Path:
    """The uv program that the `uv` package brings, or that a host elsewhere was given.

    Raises:
        PackageError: There is none.
    """
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = os.environ.get("SEER_UV") or shutil.which("uv")
        if found is None:
            raise PackageError(
                "packages cannot be installed: uv is missing; install it with: pip install uv"
            ) from None
        return Path(found)


async def resolve_offline(
    requirements: Sequence[str], pins: Sequence[str], stubs: Path
) -> list[str] | None:
    """Resolve with installed packages only: no network, no jail, no code of theirs.

    Returns:
        The pins, or None where that is not possible.
    """
    with TransientFolder("resolve") as folder:
        (folder / "wanted.in").write_text("\n".join(requirements) + "\n")
        (folder / "out.txt").write_text("\n".join(pins) + "\n")
        ended = await run_program(
            [
                *(str(find_uv()), *_COMPILE, "--no-config", "--no-index", "--no-build"),
                *("--find-links", str(stubs), "--python", sys.executable, "--no-cache"),
                *("--output-file", "out.txt", "wanted.in"),
            ],
            env={"PATH": os.defpath, "HOME": str(folder)},
            cwd=folder,
        )
        return _pins((folder / "out.txt").read_text()) if ended.exit_code == 0 else None


@dataclass(frozen=True)
class _Source:
    """What a wheel is built from."""

    name: str
    place: str
    """A folder or archive that the jail sees, or an address of the index server."""


class UvBuild:
    """uv in build jails. One object serves one environment."""

    def __init__(
        self,
        settings: IndexSettings,
        draft: Path,
        stubs: Path,
        *,
        index: IndexServer | None,
        folders: Sequence[Path],
        on_progress: Callable[[str], None],
    ) -> None:
        """Nothing runs yet.

        Args:
            settings: Where packages come from.
            draft: A folder that no jail can write to, for this build alone.
            stubs: Wheels without content for what the machine has.
            index: Serves the sources on the network; None where there are none.
            folders: Projects of this machine that requirements refer to as `source_address`.
            on_progress: Called with uv's lines.
        """
        self._settings = settings
        self._draft = draft
        self._stubs = stubs
        self._index = index
        self._folders = folders
        self._on_progress = on_progress

    async def resolve(self, requirements: Sequence[str], pins: Sequence[str]) -> list[str]:
        """The pins that meet the requirements, installed versions preferred.

        What has no wheel is built for its metadata, as `uv pip install` would do.

        Raises:
            BuildFailed: There is no solution.
        """
        work = self._fresh("resolve")
        jail = self._jail(work, stubs=True)
        _put(work, "wanted.in", jail.translate("\n".join(requirements) + "\n"))
        # uv takes the pins in an existing output file as preferences, not as bounds.
        _put(work, "out.txt", "\n".join(pins) + "\n")
        # What is needed to build a package must be the real thing, not a wheel without content.
        _put(work, "build.txt", "\n".join(pin.replace("==", "!=") for pin in pins) + "\n")
        links = jail.translate(self._links())
        jail.set("UV_FIND_LINKS", f"{jail.path(_STUBS)},{links}".rstrip(","))
        await self._copy_folders(jail)
        await self._uv(
            jail,
            *(*_COMPILE, *self._flags()),
            *(("--build-constraints", jail.path(f"{_WORK}/build.txt")) if pins else ()),
            *("--python", jail.path(f"{PYTHON}/bin/python3")),
            *("--output-file", jail.path(f"{_WORK}/out.txt"), jail.path(f"{_WORK}/wanted.in")),
        )
        return [_checked(jail.restore(pin)) for pin in _pins(_read(work, "out.txt"))]

    async def install(self, pins: Sequence[str]) -> Path:
        """Install exactly these into a new environment; its folder.

        Raises:
            BuildFailed: Something could not be fetched or built.
        """
        wheels = self._fresh("wheels")
        wheels.chmod(0o755)
        ready, sources = await self._sort(pins)
        for number, source in enumerate(sources):
            self._on_progress(f"building {source.name}")
            made = await self._build(number, source, wheels)
            ready.append(f"{source.name} @ file://{_WHEELS}/{made}")
        work = self._fresh("install")
        jail = self._jail(work, readable=[Mount(wheels, _WHEELS)])
        _put(work, "pins.txt", jail.translate("\n".join(ready) + "\n"))
        environment = jail.path(f"{_WORK}/env")
        python = jail.path(f"{PYTHON}/bin/python3")
        await self._uv(jail, "venv", "--relocatable", "--python", python, environment)
        await self._uv(
            jail,
            *("pip", "install", "--no-deps", "--no-build", *self._flags()),
            *("--python", f"{environment}/bin/python3"),
            *("--requirement", jail.path(f"{_WORK}/pins.txt")),
        )
        # Without `site`, no .pth file is read: those may hold code. A file that does not compile
        # stays without bytecode, as many packages have some that are not meant to.
        jobs = ("-j", "0") if jail.has_shared_memory else ()
        await jail.run([python, "-I", "-S", "-m", "compileall", "-q", *jobs, f"{environment}/lib"])
        return work / "env"

    # --- building -------------------------------------------------------------------------------

    async def _sort(self, pins: Sequence[str]) -> tuple[list[str], list[_Source]]:
        """Which pins have a wheel, and what the others are built from."""
        ready: list[str] = []
        sources: list[_Source] = []
        listed: list[str] = []
        for pin in pins:
            requirement = Requirement(pin)
            if requirement.url is None:
                listed.append(f"{requirement.name}{requirement.specifier}")
            elif urlsplit(requirement.url).path.endswith(".whl"):
                ready.append(str(requirement))
            else:
                sources.append(_Source(requirement.name, requirement.url))
        supported = frozenset(sys_tags())
        for package in await self._files(listed) if listed else ():
            pin = _checked(f"{package.get('name')}=={package.get('version')}")
            name = Requirement(pin).name
            files = cast("list[Mapping[str, str]]", package.get("wheels", []))
            if any(_fits(_place(file), supported) for file in files):
                ready.append(pin)
            elif "sdist" in package:
                sources.append(_Source(name, _place(package["sdist"])))
            else:
                raise BuildFailed(f"{pin} has no wheel for this machine, and no source")
        return ready, sources

    async def _files(self, pins: Sequence[str]) -> list[dict[str, Any]]:
        """The files that the sources of packages have for each pin (`packages` of PEP 751)."""
        work = self._fresh("files")
        jail = self._jail(work, cache="resolve")
        _put(work, "pins.in", "\n".join(pins) + "\n")
        await self._uv(
            jail,
            *("pip", "compile", "--no-header", "--no-deps", "--format", "pylock.toml"),
            *(*self._flags(), "--python", jail.path(f"{PYTHON}/bin/python3")),
            *("--output-file", jail.path(f"{_WORK}/pylock.toml"), jail.path(f"{_WORK}/pins.in")),
        )
        try:
            found = tomllib.loads(_read(work, "pylock.toml"))
            return cast("list[dict[str, Any]]", found["packages"])
        except (ValueError, KeyError, TypeError) as error:
            raise BuildFailed(f"uv's list of files cannot be read: {error}") from None

    async def _build(self, number: int, source: _Source, wheels: Path) -> str:
        """Build one wheel, in a jail and with a cache of its own; the wheel's file name."""
        work = self._fresh(f"build-{number}")
        jail = self._jail(work)
        place = source.place
        if place.startswith("http://"):
            archive = jail.path(f"{_WORK}/{Path(unquote(urlsplit(place).path)).name}")
            python = jail.path(f"{PYTHON}/bin/python3")
            await self._run(jail, python, "-I", "-S", "-c", _DOWNLOAD, place, archive)
            place = archive
        else:
            place = jail.translate(unquote(urlsplit(place).path))
            await self._copy_folders(jail)
        await self._uv(
            jail,
            *("build", "--wheel", *self._flags(), "--python", jail.path(f"{PYTHON}/bin/python3")),
            *("--out-dir", jail.path(f"{_WORK}/out"), place),
        )
        return _take_wheel(work, source.name, wheels)

    async def _copy_folders(self, jail: BuildJail) -> None:
        """Copy this machine's projects to where a build may write into them."""
        for number in range(len(self._folders)):
            source = jail.path(f"{_SOURCES}/{number}")
            target = jail.path(urlsplit(source_address(number)).path)
            python = jail.path(f"{PYTHON}/bin/python3")
            await self._run(jail, python, "-I", "-S", "-c", _COPY, source, target, *_NOT_COPIED)

    # --- jails ----------------------------------------------------------------------------------

    async def _uv(self, jail: BuildJail, *arguments: str) -> None:
        await self._run(jail, jail.path(_UV), *arguments)

    async def _run(self, jail: BuildJail, *argv: str) -> None:
        ended = await jail.run(argv, on_stderr=self._told)
        if ended.exit_code != 0:
            words = ended.stderr.strip() or f"{Path(argv[0]).name} exited with {ended.exit_code}"
            problems = self._index.problems if self._index is not None else []
            raise BuildFailed(self._shown("\n".join([words, *problems])))

    def _flags(self) -> list[str]:
        # uv has no variable for this one.
        return ["--no-index"] if self._settings.no_index else []

    def _told(self, line: str) -> None:
        self._on_progress(self._shown(line.strip()))

    def _shown(self, text: str) -> str:
        return self._settings.hide(self._index.restore(text) if self._index else text)

    def _links(self) -> str:
        links = ",".join(self._settings.find_links)
        return self._index.translate(links) if self._index is not None else links

    def _jail(
        self,
        work: Path,
        *,
        cache: str | None = None,
        stubs: bool = False,
        readable: Sequence[Mount] = (),
    ) -> BuildJail:
        home = self._fresh(f"home-{work.name}")
        shown = [
            *interpreter_mounts(PYTHON),
            Mount(find_uv(), _UV),
            *([Mount(self._stubs, _STUBS)] if stubs else []),
            *(Mount(path, f"{_SOURCES}/{n}") for n, path in enumerate(self._folders)),
            *(Mount(path, str(path)) for path in self._settings.paths if not _is_system(path)),
            *readable,
        ]
        # Sources below /tmp must stay visible there, so the jail's own goes elsewhere.
        sources = [mount.target for mount in shown]
        tmp = "/seer/tmp" if any(path.startswith("/tmp/") for path in sources) else "/tmp"
        env = self._settings.build_env
        if self._index is not None:
            env = self._index.index_env(env)
        private = self._draft / f"cache-{cache or work.name}"
        private.mkdir(mode=0o700, exist_ok=True)
        jail = BuildJail(
            writable=[
                BuildFolder(work, _WORK),
                BuildFolder(private, _CACHE),
                BuildFolder(home, _HOME),
                BuildFolder(self._fresh(f"tmp-{work.name}"), tmp),
            ],
            readable=shown,
            env={
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "UV_LINK_MODE": "copy",
                "UV_NO_PROGRESS": "1",
                "UV_PYTHON_DOWNLOADS": "never",
                "UV_CONCURRENT_DOWNLOADS": "16",
                "UV_FIND_LINKS": self._links(),
                **env,
            },
            path_env={
                "HOME": _HOME,
                "TMPDIR": tmp,
                "UV_CACHE_DIR": _CACHE,
                "XDG_CONFIG_DIRS": f"{_HOME}/system",
            },
            index=self._index,
        )
        self._write_home(home, jail)
        return jail

    def _write_home(self, home: Path, jail: BuildJail) -> None:
        """Write the user's settings, as far as they concern a build."""
        files: dict[str, str] = {}
        for path in self._settings.config_files:
            where = "system/uv/uv.toml" if path == _SYSTEM_CONFIG else ".config/uv/uv.toml"
            text = path.read_text()
            text = self._index.translate(text) if self._index is not None else text
            files[where] = jail.translate(self._settings.hide(text))
        for name, text in files.items():
            file = home / name
            for parent in reversed(Path(name).parents[:-1]):
                (home / parent).mkdir(exist_ok=True)
                (home / parent).chmod(0o755)
            file.write_text(text)
            file.chmod(0o644)

    def _fresh(self, name: str) -> Path:
        folder = self._draft / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder


def source_address(number: int, subdirectory: str = "") -> str:
    """How a requirement names the project that is one of a build's folders."""
    return f"file://{_WORK}/project-{number}" + (f"/{subdirectory}" if subdirectory else "")


def _is_system(path: Path) -> bool:
    """Whether every jail shows this path anyway."""
    return str(path).startswith("/usr/") and not str(path).startswith("/usr/local/")


def _put(work: Path, name: str, text: str) -> None:
    """Write a file into a folder that no jail has had yet."""
    (work / name).write_text(text)
    (work / name).chmod(0o666)


def _read(work: Path, name: str) -> str:
    """What a jail wrote; code of packages may have run in it."""
    try:
        return read_bytes(work, name, limit=_LONGEST_LIST).decode(errors="replace")
    except OSError as error:
        raise BuildFailed(f"the build left no list of packages: {error}") from None


def _take_wheel(work: Path, name: str, wheels: Path) -> str:
    """Copy the one wheel out of a jail's folder, which its code could write to."""
    try:
        folder = open_beneath(work, "out", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BuildFailed(f"{name}: the build left no wheel: {error}") from None
    try:
        found = [entry for entry in os.listdir(folder) if entry.endswith(".whl")]  # noqa: PTH208
        if len(found) != 1 or _wheel_name(found[0]) != canonicalize_name(name):
            raise BuildFailed(f"{name}: the build left {found!r} instead of one wheel of it")
        with os.fdopen(open_beneath(folder, found[0], os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BuildFailed(f"{name}: the build's wheel is not a file")
            with (wheels / found[0]).open("xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
        (wheels / found[0]).chmod(0o644)
        return found[0]
    except OSError as error:
        raise BuildFailed(f"{name}: the build's wheel cannot be read: {error}") from None
    finally:
        os.close(folder)


def _wheel_name(file: str) -> str | None:
    try:
        return parse_wheel_filename(file)[0]
    except InvalidWheelFilename:
        return None


def _place(file: Mapping[str, str]) -> str:
    """Where a file of PEP 751 is: its address, or its path, which may be relative to the list."""
    if "url" in file:
        return str(file["url"])
    path = os.path.normpath(os.path.join(_WORK, file["path"]))  # noqa: PTH118
    return f"file://{path}"


def _fits(place: str, supported: frozenset[Any]) -> bool:
    try:
        tags = parse_wheel_filename(unquote(urlsplit(place).path.rpartition("/")[2]))[3]
    except InvalidWheelFilename:
        return False
    return bool(tags & supported)


def _checked(pin: str) -> str:
    """A requirement, and nothing else: code of a package may have written the list it is from."""
    try:
        return str(Requirement(pin))
    except InvalidRequirement:
        raise BuildFailed(f"{pin!r} in the list of packages is none") from None


def _pins(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not re.match(r"[#-]", line)]
