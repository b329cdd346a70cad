"""Commands that serve interface files in real jails, each in its own process."""

import asyncio
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from seer.cli._check import stand_ins
from tests.waiting import wait_until

pytestmark = pytest.mark.full

INTERFACE = '''
"""Counting."""
counts = []

@expose
def count(word: str) -> int:
    """Count words."""
    counts.append(word)
    return len(counts)

@expose(max_calls=3)
def bare(a: list[int]):
    return {"n": len(a)}
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(INTERFACE)
    return tmp_path


def seer(
    folder: Path, *arguments: str, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "seer", *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "SEER_PROVIDER": "local", **(env or {})},
    )


def test_check_lists_functions_and_doubts(folder: Path) -> None:
    done = seer(folder, "check", "tools.py")
    assert done.returncode == 3, done.stderr
    assert "count(word: str) -> int" in done.stdout
    assert "max_calls=3" in done.stdout
    assert "bare() has no return hint" in done.stdout
    assert "bare() has no docstring" in done.stdout
    found = json.loads(seer(folder, "check", "tools.py", "--json").stdout)
    assert found["functions"][0]["parameters"]["properties"]["word"]["type"] == "string"


def test_a_provider_or_gpu_that_was_typed_is_never_replaced(folder: Path) -> None:
    bare = {"SEER_PROVIDER": "", "MODAL_TOKEN_ID": "", "MODAL_CONFIG_PATH": str(folder / "none")}
    done = seer(folder, "serve", "tools.py", "--provider", "modal", env=bare)
    assert done.returncode == 1, done.stdout
    assert "no Modal credentials are configured" in done.stderr
    (folder / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (folder / "nvidia-smi").chmod(0o755)
    bare["PATH"] = f"{folder}:{os.environ['PATH']}"
    done = seer(folder, "serve", "tools.py", "--gpu", "A100", env=bare)
    assert done.returncode == 1, done.stdout
    assert "gpu='A100'" in done.stderr and "provider: 'local'" in done.stderr
    assert "leave out --gpu" in done.stderr


def test_check_says_where_a_broken_file_is_broken(folder: Path) -> None:
    (folder / "broken.py").write_text("@expose\ndef f(x):\n    return x\n")
    done = seer(folder, "check", "broken.py")
    assert done.returncode == 1
    assert "broken.py" in done.stderr and "'x'" in done.stderr


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"x = 1\n\ndef (:\n", "bad.py:3: SyntaxError: invalid syntax"),
        (b"x = 1\ny = '\0'\n", "bad.py:2: there is a null byte here"),
    ],
    ids=["syntax error", "null byte"],
)
def test_a_file_that_is_not_python_is_named_with_its_line(
    folder: Path, command: str, source: bytes, reason: str
) -> None:
    (folder / "bad.py").write_bytes(source)
    done = seer(folder, command, "bad.py")
    assert done.returncode == 1
    assert any(
        line.startswith("error: ") and reason in line for line in done.stderr.splitlines()
    ), done.stderr
    assert "Traceback" not in done.stderr and "ast.py" not in done.stderr


@pytest.mark.parametrize("command", ["check", "serve", "shell"])
def test_a_program_that_is_taken_for_an_interface_is_told_how_to_run(
    folder: Path, command: str
) -> None:
    (folder / "main.py").write_text("from seer.harness import run_agent\n")
    done = seer(folder, command, "main.py")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "this file is a program, not an interface; run it with: seer run main.py\n"
    )
    assert "--package" not in done.stderr


def test_a_file_whose_name_cannot_be_imported_is_checked_under_another(folder: Path) -> None:
    (folder / "tools.py").rename(folder / "model-tools.py")
    done = seer(folder, "check", "model-tools.py")
    assert done.returncode == 1
    assert "--name='model-tools': must be a Python identifier" in done.stderr
    assert "choose another with --name NAME" in done.stderr
    assert seer(folder, "check", "model-tools.py", "--name", "lab").returncode == 3


@pytest.mark.parametrize("command", ["check", "serve", "shell"])
def test_a_missing_module_names_the_options_that_help(folder: Path, command: str) -> None:
    (folder / "needy.py").write_text("import no_such_module\n")
    done = seer(folder, command, "needy.py")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "if a package provides it: --package NAME; "
        "a file that loads a model also needs --model NAME\n"
    )


def test_check_can_stand_in_for_models(folder: Path) -> None:
    (folder / "model.py").write_text(
        'import os\npath = get_model_path("some/model")\n\n@expose\ndef files() -> list[str]:\n'
        '    """Its files."""\n    return os.listdir(path)\n'
    )
    done = seer(folder, "check", "model.py", "--tiny")
    assert done.returncode == 0, done.stderr
    assert "no problems found" in done.stdout
    done = seer(folder, "check", "model.py")
    assert done.stderr.splitlines()[0] == "using a tiny random model; --model uses a real one"
    assert "SEER_MODEL_ALIASES" not in done.stderr and "Writing model" not in done.stderr


def test_shell_runs_what_is_piped_in(folder: Path) -> None:
    code = "count('a')\nprint(tools.count('b'))\nassert bare([1]) == {'n': 1}\n"
    done = seer(folder, "shell", "tools.py", stdin=code)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    failed = seer(folder, "shell", "tools.py", stdin="count(1.5)")
    assert failed.returncode == 1
    assert "parameter 'word': expected str, got float (1.5)" in failed.stderr


def test_shell_completes_the_exposed_functions(folder: Path) -> None:
    terminal: Any = importlib.import_module("pexpect")
    child = terminal.spawn(
        sys.executable,
        ["-m", "seer", "shell", "tools.py"],
        cwd=str(folder),
        env={**os.environ, "SEER_PROVIDER": "local", "TERM": "xterm", "SEER_PROGRESS": "off"},
        timeout=60,
    )
    try:
        child.expect_exact("You can call: count, bare.")
        child.expect_exact(">>> ")
        child.send("cou\t'a')\n")
        child.expect_exact("1\r\n")
        child.send("no_such_thing\n")
        child.expect_exact("NameError")
        child.sendeof()
        child.expect(terminal.EOF)
    finally:
        child.close()
    assert child.exitstatus == 0


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[Path, dict[str, Any], subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "seer", "serve", "tools.py", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SEER_PROVIDER": "local"},
    )
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            break
    yield folder, json.loads(text), process
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()


def test_serve_prints_ways_in_that_work(
    served: tuple[Path, dict[str, Any], subprocess.Popen[str]],
) -> None:
    folder, ways, _ = served
    python = (
        "\n".join(ways["python"]).replace("[...]", "['a']").replace("tools.call", "r = tools.call")
    )
    done = subprocess.run(
        [sys.executable, "-c", python + "\nassert r == 1"], cwd=folder, capture_output=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_serve_prints_a_command_line_for_curl_that_works(
    served: tuple[Path, dict[str, Any], subprocess.Popen[str]],
) -> None:
    _, ways, _ = served
    curl = ways["curl"].replace("[...]", '["b"]')
    out = subprocess.run(["bash", "-c", curl], capture_output=True, text=True).stdout
    assert json.loads(out) == {"result": 1}


def _kill_with_client(server: StdioServerParameters) -> None:
    """Start a server as an agent's program does, shake hands, and kill it."""
    process = subprocess.Popen(
        [server.command, *server.args],
        env=server.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    about: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
    params = {**about, "clientInfo": {"name": "t", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    process.stdin.write(json.dumps(hello) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == 1
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    process.stdin.close()
    process.stdout.close()


def test_a_shell_leaves_a_sandbox_to_the_program_that_holds_it(
    served: tuple[Path, dict[str, Any], subprocess.Popen[str]],
) -> None:
    folder, ways, _ = served
    sandbox_id = ways["sandbox_id"]
    done = seer(folder, "shell", sandbox_id, stdin="print(count('a'))")
    assert done.returncode == 2 and "only after it is detached" in done.stderr
    listed = json.loads(seer(folder, "ps", "--json").stdout)["machines"]
    (machine,) = [m for m in listed if m["id"] == sandbox_id]
    assert machine["controller_alive"] and not machine["detached"]


async def test_a_detached_interface_serves_shell_and_mcp_until_it_is_stopped(folder: Path) -> None:
    ways = json.loads(seer(folder, "serve", "tools.py", "--detach", "--json").stdout)
    sandbox_id = ways["sandbox_id"]
    try:
        listed = json.loads(seer(folder, "ps", "--json").stdout)["machines"]
        assert [m["detached"] for m in listed if m["id"] == sandbox_id] == [True]
        first = seer(folder, "shell", sandbox_id, stdin="print(count('a'))")
        assert first.stdout == "1\n", first.stderr
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "seer", *ways["mcp"]["tools"]["args"]],
            env={**os.environ, "SEER_PROVIDER": "local"},
        )
        async with Client(server) as client:
            result: Any = await client.call_tool("count", {"word": "b"})
            assert result.content[0].text == "2"
            # Neither a client nor the program that it started ends the detached sandbox.
            listed = json.loads(seer(folder, "ps", "--json").stdout)["machines"]
            assert [m["detached"] for m in listed if m["id"] == sandbox_id] == [True]
        assert seer(folder, "shell", sandbox_id, stdin="print(count('c'))").stdout == "3\n"
        _kill_with_client(server)
        assert seer(folder, "shell", sandbox_id, stdin="print(count('d'))").stdout == "4\n"
    finally:
        stopped = seer(folder, "stop", sandbox_id[:12])
    assert stopped.stdout == f"{sandbox_id}: ended\n"
    again = seer(folder, "stop", sandbox_id)
    assert again.returncode == 1 and "no machine" in again.stderr


def test_mcp_prints_a_configuration_and_says_what_it_is_not(folder: Path) -> None:
    done = seer(folder, "mcp", "tools.py", "--for", "vscode")
    assert "VS Code has a shell" in done.stderr and "NOT scoped" in done.stderr
    entry = json.loads(done.stdout)["servers"]["tools"]
    assert entry["args"][-3:] == ["mcp", str(folder / "tools.py"), "--stdio"]


async def test_a_server_over_http_prints_its_configuration_and_serves(folder: Path) -> None:
    token = "the-token-of-this-test"
    environment = {**os.environ, "SEER_PROVIDER": "local", "SEER_MCP_TOKEN": token}
    told, notes = folder / "stdout", folder / "stderr"
    with told.open("w") as stdout, notes.open("w") as stderr:
        server = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "seer", "mcp", "tools.py", "--http", "--port", "0"],
            cwd=folder,
            env=environment,
            stdout=stdout,
            stderr=stderr,
        )
    try:
        await asyncio.to_thread(
            wait_until, lambda: "Ctrl-C" in notes.read_text(), "the server serves", within=60
        )
        entry = json.loads(told.read_text())["mcpServers"]["tools"]
        assert entry["headers"] == {"Authorization": "Bearer ${SEER_MCP_TOKEN}"}
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as web,
            Client(streamable_http_client(entry["url"], http_client=web)) as client,
        ):
            result: Any = await client.call_tool("count", {"word": "x"})
        assert result.content[0].text == "1"
        assert token not in told.read_text() + notes.read_text()
    finally:
        server.terminate()
        async with asyncio.timeout(60):
            code = await server.wait()
    assert code == 0, notes.read_text()


def test_a_server_over_http_refuses_a_token_that_can_be_guessed(folder: Path) -> None:
    done = seer(folder, "mcp", "tools.py", "--http", env={"SEER_MCP_TOKEN": "secret"})
    assert done.returncode == 2
    assert "has 6 characters and needs at least 16" in done.stderr


def test_a_server_over_http_ends_where_the_interface_cannot_be_loaded(folder: Path) -> None:
    (folder / "broken.py").write_text("raise ValueError('no model here')")
    done = seer(folder, "mcp", "broken.py", "--http", "--port", "0")
    assert done.returncode == 1
    assert "no model here" in done.stderr
    assert "export SEER_MCP_TOKEN=" in done.stderr


async def test_a_printed_configuration_starts_a_working_server(folder: Path) -> None:
    printed = json.loads(seer(folder, "mcp", "tools.py").stdout)["mcpServers"]["tools"]
    server = StdioServerParameters(
        command=printed["command"],
        args=printed["args"],
        env={**os.environ, "SEER_PROVIDER": "local"},
    )
    async with Client(server) as client:
        result: Any = await client.call_tool("count", {"word": "x"})
    assert result.content[0].text == "1"


def test_a_new_experiment_runs_is_recorded_and_replays(tmp_path: Path) -> None:
    assert seer(tmp_path, "init", "study").returncode == 0
    checked = seer(tmp_path / "study", "check", "interface.py")
    assert checked.returncode == 0 and "no problems found" in checked.stdout, checked.stderr
    runs = {"SEER_RUNS": str(tmp_path / "runs")}
    done = seer(tmp_path, "run", "study/main.py", env=runs)
    assert done.returncode == 0, done.stderr
    assert "log-odds of he over she" in done.stdout
    (run,) = json.loads(seer(tmp_path, "runs", "list", "--json", env=runs).stdout)
    assert run["status"] == "completed" and run["calls"] == 4
    replayed = seer(tmp_path, "replay", run["run_id"], env=runs)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert f"the same as {run['run_id']}" in replayed.stdout


def test_run_gives_the_programs_exit_code(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    done = seer(tmp_path, "run", "main.py", "7")
    assert done.returncode == 7
    assert "no run was recorded" in done.stderr


def test_doctor_finds_the_jails_of_this_machine(tmp_path: Path) -> None:
    found = json.loads(seer(tmp_path, "doctor", "--json").stdout)
    states = {item["what"]: item["state"] for item in found}
    assert states["python"] == states["packages"] == states["provider: local"] == "ok"
    assert "ok" in (states["jail: bubblewrap"], states["jail: landlock"])


def test_a_file_that_takes_any_model_is_checked_with_a_tiny_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_MODEL_ALIASES", "")
    source = "from seer.rpc import list_configured_models\nlist_configured_models()[0]\n"
    assert stand_ins(source, tmp_path) == ["tiny/model"]
    assert (tmp_path / "tiny-0" / "config.json").is_file()
