"""The folder of a local machine, and its view from inside: mounts, layout, environment."""

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seer.errors import ProviderError
from seer.isolation import (
    Backend,
    Mount,
    interpreter_env,
    interpreter_mounts,
    interpreter_path,
    open_beneath,
    script,
)
from seer.isolation._mounts import in_view
from seer.isolation._ownership import chown_tree
from seer.providers._bundle import bundle
from seer.providers._spec import Layout, MachineSpec
from seer.providers.agent import __file__ as _machine_init
from seer.providers.local._record import MountRecord

WORKDIR, HOME, TMP, MODELS = "/workspace", "/home/agent", "/tmp", "/models"
RUN, GATES, PROXY = "/run/seer/shared", "/run/seer/gates", "/run/seer/proxy.sock"
PYTHON, ENV, VENV, LIB = "/seer/python", "/seer/env", "/seer/venv", "/seer/lib"

_PRIVATE = {"work": WORKDIR, "home": HOME, "tmp": TMP, "run": RUN, "root": "/root", "data": "/data"}
"""Private folders of the machine. Programs for rented machines write to the last two."""
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_SYSTEM_PATH = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")


def machine_files() -> Path:
    """The bundle of programs that run beside and inside machines."""
    return bundle(_files())


@cache
def _files() -> Mapping[str, Path]:
    folder = Path(_machine_init).parent
    files = {f"seer_machine/{path.name}": path for path in folder.glob("*.py")}
    for name in ("cgroup", "ownership"):
        files[f"seer_machine/{name}.py"] = script(name)
    files["forward.py"] = script("forward")
    return files


@dataclass(frozen=True, kw_only=True)
class MachineView:
    """How programs in a machine see it."""

    mounts: tuple[Mount, ...]
    seen: tuple[MountRecord, ...]
    """The mounts, longest path first, so that the first match is the right mount."""
    view: Mapping[str, str]
    layout: Layout
    interpreter: str
    """The bare interpreter, for Seer's own programs."""

    def path(self, target: str) -> str:
        """A path under a mount's target, as programs in the machine see it."""
        return in_view(self.view, target)


def fill_folder(
    folder: Path,
    spec: MachineSpec,
    backend: Backend,
    *,
    uid: int | None,
    proxy: bool,
    root: int | None,
) -> MachineView:
    """Fill a new machine's folder, and describe how it will look from inside.

    Args:
        folder: The machine's folder.
        spec: The requested machine.
        backend: The backend that jails it.
        uid: The user that it runs as, if that is not this user.
        proxy: Whether it has a network through the proxy.
        root: The host user that is its root, if it has several users. All homes are then in one
            mount, so that root can add homes.

    Raises:
        ProviderError: The spec names a path that does not exist or cannot be used.
    """
    mounts = [
        *interpreter_mounts(PYTHON, backend),
        Mount(machine_files(), LIB),
        *_own_folders(folder, spec, uid, root),
        *_checked(spec, uid),
    ]
    if root is not None:
        # The lock of `adduser`. The machine's root cannot write to the rest of /run.
        lock = folder / "etc" / ".adduser.lock"
        lock.touch(mode=0o600)
        os.chown(lock, root, root)
        mounts.append(Mount(lock, "/run/adduser", writable=True))
    if backend.name in ("bubblewrap", "container"):
        # A container shows the gates at their own paths, and makes the folders above its mounts
        # accessible.
        mounts += [Mount(path, f"{GATES}/{name}.sock") for name, path in spec.gates.items()]
    if backend.name == "bubblewrap" and proxy:
        mounts.append(Mount(folder / "proxy.sock", PROXY))
    if spec.python_env is not None:
        mounts.append(Mount(spec.python_env, ENV))
    view = backend.view(mounts)
    venv = view[ENV] if spec.python_env is not None else None
    installs = spec.installs and venv is not None
    if spec.python_env is not None and (installs or venv != ENV):
        # The environment's links work only in a jail that shows everything at its usual path.
        # Nothing can be installed into the environment, because machines share it.
        made = _make_venv(folder, view, scripts=spec.python_env / "bin")
        if installs and spec.network == "none":
            _explain_to_pip(made)
        if installs and uid is not None:
            chown_tree(made, uid, uid)
        mounts.append(Mount(made, VENV, writable=installs))
        view = backend.view(mounts)
        venv = view[VENV]
    seen = tuple(
        MountRecord(
            target=mount.target,
            source=os.path.realpath(mount.source),
            seen=view[mount.target],
            writable=mount.writable,
        )
        for mount in sorted(mounts, key=lambda mount: len(mount.target), reverse=True)
    )
    interpreter = interpreter_path(PYTHON, view)
    home = view.get(HOME, HOME)
    models = f"{os.path.commonpath([view[RUN], home]).rstrip('/')}{MODELS}"
    layout = Layout(
        workdir=view[WORKDIR],
        home=home,
        tmp=view[TMP],
        run=view[RUN],
        models=MODELS if view[RUN] == RUN else models,
        python=f"{venv}/bin/python3" if venv is not None else interpreter,
        packages=venv if installs else None,
    )
    return MachineView(
        mounts=tuple(mounts),
        seen=seen,
        view=view,
        layout=layout,
        interpreter=interpreter,
    )


