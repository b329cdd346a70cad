"""The proxy, the forwarder and a jail against servers in network namespaces that the test makes.

It starts the proxy itself, to place it between network namespaces.
"""

import json
import os
import queue
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from seer.isolation import JAIL_UIDS, Mount, Policy, choose, script
from seer.isolation.network._network import proxy_environment, proxy_launch

from .conftest import SYSTEM_PYTHON

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"
    ),
]

PUBLIC, GATEWAY, PRIVATE, METADATA = "93.184.216.34", "93.184.216.1", "10.9.9.9", "169.254.169.254"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _remove_settings(folder: Path) -> None:
    shutil.rmtree(folder)
    with suppress(OSError):  # namespaces of another test may still exist
        folder.parent.rmdir()


@dataclass(frozen=True)
class Internet:
    """Servers in a namespace, and the namespace next to it from which they are reached."""

    near: str
    said: "queue.Queue[str]"

    def heard(self) -> list[str]:
        """What the servers have been asked until now."""
        lines: list[str] = []
        while not self.said.empty():
            lines.append(self.said.get())
        return lines


@pytest.fixture
def internet() -> Generator[Internet]:
    """Two namespaces with a cable between them; one has the servers, one the proxy."""
    tag = secrets.token_hex(3)
    near, far = f"seer-near-{tag}", f"seer-far-{tag}"
    with ExitStack() as stack:
        for name in (near, far):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "link", "add", f"n{tag}", "netns", near, "type", "veth", "peer", f"f{tag}", "netns", far
        )
        _ip("-n", near, "addr", "add", f"{GATEWAY}/24", "dev", f"n{tag}")
        for address in (f"{PUBLIC}/24", f"{PRIVATE}/24", f"{METADATA}/32"):
            _ip("-n", far, "addr", "add", address, "dev", f"f{tag}")
        for name, device in ((near, f"n{tag}"), (far, f"f{tag}")):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", near, "route", "add", "default", "via", PUBLIC)
        settings = Path("/etc/netns", near)
        settings.mkdir(parents=True)
        stack.callback(_remove_settings, settings)
        (settings / "resolv.conf").write_text(f"nameserver {PUBLIC}\noptions timeout:2\n")
        server = subprocess.Popen(
            [
                *("ip", "netns", "exec", far, SYSTEM_PYTHON, "-I"),
                *(str(Path(__file__).with_name("internet.py")), PUBLIC, PRIVATE, METADATA),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(server)
        stack.callback(server.kill)
        said: queue.Queue[str] = queue.Queue()
        output = server.stdout
        assert output is not None
        assert output.readline() == "ready\n"

        def listen() -> None:
            for line in output:
                said.put(line.rstrip("\n"))

        threading.Thread(target=listen, daemon=True).start()
        yield Internet(near, said)


@dataclass(frozen=True)
class Running:
    """A running proxy."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def path(self) -> str:
        return str(self.folder / "proxy.sock")

    def ask(self, request: bytes) -> str:
        """Send a request and read until the proxy closes."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(self.path)
            connection.sendall(request)
            answer = b""
            while data := connection.recv(65536):
                answer += data
        return answer.decode()

    def refused(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@contextmanager
def _proxy(
    internet: Internet, *, hosts: list[str] | None = None, names: dict[str, list[str]] | None = None
) -> Generator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="seer-proxy-"))
    folder.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "proxy.sock"))
    (folder / "proxy.sock").chmod(0o777)
    listener.listen(128)
    launch = proxy_launch(
        listener.fileno(),
        label="the-sandbox",
        hosts=hosts,
        log=folder / "log",
        uid=JAIL_UIDS[-1],
        names=names,
    )
    process = subprocess.Popen(
        ["ip", "netns", "exec", internet.near, *launch.argv],
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        pass_fds=launch.pass_fds,
        stdin=subprocess.PIPE,
    )
    launch.close()
    listener.close()
    with process:
        try:
            yield Running(folder, process)
        finally:
            process.kill()
            shutil.rmtree(folder)


