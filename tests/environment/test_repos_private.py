"""Private repositories over HTTP on loopback: the token opens them and appears nowhere.

It prepares repositories itself, because these cases need no machine.
"""

import base64
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from seer.environment import RepoConfig
from seer.environment.repos._repos import prepare_repo
from seer.errors import RepoError, SecretMissingError

pytestmark = pytest.mark.full

TOKEN = "tok-3n/+secret"


class GitServer(ThreadingHTTPServer):
    """git's own HTTP backend behind a check of the token."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.redirect: str | None = None
        self.offered: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/repo.git"


class _Handler(BaseHTTPRequestHandler):
    server: GitServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """Keep standard error for the tests."""

    def _serve(self) -> None:
        offered = self.headers["Authorization"]
        if offered:
            self.server.offered.append(base64.b64decode(offered.split()[1]).decode())
        if self.server.redirect is not None:
            self.send_response(302)
            self.send_header("Location", self.server.redirect + self.path)
            self.end_headers()
            return
        if not offered or not self.server.offered[-1].endswith(f":{TOKEN}"):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._backend()

    def _backend(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "CONTENT_TYPE": self.headers["Content-Type"] or "",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
            "GIT_PROTOCOL": self.headers["Git-Protocol"] or "",
        }
        done = subprocess.run(
            ["git", "http-backend"], env=environment, input=body, capture_output=True, check=True
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    work = tmp_path / "work"
    work.mkdir()
    (work / "file.txt").write_text("private")
    for arguments in (
        ["init", "--quiet", "-b", "main"],
        ["add", "."],
        [*identity, "commit", "--quiet", "-m", "x"],
        ["clone", "--quiet", "--bare", ".", str(tmp_path / "srv" / "repo.git")],
    ):
        subprocess.run(["git", *arguments], cwd=work, check=True)
    running = GitServer(tmp_path / "srv")
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


async def test_the_token_opens_a_private_repository_and_is_stored_nowhere(
    server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "stored-credentials"
    config = tmp_path / "gitconfig"
    config.write_text(f"[credential]\n\thelper = store --file {store}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    repo = await prepare_repo(RepoConfig(server.url, ref="main", token_secret="MY_TOKEN"))
    assert (repo.host_path / "file.txt").read_text() == "private"
    assert server.offered[-1] == f"x-access-token:{TOKEN}"
    assert not store.exists()
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes()


@pytest.mark.parametrize("place", ["dotenv", "environment"])
async def test_the_token_is_in_no_argument_and_no_environment(
    server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    seen = tmp_path / "seen"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    real = shutil.which("git")
    wrapper.write_text(f'#!/bin/sh\n(echo "$@"; env) >> {seen}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    if place == "dotenv":
        monkeypatch.chdir(tmp_path)
        (tmp_path / ".env").write_text(f"MY_TOKEN='{TOKEN}'\n")
    else:
        monkeypatch.setenv("MY_TOKEN", TOKEN)
    await prepare_repo(RepoConfig(server.url, token_secret="MY_TOKEN"))
    assert "fetch" in seen.read_text()
    assert TOKEN not in seen.read_text()


async def test_a_wrong_token_is_a_clear_error_without_the_token(
    server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "wrong-token")
    with pytest.raises(RepoError, match="token_secret") as caught:
        await prepare_repo(RepoConfig(server.url, token_secret="MY_TOKEN"))
    assert "wrong-token" not in str(caught.value)


async def test_without_a_token_the_error_says_what_to_do(server: GitServer) -> None:
    with pytest.raises(RepoError, match="token_secret"):
        await prepare_repo(RepoConfig(server.url))


async def test_a_missing_secret_is_named(server: GitServer) -> None:
    with pytest.raises(SecretMissingError, match="SEER_NO_SUCH_TOKEN"):
        await prepare_repo(RepoConfig(server.url, token_secret="SEER_NO_SUCH_TOKEN"))


async def test_a_redirect_does_not_carry_the_token_to_another_host(
    server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thief = GitServer(tmp_path / "srv")
    thread = threading.Thread(target=thief.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        server.redirect = thief.url.removesuffix("/repo.git")
        monkeypatch.setenv("MY_TOKEN", TOKEN)
        with pytest.raises(RepoError):
            await prepare_repo(RepoConfig(server.url, token_secret="MY_TOKEN"))
    finally:
        thief.shutdown()
        thief.server_close()
        thread.join()
    assert not thief.offered
