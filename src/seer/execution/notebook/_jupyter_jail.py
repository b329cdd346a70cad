"""Spawns a notebook's Jupyter server in a jail of its own, which has only the server's code.

The server reads what a hostile kernel sends, and its client is a person's browser. So it gets very
little: an interpreter and the installed packages, read-only, and one folder for its sockets. It has
no network, and does not even listen on the port that the browser connects to: the controller
listens there and relays, because the server could disconnect a listening socket and connect it
elsewhere. Where bubblewrap does not work, the server is a plain process with an empty environment.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from seer._paths import package_folders
from seer.errors import IsolationUnavailableError, MissingExtraError
from seer.isolation import (
    JAIL_UIDS,
    Backend,
    JailLimits,
    Mount,
    Policy,
    choose,
    interpreter_env,
    interpreter_mounts,
    interpreter_path,
)

logger = logging.getLogger(__name__)

_MODULE = ("-m", "seer.execution.notebook.jupyter")
_MODULES = ("execution/notebook/_edits.py", "execution/_result.py", "errors.py")
"""Modules outside its own folder that the server imports."""
_HOME = "/jupyter/home"
_PYTHON = "/jupyter/python"
_LAB = "/jupyter/lab"
_EXTENSIONS = ("@jupyter/collaboration-extension", "@jupyter/docprovider-extension")
"""The extensions that JupyterLab needs for shared editing. Other installed extensions are not
loaded: some run code that a kernel sends (widgets), some act on the host (git, system monitors)."""
_LIMITS = JailLimits(processes=256, open_files=4096, file_size=1 << 30)
_UID = JAIL_UIDS[2]


@dataclass(frozen=True)
class Spawn:
    """The command to spawn. Call `done` afterwards."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    pass_fds: tuple[int, ...]
    lab: str
    """The folder of JupyterLab's own files, as the server sees it."""
    done: Callable[[], None]


def prepare(home: Path, code: Path) -> Spawn:
    """Fill the server's folders, and return the command to spawn.

    Args:
        home: The folder that the server may write to.
        code: An empty folder for its code.

    Raises:
        MissingExtraError: JupyterLab's files are not beside its package.
    """
    share = _share()
    _copy_code(code)
    for name in ("tmp", "root", "labextensions"):
        (home / name).mkdir(mode=0o700)
    try:
        backend = choose("bubblewrap")
    except IsolationUnavailableError as error:
        logger.warning("the Jupyter server runs without a jail: %s", error)
        return _plain(home, code, share)
    return _jailed(home, code, share=share, backend=backend)


def hand_over(path: Path) -> None:
    """Let the server use `path`; if root starts the server, it runs as another user."""
    if os.geteuid() == 0:
        os.chown(path, _UID, _UID, follow_symlinks=False)


def _plain(home: Path, code: Path, share: Path) -> Spawn:
    _link_extensions(home, str(share / "labextensions"))
    return Spawn(
        argv=(sys.executable, *_MODULE),
        env={"PATH": os.defpath, "PYTHONPATH": str(code), **_environment(str(home))},
        cwd=home,
        pass_fds=(),
        lab=str(share / "lab"),
        done=lambda: None,
    )


def _jailed(home: Path, code: Path, *, share: Path, backend: Backend) -> Spawn:
    _link_extensions(home, "/jupyter/labextensions")
    for path in (home, *home.rglob("*")):
        hand_over(path)
    sites = [Mount(site, f"/jupyter/site-{i}") for i, site in enumerate(package_folders())]
    mounts = (
        *interpreter_mounts(_PYTHON, backend),
        *sites,
        Mount(code, "/jupyter/code"),
        Mount(share / "lab", _LAB),
        Mount(share / "labextensions", "/jupyter/labextensions"),
        Mount(home, _HOME, writable=True),
    )
    view = backend.view(mounts)
    python_path = ":".join(("/jupyter/code", *(mount.target for mount in sites)))
    policy = Policy(
        mounts=mounts,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": python_path,
            **_environment(_HOME),
            **interpreter_env(_PYTHON, view),
        },
        cwd=_HOME,
        limits=_LIMITS,
        uid=_UID if os.geteuid() == 0 else None,
    )
    launch = backend.launch(policy, [interpreter_path(_PYTHON, view), "-s", *_MODULE])
    return Spawn(
        argv=launch.argv,
        env=launch.env,
        cwd=Path("/"),
        pass_fds=launch.pass_fds,
        lab=_LAB,
        done=launch.close,
    )


def _environment(home: str) -> dict[str, str]:
    return {
        "HOME": home,
        "TMPDIR": f"{home}/tmp",
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_DATA_DIR": f"{home}/data",
        "JUPYTER_RUNTIME_DIR": f"{home}/runtime",
        "JUPYTERLAB_SETTINGS_DIR": f"{home}/settings",
        "JUPYTERLAB_WORKSPACES_DIR": f"{home}/workspaces",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _copy_code(code: Path) -> None:
    """Copy the few modules of Seer that the server needs into otherwise empty packages."""
    root = Path(__file__).parents[2]
    for name in (".", "execution", "execution/notebook", "execution/notebook/jupyter"):
        package = code / "seer" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    for path in (
        *(root / "execution" / "notebook" / "jupyter").glob("*.py"),
        *(root / name for name in _MODULES),
    ):
        shutil.copyfile(path, code / "seer" / path.relative_to(root))
    for path in (code, *code.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # for the jail's user


def _link_extensions(home: Path, installed: str) -> None:
    for name in _EXTENSIONS:
        link = home / "labextensions" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"{installed}/{name}")


def _share() -> Path:
    """The folder of JupyterLab's page."""
    for site in package_folders():
        share = site.parents[2] / "share" / "jupyter"
        if (share / "lab" / "static" / "index.html").is_file():
            return share
    raise MissingExtraError(
        "JupyterLab's page (share/jupyter/lab/static/index.html) is not beside its package: "
        "pip install --force-reinstall jupyterlab"
    )
