"""The package index server for build jails. A build can reach nothing else on the network.

uv speaks plain HTTP to a forwarder on the jail's loopback. This server runs outside the jail and
asks the real indexes. It serves the pages of the configured indexes and the files that those pages
list, and nothing else. Credentials, certificates and proxies stay outside the jail.

A file whose hash the index states is checked while it is forwarded, and cached under that hash for
later builds. Nothing else is cached, so no build can change what another build gets.
"""

import base64
import contextlib
import errno
import fcntl
import gzip
import hashlib
import hmac
import html
import io
import ipaddress
import json
import logging
import os
import re
import secrets
import shutil
import socket
import socketserver
import ssl
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import IO, Any, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit

from seer import _janitor
from seer._paths import cache_dir
from seer._transient import TransientFolder
from seer.environment.packages._indexes import DEFAULT_INDEX, IndexSettings, origin
from seer.errors import visible
from seer.isolation import script
from seer.isolation.backends._container import is_rented
from seer.isolation.network._network import PROXY_PORT

logger = logging.getLogger(__name__)

_HASHES = ("sha256", "sha384", "sha512")
_PACKAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.(whl|zip|tar\.gz|tgz|tar\.bz2|tar\.xz|tar\.zst)"
)
_PAGE_PATH = re.compile(r"/index/([0-9]+)(?:/([A-Za-z0-9._-]*)/?)?")
_FILE_PATH = re.compile(r"/file/([A-Za-z0-9_=-]+)\.([0-9a-f]{32})/([^/?#]+)")
_PASSED_BACK = ("Content-Type", "Content-Range", "Accept-Ranges", "ETag", "Last-Modified")
_CHUNK = 1 << 20
_TIMEOUT = 60.0
_MOST_CONNECTIONS = 128
_LARGEST_PAGE = 256 << 20
_REMEMBERED_PAGES = 128 << 20
_MOST_BYTES = 256 << 30
"""The most bytes that one build may download. Its code could ask for every file of an index."""
_LIFE = 60 * 24 * 3600.0
_MOST_PROBLEMS = 5


_FAILURES = (OSError, EOFError, HTTPException, LookupError, TypeError, ValueError, zlib.error)
"""Errors that an unreachable index, or any answer of an index, can cause."""


