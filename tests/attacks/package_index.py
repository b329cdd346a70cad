"""A package index on loopback, for tests: what it serves, and a log of the requests."""

import base64
import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class PackageIndex:
    """An index that a test fills. Use as a context manager.

    Attributes:
        requests: The paths that it was asked for.
        pages: Pages to serve instead of generated ones, by package.
        redirects: Paths of files -> the addresses to which requests are redirected.
        logins: The logins that came with the requests.
        kind: The content type of its answers.
        packed: Whether its pages are sent compressed.
        login: `user:password` that it requires, if any.
    """

    def __init__(self, login: str | None = None) -> None:
        self._files: dict[str, bytes] = {}
        self._stated: dict[str, str] = {}
        self.requests: list[str] = []
        self.pages: dict[str, str] = {}
        self.redirects: dict[str, str] = {}
        self.logins: list[str | None] = []
        self.kind = "text/html"
        self.packed = False
        self.login = login
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> "PackageIndex":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        at = f"{self.login}@" if self.login else ""
        return f"http://{at}127.0.0.1:{self.port}/simple"

    def add_wheel(
        self, name: str, version: str = "1.0", *, files: Mapping[str, str] | None = None
    ) -> str:
        """Add a wheel with these files (a module of its name by default); its file name."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as wheel:
            for path, text in wheel_files(name, version, files).items():
                wheel.writestr(path, text)
        return self.add(f"{name}-{version}-py3-none-any.whl", content.getvalue())

    def add_sdist(self, name: str, version: str, backend: str) -> str:
        """Add a source distribution whose build runs `backend`; its file name."""
        files = {
            "pyproject.toml": (
                '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            ),
            "backend.py": BACKEND.format(name=name, version=version) + backend,
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        }
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(f"{name}-{version}/{path}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        return self.add(f"{name}-{version}.tar.gz", content.getvalue())

    def add(self, file: str, content: bytes, *, stated: str | None = None) -> str:
        """Add a file; `stated` is the hash that the index claims it has."""
        self._files[file] = content
        self._stated[file] = stated or hashlib.sha256(content).hexdigest()
        return file

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                index.requests.append(self.path)
                index.logins.append(self.headers.get("Authorization"))
                status, body = index.answer(self.path, self.headers.get("Authorization"))
                moved = index.redirects.get(self.path)
                self.send_response(status if moved is None else 302)
                if moved is not None:
                    self.send_header("Location", moved)
                self.send_header("Content-Type", index.kind)
                if index.packed and self.path.startswith("/simple/"):
                    self.send_header("Content-Encoding", "gzip")
                    body = gzip.compress(body)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        """Status and body for one path."""
        if self.login is not None:
            wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
            if authorization != wanted:
                return 401, b""
        _, kind, *rest = [*path.split("/"), ""]
        if kind == "files" and rest[0] in self._files:
            return 200, self._files[rest[0]]
        if kind != "simple":
            return 404, b""
        if rest[0] in self.pages:
            return 200, self.pages[rest[0]].encode()
        links = [
            f'<a href="../../files/{file}#sha256={self._stated[file]}">{file}</a>'
            for file in self._files
            if file.partition("-")[0] == rest[0].replace("-", "_")
        ]
        return (200, "\n".join(links).encode()) if links else (404, b"")


def wheel_files(name: str, version: str, files: Mapping[str, str] | None = None) -> dict[str, str]:
    """The contents of a wheel."""
    info = f"{name}-{version}.dist-info"
    content = dict(files) if files is not None else {f"{name}.py": f"version = {version!r}\n"}
    content |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    return {**content, f"{info}/RECORD": record}


BACKEND = '''
import os, sys, zipfile

def write_wheel(folder, text):
    """Write a wheel whose module has this text."""
    name = "{name}-{version}-py3-none-any.whl"
    info = "{name}-{version}.dist-info/"
    lines = lambda *parts: chr(10).join([*parts, ""])
    about = lines("Metadata-Version: 2.1", "Name: {name}", "Version: {version}")
    kind = lines("Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any")
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("{name}.py", text)
        wheel.writestr(info + "METADATA", about)
        wheel.writestr(info + "WHEEL", kind)
        wheel.writestr(info + "RECORD", "")
    return name

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, attack())
'''
