"""A person with a real browser in JupyterLab, beside an agent at work in the same notebook."""

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
steal = "document.title = 'stolen: ' + document.getElementById('jupyter-config-data').textContent"
display(Javascript(steal))
display(HTML(f'<script>{steal}</script><img src="x" onerror="{steal}"><b>shown</b>'))
display({'image/svg+xml': f'<svg xmlns="http://www.w3.org/2000/svg"><script>{steal}</script></svg>',
         'text/plain': 'drawn'}, raw=True)
display({'text/markdown': f'<img src="x" onerror="{steal}"> *words*', 'text/plain': ''}, raw=True)
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


def test_a_person_and_an_agent_work_in_one_notebook(
    browser: Browser, session: NotebookSession
) -> None:
    session.exec("print('the first cell')")
    url = session.jupyter_url
    page = open_lab(browser, url)
    expect(page.get_by_text("the first cell", exact=True)).to_be_visible(timeout=PATIENCE)
    assert page.get_by_text("Would you like to get notified").count() == 0

    # What the agent does is seen while it does it.
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
    assert "stolen" not in page.title()
    parts = urlsplit(url)
    token = parse_qs(parts.query)["token"][0]
    result = session.exec(REACH.format(token=token, port=parts.port), timeout=60)
    assert "[]" in result.stdout, result.text
    assert token not in json.dumps(session.mcp_config)
