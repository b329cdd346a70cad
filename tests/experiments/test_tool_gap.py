"""The tool gap's tables follow from the bank of answers and the released instances."""

import gzip
import importlib
import json
import random
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
