"""Turns the arguments of `run_agent` into one plain request.

Nothing is started or connected here.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from seer.errors import ConfigError
from seer.execution import Session, open_sessions
from seer.harness._agent import Agent, find_agent
from seer.harness._servers import ServerSpec, parse_server
from seer.mcp._open import local_tools
from seer.tools._sets import session_tools
from seer.tools._tool import server_name
from seer.workspace import Workspace

logger = logging.getLogger(__name__)

SUBSTITUTE = "SEER_AGENT"

_used: set[str] = set()
"""The ids of the sessions that a run of this process has used."""


class SessionLike(Protocol):
    """What the harness needs from a session."""

    @property
    def session_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def mcp_config(self) -> Mapping[str, Any]: ...
    @property
    def open_mcp_config(self) -> Mapping[str, Any]: ...
    @property
    def model_info_text(self) -> str: ...
    @property
    def workspace(self) -> Workspace: ...
    @property
    def callers(self) -> Mapping[str, str]: ...
    @property
    def notebook_path(self) -> Path | None: ...
    def about(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Words:
    """The first texts for the agent."""

    system_prompt: str
    task: str


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The agent that runs, its name, and the name of the requested agent."""

    agent: Agent
    name: str
    asked: str


def choose_agent(provider: str | Agent, *, substitute: bool) -> Chosen:
    """The agent to run.

    `SEER_AGENT` replaces every agent that can be replaced, even an `Agent` object of the program.
    Sweeps and forks set it.

    Raises:
        ConfigError: There is no agent of that name.
    """
    asked = provider if isinstance(provider, str) else provider.name
    stand_in = os.environ.get(SUBSTITUTE) if substitute else None
    if not stand_in:
        agent = find_agent(provider) if isinstance(provider, str) else provider
        return Chosen(agent=agent, name=asked, asked=asked)
    try:
        agent = find_agent(stand_in).in_place_of(provider)
    except ConfigError as error:
        raise ConfigError(SUBSTITUTE, stand_in, error.reason) from error
    logger.warning("%s=%s runs instead of %r", SUBSTITUTE, stand_in, asked)
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
    """Choose the system prompt and the first message.

    Raises:
        ConfigError: There is nothing to ask, or `task` and `user_message` differ.
    """
    if isinstance(prompts, str):
        raise ConfigError("prompts", prompts, "must be a list of texts; put it in brackets")
    if task is not None and user_message is not None and task != user_message:
        raise ConfigError("user_message", user_message, "means the same as task; give one of them")
    first = task if task is not None else user_message
    system: list[str] = []
    if first is None and not interactive:
        first = prompt
    elif prompt is not None:
        system.append(prompt)
    if not interactive and not (first and first.strip()):
        raise ConfigError("prompt", prompt, "there is nothing to ask; give prompt= or task=")
    system.extend(prompts)
    if session is not None:
        *system, first, about = _once([*system, first or "", session.model_info_text], session)
        system.append(about)
    return Words(
        system_prompt=_whole("\n\n".join(text.strip() for text in system if text.strip())),
        task=_whole(first or ""),
    )


def _once(texts: Sequence[str], session: SessionLike) -> list[str]:
    """The texts, without repetitions of the session's description.

    Programs put the description into their prompts, whole or in parts; repeating it costs tokens.
    """
    workspace = session.workspace
    parts = [session.model_info_text, workspace.get_library_docs(), workspace.get_skill_docs()]
    parts += [library.docs for library in workspace.libraries]
    kept = list(texts)
    for part in filter(None, (part.strip() for part in parts)):
        seen = False
        for index, text in enumerate(kept):
            head, found, tail = text.partition(part)
            if found and not seen:
                head, tail, seen = head + part, tail, True
            kept[index] = head + tail.replace(part, "") if found else text
    return kept


