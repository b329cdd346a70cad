"""A sandbox on this machine, as a user has it: started, used, detached, ended."""

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from seer.environment import ModelConfig, RepoConfig, Sandbox, SandboxConfig, ScopedSandbox
from seer.errors import (
    CommandFailedError,
    CommandTimeoutError,
    RemoteFileError,
    SandboxLostError,
    SandboxNotFoundError,
    SandboxStateError,
    SecretMissingError,
    SnapshotError,
    StartError,
)
from seer.testing import make_tiny_model
from tests.waiting import wait_until

pytestmark = pytest.mark.full

PLAIN = SandboxConfig(gpu=None, provider="local", network="none")


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(PLAIN) as running:
        yield running


def test_exec_gives_text_with_exit_code_and_stderr(sandbox: Sandbox) -> None:
    output = sandbox.exec("echo out; echo err >&2; exit 3", check=False)
    assert output == "out\n"
    assert (output.exit_code, output.stderr) == (3, "err\n")


def test_failing_command_raises_with_what_it_said(sandbox: Sandbox) -> None:
    with pytest.raises(CommandFailedError, match="no such flavour") as caught:
        sandbox.exec("echo 'no such flavour' >&2; exit 7")
    assert caught.value.exit_code == 7


def test_timeout_kills_the_tree_and_keeps_partial_output(sandbox: Sandbox) -> None:
    with pytest.raises(CommandTimeoutError) as caught:
        sandbox.exec("echo begun; (setsid sleep 1000 &) ; sleep 1000", timeout=3)
    assert caught.value.stdout == "begun\n"
    assert "sleep" not in sandbox.exec("ps -e -o comm= || true")


def test_output_is_streamed_while_the_command_runs(sandbox: Sandbox) -> None:
    first = threading.Event()
    seen: list[tuple[str, bytes]] = []

    def on_output(stream: str, data: bytes) -> None:
        seen.append((stream, data))
        first.set()

    done = threading.Event()

    def run() -> None:
        sandbox.exec("echo now; until [ -e go ]; do sleep 0.05; done", on_output=on_output)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert first.wait(30) and not done.is_set()
    sandbox.write_file("go", "")
    thread.join(30)
    assert done.is_set() and seen == [("stdout", b"now\n")]


def test_python_code_runs_and_tracebacks_show_its_lines(sandbox: Sandbox) -> None:
    assert sandbox.exec_python("print(6 * 7)") == "42\n"
    with pytest.raises(CommandFailedError, match="1 / 0"):
        sandbox.exec_python("x = 1\ny = x\nprint(1 / 0)")
    assert "exec-" not in sandbox.exec("ls -A $TMPDIR")


@pytest.mark.parametrize("name", ["a b.txt", "new\nline", "ünï/côdé.bin", "-dash", "d/e/f"])
def test_files_with_odd_names_come_back_whole(sandbox: Sandbox, name: str) -> None:
    data = os.urandom(70_000) + b"\x00\xff"
    sandbox.write_file(name, data)
    assert sandbox.read_file(name) == data


def test_large_files_come_back_whole(sandbox: Sandbox) -> None:
    data = os.urandom(1 << 20) * 100
    sandbox.write_file("large", data)
    assert sandbox.read_file("large") == data
    sandbox.exec("rm large")


def test_missing_file_is_an_error_with_errno(sandbox: Sandbox) -> None:
    with pytest.raises(RemoteFileError) as caught:
        sandbox.read_file("nowhere")
    assert caught.value.errno == errno.ENOENT


def test_blocking_methods_work_inside_a_running_loop() -> None:
    async def main() -> str:
        with Sandbox(PLAIN) as sandbox:
            return sandbox.exec("echo inside") + await sandbox.aexec("echo twin")

    import asyncio

    assert asyncio.run(main()) == "inside\ntwin\n"


def test_snapshot_brings_files_back_and_is_never_written_through(sandbox: Sandbox) -> None:
    sandbox.write_file("note.txt", "first")
    sandbox.exec("echo home > ~/kept; ln -s /etc/passwd link")
    kept = sandbox.snapshot("before the change")
    sandbox.write_file("note.txt", "second")
    for _ in range(2):
        with Sandbox.from_snapshot(kept) as restored:
            assert restored.read_file("note.txt") == b"first"
            assert restored.exec("cat ~/kept; readlink link") == "home\n/etc/passwd\n"
            restored.write_file("note.txt", "overwritten")
    assert sandbox.read_file("note.txt") == b"second"


