"""Machines at Modal: GPUs, images, volumes, secrets, networks, and failures."""

import asyncio
import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import modal
import pytest

from seer.environment import ExecutionMode, Sandbox, SandboxConfig
from seer.errors import (
    CapacityError,
    CredentialsError,
    HostUnreachableError,
    ImageBuildError,
    IsolationUnavailableError,
    PreemptedError,
    QuotaError,
    SandboxNotFoundError,
    SandboxStateError,
    StartError,
    UnknownGpuError,
)
from seer.providers import Machine, MachineSpec, get_provider
from seer.providers.modal import ModalOptions, _sandboxes
from seer.providers.modal._provider import ModalHost
from seer.providers.rented import _rental
from tests.support.containers import supported
from tests.support.modal_cloud import Faults, ModalCloud, certificate
from tests.waiting import await_until

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]
LEASE = 10.0


@pytest.fixture(scope="module")
def shared() -> Generator[ModalCloud]:
    with ModalCloud() as cloud:
        yield cloud


@pytest.fixture
def cloud(shared: ModalCloud, monkeypatch: pytest.MonkeyPatch) -> Generator[ModalCloud]:
    for name, value in shared.environment.items():
        monkeypatch.setenv(name, value)
    yield shared
    healthy = Faults()
    for name in vars(healthy):
        setattr(shared.faults, name, getattr(healthy, name))


@asynccontextmanager
async def _started(**changes: object) -> AsyncGenerator[Machine]:
    fields: dict[str, object] = {"lease": LEASE, "start_timeout": 60.0, **changes}
    machine = await get_provider("modal").start(MachineSpec(**fields))  # pyright: ignore[reportArgumentType]
    try:
        yield machine
    finally:
        await machine.terminate()


def _place(machine: Machine) -> str:
    return machine.id.partition("@")[2]


async def _out(machine: Machine, script: str) -> str:
    result = await machine.exec(["/bin/sh", "-c", script])
    return (result.stdout + result.stderr).decode().strip()


# --- what is asked for is what Modal is asked for ----------------------------------------------


async def test_a_gpu_is_asked_for_by_name_and_count_and_is_there(cloud: ModalCloud) -> None:
    # As with an H100, for which one may get an H200.
    cloud.faults.gpu_given = "H200"
    async with _started(gpu="A100-80GB", gpu_count=2, label="two") as machine:
        wanted = cloud.definition(_place(machine)).resources.gpu_config
        assert (wanted.gpu_type, wanted.count) == ("A100-80GB", 2)
        assert cloud.tags(_place(machine))["label"] == "two"
        listed = [s for s in await get_provider("modal").list() if s.id == machine.id]
        assert [(s.gpu, s.label) for s in listed] == [("A100-80GB", "two")]
        assert listed[0].cost_usd is not None and listed[0].cost_usd > 0
        # What Modal calls a sandbox of its first kind: those with a GPU.
        assert len(_place(machine)) == len("sb-") + 22
        seen = await _out(machine, "echo $CUDA_VISIBLE_DEVICES")
        assert seen == "0,1"


async def test_resources_networks_and_lifetimes_are_left_to_modal(cloud: ModalCloud) -> None:
    async with _started(
        network="none", cpus=2.0, memory=1 << 30, timeout=100.0, options=ModalOptions(region="eu")
    ) as machine:
        made = cloud.definition(_place(machine))
        assert made.network_access.network_access_type == made.network_access.BLOCKED
        assert (made.resources.milli_cpu, made.resources.memory_mb) == (2000, 1024)
        assert list(made.scheduler_placement.regions) == ["eu"]
        assert made.timeout_secs == 100 + 60 + 60
        addresses = await _out(machine, "cat /proc/net/dev")
        assert "lo:" in addresses and "eth0:" not in addresses
    async with _started(network=("example.org",)) as machine:
        access = cloud.definition(_place(machine)).network_access
        assert list(access.allowed_domains) == ["example.org"]


