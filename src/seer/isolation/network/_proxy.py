"""The only way from a jail to the network: an HTTP proxy that checks the target of each request.

It runs outside the jail as its own process: `python -I proxy.py --fd N --policy-fd M`, where N is a
listening Unix socket and M has the JSON of a `ProxyPolicy`. It ends when its standard input closes,
so its parent holds a pipe to it. It is one file that uses only the standard library, because it is
started by its path, without the package around it.

The proxy resolves each name, checks every address, and connects to the address that it checked, so
a different second answer from the name server has no effect. It does not inspect TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import ipaddress
import json
import os
import re
import socket
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_REFUSED_V4 = tuple(
    (ipaddress.IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local or cloud metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved or cloud metadata"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "IPv6 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved or broadcast"),
    )
)
# Only publicly routed IPv6 addresses pass: 2000::/3. This excludes loopback, ::, mapped and NAT64
# addresses (which lead back to IPv4), unique-local, link-local and multicast addresses.
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    (ipaddress.IPv6Network(network), reason)
    for network, reason in (
        ("2001::/23", "Teredo or reserved"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4, leads back to IPv4"),
        ("3fff::/20", "documentation"),
    )
)
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,254}}$){_LABEL}(?:\.{_LABEL})*\.?")
_V6 = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\]")
_NOT_PUBLIC = "it has no public address"
"""The reason is the same for unknown names and for private addresses, so that a jail cannot learn
which names a private network has."""
_HOP_HEADERS = frozenset(
    (
        *("connection", "keep-alive", "te", "trailer", "upgrade", "host"),
        *("proxy-connection", "proxy-authenticate", "proxy-authorization"),
    )
)


class Refused(Exception):
    """A request that is refused."""

    def __init__(
        self, status: str, reason: str, *, logged: str = "", host: str = "", port: int = 0
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        """The reason that the jail sees."""
        self.logged = logged or reason
        """The reason in the log, which the jail cannot read."""
        self.host = host
        self.port = port


@dataclass(frozen=True)
class ProxyPolicy:
    """Which requests the proxy allows, and its limits."""

    label: str
    """The jail's name in the log."""
    hosts: list[str] | None = None
    """Hosts that may be reached (`*.name` for all subdomains); None for the whole internet."""
    log: str | None = None
    """A file that gets one JSON line per refused request."""
    uid: int | None = None
    """As root: the user to become."""
    names: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Fixed addresses for names, instead of a lookup. They are checked like other addresses."""
    max_connections: int = 128
    header_bytes: int = 32768
    header_timeout: float = 30.0
    connect_timeout: float = 15.0
    idle_timeout: float = 300.0
    max_log_lines: int = 10000


def refusal(address: Address) -> str | None:
    """Why an address may not be reached; None if it may be."""
    if isinstance(address, ipaddress.IPv4Address):
        for network, reason in _REFUSED_V4:
            if address in network:
                return reason
        return None
    if address not in _PUBLIC_V6:
        return "not a public IPv6 address"
    for network, reason in _REFUSED_V6:
        if address in network:
            return reason
    return None


def is_own(address: Address) -> bool:
    """Whether the address belongs to this machine, and so leads to the same place as loopback."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def host_allowed(host: str, patterns: list[str] | None) -> bool:
    """Whether a host is on the list.

    Args:
        host: A well-formed name or an address.
        patterns: Names in lower case without a trailing dot; `*.name` means every subdomain of the
            name, at any depth, but not the name itself.
    """
    if patterns is None:
        return True
    name = host.removesuffix(".").lower()
    return any(
        name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern
        for pattern in patterns
    )


