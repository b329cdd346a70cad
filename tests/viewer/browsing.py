"""A page in a real browser, and the errors on it."""

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from seer.viewer import Viewer

CHROMIUM = shutil.which("chromium") or ""
MARKS = [
    pytest.mark.full,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]
PATIENCE = 60_000
"""Milliseconds that nothing on a page takes unless it is broken."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]

expect.set_options(timeout=PATIENCE)


class Watched:
    """A page, and the errors on it."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append("a dialog opened"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "console",
            lambda m: self.errors.append(m.text) if m.type in {"error", "warning"} else None,
        )


def named(folder: Path, name: str) -> str:
    """The id of a run."""
    for path in folder.glob("*/run.json"):
        if json.loads(path.read_text())["name"] == name:
            return path.parent.name
    raise AssertionError(name)


@contextmanager
def viewing(page: Page, folder: Path, *, allow_control: bool = False) -> Generator[Viewer]:
    """A viewer that ends after the page was left, so that the page sends no requests in vain."""
    with Viewer(folder, allow_control=allow_control) as viewer:
        yield viewer
        page.goto("about:blank")


def go(page: Page, viewer: Viewer, place: str = "") -> None:
    """Open the page, then a place in it."""
    page.goto(viewer.url)
    page.wait_for_selector("table.runs tbody tr")
    if place:
        page.evaluate("place => { location.hash = place }", place)
