"""Jails started by root and by an ordinary user, over both backends."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import pytest

import seer
from seer.isolation import BackendName

from .spawn import Report, Task, Who

SYSTEM_PYTHON = "/usr/bin/python3"
_USER = 1001


@dataclass(frozen=True)
class Starter:
    """Who starts jails, and with which interpreter and copy of Seer."""

    who: Who
    package: Path
    folder: Path
    """A folder this user can write to, which everybody can pass."""
    python: str = sys.executable
    library: str = ""
    """Where that interpreter's shared library lies, if it would not find it."""

    def command(self, script: str, *arguments: str) -> list[str]:
        """The command that runs one of the scripts beside this file."""
        path = str(self.package.parent / script)
        if self.who == "root" or os.geteuid() != 0:
            return [self.python, path, *arguments]
        user = ["--reuid", str(_USER), "--regid", str(_USER), "--clear-groups"]
        return ["/usr/bin/setpriv", *user, self.python, path, *arguments]

    def environment(self) -> dict[str, str]:
        """The script's environment: small, so that a leak would show."""
        found = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.package.parent)}
        # The user's own folder, because an ordinary user has no home here.
        found["XDG_CACHE_HOME"] = str(self.folder)
        return {**found, "LD_LIBRARY_PATH": self.library} if self.library else found

    def make(self, name: str) -> Path:
        """A folder of this user's."""
        path = self.folder / name
        path.mkdir(mode=0o755)
        if self.who == "user" and os.geteuid() == 0:
            os.chown(path, _USER, _USER)
        return path


@dataclass(frozen=True)
class Jail:
    """A backend under test, and who starts it."""

    backend: BackendName
    starter: Starter
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def setting(self) -> str:
        """As the table of escapes names it."""
        return f"{self.backend}-{self.starter.who}"

    def run(
        self,
        *argv: str,
        mounts: Sequence[tuple[Path, str, bool]] = (),
        sites: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        network: Literal["none", "proxy", "host"] = "none",
        limits: Mapping[str, int] | None = None,
        descriptors: Sequence[str] = (),
        probe: Sequence[str] = (),
        leaked: bool = False,
    ) -> Report:
        """Run a program in a fresh jail to its end."""
        task = Task(
            backend=self.backend,
            argv=list(argv),
            mounts=[(str(source), target, writable) for source, target, writable in mounts],
            sites=[str(path) for path in sites],
            env={"PATH": "/usr/bin:/bin", **(env or {})},
            cwd=cwd,
            network=network,
            limits=dict(limits or {}),
            descriptors=list(descriptors),
            probe=list(probe),
            leaked=leaked,
        )
        done = subprocess.run(
            self.starter.command("spawn.py"),
            input=json.dumps(task),
            env=self.starter.environment(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return cast(Report, json.loads(done.stdout))

    def python(self, code: str, *arguments: str, **options: object) -> Report:
        """Run Python code in a fresh jail to its end."""
        return self.run(SYSTEM_PYTHON, "-c", code, *arguments, **options)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="session")
def readable_copy() -> Generator[Path]:
    """A copy of Seer and of these scripts that every user can read."""
    folder = Path(tempfile.mkdtemp(prefix="seer-tests-"))
    folder.chmod(0o755)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(seer.__file__).parent, folder / "seer", ignore=ignored)
    probes = Path(__file__).parents[1] / "support" / "escapes"
    shutil.copytree(probes, folder / "escapes", ignore=ignored)
    for name in ("driver.py", "hold.py", "spawn.py"):
        shutil.copy(Path(__file__).with_name(name), folder / name)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["root", "user"])
def starter(request: pytest.FixtureRequest, readable_copy: Path) -> Generator[Starter]:
    """Root and an ordinary user, as far as this process can be both."""
    who = cast(Who, request.param)
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"needs {SYSTEM_PYTHON}")
    folder = Path(tempfile.mkdtemp(prefix="seer-test-"))
    folder.chmod(0o755)
    if who == "user" and os.geteuid() == 0:
        os.chown(folder, _USER, _USER)
    other = SYSTEM_PYTHON if who == "user" and os.geteuid() == 0 else sys.executable
    yield Starter(who, readable_copy / "seer", folder, python=other)
    shutil.rmtree(folder)


@pytest.fixture(params=["bubblewrap", "landlock"])
def jail(request: pytest.FixtureRequest, starter: Starter) -> Jail:
    """Every backend, started by every kind of user."""
    return Jail(cast(BackendName, request.param), starter)


@pytest.fixture(scope="session")
def pythons() -> Generator[dict[str, tuple[str, str]]]:
    """Kinds of Python: the program, and where its shared library is if it needs to be told.

    `system` is the distribution's and `venv` a virtual environment of it. `built` was built from
    source, with packages in the folder of its standard library, as pyenv does it; `moved` is a
    copy of that elsewhere, as uv unpacks those that it manages, and readable to everybody.
    """
    folder = Path(tempfile.mkdtemp(prefix="seer-pythons-"))
    folder.chmod(0o755)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to(SYSTEM_PYTHON)
    (folder / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    base, moved = Path(sys.base_prefix), folder / "moved"
    (moved / "bin").mkdir(parents=True)
    shutil.copy2(base / "bin" / name, moved / "bin" / name)
    left_out = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip", "config-*")
    shutil.copytree(base / "lib" / name, moved / "lib" / name, ignore=left_out)
    for path in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(path, moved / "lib" / path.name)
    (moved / "lib" / name / "site-packages").mkdir()
    (moved / "lib" / name / "site-packages" / "planted.py").write_text("")
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
    yield {
        "system": (SYSTEM_PYTHON, ""),
        "venv": (str(folder / "venv" / "bin" / "python"), ""),
        "built": (str(base / "bin" / name), ""),
        "moved": (str(moved / "bin" / name), str(moved / "lib")),
    }
    shutil.rmtree(folder)
