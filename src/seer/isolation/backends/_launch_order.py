"""What a backend tells the launcher script: the shape of its marshalled dictionary.

Paths and texts are bytes, because the launcher passes them to the kernel as they are.
"""

from typing import TypedDict

Mask = tuple[bytes, bool]
"""A path to cover, and whether it is a folder."""


class Bind(TypedDict):
    """A mount, and what to cover in it."""

    source: bytes
    target: bytes
    writable: bool
    is_folder: bool
    masks: list[Mask]


class Stage(TypedDict):
    """Mounts to make in namespaces of the jail's own, in this order."""

    covers: list[bytes]
    """Folders of the host to replace with empty ones."""
    files: list[tuple[bytes, bytes]]
    """Path and content of generated files."""
    links: list[tuple[bytes, bytes]]
    """Where a symbolic link leads, and its path."""
    masks: list[Mask]
    """What to cover in the system's folders."""
    binds: list[Bind]
    devices: list[bytes]
    """Device nodes, or folders of such, to show at the same place."""
    shm: int
    hostname: bytes
    own_network: bool


class Rules(TypedDict):
    """A Landlock ruleset."""

    fs: int
    net: int
    scoped: int
    rules: list[tuple[bytes, int]]
    """Path and what is permitted beneath it."""


class Order(TypedDict):
    """Everything the launcher does before it becomes the jail's first program."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: bytes
    rlimits: dict[int, int]
    keep: list[int]
    """Descriptors to keep open, beside the standard ones."""
    uid: int | None
    stage: Stage | None
    landlock: Rules | None
    filter: bytes
    """A system-call filter; empty for none."""
