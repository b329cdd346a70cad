"""Behaviour that is specific to SSH hosts: logins, errors, GPUs, launchers."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from seer.errors import (
    CapacityError,
    HostFullError,
    HostRefusedError,
    HostUnreachableError,
    HostUnsuitableError,
    IsolationUnavailableError,
    ProviderError,
    SandboxLostError,
    SandboxNotFoundError,
)
from seer.providers import Machine, MachineSpec
from seer.providers.ssh import SshProvider
from seer.testing import run_sync
from seer.testing.provider_contract import eventually
from tests.support.sshd import SshServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ssh-details")]

_SRUN = Path(__file__).parent / "remote" / "srun"
_SMI = """#!/bin/sh
case $1 in
  --query-gpu*)
    echo '0, GPU-a, NVIDIA A100-SXM4-80GB'
    echo '1, GPU-b, NVIDIA A100-SXM4-80GB'
    echo '2, GPU-c, Tesla T4' ;;
  *) cat "$(dirname "$0")/busy" ;;
esac
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def server() -> Generator[SshServer]:
    with SshServer() as started:
        yield started


@pytest.fixture
def provider() -> Generator[SshProvider]:
    made = SshProvider()
    yield made
    run_sync(made.aclose())


def start(provider: SshProvider, options: dict[str, object], **more: Any) -> Machine:
    spec = dataclasses.replace(MachineSpec(options=options, lease=10.0), **more)
    return run_sync(provider.start(spec))


def say(machine: Machine, *argv: str) -> str:
    result = run_sync(machine.exec(list(argv), timeout=60))
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode().strip()


# --- who may come in ---------------------------------------------------------------------------


def test_a_changed_host_key_is_refused(
    server: SshServer, provider: SshProvider, tmp_path: Path
) -> None:
    other = (server.folder / "client_key.pub").read_text()
    (tmp_path / "known").write_text(f"testhost {other}")
    options = {**server.options(), "known_hosts": str(tmp_path / "known")}
    with pytest.raises(HostRefusedError, match="host key is not the known one"):
        start(provider, options)


def test_an_unknown_host_is_refused(
    server: SshServer, provider: SshProvider, tmp_path: Path
) -> None:
    (tmp_path / "known").write_text("")
    options = {**server.options(), "known_hosts": str(tmp_path / "known")}
    with pytest.raises(HostRefusedError, match="log in once with `ssh"):
        start(provider, options)


def test_host_keys_are_checked_whatever_the_ssh_configuration_says(
    server: SshServer, provider: SshProvider, tmp_path: Path
) -> None:
    text = (server.folder / "ssh_config").read_text()
    loose = text.replace(str(server.folder / "known_hosts"), "/dev/null")
    (tmp_path / "config").write_text(f"{loose}  StrictHostKeyChecking no\n")
    options = {**server.options(), "config": str(tmp_path / "config"), "known_hosts": ""}
    with pytest.raises(HostRefusedError, match="host key"):
        start(provider, options)


def test_a_key_that_the_host_does_not_know_is_refused(
    server: SshServer, provider: SshProvider
) -> None:
    options = {**server.options(), "identity": str(server.folder / "host_key")}
    with pytest.raises(HostRefusedError, match="accepts none of your keys"):
        start(provider, options)


def test_a_host_that_does_not_answer_is_named(server: SshServer, provider: SshProvider) -> None:
    options = {**server.options(), "port": 1}
    with pytest.raises(HostUnreachableError, match="testhost cannot be reached"):
        start(provider, options)


def test_an_agent_is_used_and_never_forwarded(
    server: SshServer, provider: SshProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(sock), "the agent answers")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        subprocess.run(
            ["ssh-add", "-q", str(server.folder / "client_key")], check=True, capture_output=True
        )
        lines = (server.folder / "ssh_config").read_text().splitlines()
        kept = [line for line in lines if "Identit" not in line]
        (tmp_path / "config").write_text("\n".join([*kept, "  ForwardAgent yes", ""]))
        options = {**server.options(), "config": str(tmp_path / "config")}
        machine = start(provider, options)
        assert "SSH_" not in say(machine, "env")
        host = provider.hosts[0]
        seen = run_sync(host.link.run(["env"])).stdout.decode()
        assert "SSH_CONNECTION" in seen
        assert "SSH_AUTH_SOCK" not in seen
        run_sync(machine.terminate())
    finally:
        agent.terminate()
        agent.wait()


