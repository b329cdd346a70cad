"""A machine's only network is the proxy, and the proxy runs only when it is used."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from seer.errors import ConfigError, IsolationError, ProviderError
from seer.providers import Machine, MachineSpec, Network, get_provider
from tests.support.places import state_dir

pytestmark = pytest.mark.full

_FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(error)
"""


@contextlib.asynccontextmanager
async def started(network: Network) -> AsyncGenerator[Machine]:
    """A machine with this network."""
    spec = MachineSpec(network=network, isolation="bubblewrap", label="networked")
    machine = await get_provider("local").start(spec)
    try:
        yield machine
    finally:
        await machine.terminate()


async def fetch(machine: Machine, url: str) -> str:
    """The answer that a program in the machine gets from an address."""
    result = await machine.exec([machine.layout.python, "-c", _FETCH, url], timeout=60)
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode().strip()


def refusals(machine: Machine) -> list[dict[str, object]]:
    """The connections that were refused to this machine, according to the log."""
    lines = (state_dir() / "refused.jsonl").read_text().splitlines()
    return [entry for line in lines if machine.id in (entry := json.loads(line))["caller"]]


def proxies(machine: Machine) -> list[int]:
    """The proxy processes of a machine: below its keeper, outside its jail."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if b"_proxy.py" not in (entry / "cmdline").read_bytes():
                continue
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if machine.id.encode() in Path("/proc", parent, "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def programs(machine: Machine) -> str:
    """The machine's processes."""
    return (await machine.exec(["ps", "-eo", "args"])).stdout.decode()


async def test_private_addresses_are_refused_and_the_refusal_is_logged() -> None:
    async with started("full") as machine:
        assert (await fetch(machine, "http://10.1.2.3/")).startswith("403")
        assert (await fetch(machine, "http://169.254.169.254/latest")).startswith("403")
        logged = refusals(machine)
        assert [entry["host"] for entry in logged] == ["10.1.2.3", "169.254.169.254"]
        assert logged[0]["caller"] == f"networked {machine.id}"


async def test_only_listed_hosts_may_be_reached() -> None:
    async with started(("allowed.invalid",)) as machine:
        assert "not on the list" in await fetch(machine, "http://other.invalid/")
        assert "not on the list" not in await fetch(machine, "http://allowed.invalid/")


async def test_the_forwarder_starts_when_it_is_first_needed_and_again_when_it_was_killed() -> None:
    async with started("full") as machine:
        assert "Forwarder" not in await programs(machine)
        await fetch(machine, "http://10.1.2.3/")
        assert "Forwarder" in await programs(machine)
        await machine.exec(["/bin/sh", "-c", "kill -9 $(pgrep -f Forwarder)"])
        assert (await fetch(machine, "http://10.1.2.3/")).startswith("403")


async def test_a_killed_proxy_comes_back_with_its_list() -> None:
    async with started(("*.allowed.invalid",)) as machine:
        for _ in range(3):
            assert "not on the list" in await fetch(machine, "http://allowed.invalid/")
            assert "no public address" in await fetch(machine, "http://a.b.allowed.invalid/")
            [pid] = proxies(machine)
            os.kill(pid, signal.SIGKILL)


async def test_the_hosts_loopback_is_out_of_reach() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    with server:
        async with started("full") as machine:
            code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
            result = await machine.exec([machine.layout.python, "-c", code, str(port)])
            assert b"refused" in result.stderr
            # Through the proxy, by a name for the same place:
            assert (await fetch(machine, f"http://127.0.0.2.nip.invalid:{port}/")) != "200"
            assert (await fetch(machine, f"http://0.0.0.0:{port}/")).startswith("403")


async def test_the_hosts_network_must_be_asked_for() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        async with started("host") as machine:
            code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
            port = str(server.getsockname()[1])
            result = await machine.exec([machine.layout.python, "-c", code, port])
            assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("network", [(), ("http://x/",), ("a b",)])
async def test_lists_that_cannot_work_are_refused(network: Network) -> None:
    with pytest.raises((ConfigError, IsolationError, ProviderError)):
        async with started(network):
            raise AssertionError("it started")
    assert not list((state_dir() / "machines").iterdir())
