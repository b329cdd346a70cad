"""Run an agent of any vendor, see what it does as typed events, and keep it within limits."""

from seer.harness._agent import Agent, AgentRequest, agent_names
from seer.harness._errors import AgentProcessError, ScriptError, ToolServerError
from seer.harness._events import (
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
    event_from_json,
)
from seer.harness._limits import Limits, Price
from seer.harness._replay import Forked
from seer.harness._run import AgentRun, run_agent
from seer.harness._scripted import Call, Expect, Scripted, Step
from seer.harness._seat import Seat
from seer.harness._toolbox import ToolOutcome

__all__ = [
    "Agent",
    "AgentProcessError",
    "AgentRequest",
    "AgentRun",
    "Block",
    "Call",
    "ErrorEvent",
    "ErrorKind",
    "Event",
    "Expect",
    "FinishReason",
    "Forked",
    "ImageBlock",
    "LimitName",
    "LimitReached",
    "Limits",
    "Price",
    "RunFinished",
    "RunStarted",
    "ScriptError",
    "Scripted",
    "Seat",
    "Step",
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
    "agent_names",
    "event_from_json",
    "run_agent",
]
