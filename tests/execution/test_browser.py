"""A person with a real browser in JupyterLab while an agent works in the same notebook."""

import json
from collections.abc import Generator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from seer.execution import NotebookSession, create_notebook_session

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]); plt.show()"
HOSTILE = """
from IPython.display import HTML, Javascript, SVG, display
steal = "document.body.dataset.stolen = document.getElementById('jupyter-config-data').textContent"
display(Javascript(steal))
display(HTML(f'<script>{steal}</script><img src="x" onerror="{steal}"><b>shown</b>'))
display({'image/svg+xml': f'<svg xmlns="http://www.w3.org/2000/svg"><script>{steal}</script></svg>',
         'text/plain': 'drawn'}, raw=True)
display({'text/markdown': f'<img src="x" onerror="{steal}"> *words*', 'text/plain': ''}, raw=True)
"""
STEAL = "document.body.dataset.stolen = 1; fetch('/api/contents')"
PAGE = f"""<b>shown</b><script>{STEAL}</script><img src=x onerror="{STEAL}">
<svg onload="{STEAL}"></svg>
<iframe srcdoc="<script>parent.document.body.dataset.stolen=1</script>"></iframe>
<iframe src="javascript:parent.document.body.dataset.stolen=1"></iframe>
<object data="data:text/html,<script>parent.document.body.dataset.stolen=1</script>"></object>
<script src="https://203.0.113.9/far.js"></script><img src="https://203.0.113.9/far.png">
<link rel=stylesheet href="https://203.0.113.9/far.css"><style>@import "https://203.0.113.9/x";
b {{ background: url(https://203.0.113.9/bg.png) }}</style>
<a id=run href="javascript:document.body.dataset.stolen=1">run</a>
<details open ontoggle="{STEAL}"><summary>x</summary></details>"""
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{STEAL}"><script>{STEAL}</script></svg>'
VEGA = {
    "$schema": "https://vega.github.io/schema/vega/v5.json",
    "data": [{"name": "far", "url": "https://203.0.113.9/far.json"}],
    "signals": [{"name": "s", "init": f"event.view.constructor.constructor({STEAL!r})()"}],
}
ACTIVE = [
    {"text/html": PAGE},
    {"application/javascript": STEAL},
    {"image/svg+xml": SVG},
    {"application/vnd.vega.v5+json": VEGA},
    {"text/markdown": PAGE},
    {"application/vnd.jupyter.widget-view+json": {"model_id": "x", "version_major": 2}},
    {"text/plain": "the last of them"},
]
SHOW = f"""
from IPython.display import display
for form in {ACTIVE!r}:
    display({{"text/plain": "plain", **form}}, raw=True)
"""
REACH = """
import os, socket
found = [name for name, value in os.environ.items() if {token!r} in value]
for folder, _, names in os.walk('/'):
    if folder.startswith(('/dev', '/proc', '/sys', '/usr', '/seer/env', '/seer/python')):
        continue
    for name in names:
        try:
            with open(os.path.join(folder, name), 'rb') as file:
                if {token!r}.encode() in file.read(1 << 20):
                    found.append(os.path.join(folder, name))
        except OSError:
            pass
try:
    socket.create_connection(('127.0.0.1', {port}), 3)
    found.append('the server')
except OSError:
    pass
print(found)
"""


@pytest.fixture
def browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def session(tmp_path: Path) -> Generator[NotebookSession]:
    with create_notebook_session(
        name="watched", notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    ) as opened:
        yield opened


def saved_sources(session: NotebookSession) -> list[str]:
    notebook = json.loads(session.notebook_path.read_text())
    nbformat.validate(notebook)
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def open_lab(browser: Browser, url: str) -> Page:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    return page


def is_stolen(page: Page) -> bool:
    """Whether a script in an output has run."""
    return page.evaluate("'stolen' in document.body.dataset")


