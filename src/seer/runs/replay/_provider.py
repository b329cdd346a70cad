"""The provider `replay`: sandboxes whose served functions answer from the record of a run."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from seer.errors import ConfigError, RecordError, SandboxNotFoundError, ServeError
from seer.providers import Machine, MachineSpec, MachineStatus, Provider, get_provider
from seer.runs._calls import GateCall
from seer.runs._info import Writer
from seer.runs._reader import Run, open_run
from seer.runs.replay._choice import Choice, Choices, Recorded
from seer.runs.replay._differences import SharedRest
from seer.runs.replay._gate import ReplayGate
from seer.runs.replay._live import LiveAfterMachine, Takeover
from seer.runs.replay._machine import GateMaker, ReplayMachine

RUN_VARIABLE = "SEER_REPLAY"
LIVE_VARIABLE = "SEER_REPLAY_LIVE"

_choices: defaultdict[tuple[Path, str], Choices] = defaultdict(Choices)
"""What this process has served from the record of a run, by the name of the interface."""


class ReplayProvider(Provider):
    """Replays the run that `SEER_REPLAY` names, and the other runs of its program.

    If `SEER_REPLAY_LIVE` names another provider, a sandbox is started there too. It takes over at
    the first call that the record does not answer.
    """

    name = "replay"
    shares_host = True

    @property
    def runs_nothing(self) -> bool:
        """Whether its machines need no models, packages and repositories."""
        return not os.environ.get(LIVE_VARIABLE)

    def unavailable(self) -> str | None:
        """Why it cannot be used: no run is named."""
        if os.environ.get(RUN_VARIABLE):
            return None
        return f"no run is being replayed: set {RUN_VARIABLE}, or use `seer replay RUN`"

    async def start(self, spec: MachineSpec) -> Machine:
        """Start a machine that answers from the record.

        Raises:
            ConfigError: No run is named.
            RunNotFoundError: There is no such run.
        """
        named = os.environ.get(RUN_VARIABLE)
        if not named:
            raise ConfigError(
                "provider", "replay", f"say which run: set {RUN_VARIABLE}, or use `seer replay RUN`"
            )
        run = open_run(named)
        live = os.environ.get(LIVE_VARIABLE)
        if not live:
            return ReplayMachine(spec, gate_maker(run))
        takeover = Takeover(of_replay=run.info.replay_of is not None)
        real = await get_provider(live).start(spec)
        return LiveAfterMachine(real, gate_maker(run, takeover), takeover)

    async def find(self, machine_id: str) -> Machine:
        """Refuse, because a replay ends with its controller.

        Raises:
            SandboxNotFoundError: Always.
        """
        raise SandboxNotFoundError(
            f"{machine_id!r}: a replay cannot be reached from another process"
        )

    async def list(self) -> list[MachineStatus]:
        """An empty list: no other process can use a replay."""
        return []


def gate_maker(run: Run, takeover: Takeover | None = None) -> GateMaker:
    """Returns a function that makes the gates for a replay of the program of `run`."""
    runs = run.siblings()
    calls = _calls_of(runs)
    interfaces: dict[tuple[str, int], Mapping[str, Any]] = {}
    for item in runs:
        for key, about in item.info.interfaces.items():
            if "schema" in about:
                number = int(about.get("served") or 0)
                interfaces[str(about.get("name") or key), number] = about

    def make(name: str, host_path: Callable[[str], Path]) -> ReplayGate:
        numbers = sorted(number for known, number in interfaces if known == name)
        if not numbers:
            known = ", ".join(sorted({known for known, _ in interfaces})) or "none"
            raise ServeError(
                f"run {run.run_id} has no record of an interface {name!r}; it has: {known}"
            )
        choices = _choices[run.folder, name]
        with choices.lock:
            choices.served += 1
            position = choices.served
            if numbers == [0] and choices.rest is None:
                choices.rest = SharedRest(name)
        choice = None
        number = _recorded_number(position, numbers, run)
        if numbers != [0]:
            # This process goes on counting in another recording, or replays the same one once more.
            of_replay = len(numbers) if run.info.writer == Writer.this_process() else numbers[-1]
            choice = Choice(
                {
                    item: Recorded(
                        interfaces[name, item],
                        [call for call in calls if (call.interface, call.served) == (name, item)],
                    )
                    for item in numbers
                },
                number,
                replay=(position - 1) // of_replay,
                is_exact=position in numbers or of_replay == len(numbers),
                choices=choices,
            )
        gate = ReplayGate(
            name,
            interfaces[name, number]["schema"],
            [call for call in calls if (call.interface, call.served) == (name, number)],
            read_blob=partial(_blob_of_any, runs),
            host_path=host_path,
            live=takeover,
            about=interfaces[name, number],
            choice=choice,
            rest=choices.rest,
        )
        if takeover is not None:
            takeover.add_gate(gate)
        return gate

    return make


def replay_environment(run: Run, *, live: str | None = None) -> dict[str, str]:
    """The environment variables that make a program run again from the record of a run.

    Args:
        run: The recorded run.
        live: A provider that takes over at the first call that differs.
    """
    folder = str(run.folder)
    variables = {"SEER_PROVIDER": "replay", RUN_VARIABLE: folder, "SEER_AGENT": f"replay:{folder}"}
    return variables | ({LIVE_VARIABLE: live} if live else {})


def _recorded_number(position: int, numbers: list[int], run: Run) -> int:
    """The number that an interface had in the recording.

    Args:
        position: Which of its name it is in the replay, from 1.
        numbers: The recorded numbers of its name. Interfaces that no run reached are not recorded.
        run: The recorded run.
    """
    if position in numbers and run.info.writer != Writer.this_process():
        return position
    # This process goes on counting in another recording, or replays the same one once more.
    return numbers[(position - 1) % len(numbers)]


def _calls_of(runs: Iterable[Run]) -> list[GateCall]:
    """The calls of several runs, each once. Every run has the calls of the user's own script."""
    found: dict[tuple[object, ...], GateCall] = {}
    for run in runs:
        for call in run.typed_calls():
            key = (call.interface, call.served, call.caller, call.call, call.time, call.key)
            found[key] = call
    return sorted(found.values(), key=lambda call: call.time)


def _blob_of_any(runs: Iterable[Run], digest: str) -> bytes:
    """A blob that one of the runs has.

    Raises:
        RecordError: No run has it.
    """
    error = RecordError(f"no run holds the blob {digest}")
    for run in runs:
        try:
            return run.blob(digest)
        except RecordError as problem:
            error = problem
    raise error
