"""Hostile text of agents runs nothing, fetches nothing and does not break out of the page."""

from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from seer.viewer import Redaction, share
from tests.viewer.browsing import MARKS, Watched, go, viewing
from tests.viewer.made import hostile, study

pytestmark = MARKS

# Each reports its success by a title, a variable or a request.
PAYLOADS = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg onload=window.pwned=1><script>window.pwned=1</script></svg>",
    "javascript:window.pwned=1",
    '"><script>window.pwned=1</script>',
    "'-window.pwned=1-'",
    "</textarea></title></style><script>window.pwned=1</script>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href='javascript:window.pwned=1'>x</a><form action=javascript:window.pwned=1><button>x",
    "[x](javascript:window.pwned=1) ![x](javascript:window.pwned=1) <javascript:window.pwned=1>",
    "[x](JaVaScRiPt&colon;window.pwned=1) [x](data:text/html,<script>window.pwned=1</script>)",
    "<math><mi//xlink:href='data:x,<script>window.pwned=1</script>'></math>",
    "<table background='javascript:window.pwned=1'><td style='background:url(//evil.example/x)'>",
    "<style>@import '//evil.example/x';body{background:url(//evil.example/y)}</style>",
    "<link rel=stylesheet href=//evil.example/x><meta http-equiv=refresh content=0;url=//evil.x>",
    "<object data=//evil.example/x></object><embed src=//evil.example/x><base href=//evil.x/>",
    "![x](http://evil.example/x.png) <img src=//evil.example/x.png> <video src=//evil.example/x>",
    "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1} `${window.pwned=1}`",
    "__proto__",
    "constructor",
    "toString",
    "\u202e\u0000\ud83d <b onmouseover=window.pwned=1>\x1b]8;;javascript:window.pwned=1\x07x",
]


NOTE_VIOLATIONS = """addEventListener("securitypolicyviolation",
  (event) => (window.violations ??= []).push(`${event.violatedDirective} ${event.blockedURI}`))"""
STATE = r"""() => ({
  pwned: window.pwned, violations: window.violations ?? [],
  bad: document.querySelectorAll("#app script, iframe, object, embed, base, form[action]"
    + ", #app style, #app link, [onerror], [onload], [onmouseover]").length,
  links: [...document.querySelectorAll("a[href]")].map((link) => link.protocol),
  reordering: /[\u202a-\u202e\u2066-\u2069]/.test(document.body.textContent),
  pictures: [...document.querySelectorAll("#app img")].map((picture) => picture.src),
})"""
DOWN = """async (box) => {
  box.scrollTop += box.clientHeight;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return box.scrollTop + box.clientHeight >= box.scrollHeight - 2 ? -1 : box.scrollTop;
}"""
TRY_MARKUP = """() => {
  try { document.body.innerHTML = "<b>x</b>"; return "allowed" } catch (error) { return error.name }
}"""


def look_at_all(page: Page) -> None:
    """Bring every part of a run onto the page."""
    page.wait_for_selector(".entry")
    page.keyboard.press("1")
    page.locator(".call").first.click()
    bottom = 0
    while bottom >= 0:
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        bottom = page.locator(".transcript-scroll").evaluate(DOWN)
    page.keyboard.press("G")
    page.wait_for_selector(".entry-run_finished")
    for key in ("2", "3", "4", "5"):
        page.keyboard.press(key)
    page.mouse.move(300, 400)


def test_nothing_that_an_agent_writes_runs_or_fetches(browser: Browser, tmp_path: Path) -> None:
    groups = [PAYLOADS[at : at + 5] for at in range(0, len(PAYLOADS), 5)]
    made = [hostile(tmp_path, group) for group in groups]
    found = Watched(browser, viewport={"width": 1280, "height": 2000})
    page = found.page
    page.add_init_script(NOTE_VIOLATIONS)
    with viewing(page, tmp_path) as viewer:
        go(page, viewer)
        expect(page.locator("table.runs tbody tr")).to_have_count(len(groups))
        for run in made:
            page.evaluate("place => { location.hash = place }", f"#/run/{run.run_id}")
            look_at_all(page)
            state = page.evaluate(STATE)
            assert state["pwned"] is None and state["bad"] == 0, state
            assert state["violations"] == [] and not state["reordering"]
            assert set(state["links"]) <= {"http:", "https:"}
            assert all(src.startswith("blob:") for src in state["pictures"])
        ids = "/".join(run.run_id for run in made[:2])
        page.evaluate("place => { location.hash = place }", f"#/compare/{ids}")
        page.wait_for_selector(".divergence")
        assert page.evaluate("() => window.pwned") is None
        base = f"http://127.0.0.1:{viewer.port}/"
        assert [url for url in found.requests if not url.startswith((base, "blob:"))] == []
    found.requests.clear()
    for number, run in enumerate(made):
        path = share(run.folder, tmp_path / f"shared-{number}.html", redact=Redaction(paths=False))
        page.goto(path.as_uri())
        look_at_all(page)
        state = page.evaluate(STATE)
        assert state["pwned"] is None and state["violations"] == [] and state["bad"] == 0, state
    assert [url for url in found.requests if not url.startswith(("file:", "blob:"))] == []
    found.context.close()
    assert found.errors == []


def test_the_page_refuses_markup_even_where_its_own_code_would_fail(
    watched: Watched, tmp_path: Path
) -> None:
    study(tmp_path)
    with viewing(watched.page, tmp_path) as viewer:
        go(watched.page, viewer)
        caught = watched.page.evaluate(TRY_MARKUP)
    assert caught == "TypeError"
    watched.errors.clear()  # the browser reports the refusal, as it should
