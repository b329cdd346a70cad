"""Start a jail with the launcher script: the order that a backend gives to `_launcher.py`.

The order is a marshalled dictionary. Its paths and texts are bytes, because the launcher passes
them to the kernel unchanged.
"""

import marshal
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from seer.isolation._mounts import in_view
from seer.isolation._policy import Policy
from seer.isolation.backends import _launcher
from seer.isolation.backends._base import Launch, memory_file

LAUNCHER = str(Path(_launcher.__file__).resolve())

Mask = tuple[bytes, bool]
"""A path to cover, and whether it is a folder."""


class Bind(TypedDict):
    """A mount, and the paths to cover in it."""

    source: bytes
    target: bytes
    writable: bool
    is_folder: bool
    masks: list[Mask]


class Stage(TypedDict):
    """Mounts to make, in this order, in the jail's own namespaces."""

    covers: list[bytes]
    """Folders of the host to replace with empty ones."""
    files: list[tuple[bytes, bytes]]
    """Path and content of generated files."""
    links: list[tuple[bytes, bytes]]
    """The target and the path of each symbolic link."""
    masks: list[Mask]
    """Paths to cover in the system's folders."""
    binds: list[Bind]
    devices: list[bytes]
    """Device nodes, or folders of device nodes, to show at the same paths."""
    shm: int
    hostname: bytes
    own_network: bool


class Rules(TypedDict):
    """A Landlock ruleset."""

    fs: int
    net: int
    scoped: int
    rules: list[tuple[bytes, int]]
    """A path, and the rights granted beneath it."""


class Order(TypedDict):
    """Everything the launcher does before it becomes the jail's first program."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: bytes
    rlimits: dict[int, int]
    keep: list[int]
    """Descriptors to keep open, besides the standard ones."""
    uid: int | None
    stage: Stage | None
    landlock: Rules | None
    filter: bytes
    """A system-call filter; empty for none."""


def launch_by_script(
    policy: Policy,
    argv: Sequence[str],
    *,
    view: dict[str, str],
    limits: dict[int, int],
    env: Mapping[str, str] | None = None,
    uid: int | None = None,
    stage: Stage | None = None,
    landlock: Rules | None = None,
    system_calls: bytes = b"",
) -> Launch:
    """A launch in which the launcher script sets up the jail, then runs `argv` in it.

    Args:
        policy: Gives the working folder, the environment and the descriptors.
        argv: The program and its arguments.
        view: Where the jail sees each mount.
        limits: Resource limits, for `setrlimit`.
        env: The environment; the policy's by default.
        uid: The user to become; None to stay this user.
        stage: Mounts to make; None for none.
        landlock: Landlock rules; None for none.
        system_calls: The system-call filter; empty for none.
    """
    order: Order = {
        "argv": [os.fsencode(item) for item in argv],
        "env": {
            os.fsencode(name): os.fsencode(value)
            for name, value in (policy.env if env is None else env).items()
        },
        "cwd": os.fsencode(in_view(view, policy.cwd)),
        "rlimits": limits,
        "keep": list(policy.pass_fds),
        "uid": uid,
        "stage": stage,
        "landlock": landlock,
        "filter": system_calls,
    }
    fd = memory_file("seer-jail", marshal.dumps(dict(order), 2))
    return Launch(
        argv=(sys.executable, "-I", "-S", LAUNCHER, str(fd)),
        env={},
        pass_fds=(fd, *policy.pass_fds),
        own_fds=[fd],
    )
