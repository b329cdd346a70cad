"""Typed events that describe what an agent does, in the same form for every vendor.

Events are plain frozen data with a JSON form: `to_json` writes it, `parse_event` reads it. They
have no behaviour of their own; the packages above enforce limits, record and print. `raw` keeps
the vendor's own message. It is not part of the JSON form, because its shape differs from vendor to
vendor; `raw_json` renders it where that is possible.
"""

import base64
import binascii
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar, Literal, TypeAlias, cast

from seer.errors import visible

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

FinishReason = Literal["completed", "limit", "cancelled", "error"]
"""`limit`: a limit was reached, whether or not the agent used its last turn to conclude."""

AnswerEnd = Literal[
    "stop", "tool_calls", "length", "refused", "paused", "malformed_call", "unfinished", "other"
]
"""Why an answer of the model ended. `stop`: it is complete. `length`: it was cut off at a token
limit. `refused`: the model or the vendor's filter refused. `paused`: the vendor expects a request
to continue. `unfinished`: the vendor gave no reason. `other`: a reason that Seer does not know.
"""

ErrorKind = Literal[
    "authentication",
    "quota",
    "rate_limit",
    "overloaded",
    "connection",
    "timeout",
    "malformed",
    "incomplete",
    "refused",
    "request",
    "tool_server",
    "divergence",
    "record",
    "script",
    "internal",
]
"""`request`: the vendor rejects what was asked of it (unknown model, too long, bad parameter).
`quota`: the account has no credit left. `incomplete`: the last answer was cut off.
`record`: something that happened could not be recorded.
"""

LimitName = Literal["turns", "tool_calls", "seconds", "tokens", "cost_usd", "stop"]
"""`stop`: a person asked the agent to conclude."""


_LINE = 160
"""The maximum length of an event's one-line form."""


@dataclass(frozen=True, kw_only=True)
class TextBlock:
    """Text in a tool's result."""

    text: str


@dataclass(frozen=True, kw_only=True)
class ImageBlock:
    """An image in a tool's result."""

    data: bytes = field(repr=False)
    mime_type: str = "image/png"


Block: TypeAlias = TextBlock | ImageBlock


def text_blocks(content: Iterable[Block]) -> list[str]:
    """The text of each text block."""
    return [block.text for block in content if isinstance(block, TextBlock)]


@dataclass(frozen=True, kw_only=True)
class ToolInfo:
    """A tool the agent may call."""

    name: str
    """The name the agent uses; unique in a run."""
    server: str = ""
    """The MCP server that provides the tool."""
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Event:
    """Common to all events. The harness sets `seq`, `time` and `turn`."""

    type: ClassVar[str] = "event"

    seq: int = -1
    """Counts the events of a run from 0."""
    time: float = 0.0
    """Unix time."""
    turn: int = 0
    """Counts the agent's answers from 1; 0 before the first."""
    raw: object = field(default=None, repr=False, compare=False)
    """The vendor's own message, where there is one."""

    def summary(self) -> str:
        """What happened, in a few words."""
        return ""

    def __str__(self) -> str:
        """One line: the type, and what happened."""
        said = " ".join(self.summary().split())
        shown = said if len(said) <= _LINE else f"{said[:_LINE]}... ({len(said)} characters)"
        return visible(f"{self.type}: {shown}" if shown else self.type)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return escape(str(self))

    def to_json(self) -> dict[str, Json]:
        """The event as plain JSON values, without `raw`."""
        data: dict[str, Json] = {"type": self.type}
        for item in dataclasses.fields(self):
            if item.name != "raw":
                data[item.name] = _plain(getattr(self, item.name))
        return data


@dataclass(frozen=True, kw_only=True, repr=False)
class RunStarted(Event):
    """The first event: the agent is about to get its task."""

    type: ClassVar[str] = "run_started"

    run_id: str
    provider: str
    model: str | None = None
    system_prompt: str = field(default="", repr=False)
    task: str = ""
    tools: tuple[ToolInfo, ...] = field(default=(), repr=False)
    session: str | None = None
    limits: Mapping[str, float | None] = field(default_factory=dict[str, float | None])

    def summary(self) -> str:
        """What happened, in a few words."""
        agent = f"{self.provider} {self.model}" if self.model else self.provider
        return f"{agent}, {len(self.tools)} tools: {self.task}"


@dataclass(frozen=True, kw_only=True, repr=False)
class UserMessage(Event):
    """A later message to the agent."""

    type: ClassVar[str] = "user_message"

    text: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return self.text


