"""Kill the processes of local machines, one by one and together, and look for what is left.

Everything a round starts lives in folders of its own (`XDG_STATE_HOME`, `XDG_CACHE_HOME`), so its
leftovers can be distinguished from everything else on the computer. Linux only.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seer.isolation import BackendName
from seer.testing.provider_contract import expect

Victim = Literal["controller", "reaper", "keeper", "jail", "steward", "sleeper"]

SCENES: Mapping[str, tuple[Victim, ...]] = {
    "controller": ("controller",),
    "keeper": ("keeper",),
    "reaper": ("reaper",),
    "jail": ("jail",),
    "steward": ("steward",),
    "controller and keeper": ("controller", "keeper"),
    "keeper and reaper": ("keeper", "reaper"),
    "reaper, then keeper": ("reaper", "keeper"),
    "controller and steward": ("controller", "steward"),
    "all but the jail": ("controller", "reaper", "keeper"),
    "all": ("controller", "reaper", "keeper", "jail", "steward", "sleeper"),
}
"""What is killed, in this order and without a pause."""

_CONTROLLER = """
import sys
from seer.testing import run_sync
from seer.providers import MachineSpec, get_provider
isolation, use = sys.argv[1:]
machine = run_sync(get_provider("local").start(MachineSpec(isolation=isolation, lease=20)))
escape = "env -i setsid /bin/sh -c '(sleep 3600 &)' >/dev/null 2>&1"
run_sync(machine.exec(["/bin/sh", "-c", escape]))
print(machine.id, flush=True)
while use == "busy":
    run_sync(machine.exec(["/bin/sh", "-c", "echo x > file; sleep 0.01"]))
    run_sync(machine.write_file("other", b"y" * 100000))
sys.stdin.read()
"""

_SWEEP = """
from seer.testing import run_sync
from seer.providers import get_provider
print(len(run_sync(get_provider("local").list())))
"""


@dataclass(frozen=True)
class Ground:
    """The folders of a round."""

    root: Path
    inside: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Processes that were seen in the jail, each with its start time.

    An ordinary user may have no control groups, and then nothing else tells them from others once
    their parents are dead.
    """

    def environment(self) -> dict[str, str]:
        """The environment of everything in the round."""
        home = {"XDG_STATE_HOME": str(self.root / "state"), "XDG_CACHE_HOME": str(self.root / "c")}
        return {**os.environ, **home}

    @property
    def machines(self) -> Path:
        """Where running machines have their folders."""
        return self.root / "state" / "seer" / "machines"


async def kill_and_look(
    ground: Ground, scene: str, backend: BackendName, *, moment: float | None = None
) -> str:
    """Play one scene.

    Args:
        ground: The round's folders.
        scene: Which of `SCENES`.
        backend: The jail.
        moment: Seconds after the controller's start at which to kill it, at any stage of its start;
        None waits until the machine runs, and plays the scene in full.

    Returns:
        How the machine ended, as the record says.

    Raises:
        AssertionError: Something is left.
    """
    async with _controller(ground, backend, "busy" if moment is None else "idle") as controller:
        if moment is not None:
            await asyncio.sleep(moment)
            controller.kill()
        else:
            if controller.stdout is None:
                raise AssertionError("the controller has no output")
            async with asyncio.timeout(60):
                machine_id = (await controller.stdout.readline()).decode().strip()
            expect(bool(machine_id), "the controller started a machine")
            pids = {**_find(ground, machine_id), "controller": controller.pid}
            for victim in SCENES[scene]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[victim], signal.SIGKILL)
        if "controller" not in SCENES[scene]:
            await asyncio.sleep(random.random() * 0.05)
            with contextlib.suppress(ProcessLookupError):
                controller.kill()
        await controller.wait()
    return await _look(ground)


@contextlib.asynccontextmanager
async def _controller(
    ground: Ground, backend: BackendName, use: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CONTROLLER,
        backend,
        use,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=ground.environment(),
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _find(ground: Ground, machine_id: str) -> dict[Victim, int]:
    """The processes of a machine by their parts."""
    pids = _marked(ground)
    hosts = [pid for pid in pids if machine_id in _command(pid)]
    keeper = next(pid for pid in hosts if _parent(pid) in hosts)
    inside = [pid for pid in {*pids, *_below(keeper)} if pid not in hosts]
    ground.inside.update((pid, _started(pid)) for pid in inside)
    jail = next(pid for pid in inside if _parent(pid) == keeper)
    steward = next((pid for pid in inside if "steward" in _command(pid) and pid != jail), jail)
    sleeper = next(pid for pid in inside if "sleep" in _command(pid))
    return {
        "reaper": _parent(keeper),
        "keeper": keeper,
        "jail": jail,
        "steward": steward,
        "sleeper": sleeper,
    }


async def _look(ground: Ground) -> str:
    deadline = time.monotonic() + 30
    while left := _remains(ground):
        if time.monotonic() > deadline:
            raise AssertionError("left over:\n" + "\n".join(left))
        if all(_is_stopped(pid) for pid in _marked(ground)):
            # No process is left to clean up, so the next use of Seer has to. A reaper stops
            # processes before it kills them, and may be killed in between.
            await _sweep(ground)
        await asyncio.sleep(0.02)
    record = ground.root / "state" / "seer" / "ended.jsonl"
    return record.read_text() if record.exists() else ""


async def _sweep(ground: Ground) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SWEEP, stdout=asyncio.subprocess.PIPE, env=ground.environment()
    )
    out, _ = await process.communicate()
    expect(out.strip() == b"0", f"a machine is listed after everything was killed: {out!r}")


def _remains(ground: Ground) -> list[str]:
    left = [f"process {pid}: {_command(pid)[:150]}" for pid in _processes(ground)]
    if ground.machines.is_dir():
        left += [f"folder {path}" for path in ground.machines.iterdir()]
    for source in ("/proc/self/mounts", "/proc/net/unix"):
        lines = Path(source).read_text(errors="replace").splitlines()
        left += [f"{source}: {line}" for line in lines if str(ground.root) in line]
    left += [f"group {path}" for path in _groups(ground)]
    return left


def _prefix(ground: Ground) -> str:
    import hashlib

    return f"seer-{hashlib.sha256(os.fsencode(ground.machines)).hexdigest()[:8]}-"


def _groups(ground: Ground) -> list[Path]:
    found: list[Path] = []
    for folder, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [Path(folder, name) for name in folders if name.startswith(_prefix(ground))]
    return found


def _processes(ground: Ground) -> set[int]:
    """Processes of the round."""
    seen = {pid for pid, started in ground.inside if _started(pid) == started}
    return {*_marked(ground), *(pid for pid in seen if _is_alive(pid))}


def _marked(ground: Ground) -> list[int]:
    """Processes with the round's bundle in their command, and those in its control groups."""
    prefix, root = _prefix(ground), str(ground.root)
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            ours = prefix in (entry / "cgroup").read_text(errors="replace") or root in _command(
                int(entry.name)
            )
            if ours and _is_alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def _below(pid: int) -> list[int]:
    """The descendants of a process."""
    everything = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {each: _parent(each) for each in everything}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False


def _is_stopped(pid: int) -> bool:
    try:
        return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return True


def _started(pid: int) -> int:
    """When a process started, in ticks; 0 if there is none."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        )
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        found = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return found.decode(errors="replace")  # any process of the host, with any arguments
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        )
    except OSError:
        return 0