async def test_sandboxes_of_another_app_are_listed_too(
    cloud: ModalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with _started(options=ModalOptions(app="of-mine")) as machine:
        assert machine.id in [status.id for status in await get_provider("modal").list()]


async def test_the_volume_outlives_the_sandbox(cloud: ModalCloud) -> None:
    async with _started(options={"volume": "models"}) as machine:
        mounts = cloud.definition(_place(machine)).volume_mounts
        assert [mount.mount_path for mount in mounts] == ["/seer/cache"]
    assert (cloud.volume("models") / "seer" / "bundles").is_dir()


async def test_system_packages_are_part_of_an_image_that_is_built_once(cloud: ModalCloud) -> None:
    before = cloud.builds_started
    async with _started(system_packages=("coreutils",)):
        assert cloud.builds_started == before + 1
    async with _started(system_packages=("coreutils",)):
        assert cloud.builds_started == before + 1


async def test_secrets_kept_at_modal_reach_the_machine_by_name(cloud: ModalCloud) -> None:
    values = {"KEPT_THERE": "a secret = of modal's", "NOT_ASKED_FOR": "x"}
    await modal.Secret.objects.create.aio("contract", values, allow_existing=True)
    async with _started(options={"secrets": {"contract": ("KEPT_THERE",)}}) as machine:
        said = await _out(machine, 'echo "$KEPT_THERE/$NOT_ASKED_FOR"')
        assert said == "a secret = of modal's/"


async def test_a_secret_of_a_configuration_may_be_one_that_modal_keeps(
    cloud: ModalCloud, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A value that occurs in no record, because secrets are replaced in the records of all later
    # tests.
    monkeypatch.setenv("SET_HERE", "set-9f2c41")
    values = {"HF_TOKEN": "hf = there", "SEER_MACHINE": "planted", "MODAL_ID": "planted"}
    await modal.Secret.objects.create.aio("huggingface-secret", values, allow_existing=True)
    config = SandboxConfig(
        gpu=None,
        provider="modal",
        network="none",
        lease=LEASE,
        execution_mode=ExecutionMode.LOCAL,
        secrets=["huggingface-secret", "SET_HERE", "NOT_SET"],
    )
    sandbox = await Sandbox(config).astart()
    try:
        said = await sandbox.aexec('echo "$HF_TOKEN/$SET_HERE/$MODAL_ID"; echo $SEER_MACHINE')
        assert said.splitlines()[0] == "hf = there/set-9f2c41/"
        assert "planted" not in said
    finally:
        await sandbox.aterminate()
    assert "can read: SET_HERE, huggingface-secret (kept at modal)" in caplog.text
    assert "not set: NOT_SET;" in caplog.text


async def test_a_small_machine_that_ends_before_it_answers_has_prepared_all_the_same(
    cloud: ModalCloud,
) -> None:
    cloud.faults.unanswered = "/leave"
    config = SandboxConfig(
        gpu=None,
        provider="modal",
        network="none",
        lease=LEASE,
        execution_mode=ExecutionMode.LOCAL,
        python_packages=["pip"],
    )
    sandbox = await Sandbox(config).astart()
    try:
        assert (await sandbox.aexec("echo started")).strip() == "started"
    finally:
        await sandbox.aterminate()


async def test_a_machine_whose_secrets_cannot_be_read_is_given_back(
    cloud: ModalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: ModalHost) -> dict[str, str]:
        raise HostUnreachableError("no answer")

    monkeypatch.setattr(ModalHost, "_secrets", fail)
    config = SandboxConfig(gpu=None, provider="modal", network="none", lease=LEASE)
    with pytest.raises(StartError, match="no answer"):
        await Sandbox(config).astart()
    await await_until(lambda: not cloud.running, "the rented machine ends")


async def test_credentials_never_enter_a_sandbox(cloud: ModalCloud) -> None:
    secret = cloud.environment["MODAL_TOKEN_SECRET"]
    async with _started() as machine:
        looked = await _out(
            machine,
            "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; "
            "grep -rs MODAL_TOKE[N] /seer /root /etc 2>/dev/null",
        )
        assert secret not in looked and "MODAL_TOKEN" not in looked
        assert "rentalmonitor" in looked.lower()


async def test_programs_cannot_touch_what_ends_the_machine(cloud: ModalCloud) -> None:
    async with _started() as machine:
        said = await _out(
            machine,
            "id -u; for p in /proc/[0-9]*; do n=${p#/proc/}; "
            "[ $(stat -c %u $p 2>/dev/null || echo 9) = 0 ] && kill -STOP $n 2>/dev/null "
            "&& echo stopped $n; done; touch /seer/beat /etc/seer-rented; "
            "ls /seer/state/seer/machines",
        )
        assert "stopped" not in said
        assert said.count("ermission denied") == 3
        assert not said.startswith("0\n")


async def test_tunnels_lead_into_a_sandbox_and_are_encrypted(cloud: ModalCloud) -> None:
    """Seer itself uses no tunnels; others who test against the stand-in may use them."""
    app = await modal.App.lookup.aio("seer", create_if_missing=True)
    serve = "http.server", "--bind", "127.0.0.1", "18765"
    sandbox = await modal.Sandbox.create.aio(  # pyright: ignore[reportUnknownMemberType]
        "python3", "-m", *serve, app=app, encrypted_ports=[18765], timeout=120
    )
    try:
        tunnel = (await sandbox.tunnels.aio())[18765]
        context = ssl.create_default_context(cadata=certificate())
        async with httpx.AsyncClient(verify=context) as client, asyncio.timeout(60):
            while True:
                try:
                    answer = await client.get(f"https://{tunnel.host}:{tunnel.port}/")
                    break
                except httpx.HTTPError:
                    await asyncio.sleep(0.05)
        assert answer.status_code == 200
    finally:
        await sandbox.terminate.aio()


# --- what goes wrong ---------------------------------------------------------------------------


async def _refused(**changes: object) -> Exception:
    before = time.monotonic()
    try:
        async with _started(**changes):
            raise AssertionError("it started")
    except Exception as error:
        assert time.monotonic() - before < 60
        return error


async def test_an_unknown_gpu_is_an_error_with_modals_words(cloud: ModalCloud) -> None:
    error = await _refused(gpu="Z9")
    assert isinstance(error, UnknownGpuError)
    assert "Invalid GPU type 'Z9'" in str(error) and "choose one of T4" in str(error)


async def test_a_refused_token_is_an_error_that_says_what_to_do(cloud: ModalCloud) -> None:
    cloud.faults.token_revoked = True
    error = await _refused()
    assert isinstance(error, CredentialsError)
    assert "Token validation failed" in str(error) and "modal token new" in str(error)


async def test_without_credentials_nothing_is_tried(
    cloud: ModalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODAL_TOKEN_ID")
    monkeypatch.setenv("MODAL_CONFIG_PATH", "/nonexistent")
    error = await _refused()
    assert isinstance(error, CredentialsError) and "modal token new" in str(error)


async def test_a_full_account_is_an_error_that_says_what_to_do(cloud: ModalCloud) -> None:
    cloud.faults.quota = 0
    error = await _refused()
    assert isinstance(error, QuotaError)
    assert "limit of 0 reached" in str(error) and "seer ps" in str(error)


async def test_a_failing_build_shows_its_log(
    cloud: ModalCloud, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        error = await _refused(system_packages=("no-such-package",))
    assert isinstance(error, ImageBuildError)
    assert "E: Unable to locate package no-such-package" in str(error)
    assert "Unable to locate package" in caplog.text


@pytest.mark.parametrize("gpu", ["A100", None])
async def test_missing_capacity_is_waited_for_and_no_longer_than_asked(
    cloud: ModalCloud,
    gpu: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(_rental, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(_sandboxes, "SAY_EVERY", 0.2)
    cloud.faults.capacity = False
    with caplog.at_level(logging.WARNING):
        error = await _refused(gpu=gpu, start_timeout=5.0)
    assert isinstance(error, CapacityError)
    assert "start_timeout=5 s" in str(error)
    assert "no capacity yet" in caplog.text
    assert cloud.running == []
    starting = asyncio.create_task(_start_and_end(gpu))
    await asyncio.sleep(0)
    cloud.faults.capacity = True
    await starting


async def _start_and_end(gpu: str | None) -> None:
    async with _started(gpu=gpu):
        pass


async def test_modal_out_of_reach_is_an_error_that_says_so(cloud: ModalCloud) -> None:
    async with _started() as machine:
        cloud.faults.outage = True
        with pytest.raises(HostUnreachableError, match="Modal cannot be reached"):
            await get_provider("modal").find(machine.id)
        cloud.faults.outage = False
        assert await _out(machine, "echo still here") == "still here"


async def test_a_sandbox_that_modal_takes_away_is_lost_at_once(cloud: ModalCloud) -> None:
    async with _started(lease=60.0) as machine:
        running = asyncio.create_task(machine.exec(["sleep", "600"]))
        await machine.exec(["true"])
        cloud.preempt(_place(machine))
        async with asyncio.timeout(30):
            with pytest.raises(PreemptedError, match="preempted"):
                await running
        with pytest.raises(SandboxNotFoundError, match="preempted"):
            await get_provider("modal").find(machine.id)


async def test_a_hidden_model_is_refused_where_it_cannot_be_hidden(cloud: ModalCloud) -> None:
    error = await _refused(hidden=True)
    assert isinstance(error, IsolationUnavailableError)
    assert "hide a model's origin" in str(error)
    assert cloud.running == []


# --- killed controllers ------------------------------------------------------------------------

_PREPARE = """
import sys
from seer._sync import run_sync
from seer.providers import MachineSpec, get_provider
run_sync(get_provider("modal").host(MachineSpec(lease=float(sys.argv[1]), network="full")))
print("preparing", flush=True)
sys.stdin.read()
"""


def test_a_killed_controller_gives_its_sandbox_back_also_before_there_is_a_machine(
    cloud: ModalCloud,
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


@pytest.mark.parametrize("gpu", ["A100", None])
async def test_a_sandbox_that_is_terminated_while_it_is_rented_leaves_nothing(
    cloud: ModalCloud, gpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = threading.Event()

    async def told_late(creating: "asyncio.Task[Any]", *_: object) -> Any:
        await asyncio.wait({creating})
        created.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(_sandboxes, "_when_placed", told_late)
    sandbox = Sandbox(SandboxConfig(provider="modal", gpu=gpu, start_timeout=60.0, network="full"))
    starting = asyncio.create_task(sandbox.astart())
    assert await asyncio.to_thread(created.wait, 30)
    assert len(cloud.running) == 1
    await sandbox.aterminate()
    # Modal ends a sandbox some time after it was asked to.
    await await_until(lambda: not cloud.running, "the rented machine ends")
    with pytest.raises(SandboxStateError, match="terminated while"):
        await starting