def _whole(text: str) -> str:
    """The text with lone surrogates decoded.

    In a locale without UTF-8, Python uses lone surrogates for bytes of arguments and file names.
    Vendors and tool servers reject them.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def given_servers(
    mcp_config: Mapping[str, Any] | None,
    mcp_servers: Sequence[Mapping[str, Any]] | Mapping[str, Any],
) -> list[Mapping[str, Any]]:
    """The given configurations of tool servers, without empty ones."""
    if isinstance(mcp_servers, Mapping):
        mcp_servers = [mcp_servers]
    return [part for part in (mcp_config or {}, *mcp_servers) if part]


def choose_session(
    session: SessionLike | None, given: Sequence[Mapping[str, Any]], *, tools: bool = True
) -> SessionLike | None:
    """The session to use: the given one, or the only open one if no tools were given.

    A session that an earlier run has used is not chosen: a second agent in one program, such as a
    judge, must not get the tools of the first.

    Raises:
        ConfigError: Several sessions are open and none was named, or `tools=False` came with tools.
    """
    if session is not None and not hasattr(session, "open_mcp_config"):
        raise ConfigError("session", session, "must be a session, not its name")
    if not tools:
        if session is not None or given:
            raise ConfigError("tools", tools, "leave out session=, mcp_config= and mcp_servers=")
        return None
    if session is not None:
        return session
    if given:
        return _session_of(given)
    sessions = open_sessions()
    unused = [item for item in sessions if item.session_id not in _used]
    if not unused:
        state = "no session is open" if not sessions else "earlier runs have used the open sessions"
        logger.warning(
            "%s and no tools were given, so the agent has no tools; pass session=... for tools, or"
            " tools=False to silence this",
            state,
        )
        return None
    if len(sessions) > 1:
        names = ", ".join(sorted(f"{item.name} ({item.session_id})" for item in sessions))
        raise ConfigError(
            "session", None, f"several sessions are open, so name one: session=...; open: {names}"
        )
    logger.warning(
        "no tools were given: the agent gets the tools of the only open session, %s (%s); pass"
        " tools=False to give it none",
        unused[0].name,
        unused[0].session_id,
    )
    return unused[0]


def note_use(session: SessionLike) -> None:
    """Note that a run uses this session, so that later runs do not choose it by default."""
    _used.add(session.session_id)


def merge_servers(
    session: SessionLike | None, given: Sequence[Mapping[str, Any]]
) -> tuple[ServerSpec, ...]:
    """All tool servers. Tools of this process are called directly, without a server.

    Raises:
        ConfigError: Two different servers have the same name, or an entry is malformed.
        SandboxStateError: The session is closed.
        ToolServerError: A server's command does not exist.
    """
    merged: dict[str, Any] = {}
    own: Mapping[str, Any] = {}
    if session is not None and not _is_of(session, given):
        own = _own_servers(session)
    for source in [own, *given]:
        for name, entry in source.items():
            if name in merged and merged[name] != entry:
                raise ConfigError(
                    f"mcp_servers[{name!r}]", entry, "another tool server has this name already"
                )
            merged[name] = entry
    # Tells Seer's servers to save files in this agent's session.
    around = {} if session is None else {"SEER_SESSION": session.session_id}
    sessions = [*([] if session is None else [session]), *open_sessions()]
    kept = [_identity(entry) for one in sessions for entry in one.open_mcp_config.values()]
    return tuple(
        entry
        if isinstance(entry, ServerSpec)
        else _server(name, entry, around, ordered=_identity(entry) in kept)
        for name, entry in merged.items()
    )


def _own_servers(session: SessionLike) -> Mapping[str, Any]:
    """The tools of a session: called directly if possible, else over its `mcp_config`."""
    if not isinstance(session, Session) or session.is_closed or session.is_replayed:
        return session.mcp_config
    name = server_name(session.name)
    spec = ServerSpec(
        name=name,
        kind="local",
        tools=session_tools(session),
        is_open=lambda: not session.is_closed,
        session=session.session_id,
        ordered=True,
    )
    return {name: spec}


def _server(name: str, entry: Any, around: Mapping[str, str], *, ordered: bool) -> ServerSpec:
    """A given server. A server of this process is called directly."""
    spec = parse_server(name, entry)
    tools = local_tools(spec.command, spec.args) if spec.kind == "stdio" else None
    if tools is None:
        return dataclasses.replace(spec, env={**around, **spec.env}, ordered=ordered)
    return dataclasses.replace(
        spec,
        kind="local",
        tools=tools,
        is_open=lambda: local_tools(spec.command, spec.args) is tools,
        session=around.get("SEER_SESSION", ""),
        ordered=ordered,
    )


def _session_of(given: Sequence[Mapping[str, Any]]) -> SessionLike | None:
    """The open session that one of these servers belongs to."""
    found = [session for session in open_sessions() if _is_of(session, given)]
    if len(found) > 1:
        logger.warning(
            "these tools belong to several sessions; the prompt and the record use the first: %s",
            ", ".join(f"{session.name} ({session.session_id})" for session in found),
        )
    return found[0] if found else None


def _is_of(session: SessionLike, given: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a session's own server is among these, under any name."""
    own = [_identity(entry) for entry in session.open_mcp_config.values()]
    return any(_identity(entry) in own for part in given for entry in part.values())


def _identity(entry: Any) -> object:
    """The identity of a server: the command that starts it, not its name."""
    if not isinstance(entry, Mapping):
        return entry
    given = cast("Mapping[str, Any]", entry)
    return (given.get("command"), tuple(given.get("args") or ()), given.get("url"))
