"""Shared by the tests of the viewer: a folder of runs, a viewer over it, and requests to it."""

import json
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seer.viewer import Viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.viewer.browsing import Watched


@dataclass
class Answer:
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Client:
    """Sends requests to a viewer, by default with its token."""

    viewer: Viewer

    def __call__(
        self, path: str, *, body: Any = None, headers: dict[str, str | None] | None = None
    ) -> Answer:
        """One request; a header that is None is left out."""
        given: dict[str, str | None] = {"Authorization": f"Bearer {self.viewer.token}"}
        given |= headers or {}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.viewer.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={name: value for name, value in given.items() if value is not None},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return Answer(response.status, response.read(), dict(response.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read(), dict(error.headers))

    def lines(self, run_id: str, **offsets: int) -> list[dict[str, Any]]:
        """The stream of a run that has ended."""
        query = "&".join(f"{name}={value}" for name, value in offsets.items())
        body = self(f"/api/runs/{run_id}/stream?{query}").body
        return [json.loads(line) for line in body.splitlines() if line]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder of runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def client(root: Path) -> Generator[Client]:
    """A viewer over that folder."""
    with Viewer(root) as viewer:
        yield Client(viewer)


@pytest.fixture(scope="module")
def browser() -> "Generator[Browser]":
    """One browser for the tests of a file, because its event loop would disturb other tests."""
    from playwright.sync_api import sync_playwright

    from tests.viewer.browsing import CHROMIUM, FLAGS

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def watched(browser: "Browser") -> "Generator[Watched]":
    """A page of usual size; any error on it fails the test."""
    from tests.viewer.browsing import Watched

    found = Watched(browser, viewport={"width": 1280, "height": 800}, accept_downloads=True)
    yield found
    found.context.close()
    assert found.errors == []
