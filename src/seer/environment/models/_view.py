"""The folder that a sandbox sees as a model: flat, real files, no second copy of the weights.

The hub's cache holds links to blobs, which break when only one of its folders is mounted. A view is
a folder of hard links to the same blobs, with small files rewritten where they must be (an
adapter's base, a hidden model's names). Views are made once and reused.
"""

import asyncio
import errno
import fcntl
import hashlib
import hmac
import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Set
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from seer._paths import cache_dir
from seer._transient import TransientFolder
from seer.environment._cache import cache_key, draft_prefix, locked, prune
from seer.environment.models import _blinding
from seer.errors import ModelError
from seer.isolation._mounts import PACKAGE, inside

logger = logging.getLogger(__name__)

_FORMAT = 3
_FICLONE = 0x40049409
_LARGEST_COPY = 2 * 10**9
_STALE_AFTER = 7 * 24 * 3600.0
_SKIPPED_FOLDERS = {".git", ".cache", "__pycache__"}
_NAMING_FILES = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer_config.json",
)
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EACCES)


@dataclass(frozen=True)
class ModelSource:
    """Where a model's files are on this machine."""

    folder: Path
    name: str
    """Its hub id or path."""
    commit: str | None
    """The hub's commit; None for a user's own folder."""

    def secrets(self, configured: str) -> frozenset[str]:
        """Strings that must not be visible if this model is hidden."""
        return frozenset(
            {self.name, configured, str(self.folder)} | ({self.commit} if self.commit else set())
        )


@dataclass(frozen=True)
class View:
    """A folder to mount, and files of other filesystems to mount over files in it."""

    folder: Path
    binds: tuple[tuple[str, Path], ...] = ()
    names: tuple[str, ...] = ()
    """For a hidden model: strings that reveal its name, from its files and configuration."""


