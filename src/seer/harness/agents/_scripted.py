"""An agent that follows a script: real tool calls, no model, no key.

Steps come from a list or from a TOML file. Each step is a turn of the agent: it may think, say
something, call tools, and check what came back. It is the agent of the demo and of tests; it is
not a recording (see `_replay` for that).

In TOML::

    [[steps]]
    text = "Let me look at the model."
    [[steps.calls]]
    tool = "python"
    save = "info"                                # remember the result under this name
    expect = { contains = "num_layers" }         # or: equals, matches, error
    [steps.calls.arguments]
    code = "import model_tools; print(model_tools.get_model_info())"

    [[steps]]
    text = "The model says: {info.text}"

Inside texts and arguments, `{name.text}` is the text of a saved result and `{name.structured.a.0}`
walks its structured form; an argument that is nothing but such a reference keeps the value's type.
Braces that are not a reference to a saved result stay as they are.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, cast

from seer._checks import check_type, items_of
from seer.errors import ConfigError, ScriptError
from seer.events import Text, Thinking, Usage
from seer.harness._agent import Agent, AgentRequest
from seer.harness._context import AgentContext
from seer.harness._toolbox import ToolOutcome

_REFERENCE = re.compile(r"\{([A-Za-z_]\w*)((?:\.\w+)+)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_EXPECT = {"contains", "equals", "matches", "error"}
_CALL = {"tool", "arguments", "save", "expect"}
_STEP = {"text", "thinking", "calls", "usage"}
_USAGE = {"input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd"}


@dataclass(frozen=True, kw_only=True)
class Expect:
    """The expected result of a tool."""

    contains: str | tuple[str, ...] = ()
    equals: Any = None
    """Compared with the structured result, or with the text if there is none."""
    matches: str | None = None
    error: bool | Literal["any"] = False
    """Whether the tool must fail; `any` accepts both."""

    def __post_init__(self) -> None:
        _check_expect(self.contains, self.matches, self.error, "Expect")


@dataclass(frozen=True)
class Call:
    """One tool call of a step."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _: KW_ONLY
    save: str | None = None
    expect: Expect | Callable[[ToolOutcome], object] | None = None
    """A function may look at the result itself: it raises, or returns False, to fail the step."""

    def __post_init__(self) -> None:
        check_type("Call.tool", self.tool, str, "a tool's name")
        check_type("Call.arguments", self.arguments, Mapping, 'a mapping, such as {"code": "1"}')
        _check_save(self.save, "Call.save")
        if self.expect is not None and not callable(self.expect):
            check_type("Call.expect", self.expect, Expect, "an Expect or a function")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One turn of the scripted agent."""

    text: str | None = None
    thinking: str | None = None
    calls: Sequence[Call] = ()
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """Token counts to report for this turn, to try limits without a model."""

    def __post_init__(self) -> None:
        check_type("Step.text", self.text, str, "a text", none=True)
        check_type("Step.thinking", self.thinking, str, "a text", none=True)
        items_of("Step.calls", self.calls, Call, "Call objects")
        if not self.calls and self.text is None:
            raise ConfigError("Step", self, "a step needs text or calls")
        _check_usage(self.usage, "Step.usage")


class Scripted(Agent):
    """The scripted agent: `run_agent(..., provider=Scripted([Step(text="hello")]))`."""

    name = "scripted"

    def __init__(self, steps: Sequence[Step | Mapping[str, Any]] = ()) -> None:
        """Take the steps.

        Raises:
            ConfigError: A step is malformed.
        """
        if isinstance(steps, (str, os.PathLike)):
            reason = f"must be a list of steps; a file is loaded with from_argument({str(steps)!r})"
            raise ConfigError("Scripted.steps", steps, reason)
        check_type("Scripted.steps", steps, Sequence, "a list of steps")
        self.steps = tuple(
            step if isinstance(step, Step) else _step(step, f"steps[{number}]")
            for number, step in enumerate(steps)
        )

    @classmethod
    def from_argument(cls, path: str) -> Self:
        """Read the steps from a TOML file.

        Raises:
            ConfigError: The file cannot be read or is malformed.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("scripted", path, f"the steps cannot be read: {error}") from error
        unknown = sorted(set(data) - {"steps"})
        if unknown or not isinstance(data.get("steps"), list):
            named = f"unknown keys {unknown}; " if unknown else ""
            reason = f"{named}the file must hold [[steps]] and nothing else"
            raise ConfigError("scripted", path, reason)
        return cls(data["steps"])

    def check(self, request: AgentRequest) -> None:
        """Refuse an empty script and built-in tools."""
        if not self.steps:
            raise ConfigError("provider", self.name, "there are no steps; use scripted:steps.toml")
        if request.builtin_tools:
            raise ConfigError("builtin_tools", request.builtin_tools, "a script has none")

    def model_name(self, request: AgentRequest) -> str | None:
        """None, because a script is not a model."""
        return None

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Follow the script.

        Raises:
            ScriptError: A step failed.
        """
        saved: dict[str, ToolOutcome] = {}
        if context.interactive and not request.task and await context.next_message() is None:
            return
        replies = [number for number, step in enumerate(self.steps[:-1]) if not step.calls]
        for number, step in enumerate(self.steps):
            if not context.interactive and (not replies or number > replies[-1]):
                context.takes_no_messages = (
                    "a script gets messages only after a step without calls, and no such step is "
                    "left before its end"
                )
            context.begin_turn()
            async with context.exchange():
                await self._step(step, context, number=number, saved=saved)
            if step.calls:
                continue
            if context.limit is not None:
                return
            if number in replies or context.interactive:
                text = await context.next_message()
                if context.interactive and text is None:
                    return

    async def _step(
        self, step: Step, context: AgentContext, *, number: int, saved: dict[str, ToolOutcome]
    ) -> None:
        if step.usage:
            context.emit(Usage(**step.usage))
        if step.thinking is not None:
            context.emit(Thinking(text=str(_substitute(step.thinking, saved, number))))
        if step.text is not None:
            context.emit(Text(text=str(_substitute(step.text, saved, number))))
        for index, call in enumerate(step.calls):
            outcome = await context.call_tool(
                f"call_{number}_{index}",
                call.tool,
                arguments=cast("dict[str, Any]", _substitute(dict(call.arguments), saved, number)),
            )
            if context.limit is not None or context.failure is not None:
                continue  # the result is the notice, which the script does not expect
            if call.save:
                saved[call.save] = outcome
            _check(call, outcome, f"step {number}, call {index} ({call.tool})")


def _check(call: Call, outcome: ToolOutcome, where: str) -> None:
    text = outcome.text
    expect = call.expect
    if callable(expect):
        try:
            held = expect(outcome)
        except AssertionError as error:
            raise ScriptError(f"{where}: {error or 'the check failed'}; result: {text}") from error
        if held is False:
            raise ScriptError(f"{where}: the check failed; result: {text}")
        return
    expect = expect or Expect()
    if expect.error != "any" and outcome.is_error != expect.error:
        wanted = "fail" if expect.error else "succeed"
        raise ScriptError(f"{where}: should {wanted}; result: {text}")
    parts = (expect.contains,) if isinstance(expect.contains, str) else expect.contains
    for part in parts:
        if part not in text:
            raise ScriptError(f"{where}: {part!r} is not in the result: {text}")
    if expect.matches is not None and not re.search(expect.matches, text):
        raise ScriptError(f"{where}: {expect.matches!r} does not match the result: {text}")
    if expect.equals is not None:
        value = outcome.structured if outcome.structured is not None else text
        if value != expect.equals:
            raise ScriptError(f"{where}: expected {expect.equals!r}, got {value!r}")


def _substitute(value: Any, saved: Mapping[str, ToolOutcome], number: int) -> Any:
    if isinstance(value, str):
        whole = _REFERENCE.fullmatch(value)
        if whole and whole[1] in saved:
            return _look_up(whole, saved, number)
        return _REFERENCE.sub(
            lambda found: str(_look_up(found, saved, number)) if found[1] in saved else found[0],
            value,
        )
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        return {key: _substitute(item, saved, number) for key, item in items.items()}
    if isinstance(value, (list, tuple)):
        return [_substitute(item, saved, number) for item in cast("Sequence[Any]", value)]
    return value


def _look_up(found: re.Match[str], saved: Mapping[str, ToolOutcome], number: int) -> Any:
    outcome = saved[found[1]]
    kind, *path = found[2].strip(".").split(".")
    value: Any = {"text": outcome.text, "structured": outcome.structured}.get(kind)
    try:
        if kind not in {"text", "structured"}:
            raise KeyError(kind)
        for part in path:
            value = value[int(part) if type(value) is list else part]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ScriptError(
            f"step {number}: {found[0]} is not in the result, which was {outcome.text!r}"
        ) from error
    return value


def _step(given: object, where: str) -> Step:
    data = _table(given, where, _STEP)
    listed = data.get("calls", ())
    if not isinstance(listed, (list, tuple)):
        raise ConfigError(f"{where}.calls", listed, "must be a list: [[steps.calls]]")
    calls = tuple(
        _call(item, f"{where}.calls[{index}]")
        for index, item in enumerate(cast("Sequence[object]", listed))
    )
    if not calls and data.get("text") is None:
        raise ConfigError(where, dict(data), "a step needs text or calls")
    usage = _check_usage(data.get("usage", {}), f"{where}.usage")
    return Step(
        text=_text(data, "text", where),
        thinking=_text(data, "thinking", where),
        calls=calls,
        usage=usage,
    )


def _call(given: object, where: str) -> Call:
    if isinstance(given, Call):
        return given
    data = _table(given, where, _CALL)
    if not isinstance(data.get("tool"), str):
        raise ConfigError(where, dict(data), 'a call needs tool = "name"')
    save, expect = data.get("save"), data.get("expect")
    _check_save(save, f"{where}.save")
    if expect is not None and not isinstance(expect, Expect) and not callable(expect):
        expect = _expect(expect, f"{where}.expect")
    return Call(
        tool=data["tool"],
        arguments=_table(data.get("arguments", {}), f"{where}.arguments"),
        save=save,
        expect=expect,
    )


def _expect(given: object, where: str) -> Expect:
    data = _table(given, where, _EXPECT)
    contains, matches = data.get("contains", ()), data.get("matches")
    fails = data.get("error", False)
    _check_expect(contains, matches, fails, where)
    return Expect(
        contains=contains if isinstance(contains, str) else tuple(contains),
        equals=data.get("equals"),
        matches=matches,
        error=fails,
    )


def _check_expect(contains: object, matches: Any, fails: object, where: str) -> None:
    parts = (contains,) if isinstance(contains, str) else contains
    if not isinstance(parts, (list, tuple)) or not all(
        isinstance(part, str) for part in cast("Sequence[object]", parts)
    ):
        raise ConfigError(f"{where}.contains", contains, "must be a text, or a list of texts")
    try:
        re.compile("" if matches is None else matches)
    except (re.error, TypeError) as error:
        reason = f"must be a regular expression: {error}"
        raise ConfigError(f"{where}.matches", matches, reason) from None
    if fails not in (True, False, "any"):
        raise ConfigError(f"{where}.error", fails, 'must be true, false or "any"')


def _check_save(save: object, where: str) -> None:
    if save is not None and not (isinstance(save, str) and _NAME.fullmatch(save)):
        raise ConfigError(where, save, "must be a name of letters, digits and _")


def _check_usage(given: object, where: str) -> Mapping[str, Any]:
    usage = _table(given, where, _USAGE)
    for name, count in usage.items():
        if type(count) not in (int, float) or not count >= 0:
            raise ConfigError(f"{where}.{name}", count, "must be a number, 0 or more")
    return usage


def _text(data: Mapping[str, Any], key: str, where: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where}.{key}", value, "must be a text")
    return value


def _table(given: object, where: str, keys: Set[str] | None = None) -> Mapping[str, Any]:
    """A table of the script, in which only these keys may occur."""
    if not isinstance(given, Mapping):
        raise ConfigError(where, given, "must be a table")
    data = cast("Mapping[str, Any]", given)
    unknown = set(data) - keys if keys is not None else None
    if unknown:
        raise ConfigError(where, sorted(unknown), f"unknown keys; known: {sorted(keys or ())}")
    return data
