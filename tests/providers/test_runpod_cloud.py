"""Machines at RunPod: GPUs and their prices, keys, networks, and failures."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from seer.errors import (
    CapacityError,
    CredentialsError,
    HostRefusedError,
    HostUnreachableError,
    HostUnsuitableError,
    IsolationError,
    QuotaError,
    SandboxLostError,
    SandboxNotFoundError,
    UnknownGpuError,
)
from seer.providers import Machine, MachineSpec, get_provider
from seer.providers.remote.controller import _host
from seer.providers.rented import _rental
from seer.providers.runpod import RunPodOptions, _keys, _pods
from seer.providers.runpod._provider import PodLink
from tests.support.containers import supported
from tests.support.runpod_cloud import Faults, RunPodCloud

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]


@pytest.fixture(scope="module")
def shared() -> Generator[RunPodCloud]:
    with RunPodCloud() as cloud:
        yield cloud


@pytest.fixture
def cloud(
    shared: RunPodCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[RunPodCloud]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name, value in shared.environment.items():
        monkeypatch.setenv(name, value)
    yield shared
    healthy = Faults()
    for name in vars(healthy):
        setattr(shared.faults, name, getattr(healthy, name))


@asynccontextmanager
async def _started(**changes: object) -> AsyncGenerator[Machine]:
    fields: dict[str, object] = {"lease": 10.0, "start_timeout": 60.0, **changes}
    machine = await get_provider("runpod").start(MachineSpec(**fields))  # pyright: ignore[reportArgumentType]
    try:
        yield machine
    finally:
        await machine.terminate()


def _place(machine: Machine) -> str:
    return machine.id.partition("@")[2]


async def _out(machine: Machine, script: str) -> str:
    result = await machine.exec(["/bin/sh", "-c", script])
    return (result.stdout + result.stderr).decode().strip()


async def _refused(**changes: object) -> Exception:
    try:
        async with _started(**changes):
            raise AssertionError("it started")
    except Exception as error:
        return error


async def test_the_cheapest_gpu_that_the_name_stands_for_is_rented(cloud: RunPodCloud) -> None:
    async with _started(gpu="A100", gpu_count=2, label="two") as machine:
        asked = cloud.request_of(_place(machine))
        assert (asked["gpuTypeId"], asked["gpuCount"]) == ("NVIDIA A100 80GB PCIe", 2)
        assert asked["cloudType"] == "SECURE"
        assert asked["name"] == "seer-two"
        listed = [s for s in await get_provider("runpod").list() if s.id == machine.id]
        assert [s.gpu for s in listed] == ["A100"]
        assert listed[0].cost_usd is not None and listed[0].cost_usd > 0
        assert await _out(machine, "echo $CUDA_VISIBLE_DEVICES") == "0,1"


async def test_keys_stay_out_of_reach_of_programs(cloud: RunPodCloud) -> None:
    """The account's key is not on the pod at all; the pod's own key is for its first process."""
    key = cloud.environment["RUNPOD_API_KEY"]
    async with _started() as machine:
        looked = await _out(
            machine,
            "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; "
            "grep -rs 'rpa[_]' /seer /root /etc 2>/dev/null; cat /etc/ssh/seer_host_key",
        )
        assert key not in looked and "rpa_" not in looked
        assert "BEGIN OPENSSH" not in looked
        env = {item["key"] for item in cloud.request_of(_place(machine))["env"]}  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalIterable, reportUnknownVariableType, reportGeneralTypeIssues]
        assert "RUNPOD_API_KEY" not in env


async def test_a_pod_with_another_host_key_is_refused(
    cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = _keys.known_hosts

    def wrong(pod: str, address: str, port: int, public: str) -> Path:
        return known(pod, address, port, _keys.new_pair().public)

    monkeypatch.setattr(_keys, "known_hosts", wrong)
    error = await _refused()
    assert isinstance(error, HostRefusedError)
    assert "host key is not the known one" in str(error)
    assert cloud.running == []


async def test_without_a_network_programs_have_none_but_the_pod_has(cloud: RunPodCloud) -> None:
    code = "import socket; socket.create_connection(('127.0.0.1', 1), 1)"
    async with _started(network="none") as machine:
        said = await _out(machine, f'{machine.layout.python} -c "{code}"')
        assert "Address family not supported" in said
    async with _started(network="full") as machine:
        said = await _out(machine, f'{machine.layout.python} -c "{code}"')
        assert "Connection refused" in said


async def test_a_list_of_hosts_is_refused_before_anything_is_rented(cloud: RunPodCloud) -> None:
    before = len(cloud.requests)
    error = await _refused(network=("example.org",))
    assert isinstance(error, IsolationError) and "RunPod cannot restrict a pod" in str(error)
    assert len(cloud.requests) == before


async def test_system_packages_are_installed_or_their_absence_is_told(cloud: RunPodCloud) -> None:
    async with _started(system_packages=("coreutils",)):
        pass
    error = await _refused(system_packages=("no-such-package",))
    assert isinstance(error, HostUnsuitableError)
    assert "Unable to locate package no-such-package" in str(error)
    assert cloud.running == []


async def test_an_unknown_gpu_is_an_error_that_names_those_there_are(cloud: RunPodCloud) -> None:
    error = await _refused(gpu="Z9")
    assert isinstance(error, UnknownGpuError)
    assert "A100 PCIe" in str(error) and "RTX 4090" in str(error)


async def test_a_refused_key_is_an_error_that_says_what_to_do(cloud: RunPodCloud) -> None:
    cloud.faults.key_revoked = True
    error = await _refused(gpu="A40")
    assert isinstance(error, CredentialsError) and "console.runpod.io" in str(error)


async def test_without_a_key_nothing_is_tried(
    cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNPOD_API_KEY")
    error = await _refused()
    assert isinstance(error, CredentialsError) and "RUNPOD_API_KEY is not set" in str(error)


async def test_an_empty_account_is_an_error_that_says_what_to_do(cloud: RunPodCloud) -> None:
    cloud.faults.balance = False
    error = await _refused(gpu="A40")
    assert isinstance(error, QuotaError)
    assert "balance is too low" in str(error) and "Add funds" in str(error)


async def test_missing_capacity_is_waited_for_and_no_longer_than_asked(
    cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_rental, "FIRST_PAUSE", 0.1)
    cloud.faults.capacity = False
    with caplog.at_level(logging.WARNING):
        error = await _refused(gpu="A40", start_timeout=5.0)
        assert isinstance(error, CapacityError)
        assert "start_timeout=5 s" in str(error)
        assert "There are no longer any instances available" in str(error)
        assert "no capacity yet" in caplog.text
    asyncio.get_running_loop().call_later(0.3, setattr, cloud.faults, "capacity", True)
    async with _started(gpu="A40") as machine:
        assert _place(machine) in cloud.running


async def test_a_pod_that_never_comes_up_is_given_back(cloud: RunPodCloud) -> None:
    cloud.faults.slow_start = 60.0
    error = await _refused(start_timeout=1.5)
    assert isinstance(error, CapacityError) and "was not ready within" in str(error)
    assert cloud.running == []


async def test_a_pod_without_a_monitor_gives_itself_back(
    cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pods, "monitor_source", lambda: "raise SystemExit(3)")
    pod = await _pods.rent(MachineSpec(timeout=100.0), RunPodOptions())
    assert str(cloud.request_of(pod.id)["terminateAfter"]).endswith("Z")
    assert await pod.gone(60.0)


async def test_runpod_out_of_reach_is_an_error_that_says_so(cloud: RunPodCloud) -> None:
    async with _started() as machine:
        cloud.faults.outage = True
        with pytest.raises(HostUnreachableError, match="RunPod answers HTTP 503"):
            await get_provider("runpod").find(machine.id)
        assert await _out(machine, "echo still here") == "still here"
        cloud.faults.outage = False


async def test_a_pod_that_is_taken_away_is_lost_at_once(cloud: RunPodCloud) -> None:
    async with _started(lease=60.0) as machine:
        running = asyncio.create_task(machine.exec(["sleep", "600"]))
        await machine.exec(["true"])
        cloud.preempt(_place(machine))
        async with asyncio.timeout(40):
            with pytest.raises(SandboxLostError, match="RunPod keeps no record"):
                await running
        with pytest.raises(SandboxNotFoundError, match="RunPod keeps no record"):
            await get_provider("runpod").find(machine.id)


_PREPARE = """
import sys
from seer._sync import run_sync
from seer.providers import MachineSpec, get_provider
run_sync(get_provider("runpod").host(MachineSpec(lease=float(sys.argv[1]))))
print("preparing", flush=True)
sys.stdin.read()
"""


async def test_a_listing_closes_the_connections_that_it_opens(
    cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[PodLink] = []
    usual = PodLink.connect

    async def connect(link: PodLink) -> asyncssh.SSHClientConnection:
        opened.append(link)
        return await usual(link)

    async with _started() as machine:
        monkeypatch.setattr(PodLink, "connect", connect)
        listed = await get_provider("runpod").list()
        assert [status.id for status in listed] == [machine.id]
        assert opened
        assert not any(link._connection for link in opened)  # pyright: ignore[reportPrivateUsage]


async def test_find_waits_for_the_record_of_an_end_that_is_being_written(
    cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = _host.record_end, threading.Event()

    def slowly(*record: object, **more: object) -> None:
        assert written.wait(60)
        write(*record, **more)  # pyright: ignore[reportArgumentType]

    async with _started() as machine:
        monkeypatch.setattr(_host, "record_end", slowly)
        await machine.terminate()
        finding = asyncio.create_task(get_provider("runpod").find(machine.id))
        done, _ = await asyncio.wait([finding], timeout=0.5)
        assert not done
        written.set()
        with pytest.raises(SandboxNotFoundError, match="is not running: .*terminated"):
            await finding


@pytest.mark.parametrize("listed", [1, 2])
async def test_find_says_how_a_pod_ended_that_ends_while_it_looks(
    cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    looked = _pods.find
    asked: list[str] = []

    async with _started() as machine:

        async def ending(place: str) -> _pods.Pod | None:
            """RunPod lists the pod for the last time just before it ends."""
            pod = await looked(place)
            asked.append(place)
            if len(asked) == listed:
                await machine.terminate()
            return pod

        monkeypatch.setattr(_pods, "find", ending)
        with pytest.raises(SandboxNotFoundError, match="is not running: .*terminated"):
            await get_provider("runpod").find(machine.id)
    assert len(asked) > listed


def test_a_killed_controller_gives_its_pod_back_also_before_there_is_a_machine(
    cloud: RunPodCloud,
) -> None:
    lease = 5.0
    controller = subprocess.Popen(
        [sys.executable, "-c", _PREPARE, str(lease)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    with controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "preparing\n"
        assert cloud.running != []
        controller.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        while cloud.running:
            assert time.monotonic() - killed < lease + 30
            time.sleep(0.05)
        controller.wait()


@pytest.mark.parametrize("gpu", ["A40", None])
async def test_a_start_that_is_ended_while_its_pod_is_made_leaves_no_pod(
    cloud: RunPodCloud, gpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, answered = asyncio.Event(), asyncio.Event()
    request = _pods.request

    async def slow(query: str, variables: Mapping[str, object], *, repeat: bool) -> dict[str, Any]:
        answer = await request(query, variables, repeat=repeat)
        if not repeat:
            made.set()
            await answered.wait()
        return answer

    monkeypatch.setattr(_pods, "request", slow)
    starting = asyncio.create_task(get_provider("runpod").start(MachineSpec(gpu=gpu)))
    async with asyncio.timeout(30):
        await made.wait()
        assert len(cloud.running) == 1
        starting.cancel()
        await asyncio.sleep(0)
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert cloud.running == []