@dataclass(frozen=True, kw_only=True, repr=False)
class MessageQueued(Event):
    """A message waits until the agent's current reply ends.

    A `UserMessage` follows when the agent gets the message, a `MessageNotDelivered` if it never
    does.
    """

    type: ClassVar[str] = "message_queued"

    text: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return self.text


@dataclass(frozen=True, kw_only=True, repr=False)
class MessageNotDelivered(Event):
    """The agent will never get a message; `reason` says why."""

    type: ClassVar[str] = "message_not_delivered"

    text: str
    reason: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return f"{self.reason}: {self.text}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Waiting(Event):
    """In an interactive run: the agent has answered and waits for a message."""

    type: ClassVar[str] = "waiting"


@dataclass(frozen=True, kw_only=True, repr=False)
class Text(Event):
    """What the agent says: one whole block."""

    type: ClassVar[str] = "text"

    text: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return self.text


@dataclass(frozen=True, kw_only=True, repr=False)
class TextDelta(Event):
    """A piece of a `Text` that is still being written; the whole block follows as `Text`.

    Only `run_agent(deltas=True)` reports it, and it is never recorded.
    """

    type: ClassVar[str] = "text_delta"

    text: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return self.text


@dataclass(frozen=True, kw_only=True, repr=False)
class Thinking(Event):
    """What the agent thinks, if the vendor shows it."""

    type: ClassVar[str] = "thinking"

    text: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return self.text


@dataclass(frozen=True, kw_only=True, repr=False)
class ToolCall(Event):
    """The agent calls a tool. The tool runs only after the program has received this event."""

    type: ClassVar[str] = "tool_call"

    id: str
    name: str
    server: str | None = None
    """None: no such tool was offered, so the call will be refused."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def summary(self) -> str:
        """What happened, in a few words."""
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.arguments.items())})"


@dataclass(frozen=True, kw_only=True, repr=False)
class ApprovalAsked(Event):
    """A person is asked whether a tool call may be made; see `AgentRun.approve`."""

    type: ClassVar[str] = "approval_asked"

    id: str
    """The id of the `ToolCall`."""
    name: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return f"may {self.name} be called?"


@dataclass(frozen=True, kw_only=True, repr=False)
class ApprovalGiven(Event):
    """The decision of a policy, a function or a person whether a tool call may be made."""

    type: ClassVar[str] = "approval_given"

    id: str
    """The id of the `ToolCall`."""
    name: str
    approved: bool
    by: Literal["policy", "function", "person"]
    reason: str = ""
    """The reason for a refusal; the model sees it."""

    def summary(self) -> str:
        """What happened, in a few words."""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.name} {'allowed' if self.approved else 'denied'} by a {self.by}{reason}"


@dataclass(frozen=True, kw_only=True, repr=False)
class ToolResult(Event):
    """The result of a tool call."""

    type: ClassVar[str] = "tool_result"

    id: str
    """The id of the `ToolCall`."""
    name: str
    content: tuple[Block, ...] = ()
    is_error: bool = False
    structured: Any = None
    """The structured form of the result, if the tool returns one."""
    seconds: float | None = None

    @property
    def text(self) -> str:
        """All text of the result, joined by newlines."""
        return "\n".join(text_blocks(self.content))

    @property
    def images(self) -> tuple[ImageBlock, ...]:
        """All images of the result."""
        return tuple(block for block in self.content if isinstance(block, ImageBlock))

    def summary(self) -> str:
        """What happened, in a few words."""
        failed = " failed" if self.is_error else ""
        return f"{self.name}{failed}: {self.text}" + " (image)" * len(self.images)


@dataclass(frozen=True, kw_only=True, repr=False)
class Usage(Event):
    """The tokens that one answer of the agent used, and their cost."""

    type: ClassVar[str] = "usage"

    input_tokens: int = 0
    """Tokens read, cached ones included."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    """None: no price is known for the model."""
    total_tokens: int = 0
    """Input and output tokens of the run so far."""
    total_cost_usd: float | None = None
    """The cost of the run so far; None while no price is known."""

    def summary(self) -> str:
        """What happened, in a few words."""
        return f"{self.input_tokens} tokens in, {self.output_tokens} out"


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerFinished(Event):
    """An answer of the model has ended; `reason` says why.

    Only a whole answer completes a run. An answer that was cut off or refused ends the run with an
    error, unless the agent continues by itself.
    """

    type: ClassVar[str] = "answer_finished"

    reason: AnswerEnd
    vendor_reason: str | None = None
    """The vendor's own word for it; None if it gave none."""
    model: str | None = None
    """The model that answered, as the vendor calls it."""

    def summary(self) -> str:
        """What happened, in a few words."""
        return self.reason


