"""Writes the record of a run, while it runs.

A run is a folder::

    run.json       what was run, with what; status and totals (replaced atomically)
    events.jsonl   what the agent did, line by line (see `_chain`)
    calls.jsonl    the calls of the gates, including refused requests
    blobs/         large values, by content hash
    artifacts/     files to keep: the notebook and the like

Only the controller's user can read the folder, and no jail sees it.
"""

import contextlib
import errno
import functools
import json
import logging
import os
import platform
import shutil
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from seer import __version__
from seer._files import replace_file
from seer._redact import Redactor
from seer.errors import RecordError
from seer.runs._blobs import BlobStore, pack
from seer.runs._chain import ChainWriter
from seer.runs._info import FILE, RunInfo, Status, Writer
from seer.runs._scrub import scrub, scrub_bytes

logger = logging.getLogger(__name__)

_RESERVE = "reserve"
_RESERVED = 128 << 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("your disk quota is used up", "free some space"),
    errno.EROFS: ("the disk is now read-only", "choose another folder with --runs or SEER_RUNS"),
}
"""By error number: why a record cannot be written, and what to do."""


def new_run_id() -> str:
    """A fresh id that sorts by time: `20261115-093000-4f2a9c1b`."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + os.urandom(4).hex()


def runs_root(given: Path | str | None = None) -> Path:
    """The folder that holds run folders: `given`, else `$SEER_RUNS`, else `./outputs/runs`."""
    return Path(given or os.environ.get("SEER_RUNS") or Path("outputs") / "runs").absolute()


class RunRecord:
    """The open record of one run. Methods may be called from any thread.

    Raises:
        RecordError: The record cannot be written. Every method can raise this. The message says
            why, what was kept, and what to do.
    """

    def __init__(self, folder: Path, secrets: Iterable[str] = ()) -> None:
        self.folder = folder
        self.run_id = folder.name
        self._redactor = Redactor(secrets)
        self._lock = threading.RLock()
        self._info = RunInfo(run_id=folder.name)
        self._blobs = BlobStore(folder / "blobs")
        self._closed = False
        self._events = ChainWriter(folder / "events.jsonl")
        self._calls = ChainWriter(folder / "calls.jsonl")

    @classmethod
    def create(
        cls,
        root: Path,
        run_id: str,
        *,
        meta: RunInfo | Mapping[str, Any],
        secrets: Iterable[str] = (),
    ) -> "RunRecord":
        """Make the folder of a new run.

        Args:
            root: The folder that holds run folders; created if it is missing.
            run_id: The name of the run's folder.
            meta: What was run, for `run.json`; a mapping is its JSON form.
            secrets: Values to remove from everything that is written, besides the secrets that this
                process has registered.

        Raises:
            RecordError: The folder exists already, or cannot be made.
        """
        folder = root / run_id
        try:
            root.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            try:
                _reserve(folder / _RESERVE)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            why, remedy = _REASONS.get(error.errno or 0, (str(error), "choose another folder"))
            raise RecordError(f"no record can be made in {str(root)!r}: {why}; {remedy}") from error
        info = meta if isinstance(meta, RunInfo) else RunInfo.from_json(meta)
        record = cls(folder, secrets)
        with record._writing():
            record._write(
                replace(
                    info,
                    run_id=run_id,
                    created=info.created or time.time(),
                    writer=Writer.this_process(),
                    versions=package_versions(),
                    platform={"python": platform.python_version(), "system": platform.platform()},
                )
            )
        return record

    def update(self, **changes: Any) -> None:
        """Change fields of `run.json`, by the names in `RunInfo`; mappings are merged."""
        with self._writing():
            for name, value in changes.items():
                old: object = getattr(self._info, name)
                if isinstance(old, Mapping):
                    changes[name] = {**cast("Mapping[str, Any]", old), **value}
            self._write(replace(self._info, **changes))

    def event(self, data: Mapping[str, Any]) -> None:
        """Add one event, in its JSON form."""
        with self._writing():
            self._events.append(self._pack(data))

    def call(self, data: Mapping[str, Any]) -> None:
        """Add one call of a gate, in the form of `GateCall.to_json`."""
        with self._writing():
            self._calls.append(self._pack(data))

    def blob(self, data: bytes) -> str:
        """Keep bytes, such as an array, by content. Returns the hash of the kept bytes."""
        data = scrub_bytes(data, self._redactor)
        with self._writing():
            return self._blobs.put(data)

    def artifact(self, name: str, content: bytes | str) -> Path:
        """Keep a file under `artifacts/`, without secrets.

        Raises:
            RecordError: The name is not a plain relative path, or the file cannot be written.
        """
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise RecordError(f"artifact {name!r}: must be a path inside the run's folder")
        kept = self.folder / "artifacts"
        target = kept / relative
        with self._writing():
            kept.mkdir(exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, self._clean(content))
        return target

    def close(self, status: Status, totals: Mapping[str, Any] | None = None) -> None:
        """End the record, with more fields of `run.json`. Closing twice is harmless."""
        with self._writing():
            if self._closed:
                return
            self._closed = True
            try:
                self.update(
                    **{
                        "status": status,
                        "ended": time.time(),
                        "events": self._events.count,
                        "events_head": self._events.head,
                        "calls": self._calls.count,
                        "calls_head": self._calls.head,
                        **(totals or {}),
                    }
                )
            finally:
                self._events.close()
                self._calls.close()
                (self.folder / _RESERVE).unlink(missing_ok=True)

    def _pack(self, value: Mapping[str, Any]) -> Any:
        return pack(dict(value), self._blobs, self._redactor)

    def _clean(self, content: bytes | str) -> bytes:
        if isinstance(content, bytes):
            return scrub_bytes(content, self._redactor)
        try:
            # The texts of a notebook are searched one by one, because a search of the whole file
            # misses secrets in pictures and in outputs that are split into pieces.
            parsed = json.loads(content)
            clean = scrub(parsed, self._redactor)
        except (ValueError, RecursionError):
            return self._redactor.redact(content).encode("utf-8", "surrogateescape")
        if clean != parsed:
            content = json.dumps(clean, indent=1, ensure_ascii=False) + "\n"
        return content.encode("utf-8", "surrogateescape")

    def _write(self, info: RunInfo) -> None:
        self._info = info
        _replace_json(self.folder, scrub(info.to_json(), self._redactor))

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """Hold the lock, and raise a `RecordError` for a file that cannot be written."""
        with self._lock:
            try:
                yield
            except RecordError:
                raise
            except OSError as error:
                raise RecordError(self._failure(error)) from error

    def _failure(self, error: OSError) -> str:
        """Why the record cannot be written, what was kept, and what to do; in one line."""
        run, place = self.run_id.rpartition("-")[2], repr(str(self.folder))
        if error.errno == errno.ENOENT:
            return (
                f"run {run} stopped, because its record in {place} was removed or renamed; start "
                "the program again"
            )
        why, remedy = _REASONS.get(
            error.errno or 0, (f"its record cannot be written ({error})", "check the disk")
        )
        return (
            f"run {run} stopped, because {why}: {self._events.count} events and "
            f"{self._calls.count} gate calls are kept in {place}; {remedy}, then start the "
            "program again"
        )


def write_json(folder: Path, content: Mapping[str, Any]) -> None:
    """Replace the `run.json` of a run's folder.

    Raises:
        RecordError: It cannot be written.
    """
    try:
        _replace_json(folder, content)
    except OSError as error:
        raise RecordError(f"{folder / FILE}: cannot be written: {error}") from error


def _replace_json(folder: Path, content: Mapping[str, Any]) -> None:
    path = folder / FILE
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    try:
        replace_file(path, text)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        (folder / _RESERVE).unlink(missing_ok=True)
        replace_file(path, text)


def _reserve(path: Path) -> None:
    """Reserve space, so that a run that fills the disk can still record how it ended."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _RESERVED)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        # Not every file system supports this. Without it, a full disk loses the last event.
        logger.debug("no space is set aside for %s: %s", path, error)
    finally:
        os.close(fd)


_NAMED = (
    "accelerate",
    "claude-agent-sdk",
    "google-genai",
    "mcp",
    "nnsight",
    "numpy",
    "openai",
    "peft",
    "pydantic-ai-slim",
    "safetensors",
    "torch",
    "transformer-lens",
    "transformers",
)


@functools.cache
def package_versions() -> dict[str, str]:
    """The versions of Seer and of the packages in `_NAMED` that are installed."""
    # Imported late, because this import is slow.
    from importlib.metadata import PackageNotFoundError, version

    found = {"seer-interp": __version__}
    for name in _NAMED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
