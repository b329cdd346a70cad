"""The server from which build jails fetch packages: what it serves, keeps and refuses.

It starts the server itself: only build jails talk to it otherwise.
"""

import hashlib
import http.client
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seer.environment.packages import _index_server
from seer.environment.packages._index_server import IndexServer
from seer.environment.packages._indexes import read_index_settings
from tests.attacks.package_index import PackageIndex
from tests.waiting import wait_until

JSON = "application/vnd.pypi.simple.v1+json"


class _Connection(http.client.HTTPConnection):
    """A connection over the server's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("127.0.0.1", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/seer/packages"


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with PackageIndex("me:word") as served:
        served.add_wheel("pkg")
        yield served


@pytest.fixture
def server(index: PackageIndex, tmp_path: Path) -> Iterator[IndexServer]:
    environ = {"UV_DEFAULT_INDEX": index.url, "UV_NO_CONFIG": "1", "PIP_CONFIG_FILE": "/dev/null"}
    with IndexServer(read_index_settings(environ, home=tmp_path)) as served:
        yield served


def get(
    server: IndexServer, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, bytes]:
    connection = _Connection(server.folder / "socket")
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def links(server: IndexServer, package: str) -> list[str]:
    """The paths of a package's files, as the page has them."""
    status, body = get(server, f"/index/0/{package}/")
    assert status == 200
    base = re.escape(f"http://127.0.0.1:{server.port}")
    return re.findall(rf'href="{base}(/file/[^"#]+)', body.decode())


def test_a_listed_file_is_given_out_and_kept(
    server: IndexServer, index: PackageIndex, cache: Path
) -> None:
    (path,) = links(server, "pkg")
    status, body = get(server, path)
    assert status == 200
    digest = hashlib.sha256(body).hexdigest()
    assert (cache / f"sha256-{digest}").read_bytes() == body
    index.requests.clear()
    assert get(server, path) == (200, body)
    assert get(server, path, method="HEAD") == (200, b"")
    assert index.requests == []


def test_pages_in_json_lead_here_too(server: IndexServer, index: PackageIndex) -> None:
    names = ("x-1.0.tar.gz", "x.txt")
    files = [{"filename": name, "url": f"../../files/{name}"} for name in names]
    index.add("x-1.0.tar.gz", b"content")
    index.pages["x"] = json.dumps({"name": "x", "files": files})
    index.kind = JSON
    status, body = get(server, "/index/0/x/", {"Accept": JSON})
    assert status == 200
    (found,) = json.loads(body)["files"]
    path = found["url"].removeprefix(f"http://127.0.0.1:{server.port}")
    assert get(server, path) == (200, b"content")


def test_a_file_without_a_stated_hash_is_not_kept(
    server: IndexServer, index: PackageIndex, cache: Path
) -> None:
    index.add("y-1.0.tar.gz", b"content")
    index.pages["y"] = '<a href="../../files/y-1.0.tar.gz">y</a>'
    (path,) = links(server, "y")
    assert get(server, path) == (200, b"content")
    assert not list(cache.glob("sha*"))


def test_a_file_with_another_hash_is_cut_off(
    server: IndexServer, index: PackageIndex, cache: Path
) -> None:
    index.add("z-1.0.tar.gz", b"content", stated="0" * 64)
    (path,) = links(server, "z")
    with pytest.raises(http.client.IncompleteRead):
        get(server, path)
    assert not list(cache.glob("sha*"))
    assert "does not have the sha256" in server.problems[0]


def test_metadata_beside_a_file_is_given_out(server: IndexServer, index: PackageIndex) -> None:
    (path,) = links(server, "pkg")
    index.add("pkg-1.0-py3-none-any.whl.metadata", b"Name: pkg\n")
    assert get(server, f"{path}.metadata") == (200, b"Name: pkg\n")