@dataclass(frozen=True)
class ModelFile:
    """A file of a model, as `walk_model` found it."""

    name: str
    """Relative to the model's folder, with slashes."""
    path: Path
    """Resolved: a regular file."""
    status: os.stat_result

    def open(self) -> BufferedReader:
        """Open the file, if it is still the one that was found.

        Raises:
            ModelError: Another file has replaced it.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(fd, "rb")
        if not os.path.samestat(os.fstat(fd), self.status):
            file.close()
            raise ModelError(f"{str(self.path)!r} was replaced while it was read")
        return file

    def read(self) -> bytes:
        """The content of the file, if it is still the one that was found."""
        with self.open() as file:
            return file.read()


async def make_view(
    source: ModelSource,
    *,
    hidden_as: str | None = None,
    secrets: Set[str] = frozenset(),
    base_path: str | None = None,
) -> View:
    """Make, or find, the view of a model.

    Args:
        source: The model's files.
        hidden_as: For a hidden model: the label that replaces its name everywhere.
        secrets: Strings that reveal its name.
        base_path: For an adapter: where its base model is in the sandbox.

    Raises:
        ModelError: The files cannot be read in a sandbox, or cannot be hidden.
    """
    files = await asyncio.to_thread(lambda: sorted(walk_model(source.folder), key=lambda f: f.name))
    if not files:
        raise ModelError(f"model {source.name!r}: {str(source.folder)!r} holds no files")
    unchanged = hidden_as is None and base_path is None and source.commit is None
    if _open_files(source, files) and unchanged and _is_flat(source) and not _is_own(files[0]):
        return View(source.folder)
    needles = _blinding.Needles(())
    if hidden_as is not None:
        needles = await asyncio.to_thread(_gather, files, secrets)
    identity = json.dumps(
        [
            _FORMAT,
            hidden_as,
            base_path,
            sorted(needles.words | needles.parts),
            [(f.name, f.status.st_dev, f.status.st_ino, f.status.st_mtime_ns) for f in files],
        ]
    )
    # Keyed, because an agent can read a mount's source in its mount table.
    key = hmac.new(cache_key(), identity.encode(), hashlib.sha256).hexdigest()[:32]
    root = await asyncio.to_thread(_view_root, source, files)
    async with locked(root / f"{key}.lock"):
        folder = root / key
        if not folder.is_dir():
            builder = _Builder(source, files, hidden_as, needles, base_path)
            try:
                await asyncio.to_thread(builder.build, folder)
            except OSError as error:
                raise ModelError(
                    f"model {source.name!r}: its view could not be made in {str(root)!r}: {error}"
                ) from error
            await asyncio.to_thread(prune, root, life=_STALE_AFTER, is_expired=_is_abandoned)
        os.utime(folder)
        names = tuple(sorted(needles.words | needles.parts))
        return View(folder, _read_binds(root, key), names)


def walk_model(folder: Path) -> Iterator[ModelFile]:
    """The regular files of a model's folder.

    A model may come from an untrusted source: links are followed only to its own files.

    Raises:
        ModelError: A link is broken, or leads out of the model.
    """
    top = folder.resolve()
    # The hub's cache keeps a model's files in `blobs`, and links to them in `snapshots/COMMIT`.
    roots = (top, top.parents[1] / "blobs") if top.parent.name == "snapshots" else (top,)

    def real(path: Path) -> Path:
        try:
            found = path.resolve(strict=True)
        except OSError as error:
            raise ModelError(f"{str(path)!r} is a broken link: {error}") from None
        if not any(found.is_relative_to(root) for root in roots):
            raise ModelError(
                f"{str(path)!r} is a link that leads out of the model's folder, to "
                f"{str(found)!r}; replace it by the file itself if you trust it"
            )
        return found

    for parent, folders, names in os.walk(top, followlinks=True):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS)
        if len(Path(parent).relative_to(top).parts) > 16:
            raise ModelError(f"{str(folder)!r} is nested too deeply (is there a link loop?)")
        for name in folders:
            real(Path(parent, name))
        for name in names:
            path = Path(parent, name)
            found = real(path)
            status = found.stat()
            if stat.S_ISREG(status.st_mode):
                yield ModelFile(path.relative_to(top).as_posix(), found, status)


def _is_flat(source: ModelSource) -> bool:
    """Whether a folder can be mounted as it is: without links and unreadable folders."""
    for parent, folders, names in os.walk(source.folder):
        if os.geteuid() == 0 and not Path(parent).stat().st_mode & stat.S_IXOTH:
            return False
        if any(Path(parent, name).is_symlink() for name in (*folders, *names)):
            return False
    return True


def _open_files(source: ModelSource, files: list[ModelFile]) -> bool:
    """Whether the sandbox's user can read all files. Files in the hub's cache are made readable.

    As root, jails run as another user. Many programs save weights readable only by their owner.

    Raises:
        ModelError: Too much of the model is unreadable to make a readable copy.
    """
    closed = [f for f in files if _is_closed(f)]
    if source.commit is not None:
        for file in closed:
            # The hub's cache is shared by all sandboxes by design; its folders stay as they are.
            file.path.chmod(stat.S_IMODE(file.status.st_mode) | 0o444)
        return True
    if sum(f.status.st_size for f in closed) > _LARGEST_COPY:
        raise ModelError(
            f"model {source.name!r}: {closed[0].name!r} cannot be read by the sandbox's user; "
            f"run: chmod -R a+rX {str(source.folder)!r}"
        )
    return not closed


def _is_closed(file: ModelFile) -> bool:
    return os.geteuid() == 0 and not file.status.st_mode & stat.S_IROTH


def _is_own(file: ModelFile) -> bool:
    """Whether it is an organism's file in Seer's package, from which nothing may be mounted."""
    return inside(os.path.realpath(file.path), str(PACKAGE))


def _view_root(source: ModelSource, files: list[ModelFile]) -> Path:
    """Seer's cache, or a folder in the hub's cache if that is on another filesystem."""
    own = cache_dir() / "views"
    own.mkdir(mode=0o700, exist_ok=True)
    if source.commit is None or files[0].status.st_dev == own.stat().st_dev:
        return own
    beside = source.folder.parents[2] / ".seer-views"
    try:
        beside.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return own
    return beside


def _gather(files: list[ModelFile], secrets: Set[str]) -> _blinding.Needles:
    """The names that reveal a model, including those that its own files state."""
    found = set(secrets)
    architecture: set[str] = set()
    for file in files:
        if file.name in _NAMING_FILES:
            content = _parse(file)
            found |= _blinding.named_origins(content)
            architecture |= _blinding.architecture_words(content)
        elif file.name == "README.md":
            found |= _blinding.card_names(file.read().decode(errors="replace"))
    return _blinding.Needles(found, architecture)


class _Builder:
    """Builds one view in a temporary folder, then renames it."""

    def __init__(
        self,
        source: ModelSource,
        files: list[ModelFile],
        hidden_as: str | None,
        needles: _blinding.Needles,
        base_path: str | None,
    ) -> None:
        self._source = source
        self._files = files
        self._label = hidden_as
        self._base_path = base_path
        self._binds: list[tuple[str, str]] = []
        self._linked: list[str] = []
        self._needles = needles

    def build(self, folder: Path) -> None:
        with TransientFolder(draft_prefix(folder.name), inside=folder.parent) as draft:
            chosen = self._choose() if self._label is not None else self._files
            for file in chosen:
                target = draft / file.name
                for parent in reversed(target.relative_to(draft).parents[:-1]):
                    (draft / parent).mkdir(mode=0o755, exist_ok=True)
                    (draft / parent).chmod(0o755)
                self._place(file, target)
            draft.chmod(0o755)
            notes = {
                "source": str(self._source.folder),
                "binds": self._binds,
                "linked": self._linked,
            }
            folder.with_suffix(".json").write_text(json.dumps(notes))
            draft.rename(folder)

    def _choose(self) -> list[ModelFile]:
        chosen = [f for f in self._files if _blinding.is_kept(f.name)]
        if not any(f.name.endswith(".safetensors") for f in chosen):
            raise ModelError(
                "a hidden model needs its weights as safetensors files, because other formats "
                f"carry names inside; {str(self._source.folder)!r} has none. "
                "Save the model again with save_pretrained(..., safe_serialization=True)"
            )
        for file in chosen:
            if self._needles.in_text(file.name):
                raise ModelError(f"a hidden model has a file whose name reveals it: {file.name!r}")
        return chosen

    def _place(self, file: ModelFile, target: Path) -> None:
        if self._label is not None:
            self._place_hidden(file, target, self._label)
        elif self._base_path is not None and file.name == "adapter_config.json":
            content = _parse(file)
            if isinstance(content, dict):
                content["base_model_name_or_path"] = self._base_path
            _write(target, json.dumps(content, indent=2).encode())
        else:
            self._link(file, target)

    def _place_hidden(self, file: ModelFile, target: Path, label: str) -> None:
        if file.name.endswith(".safetensors"):
            header = _blinding.clean_header(file.path, self._needles)
            if header is None:
                self._link(file, target)
            else:
                logger.warning(
                    "a hidden model's %s (%d MB) is copied, because its header reveals its origin",
                    file.name,
                    file.status.st_size // 10**6,
                )
                _copy(file, target)
                with target.open("r+b") as copy:
                    copy.write(header)
        elif file.name.endswith(".json") and not self._is_clean_vocabulary(file):
            content = _blinding.scrub_json(
                _parse(file), self._needles, label=label, base_path=self._base_path
            )
            _write(target, json.dumps(content, indent=2, ensure_ascii=False).encode())
        elif file.name.endswith(".jinja"):
            template = file.read().decode("utf-8", "surrogateescape")
            text = _blinding.scrub_template(template, self._needles, label)
            _write(target, text.encode("utf-8", "surrogateescape"))
        elif file.name.endswith(".txt"):
            text = file.read().decode("utf-8", "surrogateescape")
            content = self._needles.replace(text, label).encode("utf-8", "surrogateescape")
            _write(target, content)
        elif file.name.endswith(".model"):
            _write(target, self._needles.blank(file.read()))
        else:
            self._link(file, target)

    def _is_clean_vocabulary(self, file: ModelFile) -> bool:
        # These are large, and nearly always clean; parsing them costs seconds.
        return file.name in ("tokenizer.json", "vocab.json") and not self._needles.in_bytes(
            file.read()
        )

    def _link(self, file: ModelFile, target: Path) -> None:
        if _is_closed(file) and self._source.commit is None:
            _copy(file, target)
            return
        try:
            os.link(file.path, target)
            if not os.path.samestat(target.lstat(), file.status):
                raise ModelError(f"{str(file.path)!r} was replaced while it was read")
            self._linked.append(file.name)
            return
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
        if self._label is None and not _is_own(file):
            # The original is mounted over this empty file, so nothing is copied.
            _write(target, b"")
            self._binds.append((file.name, str(file.path)))
            return
        # A mount would reveal a hidden model's path in the mount table, or show Seer's own files.
        if file.status.st_size > 10**7:
            logger.warning(
                "%s (%d MB) is copied, because %s cannot be linked into Seer's cache: it is on "
                "another filesystem or owned by another user; set XDG_CACHE_HOME to a folder of "
                "the same user on the same filesystem",
                file.name,
                file.status.st_size // 10**6,
                self._source.folder,
            )
        _copy(file, target)


def _parse(file: ModelFile) -> Any:
    try:
        return json.loads(file.read())
    except ValueError as error:
        raise ModelError(f"{str(file.path)!r} is not JSON: {error}") from None


def _write(target: Path, data: bytes) -> None:
    target.write_bytes(data)
    target.chmod(0o644)


def _copy(source: ModelFile, target: Path) -> None:
    with source.open() as old, target.open("wb") as new:
        try:
            fcntl.ioctl(new, _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, 1 << 22)
    target.chmod(0o644)


def _read_binds(root: Path, key: str) -> tuple[tuple[str, Path], ...]:
    notes = json.loads((root / f"{key}.json").read_text())
    return tuple((name, Path(source)) for name, source in notes["binds"])


def _is_abandoned(folder: Path) -> bool:
    """Whether the originals of a view are gone.

    A view's links would otherwise keep the disk space of a model that the user has deleted. A
    copied file always has one name, so only linked files show whether their original is gone.
    """
    try:
        notes = json.loads(folder.with_suffix(".json").read_text())
    except FileNotFoundError:
        return True
    if not Path(notes["source"]).exists():
        return True
    return any((folder / name).stat().st_nlink == 1 for name in notes["linked"])
