"""MCP clients of other projects: each lists the tools and makes the same calls."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import claude_agent_sdk
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import create_local_session
from seer.mcp import http_config, open_http_server, stdio_config
from seer.testing import (
    AnthropicEndpoint,
    GeminiEndpoint,
    OpenAIEndpoint,
    Reply,
    Request,
    ToolUse,
    VendorEndpoint,
)

from . import outside

pytestmark = [pytest.mark.full, pytest.mark.campaign, pytest.mark.timeout(900)]

INTERFACE = '''
from dataclasses import dataclass
import numpy as np

@dataclass
class Steering:
    layer: int
    strength: float = 1.0

@expose
def steer(prompt: str, how: Steering) -> str:
    """Say how a prompt is steered."""
    return f"{prompt} at layer {how.layer} by {how.strength}"

@expose
def ramp(size: int) -> np.ndarray:
    """Count up in an array."""
    return np.arange(size, dtype="float32")
'''
TOKEN = "the token of the clients"
CALLS = [
    ("lab", "steer", {"prompt": "hello", "how": {"layer": 3, "strength": 2.5}}),
    ("lab", "ramp", {"size": 4}),
    ("session", "python", {"code": "print('out', 6 * 7)"}),
    ("session", "python", {"code": "1 / 0"}),
]
EXPECTED = [
    ("hello at layer 3 by 2.5",),
    ("float32", "1", "3"),
    ("out 42",),
    ("ZeroDivisionError",),
]


@dataclass(frozen=True)
class Served:
    """The servers that clients connect to."""

    over_stdio: dict[str, Any]
    over_http: dict[str, Any]
    session: dict[str, Any]

    def servers(self, transport: str) -> dict[str, dict[str, Any]]:
        """The interface over one transport, and the session."""
        lab = self.over_http if transport == "http" else self.over_stdio
        return {"lab": lab, "session": self.session}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    (folder / "lab.py").write_text(INTERFACE)
    config = SandboxConfig(gpu=None, provider="local", python_packages=["numpy"])
    with (
        ScopedSandbox(config) as scoped,
        create_local_session(workspace_dir=folder / "work") as session,
    ):
        library: Any = scoped.serve(folder / "lab.py")
        over_stdio: Any = scoped.present("lab", "mcp")
        (kernel,) = session.mcp_config.values()

        async def loaded() -> Any:
            return library.gate

        async def open_server() -> Any:
            return await open_http_server("lab", None, loaded(), port=0, token=TOKEN)

        server = asyncio.run(open_server())
        try:
            yield Served(over_stdio["lab"], {"url": server.url, "token": TOKEN}, kernel)
        finally:
            asyncio.run(server.close())


def clean(folder: Path, **more: str) -> dict[str, str]:
    """An environment without any account or key."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **more}