class _Refusal(Exception):
    """A request that is refused."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class IndexServer:
    """Serves the configured indexes on a Unix socket. Use it as a context manager.

    Attributes:
        folder: The folder to mount in the jail. It has the `socket`, and `forward.py` to run in the
            jail.
        port: The port that the forwarder must listen on.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._remotes = tuple(_without_login(url) for url in settings.remotes)
        self._written = dict(zip(settings.remotes, range(len(settings.remotes)), strict=True))
        self._upstream = _Upstream(settings, {origin(url) for url in self._remotes})
        self._key = secrets.token_bytes(32)
        self._pages: dict[tuple[str, str], tuple[str, bytes]] = {}
        self._lock = threading.Lock()
        self._bytes_left = _MOST_BYTES
        self.port = _free_port() if is_rented() else PROXY_PORT
        self.problems: list[str] = []
        """What went wrong between this server and the indexes."""
        self._store = cache_dir() / "packages"
        self._store.mkdir(mode=0o700, exist_ok=True)
        self._private = TransientFolder("index")
        self.folder = self._private.folder("jail")
        self.folder.chmod(0o755)
        shutil.copyfile(script("forward"), self.folder / "forward.py")
        (self.folder / "forward.py").chmod(0o644)
        with _janitor.locked(str(self._store)):
            self._drafts = TransientFolder("draft", inside=self._store)
            self._alive = _janitor.open_lock(str(self._drafts.path))
            fcntl.flock(self._alive, fcntl.LOCK_EX)
        path = self.folder / "socket"
        self._server = _Server(str(path), self)
        path.chmod(0o666)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> "IndexServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        os.close(self._alive)
        self._drafts.remove()
        self._private.remove()
        _prune(self._store)

    # --- addresses ------------------------------------------------------------------------------

    @property
    def _base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def index_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables that point uv at this server, also when the settings name no default index."""
        translated = {name: self.translate(value) for name, value in env.items()}
        if DEFAULT_INDEX in self._written and not env.keys() & {"UV_DEFAULT_INDEX", "UV_INDEX_URL"}:
            translated["UV_DEFAULT_INDEX"] = self.translate(DEFAULT_INDEX)
        return translated

    def translate(self, text: str) -> str:
        """`text` with the indexes' addresses replaced by those of this server."""
        for url in sorted(self._written, key=len, reverse=True):
            text = text.replace(url, f"{self._base}/index/{self._written[url]}")
        return text

    def restore(self, text: str) -> str:
        """Undo `translate` in text from a build."""

        def file(match: re.Match[str]) -> str:
            try:
                return self._file_of(match[1])[0]
            except _Refusal:
                return match[0]

        text = re.sub(re.escape(self._base) + r"(/file/[^\s`'\"/]+/[^\s`'\"/]+)", file, text)
        for number, url in enumerate(self._remotes):
            text = re.sub(rf"{re.escape(self._base)}/index/{number}\b", lambda _, u=url: u, text)
        return text

    def file_address(self, url: str) -> str:
        """This server's address for a package file that the user named."""
        found = self._link(url, None)
        return found if found is not None else url

    def _link(self, url: str, hashes: Mapping[str, str] | None) -> str | None:
        """This server's address for a listed file; None if it is not a package."""
        parts = urlsplit(url)
        name = unquote(parts.path.rpartition("/")[2])
        if parts.scheme not in ("http", "https") or not _PACKAGE.fullmatch(name):
            return None
        algorithm, _, digest = parts.fragment.partition("=")
        stated = {algorithm: digest} if hashes is None else hashes
        known = next(([kind, stated[kind]] for kind in _HASHES if _is_hash(stated.get(kind))), None)
        content = json.dumps([parts._replace(fragment="").geturl(), known]).encode()
        token = base64.urlsafe_b64encode(content).decode()
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return f"{self._base}/file/{token}.{self._sign(token)}/{quote(name)}{fragment}"

    def _sign(self, token: str) -> str:
        return hmac.new(self._key, token.encode(), hashlib.sha256).hexdigest()[:32]

    def _file_of(self, path: str) -> tuple[str, tuple[str, str] | None]:
        """The real address of the file at a path, and the hash that the index states."""
        found = _FILE_PATH.fullmatch(path)
        if found is None or not hmac.compare_digest(self._sign(found[1]), found[2]):
            raise _Refusal(404, "no such file")
        content: list[Any] = json.loads(base64.urlsafe_b64decode(found[1]))
        url, known = str(content[0]), cast("list[str] | None", content[1])
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        asked = unquote(found[3])
        if asked == f"{name}.metadata":
            parts = urlsplit(url)
            return parts._replace(path=f"{parts.path}.metadata").geturl(), None
        return url, (known[0], known[1]) if known is not None else None

    # --- requests -------------------------------------------------------------------------------

    def answer(self, request: "_Request") -> None:
        """Answer one request of a build."""
        try:
            if request.path.startswith("/file/"):
                self._send_file(request)
            else:
                self._send_page(request)
        except _Refusal as refusal:
            self._send_error(request, refusal.status, refusal.reason)
        except HTTPError as error:
            with contextlib.closing(error):
                self._send_error(request, error.code, str(error.reason))
        except _FAILURES as error:
            where = self.restore(f"{self._base}{request.path}")
            self._add_problem(f"could not reach {where}: {error}")
            # uv retries after a 5xx, but not after a 424, which stands for a lasting failure.
            status = 424 if _is_lasting(error) else 503
            self._send_error(request, status, "the index could not be reached")

    def _send_error(self, request: "_Request", status: int, reason: str) -> None:
        if request.began:
            # The answer has begun, so only closing the connection can report the error.
            request.close_connection = True
            return
        with contextlib.suppress(OSError):
            request.send_response(status)
            body = f"{reason}\n".encode()
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(body)

    def _send_page(self, request: "_Request") -> None:
        found = _PAGE_PATH.fullmatch(request.path)
        if found is None or int(found[1]) >= len(self._remotes) or found[2] in (".", ".."):
            raise _Refusal(404, "not an index page")
        url = self._remotes[int(found[1])]
        if found[2]:
            url = f"{url.rstrip('/')}/{found[2]}/"
        kind, body = self._page(url, request.headers.get("Accept", "*/*"))
        self._begin(request, 200, len(body), {"Content-Type": kind})
        if request.command != "HEAD":
            request.wfile.write(body)

    def _page(self, url: str, accept: str) -> tuple[str, bytes]:
        key = (url, accept)
        known = self._pages.get(key)
        if known is not None:
            return known
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        with self._upstream.open(url, "GET", headers) as response:
            body = response.read(_LARGEST_PAGE + 1)
            if response.headers.get("Content-Encoding") == "gzip":
                with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
                    body = packed.read(_LARGEST_PAGE + 1)
            if len(body) > _LARGEST_PAGE:
                self._add_problem(f"{url} is a page of more than {_LARGEST_PAGE >> 20} MiB")
                raise _Refusal(424, "the page is too large")
            kind = response.headers.get("Content-Type", "text/html")
            page = kind, self._rewritten(response.url, kind, body)
        with self._lock:
            if sum(len(content) for _, content in self._pages.values()) < _REMEMBERED_PAGES:
                self._pages[key] = page
        return page

    def _rewritten(self, url: str, kind: str, body: bytes) -> bytes:
        """The page, with its links pointing to this server."""
        if "json" in kind:
            page = cast("dict[str, Any]", json.loads(body))
            files: list[dict[str, Any]] = []
            for file in cast("list[dict[str, Any]]", page.get("files", [])):
                link = self._link(urljoin(url, file["url"]), file.get("hashes") or {})
                if link is not None:
                    files.append({**file, "url": link})
            return json.dumps({**page, "files": files}).encode()
        links = _Links(url)
        links.feed(body.decode(errors="replace"))
        return links.page(lambda link: self._link(link, None)).encode()

    def _send_file(self, request: "_Request") -> None:
        url, known = self._file_of(request.path)
        if known is not None:
            with contextlib.suppress(FileNotFoundError):
                kept = self._store / f"{known[0]}-{known[1]}"
                with kept.open("rb") as file:
                    os.utime(kept)
                    self._begin(request, 200, os.fstat(file.fileno()).st_size, {})
                    if request.command != "HEAD":
                        shutil.copyfileobj(file, request.wfile, _CHUNK)
                    return
        wanted = {"Accept-Encoding": "identity"}
        if "Range" in request.headers:
            wanted["Range"] = request.headers["Range"]
        with self._upstream.open(url, request.command, wanted) as response:
            length = response.headers.get("Content-Length")
            size = int(length) if length is not None else None
            back = {k: response.headers[k] for k in _PASSED_BACK if k in response.headers}
            self._begin(request, response.status, size, back)
            if request.command != "HEAD":
                keep = known if response.status == 200 and "Range" not in wanted else None
                self._pass_on(request, response, keep, chunked=size is None)

    def _begin(
        self,
        request: "_Request",
        status: int,
        size: int | None,
        headers: Mapping[str, str],
    ) -> None:
        request.began = True
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        if size is not None:
            request.send_header("Content-Length", str(size))
        else:
            request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()

    def _pass_on(
        self,
        request: "_Request",
        response: HTTPResponse,
        known: tuple[str, str] | None,
        *,
        chunked: bool,
    ) -> None:
        """Forward a body. The last piece is sent only if the whole body has the stated hash."""
        # After an incomplete answer, the connection cannot be reused.
        request.close_connection = True
        digest = hashlib.new(known[0]) if known is not None else None
        draft = self._drafts.path / secrets.token_hex(8)
        held = b""
        with draft.open("wb") as copy:
            while data := response.read(_CHUNK):
                self._charge(len(data))
                if digest is not None:
                    digest.update(data)
                    copy.write(data)
                _write(request, held, chunked=chunked)
                held = data
        if response.length:
            raise ConnectionError("the index closed the connection in the middle of a file")
        if digest is not None and known is not None:
            if digest.hexdigest() != known[1].lower():
                reason = f"{response.url} does not have the {known[0]} that its index states"
                self._add_problem(reason)
                logger.warning("%s", visible(reason))
                return
            draft.replace(self._store / f"{known[0]}-{known[1]}")
        _write(request, held, chunked=chunked)
        if chunked:
            request.wfile.write(b"0\r\n\r\n")
        draft.unlink(missing_ok=True)
        request.close_connection = False

    def _add_problem(self, problem: str) -> None:
        with self._lock:
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(problem)

    def _charge(self, count: int) -> None:
        with self._lock:
            self._bytes_left -= count
            if self._bytes_left < 0:
                raise OSError(f"the build has downloaded more than {_MOST_BYTES >> 30} GiB")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, path: str, index: IndexServer) -> None:
        super().__init__(path, _Request)
        self.index = index
        self._free = threading.Semaphore(_MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a build's connection ended early: %r", sys.exc_info()[1])


class _Request(BaseHTTPRequestHandler):
    """One connection of a build."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT
    began = False
    """Whether an answer has begun."""

    def do_GET(self) -> None:
        self.began = False
        self.server.index.answer(self)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("build: %s", visible(format % args))


class _Links(HTMLParser):
    """The links of a page, with their attributes."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._found: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "base" and "href" in values:
            self._url = urljoin(self._url, values["href"])
        elif tag == "a" and "href" in values:
            self._found.append({**values, "href": urljoin(self._url, values["href"])})

    def page(self, link: Callable[[str], str | None]) -> str:
        """A page with the same links, each mapped by `link`. Links mapped to None are left out."""
        lines = ["<!DOCTYPE html><html><body>"]
        for values in self._found:
            target = link(values["href"])
            if target is None:
                continue
            written = " ".join(
                f'{name}="{html.escape(value)}"'
                for name, value in {**values, "href": target}.items()
                if re.fullmatch(r"href|data-[a-z-]+", name)
            )
            name = unquote(urlsplit(target).path.rpartition("/")[2])
            lines.append(f"<a {written}>{html.escape(name)}</a><br>")
        return "\n".join([*lines, "</body></html>"])


class _Upstream:
    """Asks the real indexes, with the user's credentials, certificates and proxies."""

    def __init__(self, settings: IndexSettings, own: set[str]) -> None:
        self._opener = urllib.request.OpenerDirector()
        insecure = settings.env.get("UV_INSECURE_HOST", "").split()
        for handler in (
            urllib.request.ProxyHandler(_proxies(settings.env)),
            _Http(own),
            _Https(own, _context(settings.env), insecure),
            urllib.request.HTTPDefaultErrorHandler(),
            _Redirects(),
            urllib.request.HTTPErrorProcessor(),
            _Guard(settings.logins, own),
        ):
            # No handlers for file: and ftp: addresses, which a page could list too.
            self._opener.add_handler(handler)

    def open(self, url: str, method: str, headers: Mapping[str, str]) -> HTTPResponse:
        request = urllib.request.Request(url, headers=dict(headers), method=method)
        request.add_header("User-Agent", "seer")
        found = self._opener.open(request, timeout=_TIMEOUT)
        if found is None:
            raise _Refusal(404, "only http and https addresses are served")
        return cast("HTTPResponse", found)


class _Guard(urllib.request.BaseHandler):
    """Checks where each request and redirect goes, and adds the login for that place."""

    def __init__(self, logins: Mapping[str, tuple[str, str]], own: set[str]) -> None:
        self._logins = logins
        self._own = own

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        where = origin(request.full_url)
        host = urlsplit(request.full_url).hostname or ""
        if where not in self._own and _is_here(host):
            raise _Refusal(403, f"{where} is this machine, not a configured index")
        login = self._logins.get(where) or self._logins.get(host)
        if login is not None:
            value = base64.b64encode(":".join(login).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {value}")
        return request

    https_request = http_request


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise _Refusal(502, "the index redirects from https to another scheme")
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is not None:
            followed.method = req.get_method()
        return followed


class _Connecting(urllib.request.AbstractHTTPHandler):
    """Connects to this machine only for configured indexes and proxies."""

    own: set[str]

    def do_open(
        self,
        http_class: Any,
        req: urllib.request.Request,
        **http_conn_args: Any,
    ) -> HTTPResponse:
        def connection(host: str, **options: Any) -> HTTPConnection:
            made = http_class(host, **options)
            made._create_connection = _connect_elsewhere
            return made

        # With a proxy, `req.host` is the proxy, which resolves names itself.
        direct = req.host == urlsplit(req.full_url).netloc
        wanted = connection if direct and origin(req.full_url) not in self.own else http_class
        return super().do_open(wanted, req, **http_conn_args)


class _Http(_Connecting, urllib.request.HTTPHandler):
    def __init__(self, own: set[str]) -> None:
        super().__init__()
        self.own = own


class _Https(_Connecting, urllib.request.HTTPSHandler):
    """Checks certificates, except for hosts that the user exempted."""

    def __init__(self, own: set[str], context: ssl.SSLContext, insecure: list[str]) -> None:
        super().__init__(context=context)
        self.own = own
        self._insecure = set(insecure)
        self._unchecked = self
        if insecure:
            unchecked = ssl.create_default_context()
            unchecked.check_hostname = False
            unchecked.verify_mode = ssl.CERT_NONE
            self._unchecked = _Https(own, unchecked, [])

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        host = urlsplit(req.full_url).hostname or ""
        if {origin(req.full_url), host} & self._insecure:
            return self._unchecked.https_open(req)
        return super().https_open(req)


def _context(env: Mapping[str, str]) -> ssl.SSLContext:
    file, folder = env.get("SSL_CERT_FILE"), env.get("SSL_CERT_DIR")
    context = ssl.create_default_context()
    if file is not None and Path(file).is_file():
        context.load_verify_locations(cafile=file)
    if folder is not None and Path(folder).is_dir():
        context.load_verify_locations(capath=folder)
    paths = ssl.get_default_verify_paths()
    if not (file or folder or paths.cafile or paths.capath):
        # An interpreter that was built elsewhere may not know where this system keeps its
        # certificates.
        with contextlib.suppress(ImportError):
            import certifi

            context.load_verify_locations(cafile=certifi.where())
    client = env.get("SSL_CLIENT_CERT")
    if client is not None and Path(client).is_file():
        context.load_cert_chain(client)
    return context


def _proxies(env: Mapping[str, str]) -> dict[str, str]:
    lower = {name.lower(): value for name, value in env.items()}
    everything = lower.get("all_proxy", "")
    found = {kind: lower.get(f"{kind}_proxy", everything) for kind in ("http", "https")}
    return {kind: url for kind, url in found.items() if url}


def _is_here(host: str) -> bool:
    """Whether a name leads to this machine, or to an address that only this machine can reach."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False  # perhaps behind a proxy; otherwise connecting raises its own error
    return any(_is_local(str(entry[4][0])) for entry in found)


def _is_local(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped if mapped is not None else address
    return address.is_loopback or address.is_link_local or address.is_unspecified


def _connect_elsewhere(
    address: tuple[str, int], timeout: float | None = None, _source: object = None
) -> socket.socket:
    """Connect to another machine, at exactly the addresses that were checked.

    An attacker's name server could answer differently each time.
    """
    host, port = address
    failure: OSError = OSError(f"{host} has no address")
    for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        found = str(entry[4][0])
        if _is_local(found):
            raise _Refusal(403, f"{host} is this machine, not a configured index")
        try:
            return socket.create_connection((found, port), timeout)
        except OSError as error:
            failure = error
    raise failure


def _is_lasting(error: Exception) -> bool:
    """Whether a retry would fail in the same way."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, (socket.gaierror, ConnectionRefusedError, ssl.SSLError)):
        return True
    return isinstance(cause, OSError) and cause.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)


def _free_port() -> int:
    """A free port that is too low for the kernel to assign, so that it can still be bound later."""
    while True:
        port = 16384 + secrets.randbelow(16384)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{64,128}", value) is not None


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _write(request: _Request, data: bytes, *, chunked: bool) -> None:
    if data:
        request.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)


def _prune(store: Path) -> None:
    """Remove files that no build has used for a long time, and drafts of killed builds."""
    _janitor.remove_abandoned(str(store))
    for path in store.glob("sha*-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > _LIFE:
                path.unlink()
