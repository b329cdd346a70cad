"""Run the program described on standard input in a jail, and print the outcome.

A script for tests. It is a separate process, so that the same test can run as root and as an
ordinary user.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal, TypedDict

from seer.errors import SeerError
from seer.isolation import JAIL_UIDS, BackendName, JailLimits, Mount, Policy, choose


class Task(TypedDict):
    """What to run, and in what jail. `{view:/target}` in `argv` and `env` is replaced."""

    backend: BackendName
    argv: list[str]
    mounts: list[tuple[str, str, bool]]
    sites: list[str]
    """Folders that Seer's process finds packages in."""
    env: dict[str, str]
    cwd: str
    network: Literal["none", "proxy", "host"]
    limits: dict[str, int]
    descriptors: list[str]
    """Texts that the first program can read from descriptors, whose numbers it gets as FDS."""
    probe: list[str]
    """A program to run on the host while the jail runs, once the jail has printed a line."""
    leaked: bool
    """Whether to leave other descriptors inheritable around the spawn."""


class Report(TypedDict):
    """How it went."""

    error: str
    code: int
    stdout: str
    stderr: str
    probe: str
    view: dict[str, str]
    argv: list[str]


def run(task: Task) -> Report:
    """Run the task."""
    sys.path += task["sites"]
    backend = choose(task["backend"])
    root = os.geteuid() == 0
    mounts = tuple(
        Mount(Path(source), target, writable=writable)
        for source, target, writable in task["mounts"]
    )
    for source, _, writable in task["mounts"]:
        if root and writable:
            os.chown(source, JAIL_UIDS[3], JAIL_UIDS[3])
    view = backend.view(mounts)

    def fill(text: str) -> str:
        for target, seen in sorted(view.items(), reverse=True):
            text = text.replace(f"{{view:{target}}}", seen)
        return text

    fds: list[int] = []
    for content in task["descriptors"]:
        fds.append(os.memfd_create("told", 0))
        os.pwrite(fds[-1], content.encode(), 0)
    if task["leaked"]:
        for path in ("/", "/etc/passwd"):
            os.set_inheritable(os.open(path, os.O_RDONLY), True)
    policy = Policy(
        mounts=mounts,
        env={**{k: fill(v) for k, v in task["env"].items()}, "FDS": " ".join(map(str, fds))},
        cwd=task["cwd"],
        network=task["network"],
        limits=JailLimits(**task["limits"]),  # pyright: ignore[reportArgumentType] (numbers only)
        pass_fds=tuple(fds),
        uid=JAIL_UIDS[3] if root else None,
    )
    launch = backend.launch(policy, [fill(item) for item in task["argv"]])
    process = subprocess.Popen(
        launch.argv,
        env=launch.env,
        pass_fds=launch.pass_fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    launch.close()
    probed = ""
    first = b""
    if task["probe"]:
        assert process.stdout is not None
        first = process.stdout.readline()
        command = [item.replace("{pid}", str(process.pid)) for item in task["probe"]]
        probed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    stdout, stderr = process.communicate(timeout=60)
    return Report(
        error="",
        code=process.returncode,
        stdout=(first + stdout).decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
        probe=probed,
        view=view,
        argv=list(launch.argv),
    )


def main() -> None:
    """Read the task, run it, print the report."""
    task: Task = json.load(sys.stdin)
    try:
        report = run(task)
    except SeerError as error:
        message = f"{type(error).__name__}: {error}"
        report = Report(error=message, code=-1, stdout="", stderr="", probe="", view={}, argv=[])
    json.dump(report, sys.stdout)


Who = Literal["root", "user"]

if __name__ == "__main__":
    main()
