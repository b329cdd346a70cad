"""The page in a real browser: what it shows, and how it is used."""

import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from seer.events import ToolCall, ToolResult
from seer.harness import RunFinished
from seer.runs import Run
from seer.viewer import Viewer
from tests.viewer.browsing import MARKS, Watched, go, named, viewing
from tests.viewer.made import Made, array, floats, long_run, many, study

pytestmark = MARKS
IN_VIEW = """() => {
  const box = document.querySelector(".transcript-scroll").getBoundingClientRect();
  const rows = [...document.querySelectorAll(".transcript .virtual-row")];
  return rows.map((row) => row.getBoundingClientRect())
    .some((row) => row.top < box.top + 300 && row.bottom > box.top + 300);
}"""
BACKGROUND = "() => Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"


@pytest.fixture(scope="module")
def runs() -> Generator[Path]:
    """Runs that no test changes."""
    folder = Path(tempfile.mkdtemp(prefix="seer-viewer-"))
    for seed, name in enumerate(("first study", "second study")):
        study(folder, seed=seed, name=name)
    long_run(folder, 5000)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def viewer(runs: Path) -> Generator[Viewer]:
    """A viewer over them."""
    with Viewer(runs) as found:
        yield found


def test_the_token_leaves_the_address_and_serves_new_tabs(
    watched: Watched, viewer: Viewer, browser: Browser
) -> None:
    page = watched.page
    go(page, viewer)
    assert viewer.token not in page.url
    page.reload()
    page.wait_for_selector("table.runs tbody tr")
    second = watched.context.new_page()
    second.goto(viewer.url.partition("#")[0])
    second.wait_for_selector("table.runs tbody tr")
    stranger = browser.new_context().new_page()
    stranger.goto(viewer.url.partition("#")[0])
    expect(stranger.locator("main.welcome")).to_contain_text("needs its token")
    stranger.context.close()
    assert all(viewer.token not in url for url in watched.requests[1:])


