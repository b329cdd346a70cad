"""Run an agent of any vendor, see what it does as typed events, and keep it within limits."""

from seer.events import RunFinished, Text, ToolCall, ToolResult, Waiting
from seer.harness._agent import Agent, AgentRequest, agent_names, check_agent
from seer.harness._approval import ApprovalAnswer
from seer.harness._context import AgentContext
from seer.harness._control import control_run
from seer.harness._limits import Limits, Price
from seer.harness._run import AgentRun, run_agent
from seer.harness._toolbox import ToolOutcome
from seer.harness.agents._human import HumanAgent
from seer.harness.agents._replay import Forked, ReplayAgent, fork_environment
from seer.harness.agents._scripted import Call, Expect, Scripted, Step
from seer.harness.terminal._interactive import run_agent_interactive
from seer.harness.terminal._terminal import LineTerminal, PromptTerminal, Terminal

__all__ = [
    "Agent",
    "AgentContext",
    "AgentRequest",
    "AgentRun",
    "ApprovalAnswer",
    "Call",
    "Expect",
    "Forked",
    "HumanAgent",
    "Limits",
    "LineTerminal",
    "Price",
    "PromptTerminal",
    "ReplayAgent",
    "RunFinished",
    "Scripted",
    "Step",
    "Terminal",
    "Text",
    "ToolCall",
    "ToolOutcome",
    "ToolResult",
    "Waiting",
    "agent_names",
    "check_agent",
    "control_run",
    "fork_environment",
    "run_agent",
    "run_agent_interactive",
]
