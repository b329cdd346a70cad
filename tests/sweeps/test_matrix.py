"""Which cells a sweep has."""

import subprocess
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from seer.errors import ConfigError
from seer.sweeps import Cell, Matrix, Ray, Retry, current_cell, report


def test_axes_are_crossed_and_seeds_are_paired() -> None:
    cells = Matrix(agents=["a", "b"], tools=["none", "all"], seeds=3).cells()
    assert len(cells) == 12
    assert len({cell.id for cell in cells}) == 12
    for repetition in range(3):
        assert len({c.seed for c in cells if c.repetition == repetition}) == 1
    assert len({cell.seed for cell in cells}) == 3
    assert [c.seed for c in cells] == [
        c.seed for c in Matrix(agents=["a", "b"], tools=["none", "all"], seeds=3).cells()
    ]


def test_repetitions_come_one_after_the_other() -> None:
    cells = Matrix(agents=["a", "b"], seeds=[7, 9]).cells()
    assert [(c.seed, c.agent) for c in cells] == [(7, "a"), (7, "b"), (9, "a"), (9, "b")]


def test_excluded_combinations_are_left_out() -> None:
    matrix = Matrix(agents=["a", "b"], tools=["x", "y"], exclude=[{"agent": "a", "tools": "y"}])
    assert {(c.agent, c.tools) for c in matrix.cells()} == {("a", "x"), ("b", "x"), ("b", "y")}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"agents": "claude"}, "agents"),
        ({"agents": ["a", "a"]}, "twice"),
        ({"seeds": 0}, "at least 1"),
        ({"seeds": [1.5]}, "numbers"),
        ({"seeds": 1.5}, "numbers"),
        ({"seeds": "3"}, "numbers"),
        ({"models": 3}, "list of names"),
        ({"base_seed": "3"}, "whole number"),
        ({"settings": ["turns"]}, "table"),
        ({"exclude": {"agent": "a"}}, "list of tables"),
        ({"exclude": 1}, "list of tables"),
        ({"seeds": True}, "at least 1"),
        ({"exclude": [{"colour": "red"}]}, "colour"),
        ({"agents": ["a"], "exclude": [{"agent": "a"}]}, "excludes every cell"),
        ({"agent": ["a"]}, "'agent': is unknown"),
    ],
)
def test_a_matrix_that_cannot_work_is_refused(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Matrix.from_json(wrong)


def test_a_matrix_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text('agents = ["a", "b"]\nseeds = 2\n[settings]\nturns = 5\n')
    matrix = Matrix.from_file(file)
    assert matrix.cells()[0].settings == {"turns": 5}
    assert Matrix.from_json(matrix.to_json()).cells() == matrix.cells()
    with pytest.raises(ConfigError, match="cannot be read"):
        Matrix.from_file(tmp_path / "missing.toml")


def test_outside_a_sweep_the_cell_is_plain_and_a_report_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SEER_CELL", raising=False)
    assert current_cell() == Cell()
    report(1.0, note="kept nowhere")
    report(cast("float", np.float32(0.5)))
    monkeypatch.setenv("SEER_CELL", "{")
    with pytest.raises(ConfigError, match="SEER_CELL"):
        current_cell()


@pytest.mark.parametrize(
    "values", [{"score": float("nan")}, {"score": "good"}, {"a": object()}, {"a": float("inf")}]
)
def test_a_report_takes_finite_numbers_and_plain_data(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        report(**values)  # pyright: ignore[reportArgumentType]


def test_kinds_of_failure_have_their_own_number_of_attempts() -> None:
    retry = Retry(failed=0, crashed=2)
    assert not retry.again("failed", [])
    assert retry.again("crashed", ["lost", "crashed"])
    assert not retry.again("crashed", ["crashed", "crashed"])
    assert not retry.again("done", [])
    with pytest.raises(ConfigError):
        Retry(lost=-1)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"cpus": -1}, r"Ray\.cpus"),
        ({"gpus": float("nan")}, r"Ray\.gpus"),
        ({"memory": 0}, "number of bytes"),
        ({"limit": 1.5}, "number of bytes"),
        ({"address": "ray://head:10001"}, "on a node of the cluster"),
    ],
)
def test_a_cluster_that_cannot_be_asked_for_is_refused(
    wrong: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Ray(**wrong)  # pyright: ignore[reportArgumentType]


def test_ray_is_not_imported_before_it_is_used() -> None:
    code = "import sys, seer.sweeps; seer.sweeps.Ray(gpus=1); sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
