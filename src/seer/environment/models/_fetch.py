"""Download one model from the hub: a program of its own, run with the machine's Python.

It needs `huggingface_hub` and the standard library only, so that it also runs on machines without
Seer. One JSON line on standard input says what to fetch; JSON lines on standard output report the
progress, and then the result or the error. The program ends when its standard input closes. As a
separate program, it sees the current values of `HF_HOME`, `HF_ENDPOINT` and similar variables.
"""

import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

_SKIPPED_ALWAYS = ("*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.tflite", "*.mlmodel")
_SKIPPED_BESIDE_SAFETENSORS = (
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
    "adapter_model.bin",
    "model.ckpt*",
    "consolidated*",
    "original/*",
    "*.gguf",
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

OnReport = Callable[[dict[str, Any]], None]


class NoRoom(Exception):
    """The files that are missing do not fit on the disk."""


class Corrupt(Exception):
    """A downloaded file does not have the content that the hub announced."""


def skipped_patterns(files: Iterable[str]) -> list[str]:
    """Patterns of files that only repeat the weights in another format."""
    patterns: list[str] = [*_SKIPPED_ALWAYS]
    if any(fnmatch.fnmatch(name, "*.safetensors") and "/" not in name for name in files):
        patterns += _SKIPPED_BESIDE_SAFETENSORS
    return patterns


def fetch(
    repo_id: str, revision: str, *, token: str | None = None, report: OnReport = lambda _: None
) -> Path:
    """Download a model's missing files into the hub's cache.

    Args:
        repo_id: The model's id.
        revision: A branch, tag or commit.
        token: The user's token; None takes the one that the hub's library finds.
        report: Called with `{"done": bytes, "total": bytes}` from time to time.

    Returns:
        The snapshot's folder, named by its commit.

    Raises:
        NoRoom: The missing files do not fit on the disk.
        Corrupt: A file's content is not what the hub announced; the file is removed.
    """
    from huggingface_hub import (
        constants,
        snapshot_download,  # pyright: ignore[reportUnknownVariableType]
    )
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE)
    folder = repo_folder_name(repo_id=repo_id, repo_type="model")
    locks = cache / ".locks" / folder
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / "seer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        blobs = cache / folder / "blobs"
        before = set(_names(blobs))
        files = _files(repo_id, revision, token)
        skipped = skipped_patterns(file.name for file in files)
        _check_room(files, skipped, blobs)
        path = snapshot_download(
            repo_id,
            revision=revision,
            token=token,
            ignore_patterns=skipped,
            tqdm_class=_bar_class(report),
        )
        _verify(blobs, [name for name in _names(blobs) if name not in before])
    return Path(path)


def look(repo_id: str, revision: str, *, token: str | None = None) -> str:
    """Ask the hub for a model's commit. Raises the same errors as a download."""
    from huggingface_hub import HfApi

    return HfApi(token=token).model_info(repo_id, revision=revision).sha or ""


class _File(NamedTuple):
    """A file of a model on the hub."""

    name: str
    size: int = 0
    """0 if it is unknown."""
    blob: str = ""
    """Its name in the cache."""


def _check_room(files: list[_File], skipped: list[str], blobs: Path) -> None:
    """Check that the missing files fit on the disk.

    Raises:
        NoRoom: They do not fit.
    """
    needed = 0
    for file in files:
        if file.blob and not any(fnmatch.fnmatch(file.name, pattern) for pattern in skipped):
            part = blobs / f"{file.blob}.incomplete"
            there = part.stat().st_size if part.is_file() else 0
            needed += 0 if (blobs / file.blob).exists() else max(file.size - there, 0)
    cache = blobs.parent.parent
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise NoRoom(
            f"{needed / 1e9:.3g} GB must be downloaded, but only {free / 1e9:.3g} GB are free in "
            f"{str(cache)!r}"
        )


def _files(repo_id: str, revision: str, token: str | None) -> list[_File]:
    from huggingface_hub import HfApi, get_cached_repo_tree
    from huggingface_hub.errors import (
        CachedRepoTreeNotFoundError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]
    )

    try:
        info = HfApi(token=token).model_info(repo_id, revision=revision, files_metadata=True)
    except (HTTPError, OSError):
        # The download that follows fails in the same way, and knows whether the cache suffices.
        try:
            return [_File(file.path) for file in get_cached_repo_tree(repo_id, revision=revision)]
        except CachedRepoTreeNotFoundError:
            return []
    return [
        _File(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else file.blob_id or "")
        for file in info.siblings or []
    ]