def _listens(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return True
    return False


def test_a_jump_host_of_the_ssh_configuration_is_used(
    server: SshServer, provider: SshProvider, tmp_path: Path
) -> None:
    text = (server.folder / "ssh_config").read_text()
    inner = text.replace("Host testhost", "Host inner") + "  ProxyJump testhost\n"
    (tmp_path / "config").write_text(text + inner)
    before = server.connections
    options = {**server.options(), "host": "inner", "config": str(tmp_path / "config")}
    machine = start(provider, options)
    assert machine.id.endswith("@inner")
    assert say(machine, "echo", "through") == "through"
    assert server.connections == before + 2
    run_sync(machine.terminate())


def test_forwarding_that_is_forbidden_there_is_done_without(provider: SshProvider) -> None:
    with SshServer(more="AllowStreamLocalForwarding no") as strict:
        machine = start(provider, strict.options())
        assert say(machine, "echo", "pumped") == "pumped"
        strict.cut()
        assert say(machine, "echo", "again") == "again"
        run_sync(machine.terminate())


def test_everything_of_ours_lies_under_one_folder_however_long_its_name(
    server: SshServer, provider: SshProvider
) -> None:
    root = server.folder / ("long" * 25) / "root"
    machine = start(provider, {**server.options(), "root": str(root)})
    assert say(machine, "echo", "here") == "here"
    assert {path.name for path in root.iterdir()} == {"kits", "state", "cache"}
    run_sync(machine.terminate())
    assert list((root / "state/seer/machines").iterdir()) == []


# --- what a host may lack ----------------------------------------------------------------------


def test_a_host_without_a_python_is_named(server: SshServer, provider: SshProvider) -> None:
    with pytest.raises(HostUnsuitableError, match="older than 3.11"):
        start(provider, {**server.options(), "python": "/usr/bin/python2.7"})


def test_a_host_without_a_jail_starts_nothing(provider: SshProvider, tmp_path: Path) -> None:
    for name in ("sh", "tar", "gzip", "mkdir", "mktemp", "mv", "rm"):
        (tmp_path / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    with SshServer(more=f"SetEnv PATH={tmp_path}") as bare:
        with pytest.raises(IsolationUnavailableError, match="bubblewrap"):
            start(provider, bare.options(), isolation="bubblewrap")
        assert list(Path(bare.root).glob("state/seer/machines/*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
@pytest.mark.parametrize("size", ["64k", "2m"])
def test_a_full_disk_there_is_said_so(
    server: SshServer, provider: SshProvider, tmp_path: Path, size: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        with pytest.raises(HostFullError):
            machine = start(provider, {**server.options(), "root": str(disk / "root")})
            host = provider.hosts[0]
            (tmp_path / "pushed").mkdir()
            (tmp_path / "pushed" / "large").write_bytes(os.urandom(4 << 20))
            try:
                run_sync(host.push(tmp_path / "pushed"))
            finally:
                run_sync(machine.terminate())
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_is_pushed_once_and_whole(
    server: SshServer, provider: SshProvider, tmp_path: Path
) -> None:
    source = tmp_path / "folder"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "x").write_bytes(os.urandom(100_000))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("deep/x")
    host = run_sync(provider.host(MachineSpec(options=server.options())))
    assert host is not None
    there = run_sync(host.push(source))
    assert run_sync(host.push(source)) == there
    assert (there / "deep/x").read_bytes() == (source / "deep/x").read_bytes()
    assert (there / "run").stat().st_mode & 0o777 == 0o755
    assert (there / "link").readlink() == Path("deep/x")
    (source / "run").write_text("#!/bin/sh\ntrue\n")
    assert run_sync(host.push(source)) != there


# --- machines that are lost --------------------------------------------------------------------


@pytest.mark.parametrize("others", ["live", "are slow", "are killed, too"])
def test_a_machine_whose_keeper_is_killed_is_lost_with_a_reason(
    server: SshServer, provider: SshProvider, others: str
) -> None:
    machine = start(provider, server.options())
    inner = machine.id.partition("@")[0]
    reaper, keeper = _reaper_and_keeper(inner)
    if others != "live":
        os.kill(reaper, signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    if others != "live":
        for pid in _pids(inner, "seer_remote.session_server"):
            os.kill(pid, signal.SIGKILL)
    if others == "are killed, too":
        os.kill(reaper, signal.SIGKILL)

    async def use() -> None:
        using = asyncio.create_task(machine.exec(["sleep", "60"], timeout=60))
        if others == "are slow":
            await asyncio.wait([using], timeout=1)
            os.kill(reaper, signal.SIGCONT)
        await using

    with pytest.raises(SandboxLostError, match="keeper was killed"):
        run_sync(use())
    with pytest.raises(SandboxNotFoundError, match="not running"):
        run_sync(provider.find(machine.id))


def test_a_porter_that_is_killed_is_replaced_for_the_next_controller(
    server: SshServer, provider: SshProvider
) -> None:
    machine = start(provider, server.options())
    run_sync(machine.detach())
    inner = machine.id.partition("@")[0]
    for pid in _pids(inner, "seer_remote.session_server"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLostError):
        run_sync(machine.exec(["sleep", "60"], timeout=60))
    again = run_sync(provider.find(machine.id))
    assert say(again, "echo", "found") == "found"
    run_sync(again.terminate())


def test_a_cut_longer_than_the_lease_ends_the_machine_and_says_so(
    server: SshServer, provider: SshProvider
) -> None:
    machine = start(provider, server.options(), lease=5.0)
    server.block()
    try:
        with pytest.raises(SandboxLostError, match="could not be reached for 5 s"):
            run_sync(machine.exec(["sleep", "60"], timeout=60))
    finally:
        server.unblock()
    run_sync(eventually(lambda: _is_idle(provider), "the machine has ended"))
    with pytest.raises(SandboxNotFoundError, match="controller"):
        run_sync(provider.find(machine.id))


def test_a_line_that_is_silent_for_a_while_is_replaced(
    server: SshServer, provider: SshProvider
) -> None:
    machine = start(provider, server.options(), lease=8.0)

    async def work() -> bytes:
        running = asyncio.create_task(machine.exec(["sh", "-c", "sleep 3; echo through"]))
        await asyncio.sleep(0.3)
        server.block()
        await asyncio.sleep(3)
        server.unblock()
        return (await running).stdout

    assert run_sync(work()) == b"through\n"
    run_sync(machine.terminate())


def test_a_detached_machine_that_is_found_and_let_go_stays_detached(
    server: SshServer, provider: SshProvider
) -> None:
    machine = start(provider, server.options())
    run_sync(machine.detach())
    found = run_sync(provider.find(machine.id))
    (status,) = run_sync(provider.list())
    assert not status.detached, "this controller holds it"
    run_sync(found.let_go())
    (status,) = run_sync(provider.list())
    assert status.detached
    assert say(machine, "echo", "runs") == "runs"
    run_sync(machine.terminate())


async def _is_idle(provider: SshProvider) -> bool:
    return not await provider.list()


def _reaper_and_keeper(machine_id: str) -> tuple[int, int]:
    first, second = _pids(machine_id, "seer_machine.keeper")
    status = Path(f"/proc/{first}/status").read_text()
    return (second, first) if f"\nPPid:\t{second}\n" in status else (first, second)


def _pids(machine_id: str, word: str) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if machine_id in line and word in line:
                found.append(int(folder.name))
    return found


# --- GPUs --------------------------------------------------------------------------------------


@pytest.fixture
def gpus(tmp_path: Path) -> Generator[SshServer]:
    (tmp_path / "nvidia-smi").write_text(_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "busy").write_text("")
    with SshServer(more=f"SetEnv PATH={tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin") as started:
        yield started


def test_sandboxes_share_the_gpus_of_a_host_by_count(
    gpus: SshServer, provider: SshProvider, tmp_path: Path
) -> None:
    def visible(machine: Machine) -> str:
        return say(machine, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")

    one = start(provider, gpus.options(), gpu="A100")
    two = start(provider, gpus.options(), gpu="A100-80GB")
    assert {visible(one), visible(two)} == {"0", "1"}
    with pytest.raises(CapacityError, match="2 in use by sandboxes"):
        start(provider, gpus.options(), gpu="A100", start_timeout=0.2)
    shared = start(provider, {**gpus.options(), "share_gpus": True}, gpu="A100")
    run_sync(shared.terminate())
    taken = visible(one)
    run_sync(one.terminate())
    (tmp_path / "busy").write_text(f"GPU-{'ab'[int(taken)]}, 4711\n")
    with pytest.raises(CapacityError, match="1 by other processes"):
        start(provider, gpus.options(), gpu="A100", start_timeout=0.2)
    with pytest.raises(HostUnsuitableError, match="Tesla T4"):
        start(provider, gpus.options(), gpu="H100")
    run_sync(two.terminate())


def test_a_host_without_a_gpu_is_no_host_for_one(server: SshServer, provider: SshProvider) -> None:
    with pytest.raises(HostUnsuitableError, match="no NVIDIA GPU"):
        start(provider, server.options(), gpu="A100")


# --- launchers ---------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in makes its node with namespaces")
def test_a_launcher_starts_machines_on_its_node(server: SshServer, provider: SshProvider) -> None:
    options = {**server.options(), "launcher": f"{_SRUN} --gres=gpu:1"}
    machine = start(provider, options, gpu="A100", label="launched")
    chosen = say(machine, "sh", "-c", "echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES")
    assert chosen == "FASTEST_FIRST 3", "the launcher's choice, counted as the launcher counts"
    server.cut()
    assert say(machine, "echo", "again") == "again"
    (status,) = run_sync(provider.list())
    assert (status.id, status.label, status.controller_alive) == (machine.id, "launched", True)
    found = run_sync(provider.find(machine.id))
    assert say(found, "echo", "found") == "found"
    run_sync(machine.terminate())
    assert run_sync(provider.list()) == []
    with pytest.raises(SandboxNotFoundError, match="terminated"):
        run_sync(provider.find(machine.id))


@pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in makes its node with namespaces")
def test_a_launcher_that_is_killed_takes_its_machine_along(
    server: SshServer, provider: SshProvider
) -> None:
    options = {**server.options(), "launcher": str(_SRUN)}
    machine = start(provider, options)
    launchers = _pids("srun-node", "launched")
    assert launchers
    for pid in launchers:
        # The end of one may end the next.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLostError):
        run_sync(machine.exec(["sleep", "60"], timeout=60))
    with pytest.raises(SandboxNotFoundError, match="launcher ended"):
        run_sync(provider.find(machine.id))


def test_a_launcher_that_refuses_is_quoted(server: SshServer, provider: SshProvider) -> None:
    options = {**server.options(), "launcher": f"env SRUN_REFUSES=quota {_SRUN}"}
    with pytest.raises(ProviderError, match="Unable to allocate resources: quota"):
        start(provider, options)


# --- controllers that die ----------------------------------------------------------------------

_CONTROLLER = """
import sys
from seer.testing import run_sync
from seer.providers import MachineSpec, get_provider
machine = run_sync(get_provider("ssh").start(MachineSpec(lease=float(sys.argv[1]))))
way = run_sync(machine.reach("/run/seer/gate.sock"))
print(machine.id, way.path, flush=True)
sys.stdin.read()
"""


def test_an_orphan_is_listed_as_one_and_ends_with_its_lease_and_its_ways(
    server: SshServer, provider: SshProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    first = subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER, "4"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdin is not None and first.stdout is not None
    with first.stdin, first.stdout:
        machine_id, way = first.stdout.readline().split()
        assert Path(way).is_socket()
        assert [status.id for status in run_sync(provider.list())] == [machine_id]
        first.kill()
        first.wait()
        wait_until(lambda: not Path(way).parent.exists(), "the way's folder is gone")
        run_sync(eventually(lambda: _is_idle(provider), "the orphan has ended", within=34))


def test_a_price_is_shown_as_the_cost_so_far(server: SshServer, provider: SshProvider) -> None:
    machine = start(provider, {**server.options(), "price_per_hour": 3600.0})
    (status,) = run_sync(provider.list())
    assert status.cost_usd is not None
    assert 0 < status.cost_usd < 60
    assert dataclasses.asdict(status)["provider"] == "ssh"
    run_sync(machine.terminate())
