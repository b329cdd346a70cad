"""The layout of the page: rows below each other, labels whole, the end in view."""

import json
from pathlib import Path

from playwright.sync_api import expect

from seer.events import RunStarted, Thinking
from seer.harness import RunFinished, Text
from seer.viewer import share
from tests.viewer.browsing import MARKS, Watched, go, viewing
from tests.viewer.made import Made, png, study

pytestmark = MARKS
OVERLAPS = """() => {
  const rows = [...document.querySelectorAll(".transcript .virtual-row")]
    .map((row) => row.getBoundingClientRect()).sort((a, b) => a.top - b.top);
  return rows.slice(1).filter((row, at) => row.top < rows[at].bottom - 1).length;
}"""
AT_END = """() => {
  const box = document.querySelector(".transcript-scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 48;
}"""
PICTURES_LOADED = """() => {
  const pictures = [...document.querySelectorAll(".transcript img")];
  return pictures.length > 0 && pictures.every((one) => one.complete);
}"""
CUT_LABELS = """() => [...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const box = chart.getBoundingClientRect();
  return [...chart.querySelectorAll("text.tick")].filter((label) => {
    const place = label.getBoundingClientRect();
    return place.left < box.left - 0.5 || place.right > box.right + 0.5;
  }).map((label) => label.textContent);
})"""


def test_a_live_run_is_followed_while_its_pictures_load(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = study(tmp_path, close=False)
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        expect(page.locator(".transcript")).to_contain_text("The direction in layer 5")
        page.wait_for_function(AT_END)
        for number in range(4):
            made.tool("plot()", f"figure {number}", png(500, 400), png(300, 400), turn=5)
            made.add(Text(text=f"Look **at** this, {number}.\n\n" + "- line\n" * 9), turn=5)
        expect(page.locator(".transcript")).to_contain_text("Look at this, 3.")
        page.wait_for_function(PICTURES_LOADED)
        page.wait_for_function(AT_END)
        expect(page.locator(".jump")).to_be_hidden()
        page.locator(".transcript-scroll").evaluate("box => { box.scrollTop -= 500 }")
        expect(page.locator(".jump")).to_be_visible()
        made.add(Text(text="More, which nobody asked to see."), turn=6)
        expect(page.locator(".turn-number", has_text="Turn 6")).not_to_be_in_viewport()
        assert not page.evaluate(AT_END)
        made.close()


def test_the_report_of_a_followed_run_is_in_view_when_the_run_ends(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    made = study(tmp_path, close=False)
    with viewing(page, tmp_path, allow_control=True) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        expect(page.locator(".transcript")).to_contain_text("The direction in layer 5")
        expect(page.locator("form.message")).to_be_visible()
        page.wait_for_function(AT_END)
        made.tool("mt.score()", "0.9")
        made.call("score", {}, {"yes": 0.9})
        check = {"call": "score#1", "path": "yes", "operator": ">", "value": 0.8}
        claims = [{"text": f"claim {n}", "kind": "fact", "checks": [check]} for n in range(9)]
        report: dict[str, object] = {"found": True, "answer": {}, "claims": claims}
        made.add(Text(text="- line\n" * 40 + json.dumps(report)), turn=6)
        made.add(RunFinished(reason="completed"), turn=6)
        made.close()
        expect(page.locator(".claim", has_text="claim 8")).to_be_in_viewport()
        page.wait_for_function(AT_END)
        expect(page.locator("form.message")).to_have_count(0)
        # The page does not scroll for a person who keeps reading after the run has ended.
        page.locator(".transcript-scroll").evaluate("box => { box.scrollTop -= 300 }")
        page.wait_for_function(f"() => !({AT_END})()")
        page.locator(".transcript-scroll").evaluate("box => { box.scrollTop += 280 }")
        page.wait_for_function(AT_END)
        rows = page.locator(".transcript .virtual-row")
        rows.last.evaluate("row => { row.firstChild.style.paddingBottom = '400px' }")
        page.wait_for_function(f"() => !({AT_END})()")


def test_an_empty_list_says_so_on_a_narrow_page(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    page.set_viewport_size({"width": 400, "height": 800})
    with viewing(page, tmp_path) as viewer:
        go(page, viewer)
        words = page.locator("td.empty")
        expect(words).to_contain_text("as soon as run_agent starts one.")
        assert words.evaluate("e => e.getBoundingClientRect().right <= innerWidth")
        assert words.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_rows_of_a_shared_file_do_not_overlap(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    page.goto(share(study(tmp_path).folder, tmp_path / "run.html").as_uri())
    page.wait_for_selector(".entry-text .markdown strong")
    page.wait_for_function(f"() => ({OVERLAPS})() === 0")


def test_labels_of_axes_are_whole(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = Made(tmp_path)
    made.tool("mt.loss()", "ok")
    made.call("loss", {}, {"losses": [-123456.5 / 3**n for n in range(40)]})
    made.call("tiny", {}, {"losses": [-1.2345e-7 * n for n in range(40)]})
    made.close()
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        page.wait_for_selector(".transcript .virtual-row")
        page.keyboard.press("2")
        expect(page.locator(".gallery svg.chart")).to_have_count(2)
        assert page.evaluate(CUT_LABELS) == []


def test_arrows_of_json_stand_beside_their_keys(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = study(tmp_path)
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        page.locator(".call").first.click()
        arrow = page.locator(".call-details details.tree summary").first
        assert arrow.evaluate("e => getComputedStyle(e).listStylePosition") == "inside"


def test_bars_of_the_gate_change_with_the_theme(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = study(tmp_path)
    colour = "e => getComputedStyle(e).backgroundColor"
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        bar = page.locator(".call-run").first
        light = bar.evaluate(colour)
        page.keyboard.press("d")
        assert bar.evaluate(colour) != light


def test_subtitles_show_no_marks_of_markdown(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = Made(tmp_path, name="", task="# **Find** the `direction`\n\nnow")
    task = "**Find** the `direction`"
    made.add(RunStarted(run_id=made.run_id, provider="p", model="m", system_prompt="", task=task))
    made.add(Thinking(text="**Weighing** the _options_ of `x`"))
    made.close(result="")
    with viewing(page, tmp_path) as viewer:
        go(page, viewer)
        expect(page.locator(".run-line")).to_have_text("Find the direction")
        page.evaluate("place => { location.hash = place }", f"#/run/{made.run_id}")
        expect(page.locator(".run-page h1")).to_have_text("Find the direction")
        expect(page.locator(".thought-head .summary")).to_have_text("Weighing the options of x")


def test_numbers_by_name_are_bars(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = Made(tmp_path)
    made.tool("model_tools.compare(...)", "ok")
    made.call("compare", {"words": ["he", "she"]}, {"he": 0.41, "she": 0.12})
    made.close()
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        page.wait_for_selector(".transcript .virtual-row")
        page.keyboard.press("2")
        expect(page.locator(".gallery .bar-name")).to_have_text(["he", "she"])
        expect(page.locator(".gallery .bar-value")).to_have_text(["0.41", "0.12"])
