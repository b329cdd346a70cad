"""A failure of one contestant does not affect the others."""

from pathlib import Path

import pytest

from benchmarks.gate._adapter import WORKS, Contestant
from benchmarks.gate._measure import set_up
from benchmarks.gate._probes import Probe
from benchmarks.gate._results import Row


class _Broken(Contestant):
    name = "broken"
    title = "Broken"
    kind = "peer"
    stopped = 0
    closed = 0

    def serve(self) -> None:
        raise OSError("no socket at /some/private/place/socket, sorry")

    @property
    def address(self) -> str:
        return ""

    def probe(self) -> Probe:
        raise AssertionError("a server that does not start needs no client")

    def pids(self) -> list[int]:
        return []

    def stop(self) -> None:
        self.stopped += 1

    def close(self) -> None:
        self.closed += 1


def test_a_contestant_that_cannot_start_leaves_a_reason_in_every_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = _Broken(tmp_path)
    row = Row(broken.title, broken.kind, False, "")
    assert set_up(broken, row) is None
    assert set(row.gaps) == set(WORKS)
    assert set(row.gaps.values()) == {"failed: OSError: no socket at <path>, sorry"}
    assert (broken.stopped, broken.closed) == (1, 1)
    assert "OSError" in capsys.readouterr().err
