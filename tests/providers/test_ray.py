"""Machines on a Ray cluster of two nodes: both contracts, placing, waiting, and how they end.

All tests share one cluster, because starting one takes longer than most of the tests.
"""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import tempfile
import textwrap
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from seer.errors import (
    CapacityError,
    HostUnreachableError,
    HostUnsuitableError,
    SandboxLostError,
    SandboxNotFoundError,
    SandboxStateError,
)
from seer.providers import Machine, MachineSpec, get_provider
from seer.providers.ray import RayOptions, RayProvider
from seer.providers.ray._link import RayLink
from seer.providers.ray._provider import make_certificate
from seer.testing import run_sync
from seer.testing.provider_contract import ProviderContract, eventually
from tests.support.ray_cluster import RayCluster
from tests.support.remote_contract import RemoteContract

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ray"), pytest.mark.timeout(480)]

_SAFE = RayOptions(resources={"safe": 0.01})
"""Not on the node that a test kills."""
# Commands, files and sockets take the same path as with `ssh`, which passes every check, and a
# driver of Ray takes seconds to start. With SEER_CAMPAIGN set, both whole contracts run.
_ALL = bool(os.environ.get("SEER_CAMPAIGN"))
CHECKS = (
    ProviderContract.names()
    if _ALL
    else [
        "exec_gives_output_and_exit_code",
        "signals_reach_the_commands_group",
        "large_files_arrive_whole",
        "much_data_crosses_a_connection",
        "terminating_ends_everything_and_twice_is_harmless",
        "a_cancelled_start_leaves_nothing",
        "an_unknown_id_is_not_found",
        "a_machine_can_be_adopted_from_another_process",
    ]
)
USES = (
    RemoteContract.names()
    if _ALL
    else [
        "a_sandbox_runs_commands_python_and_files",
        "a_person_can_call_what_is_served",
        "agents_see_no_way_to_the_host",
        "a_call_goes_on_through_a_cut",
        "calls_are_neither_lost_nor_repeated_through_many_cuts",
    ]
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node-home")


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[RayCluster]:
    resources = [
        {"safe": 1, "left": 1, "accelerator_type:A100": 1},
        {"victim": 1},
    ]
    with (
        RayCluster(nodes=2, cpus=6, gpus=2, resources=resources, home=home) as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made
        run_sync(provider().aclose())
        assert list(home.glob(".seer/state/seer/machines/*")) == []


def provider() -> RayProvider:
    found = get_provider("ray")
    assert isinstance(found, RayProvider)
    return found


@asynccontextmanager
async def started(options: RayOptions = _SAFE, **fields: Any) -> AsyncGenerator[Machine]:
    machine = await provider().start(MachineSpec(options=options, start_timeout=120, **fields))
    try:
        yield machine
    finally:
        await machine.terminate()


async def actors() -> list[str]:
    """All of Seer's actors, including waiting ones."""
    driver = await provider()._driver(os.environ["RAY_ADDRESS"])  # pyright: ignore[reportPrivateUsage]
    return cast("list[str]", await driver.ask("list"))


def node_of(machine: Machine) -> str:
    return machine.id.partition("@")[2].partition(".")[0]


# --- contracts ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contract(cluster: RayCluster) -> Generator[ProviderContract]:
    spec = MachineSpec(isolation="bubblewrap", options=_SAFE, start_timeout=120)
    made = ProviderContract(provider(), spec=spec, large=24 << 20)
    yield made
    made.close()


@pytest.mark.parametrize("name", CHECKS)
def test_contract(contract: ProviderContract, name: str) -> None:
    contract.run(name)


@pytest.fixture(scope="module")
def uses(
    cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory
) -> Generator[RemoteContract]:
    folder = tmp_path_factory.mktemp("remote")

    def cut() -> None:
        async def break_all() -> None:
            for host in provider().hosts:
                await host.link.close()

        run_sync(break_all())

    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_DATA_HOME", "HF_HOME"):
            patch.setenv(name, str(folder / name.lower()))
        patch.setenv("SEER_CONTRACT_SECRET", "of-the-contract")
        made = RemoteContract(
            "ray", folder=folder / "files", options={"resources": {"safe": 0.01}}, cut=cut
        )
        patch.setenv("HF_ENDPOINT", made.hub_url)
        yield made
        made.close()


@pytest.mark.parametrize("name", USES)
def test_uses(uses: RemoteContract, name: str) -> None:
    uses.run(name)


# --- placing and waiting -----------------------------------------------------------------------


def test_a_machine_waits_visibly_and_starts_when_another_ends(
    cluster: RayCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        wanted = RayOptions(resources={"left": 1})
        async with started(wanted) as first:
            waiting = asyncio.ensure_future(
                provider().start(MachineSpec(options=wanted, start_timeout=120))
            )

            async def is_told() -> bool:
                # Ray's view of its nodes may be seconds old; it reports a change 10 s later.
                said = [r.getMessage() for r in caplog.records]
                lines = [line for line in said if "waiting for 1 CPU, 1 left; free in" in line]
                return any("0 left; 1 waits in the cluster" in line for line in lines)

            await eventually(is_told, "the waiting is told", within=60)
            assert not waiting.done()
            await first.terminate()
        second = await waiting
        assert node_of(second) == cluster.nodes[0].id[:12]
        await second.terminate()

    run_sync(check())


def test_waiting_can_be_cancelled_and_leaves_nothing_in_the_queue(cluster: RayCluster) -> None:
    async def check() -> None:
        wanted = RayOptions(resources={"left": 1})
        async with started(wanted):
            before = set(await actors())
            waiting = asyncio.ensure_future(
                provider().start(MachineSpec(options=wanted, start_timeout=120))
            )

            queued: set[str] = set()

            async def is_queued() -> bool:
                queued.update(set(await actors()) - before)
                return bool(queued)

            await eventually(is_queued, "it is queued")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

            async def is_gone() -> bool:
                return not queued & set(await actors())

            await eventually(is_gone, "the queue is as before")

    run_sync(check())


def test_what_no_node_can_hold_ends_with_the_reason(cluster: RayCluster) -> None:
    async def check() -> None:
        # Ray counts waiting requests every few seconds, and later on a busy machine.
        wanted = MachineSpec(options=_SAFE, cpus=100, start_timeout=15)
        with pytest.raises(CapacityError, match="no node is large enough .the largest has 6 CPU"):
            await provider().start(wanted)

    run_sync(check())


def test_a_machine_sees_the_gpus_that_ray_gave_it_and_nothing_of_rays(cluster: RayCluster) -> None:
    async def check() -> None:
        async with started(gpu="A100", gpu_count=2, isolation="bubblewrap") as machine:
            said = (await machine.exec(["env"])).stdout.decode()
            assert "CUDA_VISIBLE_DEVICES=0,1\n" in said
            assert "RAY_" not in said
            assert node_of(machine) == cluster.nodes[0].id[:12]
        with pytest.raises(HostUnsuitableError, match="H200.*A100"):
            await provider().start(MachineSpec(gpu="H200", options=_SAFE))

    run_sync(check())


# --- ends --------------------------------------------------------------------------------------


def test_machines_are_placed_by_what_they_ask_for_and_lost_with_their_node_only(
    cluster: RayCluster, home: Path
) -> None:
    async def check() -> None:
        nodes = [node.id[:12] for node in cluster.nodes]
        lost = await provider().start(
            MachineSpec(options=RayOptions(resources={"victim": 1}), lease=60, start_timeout=120)
        )
        async with started(RayOptions(resources={"left": 1})) as kept:
            assert [node_of(kept), node_of(lost)] == nodes
            running = asyncio.ensure_future(lost.exec(["sleep", "600"]))
            await lost.exec(["true"])
            await asyncio.to_thread(cluster.kill_node, 1)
            # Far sooner than its lease: Ray reports that its holder is gone.
            async with asyncio.timeout(40):
                with pytest.raises(SandboxLostError):
                    await running
                with pytest.raises(SandboxLostError):
                    await lost.read_file("x")
                with pytest.raises(SandboxNotFoundError):
                    await provider().find(lost.id)
            await eventually_removed(home, lost)
            await lost.terminate()
            assert (await kept.exec(["echo", "still here"])).stdout == b"still here\n"
        # On any node, even while Ray still believes that the dead node has room.
        async with started(RayOptions()) as another:
            assert node_of(another) == nodes[0]

    run_sync(check())


async def eventually_removed(home: Path, machine: Machine) -> None:
    folder = home / ".seer/state/seer/machines" / machine.id.partition("@")[0]

    async def is_removed() -> bool:
        return not folder.exists()

    await eventually(is_removed, "the machine is gone from its node")


def test_a_killed_actor_takes_its_machine_along(cluster: RayCluster, home: Path) -> None:
    async def check() -> None:
        async with started(lease=60) as machine:
            driver = await provider()._driver(cluster.address)  # pyright: ignore[reportPrivateUsage]
            actor = machine.id.rpartition(".")[2]
            contact = await driver.ask("contact", name=actor, hold=False)
            os.kill(contact["pid"], signal.SIGKILL)
            async with asyncio.timeout(40):
                with pytest.raises(SandboxLostError):
                    await machine.exec(["sleep", "600"])
            await eventually_removed(home, machine)
            with pytest.raises(SandboxNotFoundError):
                await provider().find(machine.id)

    run_sync(check())


# --- who may use an actor ----------------------------------------------------------------------


def test_neither_side_talks_to_anybody_without_the_secret_and_the_certificate(
    cluster: RayCluster,
) -> None:
    async def check() -> None:
        async with started() as machine:
            driver = await provider()._driver(cluster.address)  # pyright: ignore[reportPrivateUsage]
            contact = await driver.ask("contact", name=machine.id.rpartition(".")[2], hold=False)
            heads: tuple[object, ...] = (
                {"run": ["/bin/true"], "secret": "0" * 64},
                {"run": ["/bin/true"]},
                {"run": ["/bin/true"], "secret": None},
                "hello",
            )
            for head in heads:
                said = await asyncio.to_thread(_talk, contact, json.dumps(head).encode() + b"\n")
                assert said == b""
            good = json.dumps({"run": ["/bin/echo", "hello"], "secret": contact["secret"]})
            assert b"hello" in await asyncio.to_thread(_talk, contact, good.encode() + b"\n")
            # This side also refuses to talk to a peer with another certificate.
            other = {**contact, "certificate": make_certificate()[0]}
            link = RayLink(other, name="somebody", lost=lambda: None)
            with pytest.raises(HostUnreachableError, match="(?i)certificate"):
                await link.run(["/bin/true"])

    run_sync(check())


def _talk(contact: dict[str, Any], data: bytes) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=contact["certificate"])
    address = (contact["address"][0], contact["address"][1])
    with (
        socket.create_connection(address, timeout=20) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        wrapped.sendall(data)
        said = b""
        while part := wrapped.recv(65536):
            said += part
            if b"\x04" in said:  # a program's exit code is the last frame
                break
        return said


# --- a Ray of one's own ------------------------------------------------------------------------


def test_without_an_address_ray_is_started_here_and_ends_with_its_user(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        own = RayProvider()
        machine = await own.start(MachineSpec(options=RayOptions(root=str(tmp_path / "root"))))
        try:
            assert (await machine.exec(["echo", "hello"])).stdout == b"hello\n"
            assert [status.id for status in await own.list()] == [machine.id]
            with pytest.raises(SandboxStateError, match="ray start"):
                await machine.detach()
        finally:
            await machine.terminate()
            await own.aclose()

    # Ray's sockets need short paths.
    base = Path(tempfile.mkdtemp(prefix="own-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(base))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    try:
        run_sync(check())
        assert list(base.glob("seer-ray-own-*")) == []
        assert _processes_with(str(base)) == []
    finally:
        base.rmdir()


def _processes_with(text: str) -> list[str]:
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


# --- documentation -----------------------------------------------------------------------------


def test_the_code_of_the_page_runs(cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/remote-ray.md").read_text()
    blocks: list[str] = re.findall(r"^``` \{\.python \.cloud\}\n(.*?)^```$", page, re.M | re.S)
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    assert "hello from a node" in capsys.readouterr().out
    # The second block starts a cluster like this one, which already runs.
    names["cluster"] = cluster
    head, _, body = blocks[1].partition("with RayCluster(nodes=2, cpus=2) as cluster:\n")
    exec(head, names)
    exec(textwrap.dedent(body), names)
    assert "sb-" in capsys.readouterr().out