def test_a_person_and_an_agent_work_in_one_notebook(
    browser: Browser, session: NotebookSession
) -> None:
    session.exec("print('the first cell')")
    url = session.jupyter_url
    page = open_lab(browser, url)
    expect(page.get_by_text("the first cell", exact=True)).to_be_visible(timeout=PATIENCE)
    assert page.get_by_text("Would you like to get notified").count() == 0

    # The person sees the agent's edits as they happen.
    session.exec(PLOT)
    expect(page.locator(".jp-OutputArea-output img").first).to_be_visible(timeout=PATIENCE)

    # The agent adds a cell while the person is in the middle of a word.
    page.locator(".jp-Notebook .jp-Cell .cm-content").first.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("\nby_ha")
    session.exec("agent = 'between two letters'")
    page.keyboard.type("nd = 6 * 7; print(by_hand + 1000)")
    page.keyboard.press("Shift+Enter")
    expect(page.get_by_text("1042")).to_be_visible(timeout=PATIENCE)
    assert session.exec("by_hand").value == "42"
    expect(page.get_by_text("between two letters")).to_be_visible(timeout=PATIENCE)
    sources = [info.source for info in session.cells()]
    assert sources == [
        "print('the first cell')\nby_hand = 6 * 7; print(by_hand + 1000)",
        PLOT,
        "agent = 'between two letters'",
        "by_hand",
    ]
    page.close()
    session.close()
    assert saved_sources(session) == sources


def test_what_the_agent_displays_cannot_act_as_the_person(
    browser: Browser, session: NotebookSession
) -> None:
    url = session.jupyter_url
    page = open_lab(browser, url)
    expect(page.locator(".jp-NotebookPanel")).to_be_visible(timeout=PATIENCE)
    session.exec(HOSTILE)
    shown = page.locator(".jp-OutputArea-output")
    expect(shown.locator("b", has_text="shown")).to_be_visible(timeout=PATIENCE)
    expect(shown.locator("em", has_text="words")).to_be_visible(timeout=PATIENCE)
    assert not is_stolen(page)
    parts = urlsplit(url)
    token = parse_qs(parts.query)["token"][0]
    result = session.exec(REACH.format(token=token, port=parts.port), timeout=120)
    assert "[]" in result.stdout, result.text
    assert token not in json.dumps(session.mcp_config)


def test_no_script_of_the_kernel_runs_even_where_the_person_ran_the_cell(
    browser: Browser, session: NotebookSession
) -> None:
    """JupyterLab trusts what a person runs, and every output comes from the agent's kernel."""
    mine = session.add_cell("pass")
    session.exec(f"show = {SHOW!r}")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(PATIENCE)
    url = session.jupyter_url
    base = url.partition("/lab")[0]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on(
        "requestfailed",
        lambda request: asked.remove(request.url) if request.failure == "csp" else None,
    )
    page.goto(url)
    first = page.locator(".jp-Notebook .jp-Cell").first
    editor = first.locator(".cm-content")
    expect(editor).to_be_visible(timeout=PATIENCE)
    # Before that, JupyterLab drops a request to run a cell.
    expect(page.get_by_text("Python 3 (Seer) | Idle")).to_be_visible(timeout=PATIENCE)

    def assert_inert() -> None:
        for text in ("shown", "the last of them"):
            expect(first.get_by_text(text).first).to_be_visible(timeout=PATIENCE)
        for link in first.locator("#run").all():
            link.evaluate("element => element.click()")
        assert not is_stolen(page)
        assert page.url.startswith(base), page.url
        local = (base, "data:", "blob:", base.replace("http", "ws"))
        assert [url for url in asked if not url.startswith(local)] == []

    editor.click()
    page.keyboard.press("Control+A")
    page.keyboard.type("exec(show)")
    page.keyboard.press("Control+Enter")
    assert_inert()
    assert first.locator(".jp-mod-trusted img[onerror]").count(), "the person's output is trusted"
    # The agent takes over the cell that the person has run.
    session.edit_cell(mine, SHOW)
    session.run_cell(mine)
    expect(editor).to_contain_text("the last of them", timeout=PATIENCE)
    assert_inert()
    page.close()
    saved = json.loads(session.notebook_path.read_text())
    assert not [cell for cell in saved["cells"] if "trusted" in cell["metadata"]]


def test_a_notebook_that_calls_itself_trusted_is_not(browser: Browser, tmp_path: Path) -> None:
    cell: dict[str, object] = {
        "cell_type": "code",
        "id": "a",
        "source": "1",
        "execution_count": 1,
        "metadata": {"trusted": True},
        "outputs": [
            {"output_type": "display_data", "metadata": {}, "data": {"text/html": PAGE}},
        ],
    }
    notebook: dict[str, object]
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "planted.ipynb").write_text(json.dumps(notebook))
    with create_notebook_session(
        name="planted", notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    ) as session:
        page = open_lab(browser, session.jupyter_url)
        output = page.locator(".jp-OutputArea-output")
        expect(output.locator("b", has_text="shown")).to_be_visible(timeout=PATIENCE)
        assert output.locator("img[onerror], script, iframe, svg").count() == 0
        assert not is_stolen(page)
        page.close()
