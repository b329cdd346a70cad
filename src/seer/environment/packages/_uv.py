"""Drive uv: resolve requirements, build what has no wheel, and install wheels, each in a jail.

Resolving and building may run code of packages. Each such jail has a cache of its own, and only a
list of pins or one wheel leaves it. Installing runs no code of any package: it has wheels only, and
bytecode is compiled by an interpreter that reads no `.pth` file.

Wheels without content (`stubs`) tell uv which packages the machine already has. uv can choose them
like any other package, but never installs them.
"""

import json
import os
import re
import secrets
import shutil
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from seer._files import write_files
from seer._transient import TransientFolder
from seer.environment._process import run_program
from seer.environment.packages import _build_script
from seer.environment.packages._build_jail import PYTHON, BuildJail
from seer.environment.packages._index_server import IndexServer
from seer.environment.packages._indexes import IndexSettings
from seer.errors import PackageError
from seer.isolation import Mount, interpreter_mounts, open_beneath, read_bytes

_UV = "/seer/uv/uv"
_WORK = "/seer/build"
_CACHE = "/seer/cache"
_STUBS = "/seer/stubs"
_HOME = "/seer/home"
_WHEELS = "/seer/wheels"
_SOURCES = "/seer/sources"
_SCRIPT = "/seer/script"
_SYSTEM_CONFIG = Path("/etc/uv/uv.toml")
_COMPILE = ("pip", "compile", "--no-header", "--no-annotate", "--no-strip-extras")


_LONGEST_LIST = 64 << 20


class BuildFailed(Exception):
    """uv failed; the message is uv's."""


def find_uv() -> Path:
    """The uv program that the `uv` package brings, or that was sent to a remote host.

    Raises:
        PackageError: uv is not installed.
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
    """Resolve with installed packages only: no network, no jail, and none of their code runs.

    Returns:
        The pins, or None if that is not possible.
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
class Target:
    """The remote host that wheels must fit."""

    python: str
    """Its Python version, such as `3.11`."""
    machine: str
    libc: str
    """The version of its C library."""

    def tags(self) -> list[Tag]:
        """The wheel tags that it supports, best first."""
        major, _, minor = self.libc.partition(".")
        newest = int(minor) if major == "2" and minor.isdigit() else 17
        platforms = [f"manylinux_2_{number}_{self.machine}" for number in range(newest, 4, -1)]
        platforms += [f"manylinux2014_{self.machine}", f"linux_{self.machine}"]
        version = tuple(int(part) for part in self.python.split("."))
        interpreter = f"cp{''.join(map(str, version))}"
        return [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, interpreter, platforms),
        ]


