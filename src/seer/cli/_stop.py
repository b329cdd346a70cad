"""`seer stop`: end machines, wherever they run."""

import sys
from typing import TYPE_CHECKING

import click

from seer.cli._codes import FAILED, OK
from seer.cli._machines import Running, running
from seer.cli._options import machine_argument
from seer.console import confirm, say
from seer.errors import SandboxNotFoundError, SeerError

if TYPE_CHECKING:
    from seer.providers import MachineStatus


@click.command(
    name="stop",
    epilog="""\b
Examples:
  seer stop sb-0123456789abcdef      the beginning of an id is enough
  seer stop --orphans                machines of programs that died
  seer stop --all""",
)
@machine_argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="End all of your machines.")
@click.option("--orphans", is_flag=True, help="End machines whose program is gone.")
@click.option(
    "--provider", "providers", multiple=True, help="Look only on this provider (default: all)."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(
    ids: tuple[str, ...], everything: bool, orphans: bool, providers: tuple[str, ...], yes: bool
) -> int:
    """End machines by id, with everything that runs in them."""
    if not (ids or everything or orphans):
        raise click.UsageError("name machines, or use --orphans or --all; `seer ps` lists them")
    found = running(providers)
    chosen = [
        machine
        for machine in found.machines
        if everything
        or (orphans and not machine.detached and not machine.controller_alive)
        or machine.id in ids
    ]
    for item in ids:
        if all(machine.id != item for machine in chosen):
            chosen.append(_beginning(item, found))
    for name, why in found.unreachable.items():
        say(f"could not reach {name}: {why}", file=sys.stderr)
    missed = FAILED if found.unreachable and not ids else OK
    if not chosen:
        say("nothing to stop")
        return missed
    if everything and not yes:
        names = ", ".join(machine.id for machine in chosen)
        if not confirm(f"End {len(chosen)} machine(s): {names}?"):
            raise click.Abort
    return max(missed, *(_end(machine) for machine in chosen))


def _beginning(text: str, found: Running) -> "MachineStatus":
    fitting = [machine for machine in found.machines if machine.id.startswith(text)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        several = ", ".join(machine.id for machine in fitting)
        raise click.UsageError(f"{text!r} matches several: {several}")
    asked = "".join(f"; could not reach {name}: {why}" for name, why in found.unreachable.items())
    raise SandboxNotFoundError(f"no machine {text!r} is running{asked}")


def _end(machine: "MachineStatus") -> int:
    from seer._sync import run_sync
    from seer.providers import get_provider

    async def end() -> None:
        await (await get_provider(machine.provider).find(machine.id)).terminate()

    try:
        run_sync(end())
    except SandboxNotFoundError:
        say(f"{machine.id}: had already ended")
        return 0
    except SeerError as error:
        say(f"{machine.id}: {error}", file=sys.stderr)
        return 1
    say(f"{machine.id}: ended")
    return 0