def _own_folders(folder: Path, spec: MachineSpec, uid: int | None, root: int | None) -> list[Mount]:
    mounts: list[Mount] = []
    for name, target in _PRIVATE.items():
        path = folder / name
        if name == "work" and spec.workdir is not None:
            path = spec.workdir
            if not path.is_dir():
                raise ProviderError(f"workdir={str(path)!r} is not a folder; create it first")
            if uid is not None:
                # Follow no links, because others may be able to write to the folders above it.
                fd = open_beneath("/", path.absolute().relative_to("/"), os.O_DIRECTORY)
                try:
                    chown_tree(fd, uid, uid)
                finally:
                    os.close(fd)
        else:
            path.mkdir(mode=0o755)
            if uid is not None:
                os.chown(path, uid, uid)
            if name == "home" and root is not None and uid is not None:
                os.chown(path, root, root)
                target, agent = os.path.split(target)
                path.joinpath(agent).mkdir(mode=0o755)
                os.chown(path / agent, uid, uid)
        mounts.append(Mount(path, target, writable=True))
    return mounts


def _checked(spec: MachineSpec, uid: int | None) -> list[Mount]:
    for mount in spec.mounts:
        if not mount.source.exists():
            raise ProviderError(
                f"mount source {str(mount.source)!r} (for {mount.target!r}) does not exist"
            )
        if mount.writable and uid is not None and mount.source.is_dir():
            chown_tree(mount.source, uid, uid)
    for name, path in spec.gates.items():
        if not name.isidentifier() or not name.isascii():
            raise ProviderError(f"gate {name!r}: a gate's name must be an identifier")
        if not path.is_socket():
            raise ProviderError(f"gate {name!r}: {str(path)!r} is not a socket")
    if spec.python_env is not None and not spec.python_env.is_dir():
        raise ProviderError(f"python_env={str(spec.python_env)!r} is not a folder")
    return list(spec.mounts)


def _make_venv(folder: Path, view: Mapping[str, str], *, scripts: Path) -> Path:
    """Make a virtual environment for this jail's paths that includes the given packages.

    Packages installed into it take precedence over the given packages, in Python and on the PATH.

    Args:
        folder: The machine's folder.
        view: Where programs in the machine see its mounts.
        scripts: The folder with the programs of the given packages. Scripts start the Python in
            their own folder, so the new environment gets copies of them.
    """
    venv = folder / "venv"
    site = venv / "lib" / _VERSION / "site-packages"
    site.mkdir(parents=True)
    (venv / "bin").mkdir()
    program = interpreter_path(PYTHON, view)
    for name in ("python", "python3", _VERSION):
        (venv / "bin" / name).symlink_to(program)
    (venv / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(program)}\ninclude-system-site-packages = false\n"  # noqa: PTH120
    )
    packages = f"{view[ENV]}/lib/{_VERSION}/site-packages"
    (site / "packages.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    for file in scripts.iterdir() if scripts.is_dir() else ():
        if file.is_symlink() or not file.is_file() or os.path.lexists(venv / "bin" / file.name):
            continue
        with file.open("rb") as opened:
            is_script = opened.read(2) == b"#!"
        if is_script:
            shutil.copy(file, venv / "bin")
    return venv


def _explain_to_pip(venv: Path) -> None:
    """Let pip explain why it cannot download anything."""
    site = venv / "lib" / _VERSION / "site-packages"
    shutil.copyfile(Path(_machine_init).with_name("no_network.py"), site / "seer_no_network.py")
    (site / "seer_no_network.pth").write_text("import seer_no_network\n")


def environment(
    inside: MachineView, spec: MachineSpec, machine_id: str, gates: Mapping[str, str]
) -> dict[str, str]:
    """The environment of every command in the machine."""
    layout = inside.layout
    tools = [os.path.dirname(layout.python), os.path.dirname(inside.interpreter)]  # noqa: PTH120
    if ENV in inside.view:
        tools.insert(1, f"{inside.view[ENV]}/bin")
    return {
        "PATH": ":".join(dict.fromkeys([*tools, *_SYSTEM_PATH])),
        "HOME": layout.home,
        "TMPDIR": layout.tmp,
        "LANG": "C.UTF-8",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SEER_MACHINE": machine_id,
        **gates,
        **_with_libraries(spec.env, interpreter_env(PYTHON, inside.view)),
        **{name: inside.path(target) for name, target in spec.path_env.items()},
    }


def _with_libraries(wanted: Mapping[str, str], needed: Mapping[str, str]) -> dict[str, str]:
    """The spec's variables, with the interpreter's library first in the search path."""
    key = "LD_LIBRARY_PATH"
    if key in wanted and key in needed:
        return {**wanted, key: f"{needed[key]}:{wanted[key]}"}
    return {**needed, **wanted}


def discard(folder: Path) -> None:
    """Remove the folder of a machine that was not started."""
    from seer.providers.agent.cleaning import remove_tree

    with contextlib.suppress(FileNotFoundError):
        remove_tree(os.fsencode(folder))