def test_unknown_snapshot_names_those_that_exist() -> None:
    with pytest.raises(SnapshotError, match="there is no snapshot '../etc'"):
        Sandbox.from_snapshot("../etc")


def _detached_by_another_process() -> str:
    code = (
        "from seer.environment import Sandbox, SandboxConfig\n"
        "c = SandboxConfig(gpu=None, provider='local', network='none', timeout=120)\n"
        "s = Sandbox(c).start()\n"
        "s.write_file('left', 'here')\n"
        "print(s.detach())\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return made.stdout.strip()


def test_another_process_adopts_a_detached_sandbox() -> None:
    sandbox_id = _detached_by_another_process()
    assert sandbox_id in {status.id for status in Sandbox.list(provider="local")}
    with Sandbox.from_id(sandbox_id, provider="local") as adopted:
        assert adopted.read_file("left") == b"here"
    with pytest.raises(SandboxNotFoundError, match="terminated"):
        Sandbox.from_id(sandbox_id, provider="local")


def test_a_detached_sandbox_of_the_other_kind_stays_detached() -> None:
    sandbox_id = _detached_by_another_process()
    with pytest.raises(SandboxNotFoundError, match="use Sandbox.from_id"):
        ScopedSandbox.from_id(sandbox_id, provider="local")
    (status,) = [each for each in Sandbox.list(provider="local") if each.id == sandbox_id]
    assert (status.detached, status.controller_alive) == (True, False)
    Sandbox.from_id(sandbox_id, provider="local").terminate()


def test_killed_controller_takes_its_sandbox_along() -> None:
    code = (
        "import sys, time\n"
        "from seer.environment import Sandbox, SandboxConfig\n"
        "s = Sandbox(SandboxConfig(gpu=None, provider='local', network='none')).start()\n"
        "print(s.sandbox_id, flush=True)\n"
        "time.sleep(1000)\n"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    sandbox_id = controller.stdout.readline().strip()
    machine = Path(os.environ["XDG_STATE_HOME"], "seer", "machines", sandbox_id)
    assert machine.is_dir()
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    controller.stdout.close()
    _until_gone(machine)
    with pytest.raises(SandboxNotFoundError):
        Sandbox.from_id(sandbox_id, provider="local")


def test_jupyter_starts_on_first_use_and_ends_with_the_sandbox() -> None:
    with Sandbox(PLAIN) as sandbox:
        url = sandbox.jupyter_url
        assert url == sandbox.jupyter_url and url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=30) as page:
            assert page.status == 200
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=30).close()


def test_use_after_the_end_is_a_clear_error() -> None:
    sandbox = Sandbox(PLAIN)
    with pytest.raises(SandboxStateError, match="not started"):
        sandbox.exec("true")
    sandbox.start()
    with pytest.raises(SandboxStateError, match="already running"):
        sandbox.start()
    sandbox.terminate()
    sandbox.terminate()
    with pytest.raises(SandboxStateError, match="has ended"):
        sandbox.exec("true")


def test_sandbox_ends_at_its_timeout_and_says_so() -> None:
    config = SandboxConfig(gpu=None, provider="local", network="none", timeout=5)
    with Sandbox(config) as sandbox, pytest.raises(SandboxLostError, match="timeout"):
        sandbox.exec("sleep 60")


