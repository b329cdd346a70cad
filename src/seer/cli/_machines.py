"""Machines on all providers at once, for listings."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from seer.providers import MachineStatus

_PATIENCE = 20.0


@dataclass(frozen=True)
class Running:
    """The machines that were found, and the providers that could not be reached."""

    machines: "list[MachineStatus]"
    unreachable: dict[str, str] = field(default_factory=dict[str, str])


def running(providers: Sequence[str] = ()) -> Running:
    """All machines of this user.

    Args:
        providers: The providers to ask; by default all that are set up on this machine.

    Raises:
        click.UsageError: There is no such provider.
    """
    from seer._sync import run_sync
    from seer.providers import provider_names

    known = provider_names()
    for name in providers:
        if name not in known:
            raise click.UsageError(f"there is no provider {name!r}; there are: {', '.join(known)}")
    return run_sync(_running(providers))


async def _running(providers: Sequence[str]) -> Running:
    from seer.providers import provider_names, why_unavailable

    names = list(providers) or [n for n in provider_names() if why_unavailable(n) is None]
    answers = await asyncio.gather(*map(_ask, names))
    found = Running([])
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, str):
            found.unreachable[name] = answer
        else:
            found.machines.extend(answer)
    found.machines.sort(key=lambda machine: machine.started_at)
    return found


async def _ask(name: str) -> "list[MachineStatus] | str":
    from seer.errors import SeerError
    from seer.providers import get_provider

    try:
        async with asyncio.timeout(_PATIENCE):
            return await get_provider(name).list()
    except SeerError as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {_PATIENCE:g} s"
