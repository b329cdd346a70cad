"""A small model hub on loopback: enough of the Hugging Face protocol for real downloads.

It serves folders as model repositories, and misbehaves on request: refused tokens, gated models,
connections cut in the middle of a file, damaged bytes. It is not a store: nothing can be uploaded.
"""

import hashlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

_CHUNK = 1 << 16
_LARGE = 1024
"""Files from this size on are served as large files are: named by their SHA-256."""


@dataclass
class _Repo:
    commit: str
    files: dict[str, Path]
    revisions: set[str]
    gated: bool = False
    token: str | None = None


@dataclass
class _Faults:
    cuts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    damaged: set[str] = field(default_factory=set[str])
    held: dict[str, threading.Event] = field(default_factory=dict[str, threading.Event])


class LoopbackHub:
    """A hub server; use it as a context manager.

    Attributes:
        downloads: How often each file was asked for with GET, by `repo/path`.
        arrived: Set when a request for a held file has come in.
    """

    def __init__(self) -> None:
        self._repos: dict[str, _Repo] = {}
        self._faults = _Faults()
        self._lock = threading.Lock()
        self.downloads: Counter[str] = Counter()
        self.arrived = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def url(self) -> str:
        """The value for `HF_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for event in self._faults.held.values():
            event.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add_model(
        self,
        repo_id: str,
        folder: Path,
        *,
        revisions: tuple[str, ...] = ("main",),
        gated: bool = False,
        token: str | None = None,
    ) -> str:
        """Serve a folder as a model.

        Args:
            repo_id: The model's id.
            folder: Its files.
            revisions: Branches and tags that name its one commit.
            gated: Refuse all downloads as a gated model's.
            token: The one token that may read it; None lets everyone.

        Returns:
            The commit.
        """
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path for path in paths}
        digest = hashlib.sha1(repo_id.encode(), usedforsecurity=False)
        for name, path in files.items():
            digest.update(name.encode() + path.read_bytes())
        commit = digest.hexdigest()
        self._repos[repo_id] = _Repo(commit, files, {*revisions, commit}, gated, token)
        return commit

    def cut(self, repo_id: str, name: str, *, after: int, times: int = 1) -> None:
        """Cut the connection `times` times once `after` bytes of a file's answer are sent."""
        self._faults.cuts[f"{repo_id}/{name}"] = [after] * times

    def damage(self, repo_id: str, name: str) -> None:
        """Serve a file with one bit changed."""
        self._faults.damaged.add(f"{repo_id}/{name}")

    def hold(self, repo_id: str, name: str) -> threading.Event:
        """Answer requests for a file only once the returned event is set."""
        return self._faults.held.setdefault(f"{repo_id}/{name}", threading.Event())

    def find(self, repo_id: str) -> _Repo | None:
        """The repository of this id."""
        return self._repos.get(repo_id)

    def started(self, file: str) -> tuple[int | None, bool]:
        """Note a download; returns where to cut it, and whether to damage it."""
        with self._lock:
            self.downloads[file] += 1
            cuts = self._faults.cuts.get(file, [])
            limit = cuts.pop(0) if cuts else None
        gate = self._faults.held.get(file)
        if gate is not None:
            self.arrived.set()
            gate.wait(60)
        return limit, file in self._faults.damaged


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: LoopbackHub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: clients that disconnect are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Keep standard error for the tests."""

    def _answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api(parts[2:])
        elif "resolve" in parts:
            at = parts.index("resolve")
            repo = self._open("/".join(parts[:at]), parts[at + 1])
            if repo is not None:
                self._file("/".join(parts[:at]), repo, "/".join(parts[at + 2 :]))
        else:
            self._fail(404, "", "no such address")

    def _api(self, parts: list[str]) -> None:
        at = next((i for i, part in enumerate(parts) if part in ("revision", "tree")), len(parts))
        revision = parts[at + 1] if at < len(parts) else "main"
        repo = self._open("/".join(parts[:at]), revision)
        if repo is None:
            return
        if parts[at : at + 1] == ["tree"]:
            self._json([_entry(name, path) for name, path in repo.files.items()])
        else:
            siblings = [_sibling(name, path) for name, path in repo.files.items()]
            name = "/".join(parts[:at])
            self._json({"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings})

    def _open(self, repo_id: str, revision: str) -> _Repo | None:
        """The repository, or None after an error was sent, as the real hub words it."""
        repo = self.server.hub.find(repo_id)
        if repo is None:
            self._fail(404, "RepoNotFound", "Repository not found")
        elif repo.gated:
            self._fail(403, "GatedRepo", f"Access to model {repo_id} is restricted")
        elif repo.token is not None and self.headers["Authorization"] != f"Bearer {repo.token}":
            self._fail(401, "", "Invalid credentials in Authorization header")
        elif revision not in repo.revisions:
            self._fail(404, "RevisionNotFound", "Invalid rev id")
        else:
            return repo
        return None

    def _file(self, repo_id: str, repo: _Repo, name: str) -> None:
        path = repo.files.get(name)
        if path is None:
            self._fail(404, "EntryNotFound", "Entry not found")
            return
        size, oid, sha256 = _hashes(path)
        etag = sha256 or oid
        start = 0
        wanted = self.headers["Range"]
        if wanted:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(size - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        if self.command == "GET":
            self._send(f"{repo_id}/{name}", path, start)

    def _send(self, file: str, path: Path, start: int) -> None:
        limit, damage = self.server.hub.started(file)
        sent = 0
        with path.open("rb") as stream:
            stream.seek(start)
            while chunk := stream.read(_CHUNK):
                if damage and sent == 0:
                    chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
                if limit is not None and sent + len(chunk) > limit:
                    self.wfile.write(chunk[: limit - sent])
                    self.close_connection = True
                    return
                self.wfile.write(chunk)
                sent += len(chunk)

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _fail(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _hashes(path: Path) -> tuple[int, str, str | None]:
    """A file's size, its git hash and, for a large file, its SHA-256."""
    data = path.read_bytes()
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    large = len(data) >= _LARGE and path.suffix == ".safetensors"
    return len(data), oid, hashlib.sha256(data).hexdigest() if large else None


def _sibling(name: str, path: Path) -> dict[str, object]:
    size, oid, sha256 = _hashes(path)
    entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": oid}
    if sha256 is not None:
        entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 130}
    return entry


def _entry(name: str, path: Path) -> dict[str, object]:
    size, oid, sha256 = _hashes(path)
    entry: dict[str, object] = {"type": "file", "path": name, "size": size, "oid": oid}
    if sha256 is not None:
        entry["lfs"] = {"oid": sha256, "size": size, "pointerSize": 130}
    return entry
