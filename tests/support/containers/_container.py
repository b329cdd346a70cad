"""Start a container, run further programs in it, and end it."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.containers._layers import TARGETS, TREES, Layer, LayerStore, lower
from tests.support.containers.errors import ContainerError

_INIT = Path(__file__).with_name("_init.py")
_CONFINE = Path(__file__).with_name("_confine.py")
_INSIDE = "/.container/confine.py"
_PYTHON = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
_PATIENCE = 60.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for, as in most images."""


def supported() -> str | None:
    """Why containers cannot be made here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "containers are made by root on Linux"
    for program in ("unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no {program!r} (util-linux)"
    return None


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """The command to run, and its root."""

    image: Layer
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str = "/"
    volumes: Mapping[str, Path] = field(default_factory=dict[str, Path])
    own_network: bool = False
    """Whether it has no network but its own loopback."""
    hostname: str = ""
    gpus: Sequence[str] = ()
    """The names of GPUs that its `nvidia-smi` tells of; nothing can compute on them."""
    confined: bool = True
    """Whether its root lacks what root lacks in vendors' containers: mounts, namespaces."""


async def bare_image(store: LayerStore, *, folder: Path) -> Layer:
    """A layer with a working interpreter, as every image has; it may use `folder`."""
    made = store.new(store.base)
    spec = ContainerSpec(image=store.base, argv=["ldconfig"], confined=False)
    container = await Container.start(spec, folder=folder, changes=made)
    if await container.ended != 0:
        words = (await container.stderr.read()).decode(errors="replace")
        raise ContainerError(f"ldconfig failed in a bare image: {words}")
    return made


class Running:
    """A program that was started in a container beside its first one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def kill(self) -> None:
        """Kill it. Processes that it started end with the container."""
        # The process that enters a container waits outside for the program, its only child.
        for child in _children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Container:
    """A running container. `ended` is done with its exit code once it has ended."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        *,
        pid: int,
        held: int,
        folder: Path,
        top: Layer,
        confined: bool,
    ) -> None:
        self._confined = confined
        self._process = process
        self._held = held
        self._folder = folder
        self.pid = pid
        self.changes = top
        """The layer that its programs write to."""
        self.ended: asyncio.Task[int] = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, spec: ContainerSpec, *, folder: Path, changes: Layer) -> "Container":
        """Start one; `folder` is for its own use, `changes` an empty layer on top of the image.

        Raises:
            ContainerError: It did not start; the message has its last words.
        """
        root = folder / "root"
        await asyncio.to_thread(_prepare, folder, changes, spec.gpus)
        layers = spec.image.chain()
        orders = {
            "root": str(root),
            "trees": [
                {
                    "target": TARGETS[tree],
                    "lower": lower(tree, layers),
                    "upper": str(changes.folder / tree),
                    "work": str(folder / "work" / tree),
                }
                for tree in TREES
            ],
            "volumes": {target: str(path) for target, path in spec.volumes.items()},
            "own_network": spec.own_network,
            "confined": spec.confined,
            "python": _PYTHON,
            "confine": str(_CONFINE),
            "hostname": spec.hostname,
            "argv": list(spec.argv),
            "env": {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **spec.env},
            "cwd": spec.cwd,
        }
        alive, held = os.pipe()
        told, tells = os.pipe()
        argv = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        if spec.own_network:
            argv.append("--net")
        code = (
            "import os, runpy, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
            "os.closerange(5, 256); runpy.run_path(sys.argv[3], run_name='__main__')"
        )
        base = str(Path(sys.base_prefix, "bin", "python3"))
        argv += ["--", base, "-I", "-S", "-c", code, str(alive), str(tells), str(_INIT)]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": PATH},
                pass_fds=(alive, tells),
                start_new_session=True,
            )
        except BaseException:
            os.close(held)
            os.close(told)
            raise
        finally:
            os.close(alive)
            os.close(tells)
        try:
            # Before it gets its orders, because it may end as soon as it has them.
            pid = await _only_child(process)
            if process.stdin is not None:
                process.stdin.write(json.dumps(orders).encode())
                process.stdin.close()
            async with asyncio.timeout(_PATIENCE):
                ready = await asyncio.to_thread(os.read, told, 16)
            if ready != b"ready":
                words = await process.stderr.read() if process.stderr is not None else b""
                await process.wait()
                raise ContainerError(
                    f"a container did not start: {words.decode(errors='replace')[-2000:]}"
                )
        except BaseException:
            os.close(held)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        finally:
            os.close(told)
        return cls(process, pid=pid, held=held, folder=folder, top=changes, confined=spec.confined)

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What its first program prints."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        """The standard error of its first program."""
        assert self._process.stderr is not None
        return self._process.stderr

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> Running:
        """Run a further program in it, with pipes for its three streams."""
        inside = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})}
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--ipc", "--uts", "--net"]
        enter += ["--root", "--wd", "--", "/usr/bin/env", "-i", "-C", cwd]
        enter += [f"{name}={value}" for name, value in inside.items()]
        if self._confined:
            enter += [_PYTHON, "-I", "-S", _INSIDE]
        process = await asyncio.create_subprocess_exec(
            *enter,
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": PATH},
            limit=1 << 20,
            start_new_session=True,
        )
        return Running(process)

    async def end(self) -> None:
        """End everything in it; its files stay in its layer."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        await asyncio.shield(self.ended)

    async def _watch(self) -> int:
        code = await self._process.wait()
        os.close(self._held)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        return code


async def _only_child(process: asyncio.subprocess.Process) -> int:
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while not (found := _children(process.pid)):
        if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
            words = await process.stderr.read() if process.stderr is not None else b""
            raise ContainerError(f"a container did not start: {words.decode(errors='replace')}")
        await asyncio.sleep(0.002)
    return found[0]


def _prepare(folder: Path, changes: Layer, gpus: Sequence[str]) -> None:
    (folder / "root").mkdir(parents=True, exist_ok=True)
    for tree in TREES:
        (folder / "work" / tree).mkdir(parents=True, exist_ok=True)
        (changes.folder / tree).mkdir(parents=True, exist_ok=True)
    if gpus:
        program = changes.folder / "usr" / "bin" / "nvidia-smi"
        program.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"full='{number}, GPU-{number}, {name}'" for number, name in enumerate(gpus)]
        show = 'case $1 in *index*) echo "$full" ;; *query-gpu=name*) echo "${full##*, }" ;; esac'
        program.write_text("#!/bin/sh\n" + "".join(f"{line}\n{show}\n" for line in lines))
        program.chmod(0o755)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
