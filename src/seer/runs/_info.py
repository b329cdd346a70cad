"""What `run.json` says about a run: what ran, in which process, its status and its totals."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin

from seer.errors import ConfigError, RecordError

FILE = "run.json"
FORMAT = 1
Status = Literal["running", "completed", "limit", "cancelled", "error", "crashed"]
"""`crashed`: the process that wrote the record is gone and did not close it."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """The process that writes a record, identified so that a reader can check if it still runs."""

    pid: int = 0
    start: int | None = None
    """When it started, in ticks since boot; None where that is not known."""
    boot: str = ""
    """The id of the host's boot; empty where that is not known."""

    @classmethod
    def this_process(cls) -> "Writer":
        """The process that calls this."""
        return cls(pid=os.getpid(), start=_process_start(os.getpid()), boot=_boot_id())

    @property
    def alive(self) -> bool:
        """Whether the process still runs. One that cannot be identified counts as running."""
        if self.start is None:
            return True
        return self.boot == _boot_id() and _process_start(self.pid) == self.start


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program that started the run."""

    argv: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """The interpreter's whole command line."""
    cwd: str = ""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The content of one `run.json`. Records of older versions lack fields; they have defaults."""

    run_id: str = ""
    status: Status = "running"
    """The last status that was written; `status_now` also checks whether the writer still runs."""
    created: float = 0.0
    writer: Writer = Writer()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """The versions of Seer and of the packages that matter to a run."""
    platform: Mapping[str, str] = field(default_factory=dict[str, str])
    name: str = ""
    provider: str | None = None
    agent: str | None = None
    asked_provider: str | None = None
    model: str | None = None
    task: str = ""
    system_prompt: str = ""
    session: str | None = None
    limits: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    program: Program = Program()
    replay_of: str | None = None
    """The folder of the run that this one repeats."""
    fork_of: tuple[str, int] | None = None
    """The id of the run that this one continues, and the last turn that it takes over."""
    jail: Mapping[str, Any] = field(default_factory=dict[str, Any])
    callers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The name of the session as a caller of each interface."""

    notebook: str | None = None
    """Where the notebook is during the run; its last state is an artifact."""
    interfaces: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    """For each interface: its schema, the hash of its source, its models. The key is its name, or
    `NAME#NUMBER` for a second interface of that name. `name` and `served` in the entry identify it
    (see `GateCall.served`)."""
    calls_before: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many calls of each interface were made before the run, and are not in its record."""
    ended: float | None = None
    events: int | None = None
    events_head: str | None = None
    """The hash of the last event's line."""
    calls: int | None = None
    calls_head: str | None = None
    message: str | None = None
    """Why the run ended, for people."""
    missing: str = ""
    """Which calls are missing from the record, and why."""
    result: str | None = None
    turns: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    score: float | None = None

    other: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keys that this version of Seer does not know; they are kept."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RunInfo":
        """Read the JSON form.

        Raises:
            ValueError: A field has the wrong type.
        """
        known = {name: value for name, value in data.items() if name in _TYPES}
        other = {name: data[name] for name in data if name not in _TYPES and name != "format"}
        return cls(**_checked(known, _TYPES), other=other)

    def to_json(self) -> dict[str, Any]:
        """The JSON form. Fields of the second group are left out until they are known."""
        values = {name: getattr(self, name) for name in _TYPES}
        plain = {
            name: asdict(value) if isinstance(value, (Writer, Program)) else value
            for name, value in values.items()
            if name not in _KNOWN_LATER or value not in (None, "", {})
        }
        return {**self.other, "format": FORMAT, **plain}

    @property
    def status_now(self) -> Status:
        """The status; `crashed` for a run that never ended and whose writer is gone."""
        return "crashed" if self.status == "running" and not self.writer.alive else self.status

    @property
    def lineage(self) -> str:
        """What the run repeats or continues, in words; empty for most runs."""
        if self.fork_of is not None:
            run_id, turn = self.fork_of
            return f"fork of {run_id.rpartition('-')[2]} at turn {turn}"
        if self.replay_of:
            return f"replay of {Path(self.replay_of).name.rpartition('-')[2]}"
        return ""

    def describe(self) -> str:
        """The run in a few words: status, agent, counts."""
        parts = [self.status_now, self.agent or self.provider or "no agent"]
        if self.model:
            parts.append(self.model)
        if self.turns is not None:
            parts.append(f"{self.turns} turns, {self.calls or 0} calls")
        if self.score is not None:
            parts.append(f"score {self.score:g}")
        return ", ".join(parts)


def read_json(folder: Path) -> dict[str, Any]:
    """The `run.json` of a run's folder, as it is on disk.

    Raises:
        RecordError: It is missing, or it is not a run record of this version of Seer.
    """
    path = folder / FILE
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != FORMAT:
        raise RecordError(f"{path}: is not a run record of format {FORMAT}")
    return cast("dict[str, Any]", data)


def read_info(folder: Path) -> RunInfo:
    """The `run.json` of a run's folder.

    Raises:
        RecordError: It is missing, or it is not a run record of this version of Seer.
    """
    try:
        return RunInfo.from_json({**read_json(folder), "run_id": folder.name})
    except ValueError as error:
        raise RecordError(f"{folder / FILE}: {error}") from error


_TYPES = {item.name: cast("Any", item.type) for item in fields(RunInfo) if item.name != "other"}
_KNOWN_LATER = frozenset(list(_TYPES)[list(_TYPES).index("notebook") :])


def _checked(data: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The values of fields; null counts as absent."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if value is None:
            continue
        hint = types[name]
        if not isinstance(value, _classes(hint)):
            raise ValueError(f"{name!r} has the wrong type: {value!r}")
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ValueError(f"{name!r} is {value!r}, which is not one of {get_args(hint)}")
        if is_dataclass(hint):
            inner = {item.name: item.type for item in fields(hint)}
            value = cast("Any", hint)(
                **_checked({key: item for key, item in value.items() if key in inner}, inner)
            )
        found[name] = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    fork: tuple[Any, ...] | None = found.get("fork_of")
    if fork is not None and list(map(type, fork)) != [str, int]:
        raise ValueError(f"'fork_of' is not the id of a run and a turn: {fork!r}")
    return found


@cache
def _classes(hint: Any) -> tuple[type, ...]:
    """The classes of JSON values that fit the type of a field."""
    origin = get_origin(hint) or hint
    if origin is UnionType:
        return tuple(found for part in get_args(hint) for found in _classes(part))
    if is_dataclass(origin):
        return (Mapping,)
    return {float: (int, float), tuple: (list, tuple), Literal: (str,)}.get(origin, (origin,))


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _process_start(pid: int) -> int | None:
    """When a process started, in ticks since boot; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def finite(field: str, score: float) -> float:
    """A score as a plain number, also from numpy or torch.

    Raises:
        ConfigError: It is not a finite number.
    """
    try:
        if math.isfinite(score):
            return float(score)
    except (TypeError, ValueError, OverflowError):
        pass  # a text, a tensor of several numbers, or an integer beyond the range of floats
    raise ConfigError(field, score, "must be a finite number")
