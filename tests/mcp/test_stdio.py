"""The server over pipes: real MCP clients can use it, and no other process can."""

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

import seer.mcp
from seer.mcp import StdioServer, open_stdio_server
from seer.tools import ToolContext, ToolFailure, ToolOutput, ToolSet, typed_tool

pytestmark = pytest.mark.full


def parameters(config: Mapping[str, Mapping[str, Any]]) -> StdioServerParameters:
    """The one server of a configuration, as a client starts it."""
    (entry,) = config.values()
    assert entry["type"] == "stdio"
    return StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])


async def add(a: int, b: int = 1) -> ToolOutput:
    """Add."""
    return ToolOutput(text=str(a + b), structured={"sum": a + b})


async def refuse() -> ToolOutput:
    """Refuse."""
    raise ToolFailure("not today")


async def crash() -> ToolOutput:
    """Crash."""
    raise RuntimeError("a bug")


async def count(context: ToolContext) -> ToolOutput:
    """Count, telling how it goes."""
    if context.wants_progress:
        for number in range(3):
            await context.report(float(number), f"at {number}")
    return ToolOutput(text="counted")


async def big(size: int) -> ToolOutput:
    """A large answer."""
    return ToolOutput(text="x" * size)


started, cancelled = asyncio.Event(), asyncio.Event()


async def forever() -> ToolOutput:
    """Never ends."""
    started.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.set()
        raise
    return ToolOutput(text="")


@pytest.fixture
async def server() -> AsyncGenerator[StdioServer]:
    functions = [add, refuse, crash, count, big, forever]
    tools = ToolSet(name="my lab!", tools=[typed_tool(f) for f in functions], instructions="Add.")
    opened = await open_stdio_server(tools)
    try:
        yield opened
    finally:
        await opened.close()


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


ENDS_SOON = """
import asyncio, atexit, threading
from seer.mcp import open_stdio_server
from seer.tools import ToolSet

async def main():
    server = await open_stdio_server(ToolSet(name="lab", tools=[], instructions=""))
    await server.close()

atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
# As Seer's own loop, whose threads are daemons too unless they say otherwise.
thread = threading.Thread(target=asyncio.run, args=[main()], daemon=True)
thread.start()
thread.join()
"""


def test_a_program_that_ends_at_once_lets_the_import_of_the_sdk_end() -> None:
    # Python would abort ("exception not rethrown") if the thread were in the SDK's Rust code.
    program = [sys.executable, "-c", ENDS_SOON]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert "seer-mcp-import" not in done.stdout


async def test_a_client_lists_and_calls_tools(server: StdioServer) -> None:
    async with asyncio.timeout(30), Client(parameters(server.mcp_config)) as client:
        assert client.server_info is not None
        assert client.server_info.name == "my lab!"
        assert client.instructions == "Add."
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["add"].description == "Add."
        assert tools["add"].input_schema["required"] == ["a"]
        result = await client.call_tool("add", {"a": 40, "b": 2})
        assert text_of(result) == "42"
        assert result.structured_content == {"sum": 42}


async def test_failures_are_answers(server: StdioServer) -> None:
    async with asyncio.timeout(30), Client(parameters(server.mcp_config)) as client:
        for name, arguments, told in [
            ("refuse", {}, "not today"),
            ("crash", {}, "internal error: RuntimeError: a bug"),
            ("add", {"a": "x"}, "add: a: "),
        ]:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert told in text_of(result)
        with pytest.raises(MCPError, match="there is no tool 'nothing'; there are: add, "):
            await client.call_tool("nothing", {})
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"


async def test_progress_reaches_a_client_that_asks_for_it(server: StdioServer) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with asyncio.timeout(30), Client(parameters(server.mcp_config)) as client:
        await client.call_tool("count", {}, progress_callback=note)
    assert told == ["at 0", "at 1", "at 2"]