def test_public_servers_are_reached_and_private_ones_are_not(internet: Internet) -> None:
    names = {"web.test": [PUBLIC], "inner.test": [PRIVATE], "both.test": [PRIVATE, PUBLIC]}
    with _proxy(internet, names=names) as proxy:
        assert f"{PUBLIC} web.test /a?b=c" in proxy.ask(
            b"GET http://web.test/a?b=c HTTP/1.1\r\n\r\n"
        )
        assert f"{PUBLIC} both.test /" in proxy.ask(b"GET http://both.test HTTP/1.1\r\n\r\n")
        for host in ("inner.test", PRIVATE, METADATA, GATEWAY, "localhost"):
            assert proxy.ask(f"GET http://{host}/ HTTP/1.1\r\n\r\n".encode()).startswith(
                "HTTP/1.1 403"
            )
        refused = proxy.refused()
    assert [line["host"] for line in refused] == [
        *("inner.test", PRIVATE, METADATA, GATEWAY, "localhost")
    ]
    assert {line["caller"] for line in refused} == {"the-sandbox"}
    assert {line.split()[1] for line in internet.heard()} == {PUBLIC}


def test_a_second_answer_of_the_name_server_changes_nothing(internet: Internet) -> None:
    with _proxy(internet) as proxy:
        answer = proxy.ask(b"GET http://rebind.test/once HTTP/1.1\r\n\r\n")
        assert f"{PUBLIC} rebind.test /once" in answer
        # The name now resolves to a private address, and is checked again.
        again = proxy.ask(b"GET http://rebind.test/twice HTTP/1.1\r\n\r\n")
        assert again.startswith("HTTP/1.1 403")
    heard = internet.heard()
    assert heard == [
        f"name rebind.test {PUBLIC}",
        f"web {PUBLIC} rebind.test /once",
        f"name rebind.test {PRIVATE}",
    ]


