"""The real Claude SDK and CLI do not get tools that they must not have."""

import json
import os
from pathlib import Path

import anyio
import psutil
import pytest
from mcp.server import MCPServer

from seer.events import Event
from seer.harness import RunFinished, ToolCall, ToolResult, run_agent
from seer.testing import AnthropicEndpoint, Reply, ToolUse

pytestmark = pytest.mark.full

STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "seer/sessions"
PLANTED = "PLANTED-INSTRUCTIONS-4711"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with an agent installation of their own, full of traps."""
    folder = tmp_path / "home"
    (folder / ".claude" / "skills" / "trap").mkdir(parents=True)
    plant(folder, folder / ".claude")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder / ".claude"))
    monkeypatch.setenv("OTHER_SERVICE_TOKEN", "a-token-of-another-service")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-scope-0123456789")
    monkeypatch.delenv("IS_SANDBOX", raising=False)
    return folder


def plant(folder: Path, config: Path) -> None:
    """Settings, instructions and tool servers as an agent or a user may have left them."""
    config.mkdir(parents=True, exist_ok=True)
    trap = folder / "trapped"
    hook = {"hooks": [{"type": "command", "command": f"touch {trap}"}]}
    settings = {
        "hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook], "PreToolUse": [hook]},
        "permissions": {"allow": ["Bash", "Read", "WebFetch"], "defaultMode": "acceptEdits"},
        "env": {"PLANTED": PLANTED},
    }
    (config / "settings.json").write_text(json.dumps(settings))
    (config / "settings.local.json").write_text(json.dumps(settings))
    (config / "CLAUDE.md").write_text(PLANTED)
    (folder / "CLAUDE.md").write_text(PLANTED)
    server = {"mcpServers": {"trapserver": {"command": "touch", "args": [str(trap)]}}}
    (folder / ".mcp.json").write_text(json.dumps(server))
    (folder / ".claude.json").write_text(json.dumps(server))


def leftovers() -> set[Path]:
    return set(STATE.glob("agent-*"))


async def play(endpoint: AnthropicEndpoint, server: MCPServer) -> list[Event]:
    with anyio.fail_after(60):
        run = run_agent("look", {"lab": server}, provider="claude", base_url=endpoint.url)
        return [event async for event in run]


async def test_the_vendors_own_tools_are_refused_and_nothing_runs(
    home: Path, tmp_path: Path, calculator: MCPServer
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret of the host")
    mark = tmp_path / "mark"
    wanted = [
        ToolUse(name="Bash", arguments={"command": f"touch {mark}; cat {secret}"}),
        ToolUse(name="Read", arguments={"file_path": str(secret)}),
        ToolUse(name="Write", arguments={"file_path": str(mark), "content": "x"}),
        ToolUse(name="Edit", arguments={"file_path": str(secret), "old_string": "the"}),
        ToolUse(name="WebFetch", arguments={"url": "http://127.0.0.1:1/", "prompt": "x"}),
        ToolUse(name="WebSearch", arguments={"query": "x"}),
        ToolUse(name="Task", arguments={"description": "x", "prompt": "run id"}),
        ToolUse(name="Skill", arguments={"skill": "trap"}),
        ToolUse(name="mcp__trapserver__anything"),
    ]
    script = [Reply(tools=(tool,)) for tool in wanted] + [Reply(text="nothing works")]
    with AnthropicEndpoint(script) as endpoint:
        events = await play(endpoint, calculator)
        bodies = [request.body for request in endpoint.requests]
    results = [event for event in events if isinstance(event, ToolResult)]
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert [call.name for call in calls] == [tool.name for tool in wanted]
    assert [call.server for call in calls] == [None] * len(wanted)
    assert [result.is_error for result in results] == [True] * len(wanted)
    assert not mark.exists()
    assert secret.read_text() == "the secret of the host"
    assert "the secret of the host" not in json.dumps(bodies)
    for body in bodies:
        assert [tool["name"] for tool in body["tools"]] == ["mcp__lab__add", "mcp__lab__broken"]
    assert isinstance(events[-1], RunFinished)
    assert (events[-1].reason, events[-1].tool_calls) == ("completed", 0)


async def test_nothing_planted_in_home_or_working_folder_loads(
    home: Path, tmp_path: Path, calculator: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    plant(workspace, workspace / ".claude")
    monkeypatch.chdir(workspace)
    with AnthropicEndpoint([Reply(text="quiet here")]) as endpoint:
        events = await play(endpoint, calculator)
        body = json.dumps(endpoint.requests[0].body)
    assert PLANTED not in body
    assert "trapserver" not in body
    assert not (home / "trapped").exists()
    assert not (workspace / "trapped").exists()
    assert isinstance(events[-1], RunFinished)
    assert events[-1].result == "quiet here"


async def test_nothing_of_the_process_is_left(home: Path, calculator: MCPServer) -> None:
    before = leftovers()
    with AnthropicEndpoint([Reply(text="bye")]) as endpoint:
        await play(endpoint, calculator)
    assert leftovers() <= before
    assert not (home / ".claude" / "projects").exists()


async def test_the_process_gets_no_variable_beyond_the_list_and_no_network_of_the_host(
    home: Path, calculator: MCPServer, tmp_path: Path
) -> None:
    seen: list[set[str]] = []
    apart: list[bool] = []
    own_network = os.readlink("/proc/self/ns/net")  # noqa: PTH115

    def look(_request: object) -> Reply:
        # Only its own agents: those of other tests, in other workers, start and end meanwhile.
        for process in psutil.Process().children(recursive=True):
            path = Path(f"/proc/{process.pid}")
            try:
                items = (path / "environ").read_bytes().split(b"\0")
                command = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if command.startswith(b"/agent/bin/agent\0"):
                apart.append(os.readlink(path / "ns" / "net") != own_network)  # noqa: PTH115
                seen.append({item.partition(b"=")[0].decode() for item in items})
        return Reply(text="seen")

    with AnthropicEndpoint([look]) as endpoint:
        await play(endpoint, calculator)
    assert seen
    assert all(apart), "the process has the host's network"
    for names in seen:
        assert "OTHER_SERVICE_TOKEN" not in names
        assert not any(name.startswith(("PYTEST", "SEER")) for name in names)
