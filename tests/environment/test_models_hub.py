"""Real downloads with the hub's own library, from a hub on loopback that misbehaves on request.

It prepares models itself, because these cases need no machine.
"""

import asyncio
import contextlib
import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seer.environment import ModelConfig
from seer.environment.models import _fetch
from seer.environment.models._download import OnBytes
from seer.environment.models._models import PreparedModel
from seer.environment.prepare._preparer import LocalPreparer
from seer.errors import ModelError
from tests.support.hub import LoopbackHub

pytestmark = pytest.mark.full

NAME = "acme/secret-falcon-7b"
WEIGHTS = "model.safetensors"
SIZE = 3_000_000


async def prepare_model(
    config: ModelConfig, *, token: str | None = None, on_bytes: OnBytes | None = None
) -> PreparedModel:
    (prepared,) = await LocalPreparer().models([config], token=token, on_bytes=on_bytes)
    return prepared


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of this test's own, and no settings of the user's."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model to publish."""
    source = tmp_path / "published"
    source.mkdir()
    header = {"w": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}
    text = json.dumps(header).encode()
    (source / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + os.urandom(SIZE))
    (source / "config.json").write_text(json.dumps({"_name_or_path": NAME, "model_type": "llama"}))
    (source / "README.md").write_text(f"# {NAME}")
    (source / "pytorch_model.bin").write_bytes(b"the same weights once more")
    (source / "tf_model.h5").write_bytes(b"and again")
    return source


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with LoopbackHub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, of five megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a filesystem takes root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this root may not mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def spawn(argv: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def fails(config: ModelConfig, *words: str) -> str:
    with pytest.raises(ModelError) as caught:
        await prepare_model(config)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob("*.incomplete"))