async def test_a_client_that_leaves_does_not_disturb_another(
    server: StdioServer,
) -> None:
    async with asyncio.timeout(30), Client(parameters(server.mcp_config)) as one:
        async with Client(parameters(server.mcp_config)) as two:
            results = await asyncio.gather(
                *(client.call_tool("add", {"a": n}) for n in range(20) for client in (one, two))
            )
            assert [int(text_of(result)) for result in results] == [n // 2 + 1 for n in range(40)]
        assert text_of(await one.call_tool("add", {"a": 1})) == "2"


async def test_answers_of_megabytes_arrive(server: StdioServer) -> None:
    async with asyncio.timeout(60), Client(parameters(server.mcp_config)) as client:
        assert len(text_of(await client.call_tool("big", {"size": 5_000_000}))) == 5_000_000


async def test_a_cancelled_call_is_cancelled_here(server: StdioServer) -> None:
    started.clear()
    cancelled.clear()
    async with asyncio.timeout(30), Client(parameters(server.mcp_config)) as client:
        call = asyncio.create_task(client.call_tool("forever", {}))
        await client.call_tool("add", {"a": 1})
        await started.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await client.call_tool("add", {"a": 1})
        await cancelled.wait()


async def test_closing_the_server_ends_its_relays(server: StdioServer) -> None:
    entry = next(iter(server.mcp_config.values()))
    process = await asyncio.create_subprocess_exec(
        entry["command"], *entry["args"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    await server.close()
    async with asyncio.timeout(30):
        await process.wait()
    late = await asyncio.create_subprocess_exec(
        entry["command"], *entry["args"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    await late.communicate()
    assert late.returncode != 0


async def test_a_server_whose_owner_is_gone_says_so(tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_bytes(Path(seer.mcp.__file__).with_name("_relay.py").read_bytes())
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-I", "-S", relay], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "has ended" in done.stderr


async def test_the_configuration_is_plain_and_holds_no_secret(server: StdioServer) -> None:
    config = server.mcp_config
    assert list(config) == ["my-lab"]
    assert json.loads(json.dumps(config)) == config
    (entry,) = config.values()
    assert set(entry) == {"type", "command", "args", "env"}
    assert entry["env"] == {}
    folder = Path(entry["args"][-1]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {"relay.py", "mcp.sock", "lock", "outputs"}


async def test_another_user_is_refused(server: StdioServer) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    entry = next(iter(server.mcp_config.values()))
    folder = Path(entry["args"][-1]).parent
    program = (
        "import os, socket, sys\n"
        f"os.chdir({str(folder)!r})\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try:\n"
        "    s.connect('mcp.sock'); print(s.recv(100).decode())\n"
        "except PermissionError: print('refused')\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert "refused" in done.stdout or "only" in done.stdout


@pytest.mark.parametrize("greeting", [b"", b"2", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_peer_without_streams_is_let_go(server: StdioServer, greeting: bytes) -> None:
    entry = next(iter(server.mcp_config.values()))
    path = Path(entry["args"][-1]).with_name("mcp.sock")

    def knock() -> bytes:
        with socket.socket(socket.AF_UNIX) as peer:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                peer.connect(f"/proc/self/fd/{folder}/mcp.sock")
            finally:
                os.close(folder)
            peer.settimeout(20)
            peer.sendall(greeting)
            if not greeting:
                peer.shutdown(socket.SHUT_WR)
            return peer.recv(100)

    assert await asyncio.to_thread(knock) == b"standard input and output must be pipes"
    async with asyncio.timeout(30), Client(parameters(server.mcp_config)) as client:
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"


async def test_text_in_any_script_passes_a_server_in_a_locale_of_ascii_only(tmp_path: Path) -> None:
    text = "žluťoučký kůň, 雪, 🐎"
    (tmp_path / "lab.py").write_text(
        f'@expose\ndef echo(text: str) -> str:\n    """Vrať {text}."""\n'
        "    print(text, flush=True)\n    return 'vráceno: ' + text\n\n"
        "@expose\ndef fail(text: str) -> str:\n    raise ValueError(text)\n",
        encoding="utf-8",
    )
    plain = {k: v for k, v in os.environ.items() if k not in ("LANG", "PYTHONIOENCODING")}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "seer", "mcp", str(tmp_path / "lab.py"), "--stdio"],
        env={**plain, "SEER_PROVIDER": "local", "PYTHONUTF8": "0", "LC_ALL": "POSIX"},
    )
    async with asyncio.timeout(60), Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["echo"].description == f"Vrať {text}."
        assert text_of(await client.call_tool("echo", {"text": text})) == f"vráceno: {text}"
        failed = await client.call_tool("fail", {"text": text})
        assert failed.is_error
        assert f"ValueError: {text}" in text_of(failed)