def test_secrets_reach_the_sandbox_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    value = "s3cr3t-" + os.urandom(8).hex()
    monkeypatch.setenv("PLANTED_TOKEN", value)
    config = SandboxConfig(gpu=None, provider="local", network="none", secrets=["PLANTED_TOKEN"])
    with caplog.at_level("DEBUG"), Sandbox(config) as sandbox:
        assert sandbox.exec('printf %s "$PLANTED_TOKEN"') == value
        assert "PLANTED_TOKEN" in caplog.text, "start() must say what the agent can read"
        state = Path(os.environ["XDG_STATE_HOME"])
        found = [p for p in state.rglob("*") if p.is_file() and value.encode() in p.read_bytes()]
        commands = [_content(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not found and not any(value.encode() in command for command in commands)
    assert value not in caplog.text and value not in repr(sandbox.config)


def test_missing_secret_is_an_error_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    with pytest.raises(SecretMissingError, match="NO_SUCH_TOKEN"):
        Sandbox(
            SandboxConfig(
                gpu=None, provider="local", secrets=["NO_SUCH_TOKEN"], require_secrets=True
            )
        ).start()


def test_failing_phase_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    before = Sandbox.list(provider="local")
    config = SandboxConfig(gpu=None, provider="local", repos=[RepoConfig(url=f"file://{tmp_path}")])
    with pytest.raises(StartError, match="repos") as caught:
        Sandbox(config).start()
    assert caught.value.phase == "repos"
    assert Sandbox.list(provider="local") == before


def test_models_are_mounted_read_only_under_their_names(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    config = SandboxConfig(
        gpu=None, provider="local", network="none", models=[ModelConfig(name=str(folder))]
    )
    with Sandbox(config) as sandbox:
        (model,) = sandbox.model_handles
        assert "config.json" in sandbox.exec(f"ls {model.path}")
        assert sandbox.exec(f"printf %s ${model.env_name}") == model.path
        assert sandbox.exec(f"touch {model.path}/x", check=False).exit_code != 0


def test_hidden_model_shows_neither_name_nor_path(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "organism-of-interest")
    config = SandboxConfig(
        gpu=None,
        provider="local",
        network="none",
        models=[ModelConfig(name=str(folder), hidden=True)],
    )
    with Sandbox(config) as sandbox:
        assert sandbox.model_handles[0].path == "/models/model_0"
        seen = sandbox.exec("env; cat /proc/self/mountinfo; grep -ra interest /models /etc || true")
    assert "organism-of-interest" not in seen


def test_repository_is_checked_out_and_its_install_runs_inside(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", str(tmp_path / "tool")]
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "hello.txt").write_text("hello")
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    repo = RepoConfig(url=f"file://{tmp_path}/tool", ref="main", install="cp hello.txt installed")
    config = SandboxConfig(gpu=None, provider="local", network="none", repos=[repo])
    with Sandbox(config) as sandbox:
        (handle,) = sandbox.repo_handles
        assert sandbox.exec(f"cat {handle.path}/installed; id -un") == "helloagent\n"
    assert not (tmp_path / "tool" / "installed").exists()


def test_local_files_and_folders_are_copied_in(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "x").write_text("1")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran")
    (tmp_path / "run.sh").chmod(0o755)
    config = SandboxConfig(
        gpu=None,
        provider="local",
        network="none",
        local_files=[tmp_path / "run.sh"],
        local_dirs=[(tmp_path / "data", "inputs")],
    )
    with Sandbox(config) as sandbox:
        assert sandbox.exec("./run.sh; cat inputs/deep/x") == "ran\n1"


def _content(path: Path) -> bytes:
    """The content of a file in `/proc` of a process; empty once the process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _until_gone(path: Path) -> None:
    """Wait until the machine's folder is removed."""
    wait_until(lambda: not path.exists(), f"the end of {path}")


@pytest.mark.parametrize("hidden", [False, True])
def test_an_adapters_base_model_is_found_by_its_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    base = make_tiny_model(tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "acme/base"}')
    weights = (base / "model.safetensors").read_bytes()
    (adapter / "adapter_model.safetensors").write_bytes(weights)
    monkeypatch.setenv("SEER_MODEL_ALIASES", f"acme/base={base},acme/adapter={adapter}")
    model = ModelConfig("acme/adapter", is_peft=True, base_model="acme/base", hidden=hidden)
    config = dataclasses.replace(PLAIN, models=[model], python_packages=["huggingface-hub"])
    find = (
        "from huggingface_hub import snapshot_download\n"
        "print(snapshot_download('acme/base', local_files_only=True))"
    )
    with Sandbox(config) as sandbox:
        found = sandbox.exec_python(find, check=False)
        if hidden:
            assert "LocalEntryNotFoundError" in found.stderr
            assert "acme" not in sandbox.exec("find / -xdev 2>/dev/null || true")
        else:
            config_json = sandbox.exec(f"cat {found.strip()}/config.json")
            assert '"model_type": "llama"' in config_json
