"""Behaviour that is specific to machines on this host."""

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from seer.errors import (
    HostUnsuitableError,
    IsolationError,
    ProviderError,
    RemoteFileError,
    SandboxLostError,
    SandboxNotFoundError,
)
from seer.isolation import BackendName, Mount
from seer.providers import Machine, MachineSpec, get_provider
from seer.providers import _gpus as gpus
from seer.providers.agent import wire
from seer.providers.client import _lease
from seer.providers.client._keeper import KeeperClient
from seer.providers.local._machine import LocalMachine, LocalRoute
from seer.providers.local._orphans import being_made
from seer.providers.local._record import machines_dir

pytestmark = pytest.mark.full
BOTH = pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])


@contextlib.asynccontextmanager
async def started(**fields: object) -> AsyncGenerator[Machine]:
    """A machine with these fields in its spec."""
    spec = MachineSpec(**fields)  # pyright: ignore[reportArgumentType]
    machine = await get_provider("local").start(spec)
    try:
        yield machine
    finally:
        await machine.terminate()


async def out(machine: Machine, script: str) -> str:
    """What a shell script prints."""
    result = await machine.exec(["/bin/sh", "-c", script], timeout=60)
    return (result.stdout + result.stderr).decode().strip()


@BOTH
async def test_mounts_appear_where_the_machine_says(tmp_path: Path, backend: BackendName) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content")
    (tmp_path / "data").chmod(0o755)
    mount = Mount(tmp_path / "data", "/models/one")
    async with started(
        isolation=backend, mounts=(mount,), path_env={"MODEL_PATH": "/models/one"}
    ) as machine:
        seen = machine.path("/models/one")
        assert await out(machine, f"cat {seen}/file; echo; echo $MODEL_PATH") == f"content\n{seen}"
        assert machine.path("/models/one/file") == f"{seen}/file"
        with pytest.raises(RemoteFileError) as caught:
            await machine.write_file(f"{seen}/new", b"x")
        assert caught.value.errno in (errno.EROFS, errno.EACCES)


@BOTH
async def test_a_working_folder_of_the_user_outlives_the_machine(
    tmp_path: Path, backend: BackendName
) -> None:
    workdir = tmp_path / "mine"
    workdir.mkdir()
    (workdir / "before").write_text("here first")
    async with started(isolation=backend, workdir=workdir) as machine:
        assert await machine.read_file("before") == b"here first"
        await machine.write_file("after", b"made inside")
    assert (workdir / "after").read_text() == "made inside"
    assert (workdir / "before").exists()


@BOTH
async def test_a_package_environment_comes_before_the_interpreters_own(
    tmp_path: Path, backend: BackendName
) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "env" / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (site / "packaged.py").write_text("WHERE = __file__\n")
    (tmp_path / "env" / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "env" / "bin" / name).symlink_to("/seer/python/bin/python3")
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /seer/python/bin\n")
    async with started(isolation=backend, python_env=tmp_path / "env") as machine:
        code = "import packaged, sys; print(packaged.WHERE); import json; print(sys.prefix)"
        result = await machine.exec([machine.layout.python, "-c", code])
        assert result.stderr == b""
        assert result.stdout.splitlines()[0].endswith(b"site-packages/packaged.py")
        assert await out(machine, "python3 -c 'import packaged; print(1)'") == "1"


@BOTH
async def test_seer_itself_is_not_to_be_seen(backend: BackendName) -> None:
    async with started(isolation=backend) as machine:
        code = "import importlib.util as u; print(u.find_spec('seer'), u.find_spec('src'))"
        result = await machine.exec([machine.layout.python, "-c", code])
        assert result.stdout.split() == [b"None", b"None"]


async def test_a_machine_forgets_sockets_that_nobody_uses_any_more() -> None:
    async with started() as machine:
        way = await machine.reach(f"{machine.layout.run}/some.sock")
        await way.close()
        seen = weakref.ref(way)
        del way
        gc.collect()
        assert seen() is None


async def test_no_jail_is_possible_when_asked_for() -> None:
    async with started(isolation="none") as machine:
        assert await out(machine, "pwd") == machine.layout.workdir
        assert await out(machine, "id -u") == str(os.getuid())


