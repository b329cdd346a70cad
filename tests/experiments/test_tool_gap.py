"""The tool gap's tables follow from the bank of answers and the released instances."""

import gzip
import importlib
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seer.organisms import instances

FOLDER = Path(__file__).parents[2] / "experiments" / "tool-gap"


@pytest.fixture
def gap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("scipy", "safetensors", "transformers"):
        pytest.importorskip(name)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.delitem(sys.modules, "main", raising=False)
    yield importlib.import_module("main")
    sys.modules.pop("main", None)


def test_the_bank_and_the_plan_speak_of_the_released_instances() -> None:
    bank = json.loads(gzip.decompress((FOLDER / "bank.json.gz").read_bytes()))
    reports = json.loads((FOLDER / "reports.json").read_text())
    assert set(bank) == set(instances()) == {n for n, r in reports.items() if r.get("released")}
    assert f"{len(bank)} instances are released" in (FOLDER / "PLAN.md").read_text()


def test_the_page_has_the_gaps_of_the_results() -> None:
    results = (FOLDER / "results.md").read_text()
    page = (FOLDER / "README.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| as run |")]
    rows += [line for line in page.splitlines() if line.startswith("| one rule |")]
    assert len(rows) == 8 and set(rows) <= set(results.splitlines())
    power = re.search(r"simulated studies.*: (\S+) with Holm's.* (\S+) without it", results)
    assert power and f"its power is {power[1]}, and {power[2]} without" in " ".join(page.split())
    assert "= 0.000" not in results


def test_no_result_is_told_of_queries_that_an_agent_did_not_have(gap: Any) -> None:
    for line in (FOLDER / "results.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells[:1] == ["SmolLM2-135M"] and cells[2] in ("organisms", "controls"):
            kept = [
                budget for budget, cell in zip(gap.BUDGETS, cells[3:], strict=True) if cell != "-"
            ]
            assert kept == [1, 2, 4, 8]


class Overheard:
    """A model whose every answer shows the third of four values."""

    class kind:
        conditional = False

    values = "wxyz"
    probes = range(8)

    def shows(self, value: int, place: int) -> bool:
        return value == 2


def test_with_one_rule_an_order_does_not_decide_where_answers_test_every_value(gap: Any) -> None:
    for order in (None, [3, 1, 0, 2], [2, 1, 0, 3]):
        found = gap.probe(Overheard(), random.Random(0), order, one_rule=True)
        assert found == (2, 2)
    # As it was run, a tool's arm needed one answer, and saw only the first three values of its
    # order.
    assert gap.probe(Overheard(), random.Random(0), [3, 1, 0, 2]) is None
    assert gap.probe(Overheard(), random.Random(0), [2, 1, 0, 3]) == (2, 1)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["sandbag-2", "later-2", "goal-3"])
def test_black_box_agents_get_the_recorded_results_again(gap: Any, name: str) -> None:
    bank = json.loads(gzip.decompress((FOLDER / "bank.json.gz").read_bytes()))
    written = (FOLDER / "results.md").read_text().splitlines()
    head = next(line for line in written if line.startswith("| organism |"))
    columns = [cell.strip() for cell in head.split("|")]
    scripts = gap.campaign()
    for control in (False, True):
        subject = gap.Subject(instances()[name], bank[name], scripts, control=control)
        label = f"{name}-control" if control else name
        cells = next(line for line in written if line.startswith(f"| {label} |")).split("|")
        for agent, column in (("ask", "asker, blackbox"), ("probe", "prober, blackbox")):
            found = [
                gap.ask(subject, random.Random(seed))
                if agent == "ask"
                else gap.probe(subject, random.Random(seed), None)
                for seed in range(gap.SEEDS)
            ]

            def share(budget: int, found: Any = found, subject: Any = subject) -> float:
                named = [subject.values[f[0]] if f and f[1] <= budget else None for f in found]
                wanted = None if subject.control else subject.truth
                return sum(value == wanted for value in named) / len(named)

            now = f"{share(gap.PRIMARY):.2f} ({share(gap.BUDGETS[-1]):.2f})"
            assert cells[columns.index(column)].strip() == now