def test_addresses_are_translated_and_restored(server: IndexServer, index: PackageIndex) -> None:
    here = server.translate(f"see {index.url}/pkg/")
    assert here == f"see http://127.0.0.1:{server.port}/index/0/pkg/"
    real = f"http://127.0.0.1:{index.port}"
    assert server.restore(here) == f"see {real}/simple/pkg/"
    (path,) = links(server, "pkg")
    said = f"failed: `http://127.0.0.1:{server.port}{path}`"
    assert server.restore(said) == f"failed: `{real}/files/pkg-1.0-py3-none-any.whl`"
    assert "word" not in server.restore(here)


def test_whatever_a_build_asks_for_the_index_is_asked_for_pages_and_listed_files_only(
    server: IndexServer, index: PackageIndex
) -> None:
    (path,) = links(server, "pkg")
    index.requests.clear()
    chosen = random.Random(7)
    pieces = [
        *("/index/", "/file/", "0", "1", "-1", "pkg", "..", "%2e%2e", "/", "//", "?", "#", ":"),
        *("http://127.0.0.1:1/", "files", "simple", ".metadata", "\\", "%00", "%2f", "é", path),
    ]
    statuses: set[int] = set()
    for _ in range(200):
        text = "/" + "".join(chosen.choice(pieces) for _ in range(chosen.randint(1, 6)))
        encoded = text.encode("utf-8").decode("latin-1")
        connection = _Connection(server.folder / "socket")
        connection.connect()
        connection.sock.sendall(f"GET {encoded} HTTP/1.1\r\n\r\n".encode("latin-1"))
        answer = connection.sock.recv(65536)
        statuses.add(int(answer.split()[1]))
        connection.close()
    assert statuses <= {200, 400, 404}
    assert {re.sub(r"/simple(/[\w.-]*/?)?", "page", asked) for asked in index.requests} <= {
        "page",
        "/files/pkg-1.0-py3-none-any.whl",
        "/files/pkg-1.0-py3-none-any.whl.metadata",
    }


def test_more_connections_than_there_are_places_do_not_stop_it(server: IndexServer) -> None:
    held = [_Connection(server.folder / "socket") for _ in range(200)]
    for connection in held:
        connection.connect()
    for connection in held:
        connection.close()

    def answers() -> bool:
        try:
            return get(server, "/index/0/pkg/")[0] == 200
        except (ConnectionError, http.client.HTTPException):
            return False  # until the threads have noticed

    wait_until(answers, "it answers again")


def test_a_name_that_is_rebound_between_check_and_connection_leads_nowhere(
    server: IndexServer, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo
    answers = ["198.51.100.1"]

    def rebound(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "rebound.test":
            host = answers.pop() if answers else "127.0.0.1"
        return real(host, *arguments, **options)

    with socket.create_server(("127.0.0.1", 0)) as service:
        service.setblocking(False)
        port = service.getsockname()[1]
        index.pages["re"] = f'<a href="http://rebound.test:{port}/re-1.0.tar.gz">re</a>'
        (path,) = links(server, "re")
        monkeypatch.setattr(socket, "getaddrinfo", rebound)
        assert get(server, path)[0] == 403
        assert answers == []
        with pytest.raises(BlockingIOError):
            service.accept()


@pytest.mark.parametrize("packed", [True, False])
def test_a_page_without_end_or_one_that_unpacks_to_it_is_refused(
    server: IndexServer, index: PackageIndex, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(_index_server, "_LARGEST_PAGE", 1 << 20)
    index.packed = packed
    index.pages["fine"] = '<a href="../../files/pkg-1.0-py3-none-any.whl">x</a>' + " " * 1000
    index.pages["bomb"] = index.pages["fine"] + " " * (8 << 20)
    assert get(server, "/index/0/bomb/")[0] == 424
    assert "a page of more than 1 MiB" in server.problems[0]
    assert len(links(server, "fine")) == 1


def test_what_went_wrong_is_not_noted_without_end(server: IndexServer, index: PackageIndex) -> None:
    index.add("z-1.0.tar.gz", b"content", stated="0" * 64)
    (path,) = links(server, "z")
    for _ in range(20):
        with pytest.raises(http.client.IncompleteRead):
            get(server, path)
    assert len(server.problems) <= 5