@dataclass(frozen=True, kw_only=True, repr=False)
class LimitReached(Event):
    """A limit was reached: tools are closed, the agent has one last turn to conclude."""

    type: ClassVar[str] = "limit_reached"

    limit: LimitName
    allowed: float
    used: float
    message: str

    def summary(self) -> str:
        """What happened, in a few words."""
        return self.message


@dataclass(frozen=True, kw_only=True, repr=False)
class ErrorEvent(Event):
    """Something went wrong. `retry_in` and `fatal` say whether the run continues."""

    type: ClassVar[str] = "error"

    kind: ErrorKind
    message: str
    retry_in: float | None = None
    """Seconds until the same request is sent again; None if it is not retried."""
    fatal: bool = True
    """Whether the run ends because of this."""

    def summary(self) -> str:
        """What happened, in a few words."""
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, kw_only=True, repr=False)
class RunFinished(Event):
    """The last event."""

    type: ClassVar[str] = "run_finished"

    reason: FinishReason
    message: str = ""
    """The reason, in words for a person."""
    result: str = ""
    """The agent's final text."""
    turns: int = 0
    tool_calls: int = 0
    seconds: float = 0.0
    tokens: int = 0
    cost_usd: float | None = None

    def summary(self) -> str:
        """What happened, in a few words."""
        cost = "" if self.cost_usd is None else f", ${self.cost_usd:.4f}"
        return f"{self.reason} after {self.turns} turns, {self.seconds:.1f} s{cost}"


@dataclass(frozen=True, kw_only=True, repr=False)
class UnknownEvent(Event):
    """A recorded event that this version of Seer cannot read, kept as it was recorded."""

    type: ClassVar[str] = "unknown"

    data: Mapping[str, Any]
    """The event's JSON form."""

    def summary(self) -> str:
        """What happened, in a few words."""
        return str(self.data.get("type"))

    def to_json(self) -> dict[str, Json]:
        """The JSON form as it was recorded."""
        return dict(self.data)


_CLASSES = {cls.type: cls for cls in Event.__subclasses__() if cls is not UnknownEvent}
"""Classes of events by their recorded type. `UnknownEvent` has no recorded type of its own."""


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Read what `to_json` returns; see `parse_event` for events of other versions of Seer.

    Unknown fields are ignored.

    Raises:
        ValueError: The type is unknown, or a field is missing or malformed.
    """
    cls = _CLASSES.get(str(data.get("type")))
    if cls is None:
        raise ValueError(f"type={data.get('type')!r} is not an event; known: {sorted(_CLASSES)}")
    values: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        if item.name in data and item.name != "raw":
            values[item.name] = _parse(item.name, data[item.name])
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.type} event is incomplete: {error}") from error


def parse_event(data: Mapping[str, Any]) -> Event:
    """Read an event of a record, which another version of Seer may have written.

    An event that cannot be read becomes an `UnknownEvent`, so that the rest of its record opens.
    """
    try:
        return event_from_json(data)
    except ValueError:
        place = {name: data[name] for name in ("seq", "time", "turn") if _is_number(data.get(name))}
        return UnknownEvent(data=data, **place)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def raw_json(value: object) -> Json:
    """A vendor's message as JSON values, as far as possible; None if it has no JSON form."""
    try:
        return _plain(value)
    except ValueError:
        return None


def _parse(name: str, value: Any) -> Any:
    try:
        if name == "content":
            return tuple(_block(item) for item in value)
        if name == "tools":
            known = {item.name for item in dataclasses.fields(ToolInfo)}
            return tuple(
                ToolInfo(**{key: part for key, part in item.items() if key in known})
                for item in value
            )
    except (TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise ValueError(f"{name} is malformed: {error}") from error
    return value


def _block(data: Mapping[str, Any]) -> Block:
    if data["type"] == "image":
        return ImageBlock(data=base64.b64decode(data["data"]), mime_type=data["mime_type"])
    return TextBlock(text=data["text"])


def _plain(value: object) -> Json:
    """JSON values; non-finite floats become text, because JSON cannot express them."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, TextBlock):
        return {"type": "text", "text": value.text}
    if isinstance(value, ImageBlock):
        encoded = base64.b64encode(value.data).decode("ascii")
        return {
            "type": "image",
            "mime_type": value.mime_type,
            "encoding": "base64",
            "data": encoded,
        }
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return {str(key): _plain(item) for key, item in items.items()}
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Sequence):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return _plain(dump(mode="json"))
    raise ValueError(f"{type(value).__qualname__} has no JSON form")
