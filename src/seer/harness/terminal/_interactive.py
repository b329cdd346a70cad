"""`run_agent_interactive`: a chat with an agent in the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seer.events import (
    ApprovalAsked,
    Event,
    RunFinished,
    RunStarted,
    ToolCall,
    Waiting,
)
from seer.harness._agent import Agent
from seer.harness._approval import Approve, ask_person
from seer.harness._limits import Limits, Price
from seer.harness._request import SessionLike
from seer.harness._run import AgentRun, run_agent
from seer.harness.terminal._event_text import event_text
from seer.harness.terminal._terminal import Terminal, open_terminal

HELP = """\
/help        this list
/tools       the agent's tools
/cost        what was used so far
/conclude    close the tools and let the agent have one last turn
/exit        end the conversation (also exit, quit or Ctrl-D)
Escape or Ctrl-C interrupts what the agent is doing; the conversation continues."""


class Chat:
    """A conversation between a person and an agent."""

    def __init__(self, run: AgentRun, terminal: Terminal) -> None:
        self._run = run
        self._terminal = terminal
        self._tools: tuple[str, ...] = ()
        self._calls: dict[str, ToolCall] = {}

    async def hold(self) -> RunFinished | None:
        """Talk until the person or the agent is done."""
        terminal = self._terminal
        terminal.status(self.status)
        terminal.complete(["/help", "/tools", "/cost", "/conclude", "/exit"])
        try:
            while True:
                with terminal.watch(self._run.interrupt):
                    waiting = await self._listen()
                if waiting is None:
                    return self._run.result
                if isinstance(waiting, ApprovalAsked):
                    approved, reason = await ask_person(terminal, self._calls[waiting.id])
                    self._run.approve(waiting.id, approved, reason=reason)
                else:
                    await self._answer()
        finally:
            await self._run.aclose()

    def status(self) -> str:
        """One line with the usage and the limits."""
        used = self._run.meter
        parts = [
            _of(used.turns, used.limits.turns, "turns"),
            _of(used.tool_calls, used.limits.tool_calls, "tool calls"),
            _of(used.tokens, used.limits.tokens, "tokens"),
        ]
        if used.cost_usd is not None:
            allowed = used.limits.cost_usd
            budget = f" of ${allowed:.2f}" if allowed is not None else ""
            parts.append(f"${used.cost_usd:.4f}{budget}")
        return " | ".join(parts)

    async def _listen(self) -> Waiting | ApprovalAsked | None:
        """Show what the agent does until it waits for the person; None when it is done."""
        async for event in self._run:
            if isinstance(event, (Waiting, ApprovalAsked)):
                return event
            self._show(event)
        return None

    async def _answer(self) -> None:
        """Read the person's lines until one is for the agent."""
        while True:
            line = await self._terminal.ask("> ")
            if line is None or line.strip() in {"/exit", "/quit", "exit", "quit"}:
                self._run.send(None)
                return
            text = line.strip()
            if not text.startswith("/"):
                if text:
                    self._run.send(text)
                    return
            elif text == "/conclude":
                self._run.conclude()
                self._run.send("Please conclude now.")
                return
            else:
                self._command(text)

    def _command(self, text: str) -> None:
        if text == "/tools":
            self._terminal.say("\n".join(self._tools) or "no tools")
        elif text == "/cost":
            self._terminal.say(self.status())
        elif text == "/help":
            self._terminal.say(HELP)
        else:
            self._terminal.say(f"there is no command {text.split()[0]}\n{HELP}")

    def _show(self, event: Event) -> None:
        found = event_text(event)
        if isinstance(event, RunStarted):
            self._tools = tuple(tool.name for tool in event.tools)
        elif isinstance(event, ToolCall):
            self._calls[event.id] = event
        if found is not None:
            hint = "; /help for help" if isinstance(event, RunStarted) else ""
            self._terminal.say(found.text + hint)


async def run_agent_interactive(
    prompt: str | None = None,
    mcp_config: Mapping[str, Any] | None = None,
    *,
    provider: str | Agent = "claude",
    model: str | None = None,
    user_message: str | None = None,
    session: SessionLike | None = None,
    tools: bool = True,
    task: str | None = None,
    mcp_servers: Sequence[Mapping[str, Any]] = (),
    prompts: Sequence[str] = (),
    limits: Limits | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    price: Price | None = None,
    record: bool | Path | str = True,
    name: str | None = None,
    approve: Approve | None = None,
    terminal: Terminal | None = None,
) -> RunFinished | None:
    """Chat with an agent in the terminal.

    Escape or Ctrl-C interrupts the agent and keeps the conversation; `/help` lists the commands.

    Args:
        prompt: The system prompt.
        mcp_config: See `run_agent`.
        provider: See `run_agent`.
        model: See `run_agent`.
        user_message: The same as `task`.
        session: See `run_agent`.
        tools: See `run_agent`.
        task: A first message to the agent; without one, it waits for the person.
        mcp_servers: See `run_agent`.
        prompts: See `run_agent`.
        limits: See `run_agent`.
        base_url: See `run_agent`.
        api_key: See `run_agent`.
        price: See `run_agent`.
        record: See `run_agent`.
        name: See `run_agent`.
        approve: See `run_agent`.
        terminal: The person's terminal; this process's terminal by default.

    Returns:
        The last event of the run.
    """
    run = run_agent(
        prompt,
        mcp_config,
        provider=provider,
        model=model,
        user_message=user_message,
        session=session,
        tools=tools,
        task=task,
        mcp_servers=mcp_servers,
        prompts=prompts,
        limits=limits,
        base_url=base_url,
        api_key=api_key,
        price=price,
        record=record,
        name=name,
        interactive=True,
        approve=approve,
        show=False,
    )
    return await Chat(run, terminal or open_terminal()).hold()


def _of(used: int, allowed: float | None, what: str) -> str:
    return f"{used} of {allowed:g} {what}" if allowed is not None else f"{used} {what}"
