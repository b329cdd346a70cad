"""The checks of `seer run` and `seer sweep` before a program starts: its agents and disk space.

A program may load a model for minutes, or rent a machine, before it starts its agent. The agents'
names are read from the program's source; what the source does not show is left to the program.
"""

import ast
import contextlib
import os
import shutil
import sys
import warnings
from pathlib import Path

from seer.console import say
from seer.errors import ConfigError, HostResourceError, SecretMissingError, SeerError

_STARTERS = ("run_agent", "run_agent_interactive")
_GIVEN = ("api_key", "base_url", "substitute", "history")
"""With one of these arguments of `run_agent`, the agent may need no key or package."""
_SETS_KEYS = ("environ", "dotenv", "putenv")
"""Words in the source of a program that may set keys itself."""
_LEAST = 32 << 20
"""Bytes that must be free for records."""


def check_agents(program: Path, agent: str | None, *, option: str = "--agent") -> None:
    """Check that a program's agents can run on this machine.

    Args:
        program: The program's file.
        agent: The agent to use instead of the program's; None uses `SEER_AGENT`, if that is set.
        option: The option that gave `agent`, for error messages.

    Raises:
        SeerError: None of the agents can run; the message says why and what to do.
    """
    from seer.harness import check_agent

    source = program.read_text(encoding="utf-8", errors="replace")
    chosen = agent or os.environ.get("SEER_AGENT")
    named = [chosen] if chosen else named_agents(source)
    failures: list[SeerError] = []
    with contextlib.chdir(program.absolute().parent):
        for name in named:
            try:
                check_agent(name)
            except SecretMissingError as error:
                if chosen or not any(word in source for word in _SETS_KEYS):
                    failures.append(error)
            except ConfigError as error:
                where = option if agent else "SEER_AGENT"
                failures.append(_asked_for(name, error, where) if chosen else error)
            except SeerError as error:
                failures.append(error)
    if failures and len(failures) == len(named):
        raise failures[0]
    for failure in failures:
        say(f"warning: {program} names an agent that cannot run here: {failure}", file=sys.stderr)


def _asked_for(name: str, error: ConfigError, where: str) -> ConfigError:
    """The error of an agent, as an error of the option or variable that chose the agent."""
    reason = error.reason
    if error.field.startswith("steps["):  # a part of the agent's file
        reason = f"{error.field}={error.value!r}: {reason}"
    agent, _, file = name.partition(":")
    if agent == "scripted" and file and not Path(file).exists():
        reason += f" (a relative path starts at the program's folder, {str(Path.cwd())!r})"
    return ConfigError(where, name, reason)


def check_approval(given: str | None) -> None:
    """Check an approval policy.

    Args:
        given: The policy from the command line; None checks `SEER_APPROVE`, if that is set.

    Raises:
        ConfigError: The text is not a valid approval policy.
    """
    from seer.harness._approval import VARIABLE, parse_policies

    if given is not None:
        parse_policies("--approve", given)
    elif asked := os.environ.get(VARIABLE):
        parse_policies(VARIABLE, asked)


def named_agents(source: str) -> list[str]:
    """The agents that a program passes to `run_agent`, as far as its source shows."""
    found: list[str] = []
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.Call) or _called(node) not in _STARTERS:
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if None in given or any(name in given for name in _GIVEN):
            continue
        agent = given.get("provider", ast.Constant("claude"))
        if isinstance(agent, ast.Constant) and isinstance(agent.value, str):
            found.append(agent.value)
    return list(dict.fromkeys(found))


def parsed(source: str) -> ast.Module:
    """Parse a file's source. Invalid Python gives an empty module: using the file reports it."""
    with warnings.catch_warnings():
        # Python warns about invalid escapes when the file is used.
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):  # ValueError: a null byte
            return ast.Module(body=[], type_ignores=[])


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def check_room(records: Path, *, option: str) -> None:
    """Check that records can be written.

    Args:
        records: The folder for records, which need not exist yet.
        option: The option that chooses another folder, for error messages.

    Raises:
        HostResourceError: The folder cannot be written, or its disk is almost full.
    """
    there = next(path for path in (records, *records.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise HostResourceError(
            f"records cannot be written to {str(records)!r}: {str(there)!r} is not a folder that "
            f"you can write to; choose another one with {option}"
        )
    free = shutil.disk_usage(there).free
    if free < _LEAST:
        raise HostResourceError(
            f"only {free / 1e6:.1f} MB are free for records in {str(there)!r}; free some space, or "
            f"choose another folder with {option}"
        )
