"""A sweep on the page: its grid fills up while cells run, and leads to their runs."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from seer.sweeps import Matrix, read_sweep
from seer.viewer import Viewer
from tests.viewer.browsing import MARKS, Watched
from tests.viewer.conftest import Client
from tests.viewer.made import study

MATRIX = Matrix(agents=["claude", "openai"], tools=["blackbox", "whitebox"], seeds=3)
CELLS = sorted(MATRIX.cells(), key=lambda cell: (cell.agent, cell.tools, cell.repetition))


class MadeSweep:
    """A sweep's folder, written as a sweep writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "runs").mkdir(parents=True)
        about = {"program": "/somewhere/main.py", "matrix": MATRIX.to_json()}
        (folder / "sweep.json").write_text(json.dumps(about))

    def begin(self, number: int) -> str:
        """A cell starts; returns the id of its run."""
        cell = CELLS[number].id
        self._write({"begin": cell, "number": 1, "at": 1.0})
        home = self.folder / "cells" / cell / "attempt-1" / "runs"
        home.mkdir(parents=True)
        return study(home, close=False, name=f"run of {cell}").run_id

    def end(self, number: int, score: float | None, outcome: str = "done") -> None:
        """A cell ends."""
        cell = CELLS[number].id
        (made,) = (self.folder / "cells" / cell / "attempt-1" / "runs").iterdir()
        (self.folder / "runs" / made.name).symlink_to(made)
        ended = {"cell_id": cell, "number": 1, "outcome": outcome, "began": 1.0, "ended": 3.0}
        self._write({"end": {**ended, "score": score, "cost_usd": 0.25, "run_ids": [made.name]}})

    def _write(self, line: Mapping[str, Any]) -> None:
        with (self.folder / "journal.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


@pytest.fixture
def sweep(tmp_path: Path) -> MadeSweep:
    """A sweep of twelve cells: five done, one failed, one running."""
    made = MadeSweep(tmp_path / "first")
    for number, score in enumerate((0.0, 1.0, 1.0, 1.0, 1.0, None)):
        made.begin(number)
        made.end(number, score, "done" if score is not None else "failed")
    made.begin(6)
    return made


def test_a_sweep_is_described_by_cells_and_groups(sweep: MadeSweep) -> None:
    assert read_sweep(sweep.folder).running == (CELLS[6].id,)
    with Viewer(sweep.folder) as viewer:
        client = Client(viewer)
        assert client("/api/about").json()["sweep"] is True
        found = client("/api/sweep").json()
        (running,) = (one["runs"][-1] for one in found["cells"] if one["outcome"] == "running")
        assert client(f"/api/runs/{running}").json()["run"]["status"] == "running"
        assert client("/api/runs").json()["total"] == 6
    assert (found["done"], found["running"], found["program"]) == (5, 1, "main.py")
    outcomes = Counter(cell["outcome"] for cell in found["cells"])
    assert outcomes == {"done": 5, "failed": 1, "running": 1, "not run": 5}
    first = found["groups"][0]
    assert (first["label"], first["n"]) == ("claude / blackbox", 3)
    assert first["low"] < first["mean"] < first["high"] and first["cost_usd"] == 0.75
    assert found["groups"][3]["mean"] is None


def test_runs_outside_a_sweep_have_no_sweep_page(client: Client) -> None:
    assert client("/api/about").json()["sweep"] is False
    assert client("/api/sweep").status == 404


full, chromium = MARKS


@full
@chromium
def test_the_grid_fills_up_and_leads_to_runs(watched: Watched, sweep: MadeSweep) -> None:
    page = watched.page
    with Viewer(sweep.folder) as viewer:
        page.goto(viewer.url)
        expect(page.locator("table.sweep tbody tr")).to_have_count(4)
        expect(page.locator(".sweep-cell")).to_have_count(12)
        expect(page.locator(".cell-done")).to_have_text(["0", "1", "1", "1", "1"])
        expect(page.locator(".cell-running")).to_have_count(1)
        expect(page.locator(".sweep circle")).to_have_count(2)
        colours = page.eval_on_selector_all(
            ".sweep .swatch", "all => all.map(one => getComputedStyle(one).backgroundColor)"
        )
        assert colours[0] == colours[2] != colours[1] == colours[3]
        sweep.end(6, 0.5)
        sweep.begin(7)
        expect(page.locator(".cell-done")).to_have_count(6)
        expect(page.locator(".sweep circle")).to_have_count(3)
        page.locator(".cell-running").click()
        expect(page.locator(".run-page h1")).to_contain_text("run of openai-blackbox")
        page.keyboard.press("Escape")
        expect(page.locator("table.sweep")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("table.runs tbody tr")).to_have_count(7)
        page.click("a.folder")
        expect(page.locator("table.sweep")).to_be_visible()
        page.goto("about:blank")


@full
@chromium
def test_a_narrow_page_shows_cells_scores_and_costs_without_scrolling_sideways(
    watched: Watched, sweep: MadeSweep
) -> None:
    page = watched.page
    page.set_viewport_size({"width": 400, "height": 900})
    with Viewer(sweep.folder) as viewer:
        page.goto(viewer.url)
        expect(page.locator(".sweep-cell")).to_have_count(12)
        beyond = "all => all.filter(one => one.getBoundingClientRect().right > innerWidth).length"
        for part in (".sweep-cell", ".sweep-interval", ".sweep .right"):
            assert page.eval_on_selector_all(part, beyond) == 0, part
        expect(page.locator(".sweep-axis")).to_be_visible()
        page.goto("about:blank")


@full
@chromium
def test_a_score_of_any_size_fits_its_square_and_is_whole_in_its_tooltip(
    watched: Watched, sweep: MadeSweep
) -> None:
    shown = {123.456: "123", -12.345: "-12", 123456.0: "1e5", -0.125: "-.13", 1e-9: "0"}
    sweep.end(6, [*shown][0])
    for number, score in enumerate([*shown][1:], 7):
        sweep.begin(number)
        sweep.end(number, score)
    page = watched.page
    with Viewer(sweep.folder) as viewer:
        page.goto(viewer.url)
        cells = page.locator(".cell-done")
        expect(cells).to_have_text(["0", "1", "1", "1", "1", *shown.values()])
        wide = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
        assert page.eval_on_selector_all(".sweep-cell", wide) == 0
        expect(cells.nth(5)).to_have_attribute(
            "title", re.compile(r"^repet.*: done, score 123\.5$", re.M)
        )
        page.goto("about:blank")
