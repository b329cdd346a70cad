"""From the many ways to call `run_agent` to one plain request.

Pure resolution: nothing is started or connected here.
"""

import dataclasses
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from seer.errors import ConfigError
from seer.harness._agent import Agent, find_agent
from seer.harness._servers import ServerSpec, parse_server

logger = logging.getLogger(__name__)

SUBSTITUTE = "SEER_AGENT"


class SessionLike(Protocol):
    """What the harness needs of a session."""

    @property
    def session_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def mcp_config(self) -> Mapping[str, Any]: ...
    @property
    def model_info_text(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Words:
    """What is said to the agent at the start."""

    system_prompt: str
    task: str


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Who runs, and who was asked for; both by name."""

    agent: Agent
    name: str
    asked: str


def choose_agent(provider: str | Agent, *, substitute: bool) -> Chosen:
    """The agent to run.

    `SEER_AGENT` in the environment replaces every agent that may be replaced, also one that the
    program made itself: a sweep or a fork names its agent there.

    Raises:
        ConfigError: There is no agent of that name.
    """
    asked = provider if isinstance(provider, str) else provider.name
    stand_in = os.environ.get(SUBSTITUTE) if substitute else None
    if not stand_in:
        agent = find_agent(provider) if isinstance(provider, str) else provider
        return Chosen(agent=agent, name=asked, asked=asked)
    logger.warning("%s=%s runs instead of %r", SUBSTITUTE, stand_in, asked)
    try:
        agent = find_agent(stand_in).in_place_of(provider)
    except ConfigError as error:
        raise ConfigError(SUBSTITUTE, stand_in, f"cannot be used: {error}") from error
    return Chosen(agent=agent, name=stand_in, asked=asked)


def choose_words(
    prompt: str | None,
    task: str | None,
    *,
    user_message: str | None,
    prompts: Sequence[str],
    session: SessionLike | None,
    interactive: bool,
) -> Words:
    """Sort what was given into system prompt and first message.

    Raises:
        ConfigError: Nothing was given to ask, or the first message was given twice.
    """
    if isinstance(prompts, str):
        raise ConfigError("prompts", prompts, "must be a list of texts; put it in brackets")
    if task is not None and user_message is not None and task != user_message:
        raise ConfigError("user_message", user_message, "says the same as task; give one of them")
    first = task if task is not None else user_message
    system: list[str] = []
    if first is None and not interactive:
        first = prompt
    elif prompt is not None:
        system.append(prompt)
    if not interactive and not (first and first.strip()):
        raise ConfigError("prompt", prompt, "there is nothing to ask; give prompt= or task=")
    system.extend(prompts)
    if session is not None and session.model_info_text:
        system.append(session.model_info_text)
    return Words(
        system_prompt=_whole("\n\n".join(text.strip() for text in system if text.strip())),
        task=_whole(first or ""),
    )


def _whole(text: str) -> str:
    """The text as it was meant: in a locale without UTF-8, Python splits a program's arguments and
    the names of files into half characters, which no vendor and no tool server takes.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def choose_session(
    session: SessionLike | None, mcp_config: Mapping[str, Any] | None, *, has_servers: bool
) -> SessionLike | None:
    """The session to use: the one given, or the only one open when no tools were given.

    Raises:
        ConfigError: Several are open, and none was named.
    """
    if session is not None:
        return session
    sessions = open_sessions()
    if mcp_config or has_servers:
        named = [item for item in sessions if mcp_config and item.name in mcp_config]
        known = [item for item in named if dict(item.mcp_config) == mcp_config]
        return known[0] if len(known) == 1 else None
    if len(sessions) > 1:
        names = ", ".join(sorted(f"{item.name} ({item.session_id})" for item in sessions))
        raise ConfigError(
            "session", None, f"several sessions are open, so name one: session=...; open: {names}"
        )
    if not sessions:
        logger.warning("no session is open and no tools were given: the agent has no tools")
        return None
    logger.info("using the only open session: %s (%s)", sessions[0].name, sessions[0].session_id)
    return sessions[0]


def merge_servers(
    session: SessionLike | None,
    mcp_config: Mapping[str, Any] | None,
    mcp_servers: Sequence[Mapping[str, Any]],
) -> tuple[ServerSpec, ...]:
    """All tool servers.

    Raises:
        ConfigError: Two different servers have one name, or an entry is malformed.
        ToolServerError: A server's command does not exist.
    """
    if isinstance(mcp_servers, Mapping):
        mcp_servers = [cast("Mapping[str, Any]", mcp_servers)]
    merged: dict[str, Any] = {}
    sources = [session.mcp_config if session is not None else {}, mcp_config or {}, *mcp_servers]
    for source in sources:
        for name, entry in source.items():
            if name in merged and merged[name] != entry:
                raise ConfigError(
                    f"mcp_servers[{name!r}]", entry, "another tool server has this name already"
                )
            merged[name] = entry
    session = session or _session_of(merged)
    own = {} if session is None else {"SEER_SESSION": session.session_id}
    specs = (parse_server(name, entry) for name, entry in merged.items())
    # So that Seer's servers save what they return in this agent's session, and in no other.
    return tuple(dataclasses.replace(spec, env={**own, **spec.env}) for spec in specs)


def _session_of(servers: Mapping[str, Any]) -> SessionLike | None:
    """The open session whose tools are among these servers."""
    for session in open_sessions():
        if any(servers.get(name) == entry for name, entry in session.mcp_config.items()):
            return session
    return None


def open_sessions() -> list[SessionLike]:
    """The sessions that are open in this process, oldest first."""
    # Nobody has opened a session who has not imported the package, and importing it is slow.
    execution = sys.modules.get("seer.execution")
    # In another thread it may be half imported; then nobody has opened a session either.
    found = getattr(execution, "open_sessions", None)
    return list(found()) if found is not None else []
