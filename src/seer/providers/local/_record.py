"""The records of a local machine: while it runs, and after its end."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from seer._paths import state_dir
from seer.isolation import BackendName
from seer.providers._spec import Layout

_TAIL = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class MountRecord:
    """A mount: its path on the host, and in the machine."""

    target: str
    source: str
    seen: str
    """Where programs in the machine see it."""
    writable: bool


@dataclass(frozen=True, kw_only=True)
class LocalRecord:
    """Everything that another process needs to adopt a local machine, without secrets."""

    id: str
    label: str
    note: str
    gpu: str | None
    """The kind of its GPU."""
    started_at: float
    isolation: BackendName
    lease: float
    idle_timeout: float | None = None
    uid: int | None = None
    """The user that owns the machine's files, if that is not this user."""
    layout: Layout
    mounts: tuple[MountRecord, ...]
    devices: tuple[int, ...] = ()
    """The host's GPUs that it has, by number (`MachineSpec.devices`)."""
    policy: Mapping[str, object] = field(default_factory=dict[str, object])
    """Other limits of its jail: network, memory, processes, disk."""


def machines_dir() -> Path:
    """The folder in which every running machine has a folder."""
    folder = state_dir() / "machines"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def is_mounted(path: Path) -> bool:
    """Whether a machine on this host has `path`, or a path in it, mounted. Blocks."""
    inside = f"{path}/"
    for file in machines_dir().glob("*/machine.json"):
        try:
            mounts = parse_record(file.read_text()).mounts
        except (OSError, ValueError):
            continue  # the machine has just ended
        if any(f"{mount.source}/".startswith(inside) for mount in mounts):
            return True
    return False


def write_record(folder: Path, record: LocalRecord) -> None:
    """Write the record into the machine's folder."""
    fd = os.open(folder / "machine.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(record), file)


def read_record(folder: Path) -> LocalRecord:
    """Read a machine's record.

    Raises:
        OSError: The machine is gone, or was never complete.
        ValueError: It is not a record.
    """
    return parse_record((folder / "machine.json").read_text())


def parse_record(text: str) -> LocalRecord:
    """Parse a record. Another version of Seer may have written it.

    Unknown fields are ignored, and missing fields get their default, so that machines of other
    versions can be found and ended.

    Raises:
        ValueError: The text is not a record.
    """
    found: object = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a record of a machine")
    values = cast("dict[str, Any]", found)
    try:
        known = known_fields(LocalRecord, values)
        known["layout"] = Layout(**known_fields(Layout, values["layout"]))
        known["mounts"] = tuple(
            MountRecord(**known_fields(MountRecord, mount)) for mount in values["mounts"]
        )
        known["devices"] = tuple(values.get("devices", ()))
        return LocalRecord(**known)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a record of a machine: {error}") from None


def known_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields that a dataclass has. Another version may have written others."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def how_it_ended(machine_id: str) -> tuple[str, float] | None:
    """The reason and time of a machine's end; None if they are unknown."""
    try:
        with (state_dir() / "ended.jsonl").open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            if entry["id"] == machine_id:
                return str(entry["reason"]), float(entry["ended_at"])
    return None