def test_runs_can_be_searched_sorted_and_opened_by_keyboard(
    watched: Watched, viewer: Viewer
) -> None:
    page = watched.page
    go(page, viewer)
    expect(page.locator("table.runs tbody tr")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("second")
    expect(page.locator("table.runs tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile("search=second"))
    page.locator("input.search").fill("")
    expect(page.locator("table.runs tbody tr")).to_have_count(3)
    page.click("th.col-name button")
    page.click("th.col-name button")
    expect(page.locator("tbody tr .run-name").first).to_have_text("first study")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_selector(".run-page h1")
    expect(page.locator(".run-page h1")).to_have_text("first study")
    page.keyboard.press("Escape")
    page.wait_for_selector("table.runs")


def test_a_run_shows_its_transcript_gate_values_notebook_and_budget(
    watched: Watched, viewer: Viewer, runs: Path
) -> None:
    page = watched.page
    go(page, viewer, f"#/run/{named(runs, 'first study')}")
    expect(page.locator(".entry-run_started strong")).to_have_text("tokens")
    expect(page.locator(".tool-head").first).to_contain_text("python")
    assert page.locator(".code-keyword").first.inner_text() == "import"
    expect(page.locator(".call")).to_have_count(5)
    expect(page.locator(".call-batch").first).to_have_text("×4")
    expect(page.locator(".call.failed")).to_have_count(1)
    page.locator(".call").nth(1).click()
    expect(page.locator(".call-details")).to_contain_text("200 ms")
    page.keyboard.press("2")
    expect(page.locator(".gallery .token")).to_have_count(10)
    colours = page.eval_on_selector_all(
        ".gallery .token", "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(colours)) > 5
    expect(page.locator(".gallery canvas.heat")).to_have_count(1)
    assert page.eval_on_selector(".gallery canvas.heat", "c => [c.width, c.height]") == [10, 24]
    expect(page.locator(".gallery svg.chart .line")).to_have_count(1)
    page.locator(".gallery-scroll").evaluate("e => { e.scrollTop = e.scrollHeight }")
    expect(page.locator(".gallery .side.is mark")).to_contain_text("rainy")
    page.keyboard.press("3")
    expect(page.locator(".notebook .cell")).to_have_count(3)
    expect(page.locator(".notebook table td")).to_have_text("1")
    expect(page.locator(".notebook .ansi-red")).to_have_text("red")
    page.wait_for_function("() => document.querySelector('.notebook img')?.naturalWidth === 64")
    page.keyboard.press("4")
    expect(page.locator(".limit")).to_have_count(5)
    expect(page.locator(".budget .chart")).to_have_count(4)
    page.keyboard.press("5")
    page.click("text=Verify the record")
    expect(page.locator(".verdict.good")).to_be_visible()
    page.keyboard.press("G")
    expect(page.locator(".entry-run_finished")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("no such layer")
    expect(page.locator(".hits")).to_have_text("1")
    expect(page.locator(".hit")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("dialog kbd").first).to_be_visible()


def test_long_results_are_fetched_and_drawn(watched: Watched, tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.tool("mt.score()", "ok")
    tokens = [f" word{n}" for n in range(900)]
    made.call("score", {}, {"tokens": tokens, "surprise": [n / 900 for n in range(900)]})
    made.call("plain", {}, {"text": "x" * 9000})
    made.close()
    with viewing(watched.page, tmp_path) as viewer:
        page = watched.page
        go(page, viewer, f"#/run/{made.run_id}")
        expect(page.locator(".transcript .token")).to_have_count(900)
        page.keyboard.press("2")
        expect(page.locator(".gallery .token")).to_have_count(900)
        expect(page.locator(".gallery figure")).to_have_count(1)
        page.locator(".entry-tool_call .raw").click(force=True)
        expect(page.locator("dialog")).to_contain_text("mt.score()")


def test_calls_of_the_gate_stand_at_the_tool_call_that_the_record_names(
    watched: Watched, tmp_path: Path
) -> None:
    made = Made(tmp_path, name="two at once")
    for name in ("first", "second"):
        made.add(ToolCall(id=name, name=name, server="s", arguments={}))
    # By its time, it could belong to either tool call.
    made.call("probe", {}, 1, before=-0.3, run=0.01, tool_call="first")
    # The user's own script made this one.
    made.call("probe", {}, 2, before=-0.3, run=0.01, tool_call="")
    for name in ("second", "first"):
        made.add(ToolResult(id=name, name=name, content=(), is_error=False, seconds=1.0))
    made.close()
    page = watched.page
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        heads = page.locator(".transcript .tool-head")
        chip = ".chip[title='calls of the gate']"
        expect(heads.filter(has_text="first").locator(chip)).to_have_text("1")
        expect(heads.filter(has_text="second").locator(chip)).to_have_count(0)


def test_a_tool_call_shows_the_results_of_its_last_calls_and_the_others_when_asked(
    watched: Watched, tmp_path: Path
) -> None:
    made = Made(tmp_path, name="eight calls")
    made.add(ToolCall(id="t", name="python", server="s", arguments={}))
    for number in range(8):
        data = floats([float(number + n) for n in range(9)])
        made.call(f"probe{number}", {}, array(0, 9), arrays=[data], tool_call="t")
        made.call("plain", {}, number, tool_call="t")
    made.add(ToolResult(id="t", name="python", content=(), is_error=False, seconds=1.0))
    made.add(RunFinished(reason="completed", turns=1, tool_calls=1, seconds=1.0))
    made.close()
    page = watched.page
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        titles = page.locator(".transcript .picture-title")
        expect(titles).to_have_text([f"probe{number}" for number in range(4, 8)])
        expect(page.locator(".transcript .picture-shape").first).to_have_text("float32 9")
        page.click("text=4 more calls")
        expect(titles).to_have_text([f"probe{number}" for number in range(8)])
        expect(page.locator(".more-calls")).to_be_hidden()
        page.keyboard.press("G")
        expect(page.locator(".finish-facts")).to_contain_text("1 turn  ·  1 tool call  ·")


def test_two_runs_stand_side_by_side_with_the_first_divergence_marked(
    watched: Watched, viewer: Viewer, runs: Path
) -> None:
    page = watched.page
    go(page, viewer)
    for name in ("first study", "second study"):
        page.locator("tr", has_text=name).locator("input").check()
    page.click("button.compare")
    expect(page.locator(".compare-verdict")).to_contain_text(
        "The first 7 of 9 entries are the same"
    )
    expect(page.locator(".divergence")).to_have_count(1)
    expect(page.locator(".compare-diff mark")).to_have_text(["rainy", "sunny"])


def test_scores_are_in_the_list_and_the_comparison_on_a_phone_too(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    scores = {"first": 123456.789, "second": 1 / 3, "none": None}
    ids = {name: study(tmp_path, name=name) for name in scores}
    for name, score in scores.items():
        if score is not None:
            Run(ids[name].folder).set_score(score)
    with viewing(page, tmp_path) as viewer:
        go(page, viewer)
        cell = page.locator("tr", has_text="second").locator(".col-score")
        expect(cell).to_have_text("0.3333")
        expect(page.locator("tr", has_text="first").locator(".col-score")).to_have_text("1.23e+5")
        page.set_viewport_size({"width": 400, "height": 800})
        expect(cell).to_be_visible()
        expect(page.locator("tr", has_text="none").locator(".col-score")).to_be_hidden()
        beyond = "all => all.filter(one => one.getBoundingClientRect().right > innerWidth - 10)"
        assert page.eval_on_selector_all(".runs td", f"{beyond}.length") == 0
        go(page, viewer, f"#/compare/{ids['first'].run_id}/{ids['second'].run_id}")
        facts = page.locator(".compare-titles .facts")
        expect(facts.first).to_contain_text("score1.23e+5")
        expect(facts.last).to_contain_text("score0.3333")


def test_the_same_call_of_two_runs_stands_side_by_side(
    watched: Watched, viewer: Viewer, runs: Path
) -> None:
    page = watched.page
    ids = "/".join(named(runs, name) for name in ("first study", "second study"))
    go(page, viewer, f"#/compare/{ids}")
    page.click("text=Same calls")
    expect(page.locator(".same-calls .compare-verdict")).to_have_text(
        "5 calls were made with the same arguments in both runs; 2 of them gave different results."
    )
    expect(page.locator(".same-call .same-verdict").first).to_have_text("results differ")
    changed = page.locator(".same-call[open]")
    expect(changed).to_have_count(2)
    expect(changed.first.locator(".compare-side").nth(0).locator(".token")).to_have_count(10)
    expect(changed.first.locator(".compare-side").nth(1).locator(".token")).to_have_count(10)
    page.click("text=Transcripts")
    expect(page.locator(".divergence")).to_be_visible()


def test_five_thousand_events_stay_few_elements_and_quick_frames(
    watched: Watched, viewer: Viewer, runs: Path
) -> None:
    page = watched.page
    go(page, viewer, f"#/run/{named(runs, 'long run')}")
    page.wait_for_selector(".entry")
    for part in (0.2, 0.5, 0.8, 1.0):
        page.locator(".transcript-scroll").evaluate(
            "(e, part) => { e.scrollTop = e.scrollHeight * part }", part
        )
        page.wait_for_function(IN_VIEW)
        assert page.locator(".transcript .virtual-row").count() < 60
    expect(page.locator(".transcript")).to_contain_text("Step 1665")
    page.keyboard.press("g")
    expect(page.locator(".transcript")).to_contain_text("Step 0:")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_dark_light_and_a_phones_width_fit(
    browser: Browser, viewer: Viewer, runs: Path, scheme: Any
) -> None:
    found = Watched(browser, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = found.page
    go(page, viewer)
    wide = "() => document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 390
    page.evaluate("place => { location.hash = place }", f"#/run/{named(runs, 'first study')}")
    page.wait_for_selector(".entry")
    assert page.evaluate(wide) <= 390
    for name in ("gate", "values", "notebook", "budget", "about", "transcript"):
        page.click(f".tabs button[data-name={name}]")
        box = page.locator(".transcript" if name == "transcript" else ".panel").bounding_box()
        assert box is not None and box["height"] > 250 and box["width"] <= 390
    assert (page.evaluate(BACKGROUND) < 80) == (scheme == "dark")
    page.keyboard.press("d")
    assert (page.evaluate(BACKGROUND) < 80) != (scheme == "dark")
    found.context.close()
    assert found.errors == []


def test_a_shared_file_opens_without_a_server(
    watched: Watched, viewer: Viewer, runs: Path, tmp_path: Path
) -> None:
    page = watched.page
    go(page, viewer, f"#/run/{named(runs, 'first study')}")
    page.wait_for_selector(".entry")
    page.keyboard.press("s")
    page.fill("dialog input[type=text]", "task")
    expect(page.locator(".report")).to_contain_text("fields")
    with page.expect_download() as download:
        page.click("dialog button.primary")
    target = tmp_path / "shared.html"
    download.value.save_as(target)
    watched.requests.clear()
    page.goto(target.as_uri())
    page.wait_for_selector(".entry-run_finished, .entry-tool_call")
    assert "Find which" not in target.read_text()
    page.keyboard.press("2")
    expect(page.locator(".gallery .token")).to_have_count(10)
    assert page.eval_on_selector(".gallery canvas.heat", "c => [c.width, c.height]") == [10, 24]
    page.keyboard.press("3")
    page.wait_for_function("() => document.querySelector('.notebook img')?.naturalWidth === 64")
    assert [u for u in watched.requests if not u.startswith(("file:", "blob:"))] == []


def test_ten_thousand_runs_are_paged_and_searched_in_the_page(
    watched: Watched, tmp_path: Path
) -> None:
    many(tmp_path, 10_000)
    with viewing(watched.page, tmp_path) as viewer:
        page = watched.page
        go(page, viewer)
        expect(page.locator(".total")).to_have_text("10,000 runs")
        expect(page.locator("table.runs tbody tr")).to_have_count(50)
        page.click("button[aria-label='Next page']")
        expect(page.locator(".pager")).to_contain_text("2 / 200")
        page.fill("input.search", "word7777")
        expect(page.locator("table.runs tbody tr")).to_have_count(1)
        page.select_option("select[aria-label=status]", "error")
        expect(page.locator(".total")).to_have_text("1 run")