async def test_a_missing_gpu_is_a_warning_that_says_what_is_there_or_an_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "devices", list[gpus.Device])
    with caplog.at_level(logging.WARNING):
        async with started(gpu="A100", gpu_optional=True) as machine:
            assert await out(machine, "echo up") == "up"
    assert "gpu='A100'" in caplog.text
    assert "no NVIDIA GPU" in caplog.text
    with pytest.raises(HostUnsuitableError, match="gpu='A100'.*no NVIDIA GPU"):
        async with started(gpu="A100"):
            pass


def test_gpus_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t NVIDIA Test {number}\nIRQ: 1\n")
    monkeypatch.setattr(gpus, "_PROC", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [gpu.name for gpu in gpus.devices()] == ["NVIDIA Test 0", "NVIDIA Test 1"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lease": 0}, "lease=0"),
        ({"timeout": -1}, "timeout=-1"),
        ({"gpu": "A100", "gpu_count": 0}, "gpu_count=0"),
        ({"workdir": Path("/no/such")}, "workdir='/no/such'"),
        ({"python_env": Path("/no/such")}, "python_env='/no/such'"),
        ({"mounts": (Mount(Path("/no/such"), "/x"),)}, "'/no/such'"),
        ({"gates": {"a b": Path("/no/such")}}, "'a b'"),
        ({"gates": {"ab": Path("/no/such")}}, "not a socket"),
    ],
)
async def test_what_cannot_work_is_refused_and_leaves_nothing(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ProviderError, match=message):
        async with started(**fields):
            raise AssertionError("it started")
    assert list(machines_dir().iterdir()) == []


async def test_a_hidden_model_needs_a_jail_that_can_hide() -> None:
    with pytest.raises(IsolationError, match="hide"):
        async with started(hidden=True, isolation="landlock"):
            raise AssertionError("it started")


async def test_a_jail_that_does_not_come_up_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seer.providers.local._start._STEWARD", "raise SystemExit('no luck today')")
    with pytest.raises(ProviderError, match="no luck today"):
        async with started():
            raise AssertionError("it started")
    assert list(machines_dir().iterdir()) == []


async def test_a_keeper_that_does_not_come_up_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seer.providers.local._start._KEEPER", "raise SystemExit('no keeper')")
    with pytest.raises(ProviderError, match="no keeper"):
        async with started():
            raise AssertionError("it started")
    assert list(machines_dir().iterdir()) == []


async def test_a_start_that_takes_too_long_is_given_up_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import time; time.sleep(60)"
    monkeypatch.setattr("seer.providers.local._start._STEWARD", code)
    with pytest.raises(ProviderError, match=r"start_timeout=0\.5"):
        async with started(start_timeout=0.5):
            raise AssertionError("it started")
    assert list(machines_dir().iterdir()) == []


def _running(command: str) -> list[int]:
    """The host's processes with this command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if line.replace(b"\0", b" ").decode(errors="replace").strip() == command:
                found.append(int(entry.name))
    return found


@BOTH
@pytest.mark.parametrize("number", ["KILL", "STOP"])
async def test_a_command_cannot_escape_by_disabling_its_server(
    backend: BackendName, number: str
) -> None:
    async with started(isolation=backend) as machine:
        await out(machine, "sleep 6001 >/dev/null 2>&1 &")
        seconds = 10**6 + secrets.randbelow(10**6)
        # The server is the command's parent; a second process has left its session.
        script = f"setsid sleep {seconds} & sleep 0.3; kill -{number} $PPID; sleep {seconds}"
        with pytest.raises(SandboxLostError, match="killed"):
            await machine.exec(["/bin/sh", "-c", script], timeout=60)
        assert not _running(f"sleep {seconds}")
        assert await out(machine, "echo alive") == "alive"


@BOTH
async def test_files_larger_than_the_disk_limit_are_refused(backend: BackendName) -> None:
    async with started(isolation=backend, disk=4 << 20) as machine:
        with pytest.raises(RemoteFileError) as caught:
            await machine.write_file("large", bytes(6 << 20))
        assert caught.value.errno == errno.EFBIG
        assert await out(machine, "ls -A") == ""
        assert (await machine.exec(["head", "-c", "5000000", "/dev/zero"])).exit_code == 0


@BOTH
async def test_whatever_starts_while_a_machine_ends_is_told_that_it_ended(
    backend: BackendName,
) -> None:
    for _ in range(10):
        async with started(isolation=backend) as machine, asyncio.TaskGroup() as callers:

            async def call(machine: Machine = machine) -> None:
                # Not that it cannot fork, which is how its end is made sure of.
                with pytest.raises(SandboxLostError, match="terminated"):
                    for _ in range(10_000):
                        await machine.exec(["true"])

            running = [callers.create_task(call()) for _ in range(4)]
            await machine.exec(["true"])
            await machine.terminate()
            await asyncio.gather(*running)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of 8 MB."""
    if os.geteuid() != 0:
        pytest.skip("needs a file system of its own")
    options = ["-t", "tmpfs", "-o", "size=8m,mode=755", "tmpfs"]
    subprocess.run(["mount", *options, str(tmp_path)], check=True)
    (tmp_path / "work").mkdir()
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