def test_a_hostile_name_server_leads_nowhere_inside(internet: Internet) -> None:
    with _proxy(internet) as proxy:
        # Private and public addresses under one name: the public one is used, and no other tried.
        assert f"{PUBLIC} mixed.test /" in proxy.ask(b"GET http://mixed.test/ HTTP/1.1\r\n\r\n")
        for name in ("many.test", "alias.test", "mapped.test", "both.test"):
            answer = proxy.ask(f"GET http://{name}/ HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith("HTTP/1.1 403"), (name, answer)
            assert "10.0" not in answer and "127.0" not in answer
        logged = {str(line["host"]): str(line["reason"]) for line in proxy.refused()}
    assert "refused" in logged["many.test"] and "loopback" in logged["alias.test"]
    assert "not a public IPv6 address" in logged["mapped.test"]
    # Each name was resolved once, and the proxy connected only to the one public server.
    heard = internet.heard()
    assert len([line for line in heard if line.startswith("name mixed.test A")]) == 1
    assert [line for line in heard if line.startswith("web")] == [f"web {PUBLIC} mixed.test /"]


def test_a_name_that_changes_its_mind_all_the_time_is_judged_each_time(internet: Internet) -> None:
    with _proxy(internet) as proxy:
        answers = [proxy.ask(b"GET http://rebind.test/ HTTP/1.1\r\n\r\n") for _ in range(20)]
    assert sum(answer.startswith("HTTP/1.1 200") for answer in answers) == 1
    assert {line.split()[1] for line in internet.heard() if line.startswith("web")} == {PUBLIC}


def test_a_killed_proxy_has_the_same_policy_when_started_again(internet: Internet) -> None:
    listener = socket.socket(socket.AF_UNIX)
    folder = Path(tempfile.mkdtemp(prefix="seer-proxy-"))
    listener.bind(str(folder / "proxy.sock"))
    listener.listen(16)
    names = {"web.test": [PUBLIC], "other.test": [PUBLIC]}
    launch = proxy_launch(listener.fileno(), label="box", hosts=["web.test"], names=names)
    try:
        for _ in range(3):
            process = subprocess.Popen(
                ["ip", "netns", "exec", internet.near, *launch.argv],
                env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
                pass_fds=launch.pass_fds,
                stdin=subprocess.PIPE,
            )
            running = Running(folder, process)
            with process:
                for host, status in (("web.test", 200), ("other.test", 403)):
                    answer = running.ask(f"GET http://{host}/ HTTP/1.1\r\n\r\n".encode())
                    assert answer.startswith(f"HTTP/1.1 {status}"), host
                process.kill()
    finally:
        launch.close()
        listener.close()
        shutil.rmtree(folder)


def test_only_hosts_on_the_list_are_reached(internet: Internet) -> None:
    names = {"web.test": [PUBLIC], "a.sub.test": [PUBLIC], "other.test": [PUBLIC]}
    with _proxy(internet, hosts=["web.test", "*.sub.test"], names=names) as proxy:
        for host, status in (("web.test", 200), ("a.sub.test", 200), ("other.test", 403)):
            answer = proxy.ask(f"GET http://{host}/ HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith(f"HTTP/1.1 {status}"), host
        assert proxy.ask(f"CONNECT {PUBLIC}:80 HTTP/1.1\r\n\r\n".encode()).startswith(
            "HTTP/1.1 403"
        )


def test_a_tunnel_carries_bytes_both_ways(internet: Internet) -> None:
    payload = secrets.token_bytes(3_000_000)
    with _proxy(internet) as proxy, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(proxy.path)
        connection.sendall(f"CONNECT {PUBLIC}:7 HTTP/1.1\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        assert head.startswith(b"HTTP/1.1 200")

        def send() -> None:
            connection.sendall(payload)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = b""
        while data := connection.recv(65536):
            received += data
        sender.join()
    assert received == payload


def test_bodies_arrive_and_a_second_request_does_not_ride_along(internet: Internet) -> None:
    second = b"GET /smuggled HTTP/1.1\r\nHost: other.test\r\n\r\n"
    with _proxy(internet, hosts=["web.test"], names={"web.test": [PUBLIC]}) as proxy:
        head = b"POST http://web.test/p HTTP/1.1\r\nHost: other.test\r\n"
        plain = proxy.ask(head + b"Content-Length: 5\r\n\r\nhello" + second)
        chunks = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        chunked = proxy.ask(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + second)
    assert plain.endswith(f"{PUBLIC} web.test /p hello")
    assert chunked.endswith(f"{PUBLIC} web.test /p abcde")
    assert internet.heard() == [f"web {PUBLIC} web.test /p"] * 2


def test_the_proxy_ends_when_its_parent_closes_the_pipe(internet: Internet) -> None:
    with _proxy(internet) as proxy:
        assert proxy.ask(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 403")
        assert proxy.process.stdin is not None
        proxy.process.stdin.close()
        assert proxy.process.wait(30) == 0


def test_the_proxy_gives_up_root(internet: Internet) -> None:
    with _proxy(internet) as proxy:
        assert proxy.ask(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 403")
        # `ip netns exec` has become the proxy.
        status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == [str(JAIL_UIDS[-1])] * 4
    assert int(fields["CapEff"], 16) == 0


CLIENT = """
import socket, subprocess, sys, time, urllib.request
forwarder = subprocess.Popen([sys.executable, '-I', '-S', sys.argv[1], sys.argv[2]])
deadline = time.monotonic() + 30
while True:
    try:
        socket.create_connection(('127.0.0.1', 3128)).close()
        break
    except OSError:
        assert time.monotonic() < deadline
for url in ('http://web.test/hello', 'http://inner.test/'):
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode())
    except OSError as error:
        print(error)
for address in ('93.184.216.34', '10.9.9.9'):
    try:
        socket.create_connection((address, 80), 3)
        print('a way around the proxy')
    except OSError as error:
        print(error.strerror)
forwarder.kill()
"""


def test_a_jail_reaches_the_network_through_the_proxy_alone(internet: Internet) -> None:
    names = {"web.test": [PUBLIC], "inner.test": [PRIVATE]}
    with _proxy(internet, names=names) as proxy:
        policy = Policy(
            mounts=(
                Mount(Path(proxy.path), "/run/proxy.sock"),
                Mount(_bundled(proxy.folder), "/run/forward.py"),
            ),
            env={"PATH": "/usr/bin", **proxy_environment()},
            network="proxy",
        )
        argv = [SYSTEM_PYTHON, "-c", CLIENT, "/run/forward.py", "/run/proxy.sock"]
        launch = choose("bubblewrap", needs=frozenset({"proxy"})).launch(policy, argv)
        done = subprocess.run(
            launch.argv,
            env=launch.env,
            pass_fds=launch.pass_fds,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        launch.close()
    assert done.stdout.splitlines() == [
        f"{PUBLIC} web.test /hello ",
        "HTTP Error 403: Forbidden",
        "Network is unreachable",
        "Network is unreachable",
    ], done.stderr


def _bundled(folder: Path) -> Path:
    """A copy of the forwarder, as in a bundle: the package's own files are never mounted."""
    return Path(shutil.copy(script("forward"), folder / "forward.py"))


def test_the_proxy_and_forwarder_run_from_a_bundle_alone() -> None:
    for name in ("proxy", "forward", "cgroup"):
        code = f"import runpy; runpy.run_path({str(script(name))!r}, run_name='shipped')"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False)
        assert done.returncode == 0
