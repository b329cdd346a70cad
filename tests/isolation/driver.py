"""Run the table of escapes in one jail and print how it went, as JSON. A script for the tests.

A process of its own, so that it can run as root or as an ordinary user: `driver.py BACKEND`.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import seer
from seer.isolation import (
    JAIL_UIDS,
    BackendName,
    JailLimits,
    Mount,
    Policy,
    choose,
    interpreter_env,
    interpreter_mounts,
    interpreter_path,
    script,
)

# Imported by their own names, as in a jail: copies of the probes are beside this file.
sys.path[:0] = [str(script("cgroup").parent)]
if TYPE_CHECKING:
    from seer.isolation import _cgroup
    from tests.support import escapes
else:
    import _cgroup
    import escapes

MEGABYTE = 1 << 20
BOUNDS = {
    "memory": 256 * MEGABYTE,
    "shm": 128 * MEGABYTE,
    "processes": 64,
    "open_files": 128,
    "file_size": 8 * MEGABYTE,
}
LIMITS = JailLimits(
    memory=BOUNDS["memory"],
    processes=BOUNDS["processes"],
    open_files=BOUNDS["open_files"],
    file_size=BOUNDS["file_size"],
    cpu_seconds=60,
)
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import escapes; escapes.main(sys.argv[2:])"


def main(backend_name: BackendName, *names: str) -> None:
    """Plant the targets, run every attempt in one jail, print outcomes and damage."""
    root = os.geteuid() == 0
    uid = JAIL_UIDS[7] if root else os.geteuid()
    backend = choose(backend_name)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seer-jail-")))
        folder.chmod(0o755)
        work, fixed = folder / "workspace-on-host", folder / "fixed"
        for path in (work, fixed):
            path.mkdir()
            path.chmod(0o755)
            if root:
                os.chown(path, uid, uid)
        (fixed / "escapes").mkdir()
        for name, content in escapes.files().items():
            (fixed / name).write_bytes(content)
        mounts = (
            Mount(work, "/workspace", writable=True),
            Mount(fixed, "/fixed"),
            *interpreter_mounts("/seer/python", backend),
        )
        view = backend.view(mounts)
        targets = stack.enter_context(
            escapes.plant(
                uid=uid,
                package=Path(seer.__file__).parent,
                workspace=view["/workspace"],
                workspace_source=work,
                read_only=view["/fixed"],
                read_only_source=fixed,
                limits=BOUNDS,
            )
        )
        (fixed / "facts.json").write_text(json.dumps(targets.facts))
        os.environ["CANARY"] = targets.facts["canary"]
        policy = Policy(
            mounts=mounts,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": view["/workspace"],
                **interpreter_env("/seer/python", view),
            },
            cwd="/workspace",
            limits=LIMITS,
            uid=uid if root else None,
        )
        names = names or tuple(
            item.name for item in escapes.jail_attempts() if root or not item.machine
        )
        argv = (interpreter_path("/seer/python", view), "-c", PROGRAM, view["/fixed"])
        launch = backend.launch(policy, (*argv, f"{view['/fixed']}/facts.json", *names))
        join = _limited(stack) if root else None
        done = subprocess.run(
            launch.argv,
            env=launch.env,
            pass_fds=launch.pass_fds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=110,
            check=False,
            preexec_fn=join,
        )
        launch.close()
        damage = targets.damage()
        locked = fixed / "locked.txt"
        if not locked.exists() or locked.read_text() != "as it was":
            damage.append("the file in the read-only mount was changed")
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    said = done.stderr.decode(errors="replace")
    answer = {"code": done.returncode, "stderr": said, "damage": damage, "outcomes": outcomes}
    sys.stdout.write(json.dumps(answer))


def _limited(stack: contextlib.ExitStack) -> Callable[[], None]:
    """Put limits on the whole jail, as the keeper of a machine does."""
    group = _cgroup.create(f"seer-test-{os.getpid()}", memory=LIMITS.memory, pids=LIMITS.processes)
    stack.callback(group.remove)
    stack.callback(group.kill)
    return group.join


if __name__ == "__main__":
    main(cast("BackendName", sys.argv[1]), *sys.argv[2:])
