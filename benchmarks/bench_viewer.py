"""How fast the viewer answers, as ratios to floors measured in the same run.

    python benchmarks/bench_viewer.py            # prints, and writes results/viewer.md

- Listing 10,000 runs, against asking the index itself in this process.
- Streaming a run of 5,000 events, against reading the same file line by line as JSON.
- In Chromium, where it is installed: frames while scrolling through those 5,000 events, against
  frames while scrolling plain text.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._common import RESULTS, header, machine, median, table, versions

if TYPE_CHECKING:
    from collections.abc import Callable

SPEEDS = (100, 800)
"""Pixels per frame: a fast wheel, and one view per frame, so that all rows are new."""
FRAMES = """async ([selector, pixels]) => {
  const box = document.querySelector(selector);
  const times = [];
  box.scrollTop = 20000;
  await new Promise((done) => setTimeout(done, 500));
  let last = performance.now();
  for (let step = 0; step < 120; step++) {
    box.scrollTop += pixels;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}"""


def clock(work: Callable[[], Any], times: int) -> float:
    """The median time of some calls, in seconds."""
    found: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return median(found)


def ask(viewer: Any, path: str) -> bytes:
    """One request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{viewer.port}{path}",
        headers={"Authorization": f"Bearer {viewer.token}"},
    )
    with urllib.request.urlopen(request) as response:
        return response.read()


def listing(root: Path) -> list[str]:
    """Pages of 10,000 runs."""
    from seer.runs import RunIndex
    from seer.viewer import Viewer
    from tests.viewer.made import many

    many(root, 10_000)
    index = RunIndex(root)
    index.page(limit=50)
    with Viewer(root) as viewer:
        floor = clock(lambda: index.page(limit=50), 9)
        page = clock(lambda: ask(viewer, "/api/runs?limit=50"), 9)
    return [
        "a page of 10,000 runs",
        f"{page * 1e3:.0f} ms",
        f"{floor * 1e3:.0f} ms",
        f"{page / floor:.2f}",
    ]


def streaming(root: Path) -> list[str]:
    """A whole run of 5,000 events."""
    from seer.viewer import Viewer
    from tests.viewer.made import long_run

    made = long_run(root, 5000)
    files = [made.folder / "events.jsonl", made.folder / "calls.jsonl"]
    with Viewer(root) as viewer:
        floor = clock(
            lambda: [json.loads(line) for file in files for line in file.read_text().splitlines()],
            7,
        )
        whole = clock(lambda: ask(viewer, f"/api/runs/{made.run_id}/stream"), 7)
    return [
        "a run of 5,000 events",
        f"{whole * 1e3:.0f} ms",
        f"{floor * 1e3:.0f} ms",
        f"{whole / floor:.2f}",
    ]


def scrolling(root: Path) -> list[list[str]]:
    """Frames while scrolling, in a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    from playwright.sync_api import sync_playwright

    from seer.viewer import Viewer

    (run,) = [path.parent.name for path in root.glob("*/run.json")]
    with Viewer(root) as viewer, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(viewer.url)
        page.wait_for_selector("table.runs tbody tr")
        page.evaluate("place => { location.hash = place }", f"#/run/{run}")
        page.wait_for_selector(".entry")
        page.wait_for_timeout(1000)
        frames = {speed: page.evaluate(FRAMES, [".transcript-scroll", speed]) for speed in SPEEDS}
        page.goto("about:blank")
        page.evaluate(
            """() => { const box = document.createElement("div"); box.id = "plain";
            box.setAttribute("style", "height:780px;overflow:auto;white-space:pre");
            box.textContent = "plain text\\n".repeat(40000); document.body.append(box) }"""
        )
        plain = {speed: page.evaluate(FRAMES, ["#plain", speed]) for speed in SPEEDS}
        browser.close()
    return [_frames(speed, frames[speed], plain[speed]) for speed in SPEEDS]


def _frames(speed: int, frames: list[float], plain: list[float]) -> list[str]:
    ours, floor = median(frames), median(plain)
    late = sorted(frames)[int(len(frames) * 0.95)]
    return [
        f"a frame at {speed} pixels a frame (95th percentile {late:.0f} ms)",
        f"{ours:.1f} ms",
        f"{floor:.1f} ms",
        f"{ours / floor:.2f}",
    ]


def main() -> None:
    """Measure, print, and write the results."""
    import sys

    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        rows += [listing(Path(one)), streaming(Path(two))]
        rows += scrolling(Path(two))
    packages = versions(Path(sys.executable), ["starlette", "uvicorn", "playwright"])
    text = header("The viewer", packages, machine()) + "\n"
    text += table(["what", "viewer", "floor", "ratio"], rows) + "\n"
    print(text)
    (RESULTS / "viewer.md").write_text(text)


if __name__ == "__main__":
    main()