def check(tools: list[str], told: list[str]) -> None:
    """Check that every requested result has arrived."""
    assert {"steer", "ramp", "lab_result", "python"} <= set(tools)
    assert len(told) == len(EXPECTED), told
    for text, expected in zip(told, EXPECTED, strict=True):
        assert all(part in text for part in expected), text


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("client", ["sdk", "fastmcp", "pydantic_ai", "langchain", "openai_agents"])
def test_a_client_of_python(served: Served, client: str, transport: str, tmp_path: Path) -> None:
    wanted = {"client": client, "servers": served.servers(transport), "calls": CALLS}
    done = subprocess.run(
        [str(outside.python(client)), str(Path(__file__).with_name("python_clients.py"))],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
        env=clean(tmp_path),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    check(**json.loads(done.stdout))


def configuration(client: str, servers: dict[str, dict[str, Any]]) -> str:
    """The configuration as Seer prints it, for several servers."""
    printed = [
        http_config(client, name, entry["url"])
        if "url" in entry
        else stdio_config(client, name, entry["command"], entry["args"])
        for name, entry in servers.items()
    ]
    if client == "codex":
        return "\n".join(printed)
    entries = [json.loads(text)["mcpServers"] for text in printed]
    return json.dumps({"mcpServers": {name: one[name] for one in entries for name in one}})


def run(
    command: list[str], folder: Path, *, codes: tuple[int, ...] = (0,), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A program's whole run, in a folder that is also its home."""
    done = subprocess.run(
        command,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
        env=clean(folder, SEER_MCP_TOKEN=TOKEN, **environment),
    )
    assert done.returncode in codes, done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_mcp_inspector(served: Served, transport: str, tmp_path: Path) -> None:
    servers = served.servers(transport)
    entries = json.loads(configuration("claude", servers))
    (tmp_path / "mcp.json").write_text(json.dumps(entries).replace("${SEER_MCP_TOKEN}", TOKEN))

    def ask(server: str, *arguments: str) -> dict[str, Any]:
        program = outside.node("mcp-inspector")
        start = [*program, "--cli", "--config", "mcp.json", "--server", server, "--method"]
        # It exits with 5 where a tool says that it failed.
        return json.loads(run([*start, *arguments], tmp_path, codes=(0, 5)).stdout)

    told: list[str] = []
    for server, tool, given in CALLS:
        pairs = [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in given.items()
        ]
        answer = ask(server, "tools/call", "--tool-name", tool, "--tool-arg", *pairs)
        told.append(answer["content"][0]["text"])
    tools = [tool["name"] for server in servers for tool in ask(server, "tools/list")["tools"]]
    check(tools, told)


class CodexEndpoint(OpenAIEndpoint):
    """Codex knows the tools of a server by a namespace and a name."""

    def render(self, request: Request, reply: Reply) -> tuple[str, Iterator[bytes]]:
        """See the base class."""
        kind, pieces = super().render(request, reply)
        split = rb'"namespace": "mcp__\1", "name": "\2"'
        return kind, (re.sub(rb'"name": "mcp__(\w+?)__(\w+)"', split, piece) for piece in pieces)


def script(name: str) -> list[Reply]:
    """The model's calls, with a client's way to name a server's tool."""
    uses = [
        ToolUse(name=name.format(server=server, tool=tool), arguments=given)
        for server, tool, given in CALLS
    ]
    return [*(Reply(tools=(use,)) for use in uses), Reply(text="done")]


def texts(values: list[Any]) -> list[str]:
    """Each value as text."""
    return [json.dumps(value, ensure_ascii=False) for value in values]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_claude_code(served: Served, transport: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(configuration("claude", served.servers(transport)))
    program = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    allowed = ",".join(f"mcp__{server}__{tool}" for server, tool, _ in CALLS)
    command = [str(program), "-p", "go", "--mcp-config", "mcp.json", "--strict-mcp-config"]
    command += ["--tools", "", "--allowedTools", allowed, "--model", "claude-sonnet-4-5"]
    with AnthropicEndpoint(script("mcp__{server}__{tool}")) as endpoint:
        run(
            command,
            tmp_path,
            ANTHROPIC_BASE_URL=endpoint.url,
            ANTHROPIC_API_KEY="scripted",
            ENABLE_TOOL_SEARCH="false",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )
        body = last(endpoint)
    tools = [tool["name"].rpartition("__")[2] for tool in body["tools"]]
    blocks = [block for message in body["messages"] for block in message["content"]]
    found = [block for block in blocks if block["type"] == "tool_result"]
    check(tools, texts([block["content"] for block in found]))


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_codex(served: Served, transport: str, tmp_path: Path) -> None:
    servers = served.servers(transport)
    command = [*outside.node("codex"), "exec", "--strict-config", "--skip-git-repo-check"]
    # It asks a person before each call, and there is no person here.
    for name in servers:
        command += ["-c", f'mcp_servers.{name}.default_tools_approval_mode="approve"']
    with CodexEndpoint(script("mcp__{server}__{tool}")) as endpoint:
        settings = [
            'model = "scripted"\nmodel_provider = "local"\napproval_policy = "never"',
            f'[model_providers.local]\nname = "local"\nbase_url = "{endpoint.url}"',
            'wire_api = "responses"\nenv_key = "LOCAL_KEY"',
            configuration("codex", servers),
        ]
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex" / "config.toml").write_text("\n".join(settings))
        run([*command, "go"], tmp_path, LOCAL_KEY="scripted")
        body = last(endpoint)
    spaces = [tool for tool in body["tools"] if tool["type"] == "namespace"]
    tools = [tool["name"] for space in spaces for tool in space["tools"]]
    found = [item for item in body["input"] if item["type"] == "function_call_output"]
    check(tools, texts([item["output"] for item in found]))


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_gemini_cli(served: Served, transport: str, tmp_path: Path) -> None:
    settings = json.loads(configuration("gemini", served.servers(transport)))
    settings["security"] = {"auth": {"selectedType": "gemini-api-key"}}
    settings["privacy"] = {"usageStatisticsEnabled": False}
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "settings.json").write_text(json.dumps(settings))
    command = [*outside.node("gemini"), "-p", "go", "--yolo", "-m", "gemini-2.5-pro"]
    with GeminiEndpoint(script("mcp_{server}_{tool}")) as endpoint:
        run(
            command,
            tmp_path,
            GEMINI_API_KEY="scripted",
            GOOGLE_GEMINI_BASE_URL=endpoint.url,
            GEMINI_CLI_TRUST_WORKSPACE="true",
        )
        body = last(endpoint)
    listed = [one for tool in body["tools"] for one in tool.get("functionDeclarations", ())]
    tools = [re.sub("^mcp_(lab|session)_", "", one["name"]) for one in listed]
    parts = [part for content in body["contents"] for part in content["parts"]]
    found = [part["functionResponse"] for part in parts if "functionResponse" in part]
    check(tools, texts([one["response"] for one in found]))


def last(endpoint: VendorEndpoint) -> Any:
    """The last request to the model, after the end of the script."""
    assert endpoint.left == 0
    return endpoint.requests[-1].body
