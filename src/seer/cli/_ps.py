"""`seer ps`: list the running machines of every provider that is set up here."""

import dataclasses
import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from seer.cli._codes import FOUND
from seer.cli._machines import running
from seer.cli._options import json_option
from seer.console import say, say_json, table
from seer.console._output import duration

if TYPE_CHECKING:
    from seer.providers import MachineStatus


@click.command(name="ps", epilog="Exit code 3: a machine is an orphan: its program is gone.")
@click.option(
    "--provider", "providers", multiple=True, help="Ask only this provider (default: all)."
)
@json_option
def command(providers: tuple[str, ...], as_json: bool) -> int:
    """List your running machines on every provider that is set up here."""
    found = running(providers)
    if as_json:
        say_json(
            {
                "machines": [dataclasses.asdict(machine) for machine in found.machines],
                "unreachable": found.unreachable,
            }
        )
    elif found.machines:
        _show(found.machines)
    else:
        say("nothing is running")
    for provider, reason in found.unreachable.items():
        if not as_json:
            say(f"could not reach {provider}: {reason}")
    orphans = [m for m in found.machines if not m.detached and not m.controller_alive]
    if orphans and not as_json:
        say("orphan: its program is gone; it ends with its lease, or now with: seer stop --orphans")
    return FOUND if orphans else 0


def _show(machines: "Sequence[MachineStatus]") -> None:
    from seer.providers._label import read_label

    now = time.time()
    runs = _runs()
    length = _shortest([machine.id for machine in machines])
    rows: list[tuple[object, ...]] = []
    for machine in machines:
        label = read_label(machine.label)
        rows.append(
            (
                machine.id[:length],
                machine.provider,
                label.kind,
                label.program or "-",
                label.models or "-",
                label.pid or "-",
                runs.get(label.pid, "-"),
                machine.gpu or "-",
                duration(now - machine.started_at, short=True),
                "-" if machine.cost_usd is None else f"${machine.cost_usd:.2f}",
                state(machine),
            )
        )
    # Hide columns that have the usual value in every row.
    usual = {"provider": "local", "state": "held"}
    columns = ["id", "provider", "what", "program", "model", "pid", "run", "gpu", "for", "cost"]
    columns.append("state")
    kept = [
        index
        for index, column in enumerate(columns)
        if any(row[index] != usual.get(column, "-") for row in rows)
    ]
    table(
        [columns[index] for index in kept],
        [tuple(row[index] for index in kept) for row in rows],
        shorten={"what", "program", "model", "gpu", "state"},
    )


def _shortest(ids: Sequence[str]) -> int:
    """The length at which the ids' prefixes are unique; `seer stop` accepts a prefix."""
    longest = max(map(len, ids))
    enough = (n for n in range(8, longest) if len({item[:n] for item in ids}) == len(ids))
    return next(enough, longest)


def _runs() -> dict[int | None, str]:
    """The run that each process is recording in the usual folder, by process id.

    Runs that cannot be read are left out.
    """
    from seer.errors import SeerError
    from seer.runs import RunFilter, RunIndex, open_run

    by_pid: dict[int | None, str] = {}
    try:
        index = RunIndex()
        for run in index.list(RunFilter(status="running"), limit=200):
            writer: dict[str, Any] = open_run(run.run_id, index.root).meta.get("writer") or {}
            by_pid[int(writer.get("pid") or 0)] = run.short_id
    except (OSError, SeerError, sqlite3.Error) as error:
        # A full disk, or a run that is being deleted, must not hide machines that cost money.
        say(f"not all runs are shown: {error}", file=sys.stderr)
    return by_pid


def state(machine: "MachineStatus") -> str:
    """Whether a machine is detached, held by its program or an orphan, and whether it is paused."""
    if machine.detached:
        owner = "detached"
    elif machine.controller_alive:
        owner = "held"
    else:
        owner = "orphan"
    return f"paused, {owner}" if machine.paused else owner
