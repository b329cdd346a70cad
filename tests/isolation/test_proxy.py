"""What the proxy refuses, over its Unix socket; no connection leaves this machine.

It starts the proxy itself, without a jail.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st

from seer.errors import ConfigError
from seer.isolation.network._network import proxy_environment, proxy_launch
from seer.isolation.network._proxy import Proxy, ProxyPolicy, host_allowed, refusal

Ask = Callable[[bytes], Awaitable[str]]

REFUSED = (
    "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.8.9.1 168.63.129.16 "
    "169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 "
    "198.18.0.1 198.51.100.7 203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 "
    ":: ::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 64:ff9b::7f00:1 64:ff9b:1::1 100::1 fe80::1 fec0::1 "
    "fc00::1 fd00:ec2::254 ff02::1 2001::1 2001:20::1 2001:db8::1 2002:7f00:1::1 3fff::1 5f00::1"
)
PASSED = "8.8.8.8 93.184.216.34 1.1.1.1 172.32.0.1 100.128.0.1 2606:4700::1111 2a00:1450::1"


@pytest.mark.parametrize("text", REFUSED.split())
def test_addresses_that_are_not_public_are_refused(text: str) -> None:
    assert refusal(ipaddress.ip_address(text)) is not None


@pytest.mark.parametrize("text", PASSED.split())
def test_public_addresses_pass(text: str) -> None:
    assert refusal(ipaddress.ip_address(text)) is None


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.org", True),
        ("EXAMPLE.org.", True),
        ("evil-example.org", False),
        ("example.org.evil.com", False),
        ("a.sub.net", True),
        ("b.a.sub.net", True),
        ("sub.net", False),
        ("evilsub.net", False),
        ("SUB.NET.", False),
        ("A.Sub.Net.", True),
        ("a.sub.net..", False),
        ("sub.net.evil.com", False),
        ("127.0.0.1", False),
    ],
)
def test_a_host_list_matches_whole_names(host: str, allowed: bool) -> None:
    assert host_allowed(host, ["example.org", "*.sub.net"]) is allowed


@asynccontextmanager
async def _serving(folder: Path, policy: ProxyPolicy) -> AsyncGenerator[Ask]:
    path = str(folder / "proxy.sock")
    proxy = Proxy(policy)
    handlers: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.append(task)
        await proxy.handle(reader, writer)
        await writer.wait_closed()

    async def ask(request: bytes) -> str:
        reader, writer = await asyncio.open_unix_connection(path)
        async with asyncio.timeout(30):
            writer.write(request)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer.decode("latin-1")

    server = await asyncio.start_unix_server(handle, path, limit=policy.header_bytes)
    async with server:
        yield ask
    async with asyncio.timeout(30):
        await asyncio.gather(*handlers)


def _policy(folder: Path, **changes: object) -> ProxyPolicy:
    return ProxyPolicy("box", log=str(folder / "log"), **changes)  # pyright: ignore[reportArgumentType]


def _log(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


@pytest.mark.parametrize(
    "target",
    [
        *("127.0.0.1:80", "127.1:80", "0x7f000001:80", "2130706433:80", "localhost:80", "0:80"),
        *("[::1]:80", "[::ffff:127.0.0.1]:80", "169.254.169.254:80", "10.0.0.1:22", "[fe80::1]:80"),
    ],
)
async def test_spellings_of_private_addresses_are_refused(tmp_path: Path, target: str) -> None:
    async with _serving(tmp_path, _policy(tmp_path)) as ask:
        answer = await ask(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith("HTTP/1.1 403"), answer
    [line] = _log(tmp_path)
    assert line["caller"] == "box"
    assert line["host"] == target.rpartition(":")[0].strip("[]")
    assert "refused" in str(line["reason"])
    assert "no public address" in answer


async def test_a_name_that_leads_to_a_private_address_is_refused(tmp_path: Path) -> None:
    policy = _policy(tmp_path, names={"inner.test": ["10.1.2.3", "::1"]}, hosts=["inner.test"])
    async with _serving(tmp_path, policy) as ask:
        answer = await ask(b"GET http://inner.test/ HTTP/1.1\r\n\r\n")
    assert answer.startswith("HTTP/1.1 403")


async def test_a_refusal_does_not_tell_where_a_name_leads_nor_that_it_exists(
    tmp_path: Path,
) -> None:
    names = {"inner.test": ["10.1.2.3"], "own.test": ["127.0.0.1"], "nothing.test": []}
    async with _serving(tmp_path, _policy(tmp_path, names=names)) as ask:
        answers = {
            (await ask(f"CONNECT {name}:443 HTTP/1.1\r\n\r\n".encode())).replace(name, "NAME")
            for name in names
        }
    assert len(answers) == 1
    assert not [address for [address] in (names["inner.test"],) if address in answers.pop()]
    reasons = [str(line["reason"]) for line in _log(tmp_path)]
    assert reasons[0] == "address 10.1.2.3 is refused: private"
    assert reasons[2] == "no such host"


async def test_the_machines_own_address_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        own = probe.getsockname()[0]
    async with _serving(tmp_path, _policy(tmp_path)) as ask:
        answer = await ask(f"CONNECT {own}:80 HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith("HTTP/1.1 403")


async def test_a_host_beside_the_list_is_refused_without_asking_for_its_address(
    tmp_path: Path,
) -> None:
    async with _serving(tmp_path, _policy(tmp_path, hosts=["example.org"])) as ask:
        answer = await ask(b"CONNECT leak-a-secret.evil.test:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith("HTTP/1.1 403")
    assert _log(tmp_path)[0]["reason"] == "host is not on the list"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /path HTTP/1.1\r\n\r\n", 400),
        ("GET ftp://example.org/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://user@example.org/ HTTP/1.1\r\n\r\n", 400),
        ("CONNECT example.org HTTP/1.1\r\n\r\n", 400),
        ("CONNECT example.org:99999 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT exa%6dple.org:80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT .sub.net:80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT a..sub.net:80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT evil.test\\.sub.net:80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT evil.test#.sub.net:80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT evil.test:80:443 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT b\xfccher.example:80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT example.org:+80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT http://example.org:80 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT example.org:80\tHTTP/1.1\r\n\r\n", 400),
        ("GET http://8.8.8.8\\@evil.test/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://evil.test:80#@8.8.8.8/ HTTP/1.1 x\r\n\r\n", 400),
        ("GET http:///path HTTP/1.1\r\n\r\n", 400),
        ("GET HTTP://[8.8.8.8]/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://8.8.8.8/ HTTP/1.1\r\n X: folded\r\n\r\n", 400),
        ("GET http://8.8.8.8/ HTTP/1.1\r\nContent-Length : 3\r\n\r\n", 400),
        ("GET http://8.8.8.8/ HTTP/1.1\nHost: x\r\n\r\n", 400),
        ("POST http://8.8.8.8/ HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 400),
        ("POST http://8.8.8.8/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        ("POST http://8.8.8.8/ HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", 400),
        ("POST http://8.8.8.8/ HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        ("CONNECT [fe80::1%eth0]:80 HTTP/1.1\r\n\r\n", 400),
        ("GET http://8.8.8.8/ HTTP/2.0\r\n\r\n", 505),
        ("nonsense\r\n\r\n", 400),
        ("GET http://8.8.8.8/ HTTP/1.1\r\nno colon\r\n\r\n", 400),
        ("GET http://8.8.8.8/ HTTP/1.1\r\nX: a\x0bb\r\n\r\n", 400),
        ("POST http://8.8.8.8/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (
            "POST http://8.8.8.8/ HTTP/1.1\r\nContent-Length: 1\r\n"
            "Transfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        ("POST http://8.8.8.8/ HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        ("POST http://8.8.8.8/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("GET http://8.8.8.8/ HTTP/1.1\r\n" + "X: y\r\n" * 9000 + "\r\n", 431),
    ],
)
async def test_malformed_requests_are_answered_and_go_nowhere(
    tmp_path: Path, request_text: str, status: int
) -> None:
    async with _serving(tmp_path, _policy(tmp_path)) as ask:
        answer = await ask(request_text.encode("latin-1"))
    assert answer.startswith(f"HTTP/1.1 {status}"), answer


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with _serving(tmp_path, _policy(tmp_path, max_connections=1)) as ask:
        _, waiting = await asyncio.open_unix_connection(str(tmp_path / "proxy.sock"))
        answer = await ask(b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n\r\n")
        waiting.close()
        await waiting.wait_closed()
    assert answer.startswith("HTTP/1.1 503")


async def test_a_request_that_never_ends_is_dropped(tmp_path: Path) -> None:
    async with _serving(tmp_path, _policy(tmp_path, header_timeout=0.05)) as ask:
        assert await ask(b"GET http://8.8.8.8/ HTTP/1.1\r\n") == ""


async def test_the_log_is_bounded(tmp_path: Path) -> None:
    async with _serving(tmp_path, _policy(tmp_path, max_log_lines=3)) as ask:
        for _ in range(6):
            await ask(b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n\r\n")
    lines = _log(tmp_path)
    assert len(lines) == 4
    assert "not logged" in str(lines[-1]["reason"])


def test_host_patterns_that_can_never_match_are_refused() -> None:
    for host in ("", "*.", "https://example.org", "a b", "*.*.org", "me@example.org"):
        with pytest.raises(ConfigError, match="example"):
            proxy_launch(0, label="box", hosts=[host])


def test_the_environment_names_the_forwarder_in_both_cases() -> None:
    variables = proxy_environment()
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://127.0.0.1:3128"
    assert "127.0.0.1" in variables["NO_PROXY"]


REQUESTS = (
    "GET http://ok.test/a HTTP/1.1\r\nHost: ok.test\r\n\r\n",
    "CONNECT ok.test:443 HTTP/1.1\r\n\r\n",
    "POST http://ok.test/p HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    "POST http://mixed.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
)
PIECES = (
    *(
        "ok.test",
        "inner.test",
        "127.0.0.1",
        "0x7f.1",
        "[::1]",
        "[::ffff:10.0.0.1]",
        ":80",
        "http://",
    ),
    *(
        "/",
        "@",
        "#",
        "?",
        "\\",
        " HTTP/1.1",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        "\0",
        "\xa0",
        ".",
        "*",
    ),
    *(
        "Host: inner.test\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "%00",
        " ",
    ),
    *("GET http://inner.test/ HTTP/1.1\r\n\r\n", "CONNECT inner.test:80 HTTP/1.1\r\n\r\n", "\t"),
)
NAMES = {
    "ok.test": ["93.184.216.34"],
    "inner.test": ["10.0.0.1"],
    "mixed.test": ["127.0.0.1", "93.184.216.34", "::1"],
}


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    st.sampled_from(REQUESTS),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.integers(0, 8)), max_size=5),
)
def test_no_mutation_of_a_request_reaches_a_private_address_or_fails(
    request: str, changes: list[tuple[float, str, int]]
) -> None:
    for place, piece, removed in changes:
        at = int(place * len(request))
        request = request[:at] + piece + request[at + removed :]
    reached: list[str] = []

    async def open_connection(host: str, port: int) -> tuple[asyncio.StreamReader, mock.Mock]:
        reached.append(host)
        answers = asyncio.StreamReader()
        answers.feed_data(b"HTTP/1.1 200 OK\r\n\r\n")
        answers.feed_eof()
        return answers, _writer()

    async def ask() -> None:
        reader = asyncio.StreamReader(limit=32768)
        reader.feed_data(request.encode("latin-1"))
        reader.feed_eof()
        await Proxy(ProxyPolicy("box", names=NAMES)).handle(reader, cast("Any", _writer()))

    with (
        mock.patch("seer.isolation.network._proxy.asyncio.open_connection", open_connection),
        mock.patch("socket.getaddrinfo", side_effect=OSError("no name server here")),
    ):
        asyncio.run(ask())
    assert set(reached) <= {"93.184.216.34"}


def _writer() -> mock.Mock:
    writer = mock.Mock()
    writer.drain = mock.AsyncMock()
    return writer
