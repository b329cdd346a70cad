"""A machine's spec as plain data, to send it to another host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from seer.isolation import Mount
from seer.providers._spec import MachineSpec


def read_spec(given: Mapping[str, Any]) -> MachineSpec:
    """Read what `write_spec` has written."""
    values = dict(given)
    values["mounts"] = tuple(
        Mount(Path(source), target, writable=writable)
        for source, target, writable in values["mounts"]
    )
    for name in ("workdir", "python_env"):
        values[name] = Path(values[name]) if values[name] is not None else None
    if not isinstance(values["network"], str):
        values["network"] = tuple(values["network"])
    return MachineSpec(**values)


def write_spec(spec: MachineSpec) -> dict[str, object]:
    """A spec as plain data, without the fields that have no meaning on another host."""
    left_out = {"gates", "relayed", "options", "host", "devices", "lifeline", "kept_secrets"}
    values: dict[str, object] = {
        field.name: getattr(spec, field.name)
        for field in fields(spec)
        if field.name not in left_out
    }
    values["env"], values["path_env"] = dict(spec.env), dict(spec.path_env)
    values["mounts"] = [(str(m.source), m.target, m.writable) for m in spec.mounts]
    for name in ("workdir", "python_env"):
        path: Path | None = getattr(spec, name)
        values[name] = str(path) if path is not None else None
    return values
