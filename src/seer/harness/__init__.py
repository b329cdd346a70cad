"""Run an agent of any vendor, see what it does as typed events, and keep it within limits."""

from seer.errors import AgentProcessError, ScriptError, ToolServerError
from seer.events import (
    AnswerEnd,
    AnswerFinished,
    ApprovalAsked,
    ApprovalGiven,
    Block,
    ErrorEvent,
    ErrorKind,
    Event,
    FinishReason,
    ImageBlock,
    LimitName,
    LimitReached,
    RunFinished,
    RunStarted,
    Text,
    TextBlock,
    TextDelta,
    Thinking,
    ToolCall,
    ToolInfo,
    ToolResult,
    Usage,
    UserMessage,
    Waiting,
    event_from_json,
)
from seer.harness._agent import Agent, AgentRequest, agent_names, check_agent
from seer.harness._approval import Answer, Approve, Policy
from seer.harness._control import control_run
from seer.harness._limits import Limits, Price
from seer.harness._run import AgentRun, run_agent
from seer.harness._seat import Seat
from seer.harness._toolbox import ToolOutcome
from seer.harness.agents._human import HumanAgent
from seer.harness.agents._replay import Forked, ReplayAgent, fork_environment
from seer.harness.agents._scripted import Call, Expect, Scripted, Step
from seer.harness.terminal._interactive import run_agent_interactive
from seer.harness.terminal._terminal import LineTerminal, PromptTerminal, Terminal

__all__ = [
    "Agent",
    "AgentProcessError",
    "AgentRequest",
    "AgentRun",
    "Answer",
    "AnswerEnd",
    "AnswerFinished",
    "ApprovalAsked",
    "ApprovalGiven",
    "Approve",
    "Block",
    "Call",
    "ErrorEvent",
    "ErrorKind",
    "Event",
    "Expect",
    "FinishReason",
    "Forked",
    "HumanAgent",
    "ImageBlock",
    "LimitName",
    "LimitReached",
    "Limits",
    "LineTerminal",
    "Policy",
    "Price",
    "PromptTerminal",
    "ReplayAgent",
    "RunFinished",
    "RunStarted",
    "ScriptError",
    "Scripted",
    "Seat",
    "Step",
    "Terminal",
    "Text",
    "TextBlock",
    "TextDelta",
    "Thinking",
    "ToolCall",
    "ToolInfo",
    "ToolOutcome",
    "ToolResult",
    "ToolServerError",
    "Usage",
    "UserMessage",
    "Waiting",
    "agent_names",
    "check_agent",
    "control_run",
    "event_from_json",
    "fork_environment",
    "run_agent",
    "run_agent_interactive",
]