def split_authority(authority: str, default_port: int | None) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`.

    Raises:
        Refused: It does not have that form.
    """
    host, colon, port_text = authority.rpartition(":")
    if not colon or port_text.endswith("]"):
        host, port_text = authority, "" if default_port is None else str(default_port)
    if (
        not (_NAME.fullmatch(host) or _V6.fullmatch(host))
        or not port_text.isascii()
        or not port_text.isdigit()
    ):
        raise Refused("400 Bad Request", "not a host and port", host=authority[:253])
    port = int(port_text)
    if not 0 < port < 65536:
        raise Refused("400 Bad Request", "no such port", host=host, port=min(port, 65536))
    return host.strip("[]"), port


class _Pump:
    """Copies both directions of a connection. The connection is idle if neither carries data."""

    def __init__(self, idle_timeout: float) -> None:
        self._idle_timeout = idle_timeout
        self._last = time.monotonic()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes until the reader ends.

        Raises:
            TimeoutError: The connection was idle for too long.
        """
        while True:
            try:
                async with asyncio.timeout(self._idle_timeout):
                    data = await reader.read(65536)
            except TimeoutError:
                if time.monotonic() - self._last >= self._idle_timeout:
                    raise
                continue
            self._last = time.monotonic()
            if not data:
                break
            writer.write(data)
            async with asyncio.timeout(self._idle_timeout):
                await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


class Proxy:
    """Answers the requests of one jail."""

    def __init__(self, policy: ProxyPolicy) -> None:
        self._policy = policy
        self._open = 0
        self._logged = 0
        self._log: int | None = None
        if policy.log is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._log = os.open(policy.log, flags, 0o600)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: one request, then bytes until both sides are done."""
        self._open += 1
        try:
            if self._open > 2 * self._policy.max_connections:
                return
            if self._open > self._policy.max_connections:
                raise Refused("503 Service Unavailable", "too many connections")
            await self._serve(reader, writer)
        except Refused as refused:
            self._log_refusal(refused)
            body = f"refused by the sandbox's network policy: {refused.reason}\n".encode()
            head = f"HTTP/1.1 {refused.status}\r\nContent-Length: {len(body)}\r\n"
            await _send_refusal(reader, writer, f"{head}Connection: close\r\n\r\n".encode() + body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # The peer is gone.
        finally:
            self._open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, headers = await self._head(reader)
        method, target, version = request
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise Refused("505 HTTP Version Not Supported", "not HTTP/1")
        if method == "CONNECT":
            host, port = split_authority(target, None)
            upstream = await self._connect(host, port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._tunnel((reader, writer), upstream)
            return
        try:
            url = urlsplit(target)
        except ValueError:
            raise Refused("400 Bad Request", "not a URL", host=target[:253]) from None
        if url.scheme != "http" or not url.netloc or "@" in url.netloc:
            raise Refused("400 Bad Request", "only http:// URLs and CONNECT", host=target[:253])
        host, port = split_authority(url.netloc, 80)
        length = _body_length(headers)
        upstream = await self._connect(host, port)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        lines = [f"{method} {path} HTTP/1.1", f"Host: {url.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers if name.lower() not in _HOP_HEADERS]
        upstream[1].write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        await self._exchange((reader, writer), upstream, length)

    async def _head(
        self, reader: asyncio.StreamReader
    ) -> tuple[tuple[str, str, str], list[tuple[str, str]]]:
        try:
            async with asyncio.timeout(self._policy.header_timeout):
                raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise Refused("431 Request Header Fields Too Large", "head too large") from None
        lines = raw.decode("latin-1").split("\r\n")[:-2]
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[0].isalpha() or not parts[1].isprintable():
            raise Refused("400 Bad Request", "not an HTTP request")
        headers: list[tuple[str, str]] = []
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise Refused("400 Bad Request", "a malformed header")
            if any(ord(character) < 32 and character != "\t" for character in value):
                raise Refused("400 Bad Request", "a malformed header")
            headers.append((name, value.strip()))
        return (parts[0], parts[1], parts[2]), headers

    async def _connect(self, host: str, port: int) -> Ends:
        if not host_allowed(host, self._policy.hosts):
            raise Refused("403 Forbidden", "host is not on the list", host=host, port=port)
        status, reason, logged = "403 Forbidden", _NOT_PUBLIC, "no such host"
        for address in await self._resolve(host):
            bad = refusal(address) or ("this machine's own" if is_own(address) else None)
            if bad is not None:
                logged = f"address {address} is refused: {bad}"
                continue
            try:
                async with asyncio.timeout(self._policy.connect_timeout):
                    return await asyncio.open_connection(str(address), port)
            except (OSError, TimeoutError) as error:
                reason = f"it cannot be reached: {type(error).__name__}"
                status, logged = "502 Bad Gateway", f"{address}: {reason}"
        raise Refused(status, reason, logged=logged, host=host, port=port)

    async def _resolve(self, host: str) -> list[Address]:
        if host in self._policy.names:
            return [ipaddress.ip_address(text) for text in self._policy.names[host]]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._policy.connect_timeout):
                found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError):
            return []
        return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]

    async def _tunnel(self, inner: Ends, outer: Ends) -> None:
        pump = _Pump(self._policy.idle_timeout)
        try:
            await asyncio.gather(pump.copy(inner[0], outer[1]), pump.copy(outer[0], inner[1]))
        finally:
            outer[1].close()

    async def _exchange(self, inner: Ends, outer: Ends, length: int | None) -> None:
        """Send one request's body and pass on the answer. No second request can follow."""
        pump = _Pump(self._policy.idle_timeout)
        body = _send_chunks if length is None else _send_bytes
        sending = asyncio.ensure_future(body(inner[0], outer[1], length or 0))
        try:
            await pump.copy(outer[0], inner[1])
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            outer[1].close()

    def _log_refusal(self, refused: Refused) -> None:
        if self._log is None or self._logged > self._policy.max_log_lines:
            return
        self._logged += 1
        reason = refused.logged
        if self._logged > self._policy.max_log_lines:
            reason = "too many refusals; further ones are not logged"
        line = {
            "time": time.time(),
            "caller": self._policy.label,
            "host": refused.host,
            "port": refused.port,
            "reason": reason,
        }
        os.write(self._log, (json.dumps(line) + "\n").encode())


async def _send_bytes(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int
) -> None:
    while length:
        data = await reader.read(min(length, 65536))
        if not data:
            return
        length -= len(data)
        writer.write(data)
        await writer.drain()


async def _send_chunks(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _length: int
) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        size_text = line.split(b";", 1)[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size_text):
            return
        size = int(size_text, 16)
        writer.write(b"%x\r\n" % size)
        await _send_bytes(reader, writer, size)
        # Trailers are not forwarded: the last chunk must be followed by an empty line.
        if await reader.readexactly(2) != b"\r\n":
            return
        writer.write(b"\r\n")
        await writer.drain()
        if not size:
            return


async def _send_refusal(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
) -> None:
    """Answer, then read the remaining input: closing with unread bytes would lose the answer."""
    # The timeout closes the connection even if the client does not read.
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(2):
            writer.write(data)
            await writer.drain()
            writer.write_eof()
            while await reader.read(65536):
                continue


def _body_length(headers: list[tuple[str, str]]) -> int | None:
    """The length of a request's body; None if it is chunked.

    Raises:
        Refused: The headers are ambiguous.
    """
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value for name, value in headers if name.lower() == "transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise Refused("400 Bad Request", "an ambiguous body")
    if codings:
        if codings[0].lower() != "chunked":
            raise Refused("400 Bad Request", "an unknown transfer coding")
        return None
    if lengths and not (lengths[0].isascii() and lengths[0].isdigit()):
        raise Refused("400 Bad Request", "a malformed length")
    return int(lengths[0]) if lengths else 0


async def serve(listener: socket.socket, policy: ProxyPolicy, life: int) -> None:
    """Serve on `listener` until the other end of the descriptor `life` is closed."""
    proxy = Proxy(policy)
    loop = asyncio.get_running_loop()
    # The first lookup loads modules and libraries that `policy.uid` may not be able to read.
    with contextlib.suppress(OSError):
        await loop.getaddrinfo("localhost", None)
    if policy.uid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(policy.uid, policy.uid, policy.uid)
        os.setresuid(policy.uid, policy.uid, policy.uid)
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
    ended = asyncio.Event()

    def look() -> None:
        if not os.read(life, 4096):
            ended.set()

    loop.add_reader(life, look)
    # Not `start_unix_server`: Python 3.13 would look up the file at the socket's address. Another
    # process has bound the socket, and its address may name another file here.
    server = await asyncio.start_server(
        proxy.handle, sock=listener, limit=policy.header_bytes, backlog=512
    )
    await ended.wait()
    server.close()
    # Open tunnels end with the process.
    os._exit(0)


def main() -> None:
    """Read the policy, and serve."""
    parser = argparse.ArgumentParser(description="The filtering proxy of a jail.")
    parser.add_argument("--fd", type=int, required=True, help="a listening Unix socket")
    parser.add_argument(
        "--policy-fd", type=int, required=True, help="a descriptor with the policy's JSON"
    )
    arguments = parser.parse_args()
    # `pread` keeps the file position: a killed proxy is restarted with the same descriptor.
    size = os.fstat(arguments.policy_fd).st_size
    policy = ProxyPolicy(**json.loads(os.pread(arguments.policy_fd, size, 0)))
    os.close(arguments.policy_fd)
    asyncio.run(serve(socket.socket(fileno=arguments.fd), policy, 0))


if __name__ == "__main__":
    main()
