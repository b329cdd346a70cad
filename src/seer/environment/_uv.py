"""Drive uv: resolve requirements, and install pins, in a build jail.

Which packages the machine has already is told to uv as wheels without content (`stubs`), so it
can choose them like any other; they are never what it installs.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from seer._places import cache_dir
from seer._transient import TransientFolder
from seer.environment._build_jail import PYTHON, BuildFolder, BuildJail
from seer.environment._indexes import IndexSettings
from seer.environment._process import Finished, run_program
from seer.errors import PackageError
from seer.isolation import Mount, interpreter_mounts

_UV = "/seer/uv/uv"
_WORK = "/seer/build"
_CACHE = "/seer/cache"
_STUBS = "/seer/stubs"
_HOME = "/seer/home"
_SYSTEM_CONFIG = Path("/etc/uv/uv.toml")
_COMPILE = ("pip", "compile", "--no-header", "--no-annotate", "--no-strip-extras")


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
        return _pins(folder / "out.txt") if ended.exit_code == 0 else None


class UvBuild:
    """uv in a build jail. One object serves one environment."""

    def __init__(
        self,
        settings: IndexSettings,
        draft: Path,
        stubs: Path,
        *,
        on_progress: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._draft = draft
        self._stubs = stubs
        self._on_progress = on_progress

    async def resolve(
        self, requirements: Sequence[str], pins: Sequence[str], *, allow_build: bool
    ) -> list[str]:
        """The pins that meet the requirements, installed versions preferred.

        Raises:
            BuildFailed: There is no solution.
        """
        work = self._fresh("resolve")
        jail = self._jail(work, allow_build=allow_build)
        (work / "wanted.in").write_text(jail.translate("\n".join(requirements) + "\n"))
        # uv takes the pins in an existing output file as preferences, not as bounds.
        (work / "out.txt").write_text("\n".join(pins) + "\n")
        # What is needed to build a package must be the real thing, not a wheel without content.
        (work / "build.txt").write_text("\n".join(pin.replace("==", "!=") for pin in pins) + "\n")
        for name in ("wanted.in", "out.txt", "build.txt"):
            (work / name).chmod(0o666)
        links = jail.translate(",".join(self._settings.find_links))
        jail.set("UV_FIND_LINKS", f"{jail.path(_STUBS)},{links}".rstrip(","))
        await self._uv(
            jail,
            *(*_COMPILE, *self._flags(allow_build)),
            *(("--build-constraints", jail.path(f"{_WORK}/build.txt")) if pins else ()),
            *("--python", jail.path(f"{PYTHON}/bin/python3")),
            *("--output-file", jail.path(f"{_WORK}/out.txt"), jail.path(f"{_WORK}/wanted.in")),
        )
        return [jail.restore(pin) for pin in _pins(work / "out.txt")]

    async def install(self, pins: Sequence[str], *, allow_build: bool) -> Path:
        """Install exactly these into a new environment; its folder.

        Raises:
            BuildFailed: Something could not be fetched or built.
        """
        work = self._fresh("install")
        jail = self._jail(work, allow_build=allow_build)
        (work / "pins.txt").write_text(jail.translate("\n".join(pins) + "\n"))
        (work / "pins.txt").chmod(0o644)
        environment = jail.path(f"{_WORK}/env")
        python = jail.path(f"{PYTHON}/bin/python3")
        await self._uv(jail, "venv", "--relocatable", "--python", python, environment)
        await self._uv(
            jail,
            *("pip", "install", "--no-deps", "--compile-bytecode", *self._flags(allow_build)),
            *("--python", f"{environment}/bin/python3"),
            *("--requirement", jail.path(f"{_WORK}/pins.txt")),
        )
        return work / "env"

    async def _uv(self, jail: BuildJail, *arguments: str) -> Finished:
        ended = await jail.run([jail.path(_UV), *arguments], on_stderr=self._told)
        if ended.exit_code != 0:
            words = ended.stderr.strip() or f"uv exited with {ended.exit_code}"
            raise BuildFailed(self._settings.hide(words))
        return ended

    def _flags(self, allow_build: bool) -> list[str]:
        # uv has no variables for these two.
        return [
            *(["--no-index"] if self._settings.no_index else []),
            *([] if allow_build else ["--no-build"]),
        ]

    def _told(self, line: str) -> None:
        self._on_progress(self._settings.hide(line.strip()))

    def _jail(self, work: Path, *, allow_build: bool) -> BuildJail:
        home = self._fresh(f"home-{work.name}")
        readable = [
            *interpreter_mounts(PYTHON),
            Mount(find_uv(), _UV),
            Mount(self._stubs, _STUBS),
            *(Mount(path, str(path)) for path in self._settings.paths if not _is_system(path)),
        ]
        if _SYSTEM_CONFIG in self._settings.config_files:
            readable.append(Mount(_SYSTEM_CONFIG, str(_SYSTEM_CONFIG)))
        # Sources below /tmp must stay visible there, so the jail's own goes elsewhere.
        sources = [mount.target for mount in readable]
        tmp = "/seer/tmp" if any(path.startswith("/tmp/") for path in sources) else "/tmp"
        jail = BuildJail(
            writable=[
                BuildFolder(work, _WORK),
                BuildFolder(self._cache(allow_build=allow_build), _CACHE),
                BuildFolder(home, _HOME),
                BuildFolder(self._fresh(f"tmp-{work.name}"), tmp),
            ],
            readable=readable,
            env={
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "UV_LINK_MODE": "copy",
                "UV_NO_PROGRESS": "1",
                "UV_PYTHON_DOWNLOADS": "never",
                "UV_FIND_LINKS": ",".join(self._settings.find_links),
                **self._settings.env,
            },
            path_env={
                "HOME": _HOME,
                "NETRC": f"{_HOME}/.netrc",
                "TMPDIR": tmp,
                "UV_CACHE_DIR": _CACHE,
            },
            online=self._settings.online,
        )
        self._write_home(home, jail)
        return jail

    def _cache(self, *, allow_build: bool) -> Path:
        """The shared cache, or an own one where strangers' code could change what others get."""
        if allow_build:
            return self._fresh("cache")
        shared = cache_dir() / "uv"
        shared.mkdir(mode=0o700, exist_ok=True)
        # uv remembers interpreters by their path, which is the same for all in these jails.
        for known in shared.glob("interpreter-*"):
            shutil.rmtree(known, ignore_errors=True)
        return shared

    def _write_home(self, home: Path, jail: BuildJail) -> None:
        """Write the user's settings, as far as they concern a build."""
        files = {
            ".netrc": self._settings.netrc,
            # A repository of this machine's belongs to somebody else than the build's user.
            ".gitconfig": "[safe]\n\tdirectory = *\n",
        }
        for path in self._settings.config_files:
            if path != _SYSTEM_CONFIG:
                files[".config/uv/uv.toml"] = jail.translate(path.read_text())
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


def _is_system(path: Path) -> bool:
    """Whether a jail with a network shows this path anyway."""
    return str(path).startswith(("/usr/", "/etc/ssl/certs"))


def _pins(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not re.match(r"[#-]", line)]