async def test_a_full_disk_is_an_error_and_the_machine_still_ends_cleanly(
    small_disk: Path,
) -> None:
    async with started(workdir=small_disk / "work", isolation="bubblewrap") as machine:
        await machine.write_file("kept", b"old")
        with pytest.raises(RemoteFileError) as caught:
            await machine.write_file("kept", bytes(20 << 20))
        assert caught.value.errno == errno.ENOSPC
        assert await machine.read_file("kept") == b"old"
        assert await out(machine, "ls -A") == "kept"


async def test_cpus_are_limited() -> None:
    async with started(cpus=1) as machine:
        assert await out(machine, "nproc") == "1"


async def test_what_a_machine_was_ended_for_is_found_by_id() -> None:
    async with started() as machine:
        await machine.terminate()
        with pytest.raises(SandboxNotFoundError, match="terminated"):
            await get_provider("local").find(machine.id)


async def test_a_forgotten_folder_is_swept_and_one_in_the_making_is_not() -> None:
    old, new = machines_dir() / "sb-00000000old", machines_dir() / "sb-00000000new"
    for folder in (old, new):
        (folder / "work").mkdir(parents=True)
    (old / "lock").touch()
    with being_made():
        await get_provider("local").list()
        assert not old.exists()
        assert new.exists()
    await get_provider("local").list()
    assert not new.exists()