async def test_a_model_is_downloaded_verified_and_linked(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    commit = hub.add_model(NAME, folder)
    seen: list[tuple[int, int]] = []
    model = await prepare_model(
        ModelConfig(NAME), on_bytes=lambda done, total: seen.append((done, total))
    )
    assert model.commit == commit
    assert model.handle.path == "/models/acme--secret-falcon-7b"
    assert (model.host_path / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert {p.name for p in model.host_path.iterdir()} == {WEIGHTS, "config.json", "README.md"}
    blob = next((tmp_path / "hf").rglob("snapshots/*/" + WEIGHTS)).resolve()
    assert (model.host_path / WEIGHTS).stat().st_ino == blob.stat().st_ino
    assert seen[-1][0] == seen[-1][1] > SIZE
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


async def test_what_is_in_the_cache_is_not_downloaded_again(hub: LoopbackHub, folder: Path) -> None:
    hub.add_model(NAME, folder)
    first = await prepare_model(ModelConfig(NAME))
    second = await prepare_model(ModelConfig(NAME))
    assert first.host_path == second.host_path
    assert hub.downloads[f"{NAME}/{WEIGHTS}"] == 1


async def test_a_revision_is_taken_by_its_name(hub: LoopbackHub, folder: Path) -> None:
    commit = hub.add_model(NAME, folder, revisions=("main", "v1.0"))
    assert (await prepare_model(ModelConfig(NAME, revision="v1.0"))).commit == commit
    assert (await prepare_model(ModelConfig(NAME, revision=commit))).commit == commit
    await fails(ModelConfig(NAME, revision="v9"), "no revision 'v9'")


async def test_a_cut_connection_is_resumed(hub: LoopbackHub, folder: Path) -> None:
    hub.add_model(NAME, folder)
    hub.cut(NAME, WEIGHTS, after=1_000_000)
    model = await prepare_model(ModelConfig(NAME))
    assert (model.host_path / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert hub.downloads[f"{NAME}/{WEIGHTS}"] == 2


async def test_a_connection_that_is_always_cut_is_a_clear_error(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    hub.add_model(NAME, folder)
    hub.cut(NAME, WEIGHTS, after=0, times=20)
    await fails(ModelConfig(NAME), "could not reach the Hugging Face Hub", "HF_ENDPOINT")
    assert not leftovers(tmp_path)
    # Once the hub works again, the download succeeds.
    hub.cut(NAME, WEIGHTS, after=0, times=0)
    model = await prepare_model(ModelConfig(NAME))
    assert (model.host_path / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()


async def test_damaged_bytes_are_noticed_and_thrown_away(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    hub.add_model(NAME, folder)
    hub.damage(NAME, WEIGHTS)
    await fails(ModelConfig(NAME), "corrupt")
    assert not [p for p in (tmp_path / "hf").rglob("blobs/*") if p.stat().st_size > SIZE]


async def test_an_unknown_model_is_named(hub: LoopbackHub) -> None:
    await fails(ModelConfig("acme/nothing"), "'acme/nothing'", "no such model")


async def test_a_wrong_token_names_the_variable_and_not_the_token(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model(NAME, folder, token="hf_right")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = await fails(ModelConfig(NAME), "HF_TOKEN", "refused")
    assert "hf_wrong" not in message


async def test_the_token_is_read_at_the_time_of_the_call(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model(NAME, folder, token="hf_right")
    await fails(ModelConfig(NAME), "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert (await prepare_model(ModelConfig(NAME))).commit


async def test_a_token_from_elsewhere_is_used(hub: LoopbackHub, folder: Path) -> None:
    hub.add_model(NAME, folder, token="hf_right")
    assert (await prepare_model(ModelConfig(NAME), token="hf_right")).commit


async def test_a_gated_model_says_what_to_do(hub: LoopbackHub, folder: Path) -> None:
    hub.add_model(NAME, folder, gated=True)
    await fails(ModelConfig(NAME), "gated", "accept its terms", "HF_TOKEN")


async def test_offline_the_cache_suffices_or_the_error_says_so(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model(NAME, folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    await fails(ModelConfig(NAME), "HF_HUB_OFFLINE")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    online = await prepare_model(ModelConfig(NAME))
    asked = sum(hub.downloads.values())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = await prepare_model(ModelConfig(NAME))
    assert offline.host_path == online.host_path
    assert sum(hub.downloads.values()) == asked


async def test_without_a_hub_the_cache_suffices(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model(NAME, folder)
    online = await prepare_model(ModelConfig(NAME))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert (await prepare_model(ModelConfig(NAME))).host_path == online.host_path
    await fails(ModelConfig("acme/other"), "could not reach the Hugging Face Hub", "HF_ENDPOINT")


async def test_two_processes_at_once_download_once(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    hub.add_model(NAME, folder)
    gate = hub.hold(NAME, WEIGHTS)
    program = (
        "import asyncio, sys; from seer.environment.config._config import ModelConfig;"
        "from seer.environment.prepare._preparer import LocalPreparer;"
        "print(asyncio.run(LocalPreparer().models([ModelConfig(sys.argv[1])]))[0].host_path)"
    )
    argv = [sys.executable, "-c", program, NAME]
    starts = [spawn(argv) for _ in range(2)]
    try:
        assert await asyncio.to_thread(hub.arrived.wait, 90)
        gate.set()
        outputs = [await asyncio.to_thread(start.communicate, timeout=60) for start in starts]
    finally:
        for start in starts:
            start.kill()
            start.wait()
    assert outputs[0] == outputs[1]
    assert [start.returncode for start in starts] == [0, 0]
    assert hub.downloads[f"{NAME}/{WEIGHTS}"] == 1


async def test_two_starts_in_one_process_download_once(hub: LoopbackHub, folder: Path) -> None:
    hub.add_model(NAME, folder)
    models = await asyncio.gather(*(prepare_model(ModelConfig(NAME)) for _ in range(3)))
    assert len({model.host_path for model in models}) == 1
    assert hub.downloads[f"{NAME}/{WEIGHTS}"] == 1


async def test_a_cancelled_start_ends_its_download(hub: LoopbackHub, folder: Path) -> None:
    hub.add_model(NAME, folder)
    gate = hub.hold(NAME, WEIGHTS)
    task = asyncio.create_task(prepare_model(ModelConfig(NAME)))
    assert await asyncio.to_thread(hub.arrived.wait, 90)
    assert _fetchers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _fetchers()
    gate.set()


async def test_a_download_ends_with_the_process_that_wanted_it(
    hub: LoopbackHub, folder: Path
) -> None:
    hub.add_model(NAME, folder)
    gate = hub.hold(NAME, WEIGHTS)
    request = json.dumps({"repo_id": NAME, "revision": "main"}) + "\n"
    fetcher = spawn([sys.executable, "-P", _fetch.__file__])
    assert fetcher.stdin is not None
    fetcher.stdin.write(request)
    fetcher.stdin.flush()
    assert await asyncio.to_thread(hub.arrived.wait, 90)
    await asyncio.to_thread(fetcher.communicate, timeout=60)
    assert fetcher.returncode == 1
    gate.set()


async def test_a_full_disk_is_named_and_leaves_no_half_file(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    hub.add_model(NAME, folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses to write past the limit, with an error like that of a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        await fails(ModelConfig(NAME), "disk is full", "HF_HOME")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not leftovers(tmp_path)
    assert not list((tmp_path / "hf").rglob(WEIGHTS))
    model = await prepare_model(ModelConfig(NAME))
    assert (model.host_path / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()


async def test_a_small_filesystem_that_fills_up_is_named(
    hub: LoopbackHub, folder: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model(NAME, folder)
    (small_disk / "taken").write_bytes(bytes(3 << 20))
    monkeypatch.setenv("HF_HOME", str(small_disk))
    await fails(ModelConfig(NAME), "must be downloaded, but only", "set HF_HOME to a larger disk")
    assert not leftovers(small_disk)


async def test_a_cache_on_another_filesystem_keeps_its_views(
    hub: LoopbackHub, folder: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model(NAME, folder)
    monkeypatch.setenv("HF_HOME", str(small_disk))
    for hidden in (False, True):
        model = await prepare_model(ModelConfig(NAME, hidden=hidden))
        assert model.host_path.is_relative_to(small_disk)
        assert (model.host_path / WEIGHTS).stat().st_nlink > 1
        assert len(model.mounts) == 1


async def test_an_alias_may_be_a_hub_id(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model("acme/small", folder)
    monkeypatch.setenv("SEER_MODEL_ALIASES", "google/gemma-2-9b=acme/small")
    model = await prepare_model(ModelConfig("google/gemma-2-9b"))
    assert model.handle.path == "/models/google--gemma-2-9b"
    assert hub.downloads[f"acme/small/{WEIGHTS}"] == 1


async def test_several_models_count_their_bytes_together(hub: LoopbackHub, folder: Path) -> None:
    hub.add_model("acme/a", folder)
    hub.add_model("acme/b", folder)
    seen: list[tuple[int, int]] = []
    await LocalPreparer().models(
        [ModelConfig("acme/a"), ModelConfig("acme/b")],
        on_bytes=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] > 2 * SIZE
    assert max(done for done, _ in seen) == seen[-1][0]


async def test_a_hidden_model_from_the_hub_tells_nothing(hub: LoopbackHub, folder: Path) -> None:
    commit = hub.add_model(NAME, folder)
    model: PreparedModel = await prepare_model(ModelConfig(NAME, hidden=True))
    for path in model.host_path.rglob("*"):
        content = path.read_bytes().lower() + path.name.encode()
        assert b"falcon" not in content
        assert commit.encode() not in content
    assert "falcon" not in str(model.mounts)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's jails run as another user")
async def test_blobs_of_a_strict_umask_can_be_read_in_a_jail(
    hub: LoopbackHub, folder: Path
) -> None:
    hub.add_model(NAME, folder)
    old = os.umask(0o077)
    try:
        model = await prepare_model(ModelConfig(NAME))
    finally:
        os.umask(old)
    modes = [path.stat().st_mode & 0o444 for path in model.host_path.iterdir()]
    assert modes == [0o444] * len(modes)


def _fetchers() -> list[int]:
    """Fetch programs that are children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            children += (thread / "children").read_text().split()
    found: list[int] = []
    for child in set(children):
        with contextlib.suppress(OSError):  # the child has just ended
            if b"_fetch.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found
