"""`seer ps`: what is running, on every provider that is set up here."""

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Any

import click

from seer.cli._codes import FOUND
from seer.cli._machines import running
from seer.cli._options import json_option
from seer.console import say, say_json, table
from seer.providers import MachineStatus


@click.command(name="ps", epilog="Exit code 3: the program of a machine is gone (see `state`).")
@click.option(
    "--provider", "providers", multiple=True, help="Ask only this provider (default: all)."
)
@json_option
def command(providers: tuple[str, ...], as_json: bool) -> int:
    """List your running machines on every provider that is configured here."""
    found = running(providers)
    if as_json:
        say_json(
            {
                "machines": [dataclasses.asdict(machine) for machine in found.machines],
                "unreachable": found.unreachable,
            }
        )
    elif found.machines:
        now = time.time()
        runs = _runs(found.machines)
        rows = [
            (
                machine.id,
                machine.provider,
                machine.label,
                runs.get(machine.label, "-"),
                machine.gpu or "-",
                duration(now - machine.started_at, short=True),
                "-" if machine.cost_usd is None else f"${machine.cost_usd:.2f}",
                state(machine),
            )
            for machine in found.machines
        ]
        columns = ["id", "provider", "what", "run", "gpu", "for", "cost", "state"]
        table(columns, rows, shorten={"what", "state", "id"})
    else:
        say("nothing is running")
    for provider, reason in found.unreachable.items():
        if not as_json:
            say(f"could not reach {provider}: {reason}")
    orphans = [m for m in found.machines if not m.detached and not m.controller_alive]
    return FOUND if orphans else 0


def _runs(machines: Sequence[MachineStatus]) -> dict[str, str]:
    """By label: the run of the program that holds a machine, where it is in the usual folder."""
    from seer.runs import RunFilter, RunIndex, open_run

    index = RunIndex()
    by_pid: dict[int, str] = {}
    for run in index.list(RunFilter(status="running"), limit=200):
        writer: dict[str, Any] = open_run(run.run_id, index.root).meta.get("writer") or {}
        by_pid[int(writer.get("pid") or 0)] = run.short_id
    found: dict[str, str] = {}
    for machine in machines:
        pid = re.search(r"\bpid (\d+)", machine.label)
        if pid is not None and int(pid[1]) in by_pid:
            found[machine.label] = by_pid[int(pid[1])]
    return found


def state(machine: MachineStatus) -> str:
    """Who a machine belongs to, and whether it is paused."""
    if machine.detached:
        owner = "detached"
    elif machine.controller_alive:
        owner = "held"
    else:
        owner = "orphan: its program is gone; it ends with its lease"
    return f"paused, {owner}" if machine.paused else owner


def duration(seconds: float, *, short: bool = False) -> str:
    """A time that a person reads at a glance; short is its largest unit only."""
    if short:
        return " ".join(duration(seconds).split()[:2])
    whole = int(max(seconds, 0))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