def _names(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir()] if folder.is_dir() else []


def _verify(blobs: Path, names: list[str]) -> None:
    """Compare new large files with their announced SHA-256, which is their name in the cache."""

    def wrong(name: str) -> bool:
        with (blobs / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() != name

    hashed = [name for name in names if len(name) == 64]
    with ThreadPoolExecutor(4) as pool:
        bad = [name for name, is_bad in zip(hashed, pool.map(wrong, hashed), strict=True) if is_bad]
    for name in bad:
        (blobs / name).unlink()
    if bad:
        raise Corrupt(f"{len(bad)} file(s) do not have the content that the hub announced")


def _bar_class(report: OnReport) -> type[Any]:
    class Bar:
        """Stands in for tqdm: turns the library's byte counts into reports."""

        _lock = threading.RLock()
        _told = 0.0

        def __init__(self, *args: Any, **options: Any) -> None:
            self.total: float = options.get("total") or 0
            self.n: float = options.get("initial") or 0
            # The other bar with this unit counts transferred bytes, which compression changes.
            self._counts = options.get("unit") == "B" and "Downloading" not in options["desc"]
            self._items = args[0] if args else ()
            self.format_dict: dict[str, Any] = {}

        def __iter__(self) -> Any:
            return iter(self._items)

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        @classmethod
        def get_lock(cls) -> Any:
            return cls._lock

        @classmethod
        def set_lock(cls, lock: Any) -> None:
            cls._lock = lock

        def update(self, n: float | None = 1) -> None:
            with Bar._lock:
                self.n += n or 0
            self._tell()

        def close(self) -> None:
            self._tell(always=True)

        def refresh(self, *_: Any, **__: Any) -> None:
            self._tell()

        def reset(self, total: float | None = None) -> None:
            self.n, self.total = 0, total or 0

        def set_description(self, *_: Any, **__: Any) -> None:
            self._tell(always=True)

        set_description_str = set_postfix = set_postfix_str = set_description

        def _tell(self, *, always: bool = False) -> None:
            now = time.monotonic()
            if self._counts and (always or now - Bar._told > 0.1):
                Bar._told = now
                report({"done": int(self.n), "total": int(self.total)})

    return Bar


def describe(error: BaseException) -> dict[str, str]:
    """An error as data: its kind, and the library's message."""
    from huggingface_hub import errors

    kind = "other"
    cause = error.__cause__
    if isinstance(error, errors.GatedRepoError):
        kind = "gated"
    elif isinstance(error, errors.RevisionNotFoundError):
        kind = "revision"
    elif isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        kind = "token"
    elif isinstance(error, errors.RepositoryNotFoundError):
        kind = "unknown"
    elif isinstance(error, errors.LocalEntryNotFoundError):
        offline = isinstance(cause, errors.OfflineModeIsEnabled)
        kind = "offline" if offline else "connection"
    elif isinstance(error, OSError) and error.errno in _FULL:
        kind = "disk"
    elif isinstance(error, Corrupt):
        kind = "corrupt"
    elif isinstance(error, NoRoom):
        return {"error": "room", "message": str(error)}
    elif isinstance(error, (errors.HTTPError, ConnectionError)):  # pyright: ignore[reportPrivateImportUsage]
        kind = "connection"
    words = str(error).strip() or type(error).__name__
    return {"error": kind, "message": f"{type(error).__name__}: {words}"}


def main() -> int:
    """Serve one request from standard input."""
    request = json.loads(sys.stdin.readline())

    def end_with_parent() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    # Only reports may go to standard output, so output of libraries goes to standard error.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lock = threading.Lock()

    def report(line: dict[str, Any]) -> None:
        with lock:
            output.write(json.dumps(line) + "\n")
            output.flush()

    try:
        if request.get("look"):
            commit = look(request["repo_id"], request["revision"], token=request.get("token"))
            report({"commit": commit})
            return 0
        path = fetch(
            request["repo_id"], request["revision"], token=request.get("token"), report=report
        )
    except Exception as error:
        report(describe(error))
        return 1
    report({"path": str(path), "commit": path.name})
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The thread that waits for the end of standard input would otherwise delay the exit.
    os._exit(code)
