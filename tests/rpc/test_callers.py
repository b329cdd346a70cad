"""Callers come and go, and a gate always has capacity for new ones."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seer.errors import BudgetExceededError
from seer.rpc.client import deadline
from seer.rpc.interface._budget import Budget, Meter, Tally
from seer.rpc.server._config import CallerConfig, ServerConfig
from seer.rpc.server._shared import FIRST_CALLER, METERS
from seer.rpc.server._supervisor import Supervisor
from tests.rpc.serving import SLOW, SOON, serving, wait_until


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
    # The place that has been free longest is taken first.
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


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2])
def test_what_changes_while_an_interface_loads_again_holds_when_it_has_loaded(
    tmp_path: Path, replicas: int
) -> None:
    callers: dict[str, dict[str, float]] = {"a": {}, "gone": {}}
    with serving(SLOW, replicas=replicas, restart="on-failure", callers=callers) as served:
        wait, loading = served.folder / "wait", served.folder / "loading"
        wait.touch()
        os.kill(served.pid, signal.SIGKILL)
        wait_until(loading.exists)
        late: dict[str, Any] = {
            "name": "late",
            "socket": str(served.socket_path("late")),
            "budget": {},
        }
        served.control("POST", "/v1/callers", late)
        served.control("POST", "/v1/remove/gone")
        limit = {"scope": "caller", "name": "a", "budget": {"calls": 1}}
        served.control("POST", "/v1/budget", limit)
        wait.unlink()
        served.ready()
        with deadline(SOON):
            assert served.gate("late").call("small", (1,)) == 2
            limited = served.gate("a")
            assert limited.call("small", (1,)) == 2
            with pytest.raises(BudgetExceededError):
                limited.call("small", (1,))
        # Its name is free again.
        served.control("POST", "/v1/callers", {**late, "name": "gone"})


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_caller_that_comes_as_the_process_ends_is_served_by_the_next_one(
    replicas: int,
) -> None:
    with serving(SLOW, replicas=replicas, restart="on-failure") as served:
        pid = served.pid
        # Stopped, so that it does not answer before it ends.
        os.kill(pid, signal.SIGSTOP)
        late: dict[str, Any] = {
            "name": "late",
            "socket": str(served.socket_path("late")),
            "budget": {},
        }
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(served.control, "POST", "/v1/callers", late)
            wait_until(served.socket_path("late").exists)
            os.kill(pid, signal.SIGKILL)
            asked.result(timeout=SOON)
        assert served.gate("late").call("small", (1,)) == 2


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_supervisor_never_waits_for_an_interface_that_loads(replicas: int) -> None:
    with serving(SLOW, replicas=replicas, restart="on-failure") as served:
        wait, loading = served.folder / "wait", served.folder / "loading"
        wait.touch()
        os.kill(served.pid, signal.SIGKILL)
        wait_until(loading.exists)
        # More than the kernel keeps for a process that reads nothing, some with descriptors.
        for number in range(400):
            limit = {"scope": "caller", "name": "a", "budget": {"calls": number + 1}}
            served.control("POST", "/v1/budget", limit)
        for number in range(100):
            late = {"name": f"l{number}", "socket": str(served.socket_path(f"l{number}"))}
            served.control("POST", "/v1/callers", {**late, "budget": {}})
        served.control("POST", "/v1/remove/l0")
        wait.unlink()
        served.ready()
        with deadline(SOON):
            assert served.gate("l99").call("small", (1,)) == 2
            limited = served.gate("a")
            for number in range(400):
                assert limited.call("small", (number,)) == number + 1
            with pytest.raises(BudgetExceededError):
                limited.call("small", (1,))
