"""Heat maps say what their axes are, and one outlier does not hide the rest."""

import math
from pathlib import Path

from playwright.sync_api import expect

from tests.viewer.browsing import MARKS, Watched, go, viewing
from tests.viewer.made import Made, array, floats

pytestmark = MARKS
TOKENS = ["The", " capital", " of", " France", " is", " Paris"]
COLOURS = """canvas => {
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  return new Set(new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer)).size;
}"""


def test_layers_and_tokens_are_named_on_the_axes(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = Made(tmp_path)
    made.tool("mt.lens()", "ok")
    values = floats([math.sin(n) for n in range(60)])
    made.call("logit_lens", {}, {"tokens": TOKENS, "logits": array(0, 10, 6)}, arrays=[values])
    made.call(
        "norms",
        {},
        {"tokens": TOKENS, "layers": [0, 6, 12], "norms": array(0, 3, 6)},
        arrays=[values],
    )
    made.call(
        "attention", {}, {"axes": ["head", "query", "key"], "w": array(0, 2, 5, 6)}, arrays=[values]
    )
    made.close()
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        page.wait_for_selector(".transcript .virtual-row")
        page.keyboard.press("2")
        maps = page.locator(".gallery .heatmap")
        expect(maps).to_have_count(3)
        expect(maps.nth(0).locator(".heat-title")).to_have_text(["layer", "token"])
        expect(maps.nth(0).locator(".heat-rows .heat-label")).to_have_text(
            ["0", "2", "4", "6", "8"]
        )
        expect(maps.nth(0).locator(".heat-columns .heat-label")).to_have_text(
            ["The", "·capital", "·of", "·France", "·is", "·Paris"]
        )
        expect(maps.nth(1).locator(".heat-rows .heat-label")).to_have_text(["0", "6", "12"])
        expect(maps.nth(2).locator(".heat-title")).to_have_text(["query", "key"])
        expect(page.locator(".gallery .slider")).to_contain_text("head")


def test_an_outlier_does_not_wash_out_the_other_values(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    made = Made(tmp_path)
    made.tool("mt.lens()", "ok")
    values = [n / 120 for n in range(119)] + [5_000.0]
    made.call("lens", {}, array(0, 12, 10), arrays=[floats(values)])
    made.close()
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        page.wait_for_selector(".transcript .virtual-row")
        page.keyboard.press("2")
        canvas = page.locator(".gallery canvas.heat")
        assert canvas.evaluate(COLOURS) > 60
        expect(page.locator(".gallery .legend")).to_contain_text("≥ 0.9")
        page.click(".gallery .legend button")
        expect(page.locator(".gallery .legend")).to_contain_text("5000")
        assert canvas.evaluate(COLOURS) < 5


def test_a_column_of_outliers_does_not_wash_out_the_other_columns(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    made = Made(tmp_path)
    made.tool("mt.norms()", "ok")
    values = [5_000.0 + n if n % 12 == 0 else n / 120 for n in range(120)]
    made.call("norms", {}, array(0, 10, 12), arrays=[floats(values)])
    made.close()
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        page.wait_for_selector(".transcript .virtual-row")
        page.keyboard.press("2")
        assert page.locator(".gallery canvas.heat").evaluate(COLOURS) > 60
        legend = page.locator(".gallery .legend")
        expect(legend).to_contain_text("≥")
        expect(legend).not_to_contain_text("≤")
