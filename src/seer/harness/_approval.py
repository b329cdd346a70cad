"""Approval of tool calls: who decides whether a call is made, and how a person is asked.

`AgentContext` asks for it before each call of every vendor, so a policy holds for all agents alike.
A call that is not approved reaches the model as a tool error.
"""

import asyncio
import dataclasses
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, cast

from seer.errors import ConfigError, MissingExtraError
from seer.events import ApprovalAsked, ApprovalGiven, Event, ToolCall
from seer.harness.terminal._terminal import LineTerminal, Terminal, open_terminal

logger = logging.getLogger(__name__)

VARIABLE = "SEER_APPROVE"
ApprovalAnswer: TypeAlias = Literal["auto", "ask", "deny"]
"""`auto`: the call is made. `ask`: a person decides. `deny`: it is not made."""
ApprovalPolicy: TypeAlias = (
    ApprovalAnswer
    | Callable[[ToolCall], "bool | ApprovalAnswer | Awaitable[bool] | Awaitable[ApprovalAnswer]"]
)
Approve: TypeAlias = ApprovalPolicy | Mapping[str, ApprovalPolicy]
_ANSWERS = ("auto", "ask", "deny")
_SHOWN = 500


class Approvals:
    """Decides about the calls of one run.

    Args:
        policies: By pattern; see `read_policies`.
        emit: Reports what was asked and decided.
        terminal: Whether to ask in the terminal of this process, if it has one.
    """

    def __init__(
        self,
        policies: Mapping[str, ApprovalPolicy],
        *,
        emit: Callable[[Event], None],
        terminal: bool,
    ) -> None:
        self._policies = policies
        self._emit = emit
        self._terminal = terminal and sys.stdin.isatty() and sys.stdout.isatty()
        self._one_at_a_time = asyncio.Lock()
        self._open: dict[str, asyncio.Future[tuple[bool, str]]] = {}
        self.recorded: Mapping[str, ApprovalGiven] | None = None
        """Decisions of a replayed run; then nobody is asked."""

    async def decide(self, call: ToolCall) -> ApprovalGiven | None:
        """Decide about a call, and report the decision; None if the call needs none."""
        if self.recorded is not None:
            given = self.recorded.get(call.id)
        else:
            given = await self._decide(call)
        if given is not None:
            self._emit(given)
        return given

    async def _decide(self, call: ToolCall) -> ApprovalGiven | None:
        policy = find_policy(self._policies, call.name, call.server)
        given = ApprovalGiven(id=call.id, name=call.name, approved=False, by="policy")
        if callable(policy):
            given = dataclasses.replace(given, by="function")
            try:
                policy = await _consult(policy, call)
            except Exception as error:  # the user's own code; if it fails, the call is not made
                logger.exception("the function that approves calls failed, so %s is denied", call)
                reason = f"the function that approves calls failed: {type(error).__name__}: {error}"
                return dataclasses.replace(given, reason=reason)
        elif policy == "auto":
            return None
        if policy == "ask":
            approved, reason = await self._ask(call)
            return dataclasses.replace(given, approved=approved, reason=reason, by="person")
        return dataclasses.replace(given, approved=policy == "auto")

    def answer(self, call_id: str, *, approved: bool, reason: str = "") -> bool:
        """Take a person's answer; False if nobody was asked about this call."""
        asked = self._open.get(call_id)
        if asked is None or asked.done():
            return False
        asked.set_result((approved, reason))
        return True

    async def _ask(self, call: ToolCall) -> tuple[bool, str]:
        asked = self._open[call.id] = asyncio.get_running_loop().create_future()
        self._emit(ApprovalAsked(id=call.id, name=call.name))
        typing = asyncio.create_task(self._ask_in_terminal(call)) if self._terminal else None
        if typing is None:
            logger.warning(
                "the call of %s waits for approval; approve it in `seer view --allow-control`, or "
                "with AgentRun.approve(%r)",
                call.name,
                call.id,
            )
        try:
            return await asked
        finally:
            del self._open[call.id]
            if typing is not None:
                typing.cancel()

    async def _ask_in_terminal(self, call: ToolCall) -> None:
        """Ask in this process's terminal too; the first answer counts."""
        async with self._one_at_a_time:
            approved, reason = await ask_person(_terminal_here(), call)
        self.answer(call.id, approved=approved, reason=reason)


def _terminal_here() -> Terminal:
    try:
        return open_terminal()
    except MissingExtraError:
        return LineTerminal()


async def ask_person(terminal: Terminal, call: ToolCall) -> tuple[bool, str]:
    """Ask whether a call may be made. Returns the decision, and the reason for a refusal."""
    given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    short = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}... ({len(given)} characters)"
    terminal.say(f"? {call.name}({short})\n? allow this call? y, n, or why not")
    line = await terminal.ask("? ")
    if line is None:
        return False, "nobody answered"
    word = line.strip()
    if word.lower() in {"y", "yes"}:
        return True, ""
    return False, "" if word.lower() in {"", "n", "no"} else word


async def _consult(policy: Callable[[ToolCall], object], call: ToolCall) -> ApprovalAnswer:
    if inspect.iscoroutinefunction(policy):
        said = await policy(call)
    else:
        said = await asyncio.to_thread(policy, call)
        if inspect.isawaitable(said):
            said = await said
    if isinstance(said, bool):
        return "auto" if said else "deny"
    if said in _ANSWERS:
        return said
    raise ConfigError("approve", said, f"a function must return True, False or one of {_ANSWERS}")


def read_policies(approve: Approve | None) -> dict[str, ApprovalPolicy]:
    """Policies by pattern, from the argument or from `SEER_APPROVE`.

    Raises:
        ConfigError: A value is not a policy.
    """
    if asked := os.environ.get(VARIABLE):
        if approve is not None:
            logger.warning("%s=%s replaces the program's approve=", VARIABLE, asked)
        return parse_policies(VARIABLE, asked)
    if approve is None:
        return {}
    given = cast("Mapping[str, ApprovalPolicy]", approve) if isinstance(approve, Mapping) else None
    policies: dict[str, ApprovalPolicy] = (
        {"*": cast("ApprovalPolicy", approve)} if given is None else {**given}
    )
    for pattern, policy in policies.items():
        if not isinstance(pattern, str) or not (callable(policy) or policy in _ANSWERS):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"approve[{pattern!r}]", policy, f"must be one of {_ANSWERS}, or a function"
            )
    return policies


def parse_policies(field: str, text: str) -> dict[str, ApprovalPolicy]:
    """Policies by pattern, from `ask` or `python=ask,*=deny`.

    Args:
        field: The name of the argument or variable that has the text, for errors.
        text: What to parse.

    Raises:
        ConfigError: The text is not a valid policy.
    """
    policies: dict[str, ApprovalPolicy] = {}
    for part in text.split(","):
        pattern, _, word = (item.strip() for item in part.rpartition("="))
        if word not in _ANSWERS:
            raise ConfigError(
                field, text, f"{word!r} must be auto, ask or deny; by pattern: python=ask,*=deny"
            )
        policies[pattern or "*"] = word
    return policies


def find_policy(
    policies: Mapping[str, ApprovalPolicy], name: str, server: str | None
) -> ApprovalPolicy:
    """The policy of the first pattern that matches the tool's name, or `server/name`."""
    for pattern, policy in policies.items():
        if fnmatchcase(name, pattern) or fnmatchcase(f"{server}/{name}", pattern):
            return policy
    return "auto"