@dataclass(frozen=True)
class _PinnedPackage:
    """A pinned package, and the location of its wheel or source."""

    pin: str
    name: str
    place: str
    """A folder or file that the jail sees, or an address of the index server."""


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
        target: Target | None = None,
        on_progress: Callable[[str], None],
    ) -> None:
        """Prepare the build. Nothing runs yet.

        Args:
            settings: Where packages come from.
            draft: A folder that no jail can write to, for this build alone.
            stubs: Wheels without content for what the machine has.
            index: Serves the sources on the network; None if there are none.
            folders: Local projects. Requirements refer to them by `source_address`.
            target: The host that packages are for; None for this host.
            on_progress: Called with uv's lines.
        """
        self._settings = settings
        self._draft = draft
        self._stubs = stubs
        self._index = index
        self._folders = [self._readable(path) for path in folders]
        self._paths = {path: self._readable(path) for path in settings.paths}
        self._target = target
        tags = list(sys_tags()) if target is None else target.tags()
        self._rank = {tag: number for number, tag in enumerate(tags)}
        self._on_progress = on_progress
        (draft / "script").mkdir(mode=0o755, exist_ok=True)
        shutil.copyfile(_build_script.__file__, draft / "script" / "build.py")
        (draft / "script" / "build.py").chmod(0o644)

    async def resolve(self, requirements: Sequence[str], pins: Sequence[str]) -> list[str]:
        """Resolve the requirements to pins, and prefer installed versions.

        A package without a wheel is built for its metadata, as `uv pip install` does.

        Raises:
            BuildFailed: There is no solution.
        """
        work = self._fresh("resolve")
        jail = self._jail(work, stubs=True)
        _put(work, "wanted.in", jail.translate("\n".join(requirements) + "\n"))
        # uv treats the pins in an existing output file as preferences, not as constraints.
        _put(work, "out.txt", "\n".join(pins) + "\n")
        # Build requirements must be real packages, not wheels without content.
        _put(work, "build.txt", "\n".join(pin.replace("==", "!=") for pin in pins) + "\n")
        links = jail.translate(self._links())
        jail.set("UV_FIND_LINKS", f"{jail.path(_STUBS)},{links}".rstrip(","))
        await self._copy_folders(jail)
        await self._uv(
            jail,
            *(*_COMPILE, *self._flags(), *self._platform()),
            *(("--build-constraints", jail.path(f"{_WORK}/build.txt")) if pins else ()),
            *("--python", jail.path(f"{PYTHON}/bin/python3")),
            *("--output-file", jail.path(f"{_WORK}/out.txt"), jail.path(f"{_WORK}/wanted.in")),
        )
        return [_checked(jail.restore(pin)) for pin in _pins(_read(work, "out.txt"))]

    async def install(self, pins: Sequence[str]) -> Path:
        """Install exactly these pins into a new environment, and return its folder.

        Raises:
            BuildFailed: Something could not be fetched or built.
        """
        ready, sources = await self._sort(pins)
        wheels, built = await self._build_all(sources)
        lines = [
            *(package.pin for package in ready),
            *(f"{source.name} @ file://{_WHEELS}/{file}" for source, file in built),
        ]
        work = self._fresh("install")
        jail = self._jail(work, readable=[Mount(wheels, _WHEELS)])
        _put(work, "pins.txt", jail.translate("\n".join(lines) + "\n"))
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
        # gets no bytecode; many packages include such files on purpose.
        jobs = ("-j", "0") if jail.has_shared_memory else ()
        await jail.run([python, "-I", "-S", "-m", "compileall", "-q", *jobs, f"{environment}/lib"])
        return work / "env"

    async def collect(self, pins: Sequence[str]) -> Path:
        """Collect a wheel of each pin for the target, and return their folder.

        Raises:
            BuildFailed: A package has no wheel that fits the target, and none can be built here.
        """
        ready, sources = await self._sort(pins)
        wheels, built = await self._build_all(sources)
        for source, file in built:
            if self._rank_of(file) is None:
                raise BuildFailed(
                    f"{source.pin} has no wheel that fits, and {file}, built here, does not fit "
                    "either"
                )
        work = self._fresh("fetch")
        jail = self._jail(work)
        names = [_file_name(package.place) for package in ready]
        places = [jail.translate(package.place) for package in ready]
        await self._fetch(jail, work, list(zip(places, names, strict=True)))
        for package, name in zip(ready, names, strict=True):
            _take_wheel(work, package.name, wheels, file=name)
        return wheels

    # --- building -------------------------------------------------------------------------------

    async def _sort(self, pins: Sequence[str]) -> tuple[list[_PinnedPackage], list[_PinnedPackage]]:
        """The pins that have a wheel, and those that must be built."""
        ready: list[_PinnedPackage] = []
        sources: list[_PinnedPackage] = []
        listed: list[str] = []
        for pin in pins:
            requirement = Requirement(pin)
            if requirement.url is None:
                listed.append(f"{requirement.name}{requirement.specifier}")
                continue
            found = _PinnedPackage(str(requirement), requirement.name, requirement.url)
            is_wheel = urlsplit(requirement.url).path.endswith(".whl")
            (ready if is_wheel else sources).append(found)
        for pin, wheels, source in await self._files(listed) if listed else ():
            name = Requirement(pin).name
            ranked = [(rank, w) for w in wheels if (rank := self._rank_of(w)) is not None]
            if ranked:
                ready.append(_PinnedPackage(pin, name, min(ranked)[1]))
            elif source is not None:
                sources.append(_PinnedPackage(pin, name, source))
            else:
                raise BuildFailed(f"{pin} has no wheel that fits, and no source")
        return ready, sources

    def _rank_of(self, wheel: str) -> int | None:
        """The rank of a wheel, where lower is better; None if the wheel does not fit."""
        try:
            tags = parse_wheel_filename(_file_name(wheel))[3]
        except InvalidWheelFilename:
            return None
        return min((self._rank[tag] for tag in tags if tag in self._rank), default=None)

    async def _files(self, pins: Sequence[str]) -> list[tuple[str, list[str], str | None]]:
        """For each pin, the locations of its wheels and of its source, if any."""
        work = self._fresh("files")
        jail = self._jail(work, cache="resolve")
        _put(work, "pins.in", "\n".join(pins) + "\n")
        await self._uv(
            jail,
            *("pip", "compile", "--no-header", "--no-deps", "--format", "pylock.toml"),
            *(*self._flags(), *self._platform()),
            *("--python", jail.path(f"{PYTHON}/bin/python3")),
            *("--output-file", jail.path(f"{_WORK}/pylock.toml"), jail.path(f"{_WORK}/pins.in")),
        )
        try:
            # PEP 751 defines the format, but code of a package may have written the file.
            packages: list[dict[str, Any]] = tomllib.loads(_read(work, "pylock.toml"))["packages"]
            return [
                (
                    _checked(f"{package['name']}=={package['version']}"),
                    [_location(file) for file in package.get("wheels", [])],
                    _location(package["sdist"]) if "sdist" in package else None,
                )
                for package in packages
            ]
        except (ValueError, AttributeError, LookupError, TypeError) as error:
            raise BuildFailed(f"uv's list of files cannot be read: {error}") from None

    async def _build_all(
        self, sources: Sequence[_PinnedPackage]
    ) -> tuple[Path, list[tuple[_PinnedPackage, str]]]:
        """Build a wheel of each source. Returns their folder and their file names."""
        wheels = self._fresh("wheels")
        wheels.chmod(0o755)
        built: list[tuple[_PinnedPackage, str]] = []
        for number, source in enumerate(sources):
            self._on_progress(f"building {source.name}")
            built.append((source, await self._build(number, source, wheels)))
        return wheels, built

    async def _build(self, number: int, source: _PinnedPackage, wheels: Path) -> str:
        """Build one wheel in a jail with its own cache, and return the wheel's file name."""
        work = self._fresh(f"build-{number}")
        jail = self._jail(work)
        place = source.place
        if place.startswith("http://"):
            name = _file_name(place)
            await self._fetch(jail, work, [(place, name)])
            place = jail.path(f"{_WORK}/fetched/{name}")
        else:
            place = jail.translate(unquote(urlsplit(place).path))
            await self._copy_folders(jail)
        await self._uv(
            jail,
            *("build", "--wheel", *self._flags(), "--python", jail.path(f"{PYTHON}/bin/python3")),
            *("--out-dir", jail.path(f"{_WORK}/out"), place),
        )
        return _take_wheel(work, source.name, wheels)

    async def _fetch(self, jail: BuildJail, work: Path, files: Sequence[tuple[str, str]]) -> None:
        """Download files into `fetched` in a work folder that no jail has used yet."""
        _put(work, "list.json", json.dumps(files))
        where = [jail.path(f"{_WORK}/{name}") for name in ("list.json", "fetched")]
        await self._run_script(jail, "fetch", *where)

    async def _run_script(self, jail: BuildJail, *arguments: str) -> None:
        python = jail.path(f"{PYTHON}/bin/python3")
        await self._run(jail, python, "-I", "-S", jail.path(f"{_SCRIPT}/build.py"), *arguments)

    async def _copy_folders(self, jail: BuildJail) -> None:
        """Copy this machine's projects to where a build may write into them."""
        for number in range(len(self._folders)):
            source = jail.path(f"{_SOURCES}/{number}")
            target = jail.path(urlsplit(source_address(number)).path)
            await self._run_script(jail, "copy", source, target)

    # --- jails ----------------------------------------------------------------------------------

    async def _uv(self, jail: BuildJail, *arguments: str) -> None:
        await self._run(jail, jail.path(_UV), *arguments)

    async def _run(self, jail: BuildJail, *argv: str) -> None:
        ended = await jail.run(argv, on_stderr=self._report)
        if ended.exit_code != 0:
            words = ended.stderr.strip() or f"{Path(argv[0]).name} exited with {ended.exit_code}"
            problems = self._index.problems if self._index is not None else []
            raise BuildFailed(self._with_real_addresses("\n".join([words, *problems])))

    def _flags(self) -> list[str]:
        # uv has no variable for this option.
        return ["--no-index"] if self._settings.no_index else []

    def _platform(self) -> list[str]:
        if self._target is None:
            return []
        platform = f"{self._target.machine}-unknown-linux-gnu"
        return ["--python-version", self._target.python, "--python-platform", platform]

    def _report(self, line: str) -> None:
        self._on_progress(self._with_real_addresses(line.strip()))

    def _with_real_addresses(self, text: str) -> str:
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
            Mount(self._draft / "script", _SCRIPT),
            *([Mount(self._stubs, _STUBS)] if stubs else []),
            *(Mount(path, f"{_SOURCES}/{n}") for n, path in enumerate(self._folders)),
            *(Mount(p, str(path)) for path, p in self._paths.items() if not _is_system(path)),
            *readable,
        ]
        # Sources below /tmp must stay visible, so the jail's temporary folder goes elsewhere.
        sources = [mount.target for mount in shown]
        tmp = "/seer/tmp" if any(path.startswith("/tmp/") for path in sources) else "/tmp"
        env = self._settings.build_env
        if self._index is not None:
            env = self._index.index_env(env)
        private = self._draft / f"cache-{cache or work.name}"
        private.mkdir(mode=0o700, exist_ok=True)
        jail = BuildJail(
            mounts=[
                *shown,
                Mount(work, _WORK, writable=True),
                Mount(private, _CACHE, writable=True),
                Mount(home, _HOME, writable=True),
                Mount(self._fresh(f"tmp-{work.name}"), tmp, writable=True),
            ],
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
        files: dict[str, bytes] = {}
        for path in self._settings.config_files:
            where = "system/uv/uv.toml" if path == _SYSTEM_CONFIG else ".config/uv/uv.toml"
            text = path.read_text()
            text = self._index.translate(text) if self._index is not None else text
            files[where] = jail.translate(self._settings.hide(text)).encode()
        write_files(home, files)

    def _readable(self, path: Path) -> Path:
        """The path itself, or a readable copy if the build's user cannot read it."""
        found = [path, *(path.rglob("*") if path.is_dir() else ())]
        if os.geteuid() != 0 or not any(_is_closed(entry) for entry in found):
            return path
        copy = self._fresh(f"readable-{secrets.token_hex(4)}") / path.name
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=True)
        else:
            shutil.copyfile(path, copy)
        for entry in (copy, *copy.rglob("*")):
            if not entry.is_symlink():
                entry.chmod(0o755 if entry.is_dir() else 0o644)
        return copy

    def _fresh(self, name: str) -> Path:
        folder = self._draft / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder


