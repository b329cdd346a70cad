"""Every floor and every cheap peer answers correctly, in its own processes and jails."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gate._adapter import Contestant
from benchmarks.gate._floors import FLOORS, Floor
from benchmarks.gate._peers import PEERS
from benchmarks.gate._probes import BENCH_PYTHON, Probe, ProbeError, tree
from seer.isolation import backends
from tests.waiting import wait_until

pytestmark = pytest.mark.full

_CHEAP = [kind for kind in (*FLOORS, *PEERS) if not kind.slow_start and kind.name != "fastmcp"]


def _skip_unless_usable(kind: type[Contestant]) -> None:
    if issubclass(kind, Floor) and kind.jailed:
        reason = backends()["bubblewrap"]
        if reason is not None:
            pytest.skip(reason)
    elif not BENCH_PYTHON.exists():
        pytest.skip("the peers' environment is not made: run benchmarks/gate/run.py --quick")


@pytest.fixture(params=_CHEAP, ids=lambda kind: kind.name)
def contestant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Contestant]:
    kind: type[Contestant] = request.param
    _skip_unless_usable(kind)
    made = kind(tmp_path)
    made.prepare()
    made.serve()
    try:
        yield made
    finally:
        made.stop()
        made.close()


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # An orphan that has ended stays in the list until the system's first process collects it.
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_each_answers_every_small_work(contestant: Contestant) -> None:
    with contestant.probe() as probe:
        contestant.connect(probe, timeout=30)
        for work in ("small", "floats", "take", "fail"):
            found = probe.ask({"do": "calls", "work": work, "seconds": 0.02})
            assert found["count"] >= 1
        if "drop" not in contestant.lacks:
            command = {"do": "array", "nbytes": 400_000, "keep": True, "warm": 1, "seconds": 0.02}
            assert probe.ask(command)["count"] >= 1


def test_each_serves_several_clients_at_once(contestant: Contestant) -> None:
    with contestant.probe() as probe:
        command = {"do": "fan", "clients": 4, "seconds": 0.1, "timeout": 30}
        found = probe.ask({**command, "address": contestant.address})
        assert found["count"] >= 4
        assert found["rate"] > 0


def test_stopping_leaves_no_process(contestant: Contestant) -> None:
    with contestant.probe() as probe:
        contestant.connect(probe, timeout=30)
        processes = tree(contestant.pids()) + probe.pids()
    contestant.stop()
    # A killed process exists a moment longer: on a busy machine, longer than `stop` waits.
    wait_until(lambda: not any(map(_runs, processes)), "no process is left")


def test_a_client_error_names_what_went_wrong(tmp_path: Path) -> None:
    kind = FLOORS[0]
    _skip_unless_usable(kind)
    floor = kind(tmp_path)
    with floor.probe() as probe, pytest.raises(ProbeError, match="before connect"):
        probe.ask({"do": "calls", "work": "small", "seconds": 0.01})


def test_a_client_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="ended"):
        Probe(["/bin/false"], env={}, log=tmp_path / "log")
