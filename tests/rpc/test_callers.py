"""Callers come and go, and a gate always has capacity for new ones."""

from pathlib import Path

import pytest

from seer.rpc.interface._budget import Budget, Meter, Tally
from seer.rpc.server._config import CallerConfig, ServerConfig
from seer.rpc.server._shared import FIRST_CALLER, METERS
from seer.rpc.server._supervisor import Supervisor


def test_a_gate_has_room_for_a_new_caller_after_thousands_have_gone(tmp_path: Path) -> None:
    config = ServerConfig(
        name="interface", file=str(tmp_path / "f.py"), control=str(tmp_path / "control")
    )
    supervisor = Supervisor(config)
    most = METERS - FIRST_CALLER

    def add(name: str) -> int:
        supervisor.add_caller(CallerConfig(name, str(tmp_path / "s.sock"), Budget()))
        return supervisor.callers[name][0]

    stays = add("stays")
    shared = supervisor.shared
    places: list[int] = []
    for number in range(most + 100):
        place = add(f"caller-{number}")
        base = shared.meter_base(FIRST_CALLER + place)
        meter = Meter("", Budget(), shared.cells, base)
        assert not any(meter.used().values()), "it has what another caller has used"
        Tally((meter, meter, meter), 1).charge(1.0, 1.0, 1)
        supervisor.remove_caller(f"caller-{number}")
        places.append(place)
    assert stays not in places
    # The place that was free for longest comes first.
    assert places[most - 1] == places[0]
    supervisor.remove_caller("stays")


def test_too_many_callers_at_a_time_are_refused_with_their_number(tmp_path: Path) -> None:
    config = ServerConfig(
        name="interface", file=str(tmp_path / "f.py"), control=str(tmp_path / "control")
    )
    supervisor = Supervisor(config)
    supervisor.sockets._next = METERS - FIRST_CALLER  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ValueError, match="there are 6144 callers"):
        supervisor.add_caller(CallerConfig("one more", str(tmp_path / "s.sock"), Budget()))