def _keepers(machine_id: str) -> list[int]:
    """The reaper and, with the higher number, the keeper of a machine."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if machine_id.encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
    return found


async def test_a_keeper_ends_its_machine_when_asked_to_stop() -> None:
    async with started() as machine:
        os.kill(max(_keepers(machine.id)), signal.SIGTERM)
        with pytest.raises(SandboxLostError, match="SIGTERM"):
            await machine.exec(["sleep", "600"])


async def test_a_long_state_folder_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("long" * 30) / ("longer" * 20)))
    async with started() as machine:
        assert await out(machine, "echo up") == "up"
        found = await get_provider("local").find(machine.id)
        assert await out(found, "echo found") == "found"


async def test_a_network_that_is_not_there_is_not_there() -> None:
    async with started(network="none", isolation="bubblewrap") as machine:
        assert await out(machine, "cat /proc/net/dev | grep -c :") == "1", "loopback only"


async def test_a_start_that_fails_early_leaks_no_descriptor(tmp_path: Path) -> None:
    async with started() as machine:
        assert await out(machine, "echo ready") == "ready"
    (tmp_path / "file").touch()
    held = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for wrong in (
        Mount(tmp_path / "file", "relative"),
        Mount(tmp_path / "file", "/workspace/inside"),
    ):
        with pytest.raises(IsolationError):
            await get_provider("local").start(MachineSpec(mounts=(wrong,)))
    assert set(os.listdir("/proc/self/fd")) <= held  # noqa: PTH208


async def test_a_machine_that_has_ended_leads_to_no_other(tmp_path: Path) -> None:
    async with started() as machine:
        assert isinstance(machine, LocalMachine)
        route = machine._route  # pyright: ignore[reportPrivateUsage]
        assert isinstance(route, LocalRoute)
        number = route.folder
    # The number of its folder's descriptor may be reused by now.
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert route.folder == -1
    with pytest.raises(SandboxLostError):
        await machine.exec(["true"])


@BOTH
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
async def test_a_machine_cannot_leave_its_cores(backend: BackendName) -> None:
    code = (
        "import os\nprint(len(os.sched_getaffinity(0)))\n"
        "try: os.sched_setaffinity(0, range(64))\nexcept OSError as error: print(error.errno)\n"
        "print(len(os.sched_getaffinity(0)))"
    )
    async with started(isolation=backend, cpus=1) as machine:
        done = await machine.exec([machine.layout.python, "-c", code])
    assert done.stdout.split() == [b"1", b"1", b"1"], done.stderr


async def test_ending_waits_while_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = asyncio.Event()
    monkeypatch.setattr(_lease.logger, "warning", lambda *_: said.set())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    async with started() as machine:
        assert isinstance(machine, LocalMachine)
        record = machine._record  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(_lease, "_END_TIMEOUT", 0.2)
    ours, keepers = socket.socketpair()
    with keepers:
        ended = LocalMachine(tmp_path, record, await KeeperClient.on(ours))
        ending = asyncio.create_task(ended.terminate())
        keepers.setblocking(False)
        loop = asyncio.get_running_loop()
        while b"terminate" not in await loop.sock_recv(keepers, 4096):
            pass
        await loop.sock_sendall(keepers, wire.message(wire.ENDED, reason="terminated"))
        async with asyncio.timeout(30):
            await said.wait()
        assert not ending.done()
        with pytest.raises(SandboxLostError, match="ended: terminated"):
            await ended.exec(["true"])
    async with asyncio.timeout(30):
        await ending


async def test_a_start_cancelled_while_it_connects_to_its_keeper_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = KeeperClient.on
    before = {status.id for status in await get_provider("local").list()}
    starting: list[asyncio.Task[Machine]] = []

    async def cancelled(sock: socket.socket) -> KeeperClient:
        starting[0].cancel()
        await asyncio.sleep(0)
        return await connect(sock)

    monkeypatch.setattr(KeeperClient, "on", cancelled)
    descriptors = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    starting.append(asyncio.create_task(get_provider("local").start(MachineSpec())))
    with pytest.raises(asyncio.CancelledError):
        await starting[0]
    assert set(os.listdir("/proc/self/fd")) <= descriptors  # noqa: PTH208
    assert {status.id for status in await get_provider("local").list()} <= before


async def test_a_detached_machine_with_a_record_of_another_version_can_be_ended() -> None:
    provider = get_provider("local")
    machine = await provider.start(MachineSpec())
    await machine.detach()
    folder = machines_dir() / machine.id
    record = json.loads((folder / "machine.json").read_text())
    for name in ("devices", "policy"):
        del record[name]
    del record["layout"]["packages"]
    record["a_field_of_another_version"] = record["layout"]["other"] = 1
    (folder / "machine.json").write_text(json.dumps(record))
    assert machine.id in {status.id for status in await provider.list()}
    found = await provider.find(machine.id)
    await found.terminate()
    assert not folder.exists()
    assert machine.id not in {status.id for status in await provider.list()}


async def _asked(loop: asyncio.AbstractEventLoop, keeper: socket.socket) -> bytes:
    """The operation of the next request; empty once the controller has hung up."""
    data = await loop.sock_recv(keeper, 65536)
    return wire.get_bytes(wire.decode_message(data[5:]), "op") if data else b""


async def test_a_cancelled_hold_leaves_a_detached_machine_detached() -> None:
    ours, keeper = socket.socketpair()
    keeper.setblocking(False)
    loop = asyncio.get_running_loop()
    with keeper:
        async with asyncio.timeout(5):
            client = await KeeperClient.on(ours)
            holding = asyncio.create_task(client.hold())
            assert await _asked(loop, keeper) == b"status"
            await loop.sock_sendall(keeper, wire.message(wire.OK, detached=1))
            assert await _asked(loop, keeper) == b"hold"
            holding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holding
            letting_go = asyncio.create_task(client.let_go())
            assert await _asked(loop, keeper) == b"detach"
            # The answers to `hold`, which is no longer awaited, and to `detach`.
            await loop.sock_sendall(keeper, 2 * wire.message(wire.OK, detached=1))
            await letting_go
            assert await _asked(loop, keeper) == b""
