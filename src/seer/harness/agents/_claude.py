"""Claude, through the Claude Agent SDK; the only module that imports it.

The SDK runs the Claude CLI as a process. That process gets nothing but the conversation: its own
tools are off, its settings come from nowhere, it lives in an empty folder with a private home and
an environment of its own (`_confine`), and the tools of the run are served to it by this process
over its standard streams. So it needs no way to a tool server, and every call passes the seat.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seer._settings import setting
from seer.errors import SecretMissingError
from seer.events import ErrorKind
from seer.harness._agent import Agent, AgentRequest, require
from seer.harness._seat import Seat
from seer.harness.agents._claude_conversation import Conversation
from seer.harness.confinement._confine import Confinement, confined

if TYPE_CHECKING:
    import claude_agent_sdk as sdk

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
ENDPOINT = "https://api.anthropic.com"
RETRIES = 4
SETTINGS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": str(RETRIES),
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    # Otherwise tools are hidden behind a search tool and absent from the request.
    "ENABLE_TOOL_SEARCH": "false",
    # A cell may run for hours; the harness has limits of its own.
    "MCP_TOOL_TIMEOUT": str(24 * 3600 * 1000),
}


class ClaudeAgent(Agent):
    """The provider `claude`."""

    name = "claude"

    def check(self, request: AgentRequest) -> None:
        """Look for the SDK and a key."""
        require("claude", modules=("claude_agent_sdk",), extra="claude")
        if not self.secrets(request):
            raise SecretMissingError(
                "provider 'claude' needs a key: set ANTHROPIC_API_KEY (or CLAUDE_CODE_OAUTH_TOKEN, "
                "made with `claude setup-token`), or give run_agent(api_key=...)"
            )

    def secrets(self, request: AgentRequest) -> tuple[str, ...]:
        """The given key and those of the environment."""
        values = (request.api_key, *map(setting, KEYS))
        return tuple(value for value in values if value)

    async def run(self, request: AgentRequest, seat: Seat) -> None:
        """Talk to the CLI until there is nothing more to say."""
        import claude_agent_sdk as sdk

        url = request.base_url or os.environ.get("ANTHROPIC_BASE_URL") or ENDPOINT
        async with confined(_program(), env=_environment(request, url), endpoints=(url,)) as cell:
            conversation = Conversation(request, seat)
            options = _options(sdk, request, conversation, cell)
            try:
                async with sdk.ClaudeSDKClient(options) as client:
                    try:
                        await conversation.hold(client)
                    except BaseException:
                        cell.kill()
                        raise
            except sdk.ClaudeSDKError as error:
                malformed = type(error).__name__ in {"CLIJSONDecodeError", "MessageParseError"}
                kind: ErrorKind = "malformed" if malformed else "connection"
                seat.fail(kind, f"the Claude process failed: {error}{cell.said()}", raw=error)


def _options(
    claude: Any, request: AgentRequest, conversation: Conversation, cell: Confinement
) -> "sdk.ClaudeAgentOptions":
    servers, names = conversation.serve(claude)
    return claude.ClaudeAgentOptions(
        tools=list(request.builtin_tools),
        allowed_tools=[*names, *request.builtin_tools],
        disallowed_tools=[],
        permission_mode="dontAsk",
        system_prompt=request.system_prompt,
        mcp_servers=servers,
        strict_mcp_config=True,
        setting_sources=[],
        model=request.model,
        cwd=cell.folder,
        cli_path=cell.launcher,
        include_partial_messages=True,
        verbatim_prompts=True,
        max_buffer_size=64 * 1024 * 1024,
        stderr=cell.stderr,
    )


def _program() -> Path:
    """The CLI that comes with the SDK."""
    from claude_agent_sdk import __file__ as where

    return Path(where).parent / "_bundled" / "claude"


def _environment(request: AgentRequest, url: str) -> dict[str, str]:
    values = {key: value for key in KEYS if (value := setting(key))}
    if request.api_key:
        values = {"ANTHROPIC_API_KEY": request.api_key}
    return {**SETTINGS, **values, "ANTHROPIC_BASE_URL": url}
