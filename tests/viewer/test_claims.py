"""The page shows the claims of a final report with the verdicts of `seer verify`."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from seer.harness import RunFinished, Text
from seer.viewer import share
from tests.viewer.browsing import MARKS, Watched, go, viewing
from tests.viewer.conftest import Client
from tests.viewer.made import Made, study

full, chromium = MARKS


def reported(root: Path) -> Made:
    """A run whose report has one claim that stands and one that does not."""
    made = Made(root)
    for text, score in (("with it", 0.9), ("without", 0.1)):
        made.tool(f"mt.score({text!r})", str(score))
        made.call("score", {"text": text}, {"yes": score})
    check: dict[str, Any] = {
        "call": "score#1",
        "path": "yes",
        "operator": ">",
        "control": {"call": "score#2", "path": "yes"},
        "given": "with it",
    }
    claims = [
        {"text": text, "kind": "effect", "checks": [{**check, "value": value}]}
        for text, value in (("It *says* **yes**", 0.8), ("It always says yes", 0.95))
    ]
    made.add(Text(text=json.dumps({"found": True, "answer": {}, "claims": claims})))
    made.add(RunFinished(reason="completed"))
    return made.close()


def test_each_claim_has_its_verdict(client: Client, root: Path) -> None:
    found = client(f"/api/runs/{reported(root).run_id}/claims").json()
    assert [(one["text"], one["stands"]) for one in found["claims"]] == [
        ("It says yes", True),
        ("It always says yes", False),
    ]
    assert found["claims"][1]["problems"]
    assert "**" not in json.dumps(found), "marks of Markdown are shown"
    plain = client(f"/api/runs/{study(root).run_id}/claims").json()
    assert plain == {"claims": [], "flags": [], "problem": ""}


def test_a_changed_record_has_no_verdicts(client: Client, root: Path) -> None:
    made = reported(root)
    path = made.folder / "calls.jsonl"
    path.write_text(path.read_text().replace("0.9", "0.8"))
    found = client(f"/api/runs/{made.run_id}/claims").json()
    assert found["claims"] == [] and "calls.jsonl" in found["problem"]


@full
@chromium
def test_verdicts_stand_beside_claims_on_the_page_and_in_a_shared_file(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    made = reported(tmp_path)
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        expect(page.locator(".claim.stands")).to_contain_text("It says yes")
        expect(page.locator(".claim.falls").first).to_contain_text("It always says yes")
    page.goto(share(made.folder, tmp_path / "run.html").as_uri())
    expect(page.locator(".claim.stands")).to_contain_text("It says yes")