def source_address(number: int, subdirectory: str = "") -> str:
    """The address by which a requirement names one of a build's project folders."""
    return f"file://{_WORK}/project-{number}" + (f"/{subdirectory}" if subdirectory else "")


def _is_system(path: Path) -> bool:
    """Whether every jail shows this path anyway."""
    return str(path).startswith("/usr/") and not str(path).startswith("/usr/local/")


def _is_closed(path: Path) -> bool:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        return found.st_mode & 0o5 != 0o5
    return stat.S_ISREG(found.st_mode) and not found.st_mode & 0o4


def _put(work: Path, name: str, text: str) -> None:
    """Write a file into a folder that no jail has used yet."""
    (work / name).write_text(text)
    (work / name).chmod(0o666)


def _read(work: Path, name: str) -> str:
    """Read a file that a jail wrote. Code of packages may have run in the jail."""
    try:
        return read_bytes(work, name, limit=_LONGEST_LIST).decode(errors="replace")
    except OSError as error:
        raise BuildFailed(f"the build left no list of packages: {error}") from None


def _take_wheel(work: Path, name: str, wheels: Path, *, file: str | None = None) -> str:
    """Copy a wheel out of a jail's folder. Code of a package could write to that folder.

    Args:
        work: The jail's folder. The wheel is the one in `out`, or `file` in `fetched`.
        name: The package.
        wheels: Where the wheel goes.
        file: Its file name, if that is known.

    Returns:
        The wheel's file name.

    Raises:
        BuildFailed: There is no such wheel.
    """
    try:
        parent = "out" if file is None else "fetched"
        folder = open_beneath(work, parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BuildFailed(f"{name}: the build left no wheel: {error}") from None
    try:
        found = [entry for entry in os.listdir(folder) if entry.endswith(".whl")]  # noqa: PTH208
        taken = file if file is not None else "".join(found[:1])
        if (file is None and len(found) != 1) or _wheel_name(taken) != canonicalize_name(name):
            raise BuildFailed(f"{name}: the build left {found!r} instead of one wheel of it")
        with os.fdopen(open_beneath(folder, taken, os.O_RDONLY | os.O_NONBLOCK), "rb") as content:
            if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
                raise BuildFailed(f"{name}: the build's wheel is not a file")
            with (wheels / taken).open("xb") as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
        (wheels / taken).chmod(0o644)
        return taken
    except OSError as error:
        raise BuildFailed(f"{name}: the build's wheel cannot be read: {error}") from None
    finally:
        os.close(folder)


def _wheel_name(file: str) -> str | None:
    try:
        return parse_wheel_filename(file)[0]
    except InvalidWheelFilename:
        return None


def _location(file: Mapping[str, str]) -> str:
    """The address of a file in a PEP 751 list. Its path may be relative to the list."""
    if "url" in file:
        return str(file["url"])
    path = os.path.normpath(os.path.join(_WORK, file["path"]))  # noqa: PTH118
    return f"file://{path}"


def _file_name(place: str) -> str:
    return unquote(urlsplit(place).path).rpartition("/")[2]


def _checked(pin: str) -> str:
    """Check that a pin is a requirement, because code of a package may have written the list."""
    try:
        return str(Requirement(pin))
    except InvalidRequirement:
        raise BuildFailed(f"{pin!r} in the list of packages is not a requirement") from None


def _pins(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not re.match(r"[#-]", line)]
