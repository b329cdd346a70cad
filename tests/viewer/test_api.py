"""What the page receives: runs, lines and values, also of running, damaged and deleted runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest

from seer.errors import ConfigError
from seer.harness import Scripted, Step, Text, ToolResult, Waiting, run_agent
from seer.viewer import Viewer, serve, share
from tests.viewer.made import Made, long_run, many, study


def test_runs_are_listed_filtered_and_paged(client: Any, root: Path) -> None:
    many(root, 120)
    page = client("/api/runs?limit=10&offset=5").json()
    assert page["total"] == 120 and len(page["runs"]) == 10
    assert page["runs"][0]["name"] == "sweep 114"
    assert page["choices"]["provider"] == ["claude", "openai"]
    found = client("/api/runs?search=word7&status=error").json()
    assert [run["name"] for run in found["runs"]] == [
        "sweep 7",
        "sweep 70",
        "sweep 73",
        "sweep 76",
        "sweep 79",
    ][::-1]
    cheap = client("/api/runs?order=cost_usd&descending=0&limit=1").json()
    assert cheap["runs"][0]["name"] == "sweep 0"
    assert len(client("/api/runs?limit=9999").json()["runs"]) == 120


def test_a_run_comes_as_lines_and_can_be_resumed(client: Any, root: Path) -> None:
    made = study(root)
    lines = client.lines(made.run_id)
    assert [line["kind"] for line in lines][0] == "run" and lines[-1]["kind"] == "end"
    events = [line for line in lines if line["kind"] == "events"]
    calls = [line for line in lines if line["kind"] == "calls"]
    assert events[0]["body"]["type"] == "run_started" and len(calls) == 5
    rest = client.lines(made.run_id, events=events[2]["next"], calls=calls[-1]["next"])
    assert [line["at"] for line in rest if line["kind"] == "events"] == [
        e["at"] for e in events[3:]
    ]
    assert not [line for line in rest if line["kind"] == "calls"]
    whole = client(f"/api/runs/{made.run_id}/line?kind=events&at={events[2]['at']}").json()
    assert whole == events[2]["body"]


def test_large_values_stay_outside_until_they_are_asked_for(client: Any, root: Path) -> None:
    made = Made(root)
    made.add(Text(text="x" * 5_000_000))
    numbers = [float(n) for n in range(200_000)]
    made.add(ToolResult(id="1", name="f", structured={"numbers": numbers, "deep": [[[[1]]]]}))
    made.record.event({"type": "text", "text": "raw one", "raw": {"vendor": "words"}})
    made.close()
    lines = [line for line in client.lines(made.run_id) if line["kind"] == "events"]
    assert len(json.dumps(lines)) < 20_000
    reference = lines[0]["body"]["text"]
    assert reference["bytes"] == 5_000_000
    assert client(f"/api/runs/{made.run_id}/blob/{reference['$blob']}").body == b"x" * 5_000_000
    cut = lines[1]["body"]["structured"]
    assert cut["numbers"]["count"] == 200_000 and len(cut["numbers"]["$cut"]) == 64
    assert lines[2]["body"]["$raw"] is True and "raw" not in lines[2]["body"]
    whole = client(f"/api/runs/{made.run_id}/line?kind=events&at={lines[1]['at']}").json()
    assert whole["structured"]["numbers"] == numbers


def test_a_torn_or_changed_record_is_shown_as_far_as_it_goes(client: Any, root: Path) -> None:
    made = study(root)
    path = made.folder / "events.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    lines = client.lines(made.run_id)
    assert len([line for line in lines if line["kind"] == "events"]) == data.count(b"\n") - 1
    first = data.index(b"\n") + 1
    path.write_bytes(data[:first] + b"nonsense\n" + data[first:])
    lines = client.lines(made.run_id)
    assert [line["kind"] for line in lines if line["kind"] in {"events", "broken"}] == [
        "events",
        "broken",
    ]
    assert lines[-1]["kind"] == "end" and [line for line in lines if line["kind"] == "calls"]
    verdict = client(f"/api/runs/{made.run_id}/verify").json()
    assert verdict["ok"] is False and "events.jsonl" in verdict["message"]


def test_an_untouched_record_is_verified(client: Any, root: Path) -> None:
    assert client(f"/api/runs/{study(root).run_id}/verify").json()["ok"] is True


def test_a_notebook_is_shown_live_and_links_in_it_lead_nowhere(
    client: Any, root: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    path = work / "notebook.ipynb"
    made = Made(root, notebook=str(path))
    where = f"/api/runs/{made.run_id}/notebook"
    assert client(where).json() is None
    path.write_text('{"cells": [{"cell_type": "code", "source": "1"}]}')
    assert len(client(where).json()["cells"]) == 1
    path.write_text("[1]")
    assert client(where).status == 422
    path.unlink()
    secret = tmp_path / "secret.json"
    secret.write_text('{"cells": ["secret"]}')
    path.symlink_to(secret)
    answer = client(where)
    assert answer.status == 422 and b'"secret"' not in answer.body
    made.close()


async def test_a_running_run_is_followed_to_its_end(root: Path) -> None:
    with Viewer(root, allow_control=True) as viewer:
        base = f"http://127.0.0.1:{viewer.port}"
        headers = {"Authorization": f"Bearer {viewer.token}"}
        run = run_agent(
            task="go",
            provider=Scripted([Step(text="one"), Step(text="two")]),
            interactive=True,
            record=root,
        )
        async for event in run:
            if isinstance(event, Waiting):
                break
        seen: list[dict[str, Any]] = []
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=30) as web:
            path = f"/api/runs/{run.run_id}"
            async with web.stream("GET", f"{path}/stream") as response:
                async for line in response.aiter_lines():
                    seen.append(json.loads(line))
                    said = seen[-1].get("body", {}).get("text")
                    if said == "one":
                        asked = {"action": "message", "text": "more"}
                        assert (await web.post(f"{path}/control", json=asked)).status_code == 200
                        refused = await web.post(f"{path}/control", json={"action": "fly"})
                        assert refused.status_code == 400
                    elif said == "two":
                        stopped = await web.post(f"{path}/control", json={"action": "stop"})
                        assert stopped.status_code == 200
            answer = await web.post(f"{path}/control", json={"action": "stop"})
            assert answer.status_code == 409 and "ended" in answer.json()["error"]
        texts = [line["body"].get("text") for line in seen if line["kind"] == "events"]
        assert [text for text in texts if text] == ["one", "more", "two"]
        assert seen[-1] == {"kind": "end"}
        states = [line["body"]["status"] for line in seen if line["kind"] == "run"]
        assert states == ["running", "cancelled"]
        await run.aclose()


async def test_a_run_that_is_deleted_while_it_is_watched_ends_the_stream(root: Path) -> None:
    made = study(root, close=False)
    with Viewer(root) as viewer:
        headers = {"Authorization": f"Bearer {viewer.token}"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as web:
            url = f"http://127.0.0.1:{viewer.port}/api/runs/{made.run_id}"
            kinds: list[str] = []
            async with web.stream("GET", f"{url}/stream") as response:
                async for line in response.aiter_lines():
                    if not kinds:
                        await anyio.to_thread.run_sync(shutil.rmtree, made.folder)
                    kinds.append(json.loads(line)["kind"])
            assert kinds[-1] == "gone"
            assert (await web.get(url)).status_code == 404


def test_a_long_run_comes_in_one_go(client: Any, root: Path) -> None:
    made = long_run(root, 3000)
    lines = client.lines(made.run_id)
    assert len([line for line in lines if line["kind"] == "events"]) == 3000


def test_a_port_that_cannot_be_used_is_named(root: Path) -> None:
    with pytest.raises(ConfigError, match="port=99999"):
        Viewer(root, port=99999)
    with Viewer(root) as viewer, pytest.raises(ConfigError, match=f"port={viewer.port}"):
        Viewer(root, port=viewer.port).__enter__()


def test_a_browser_is_not_started_with_the_token_in_its_command(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[tuple[str, str, int]] = []

    def browse(url: str) -> bool:
        path = Path(url.removeprefix("file://"))
        opened.append((url, path.read_text(), path.stat().st_mode & 0o777))
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", browse)
    with pytest.raises(KeyboardInterrupt):
        serve(root)
    printed = capsys.readouterr().out
    token = printed.partition("#token=")[2].split()[0]
    ((url, page, mode),) = opened
    assert token not in url and f"#token={token}" in page and mode == 0o600
    assert list(root.glob("*.html")) == []


def test_halves_of_characters_and_numbers_that_are_none_reach_the_page(
    client: Any, root: Path, tmp_path: Path
) -> None:
    made = Made(root, name="half \ud83d", score=float("nan"), task="\udc00")
    made.add(Text(text="half \ud83d"))
    cells = {"cells": [{"cell_type": "code", "source": "\ud83d", "metadata": {"x": float("inf")}}]}
    made.record.artifact("notebook.ipynb", json.dumps(cells))
    made.close()

    def strict(text: bytes) -> Any:
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    for path in ("", "/notebook", "/line?at=0"):
        answer = client(f"/api/runs/{made.run_id}{path}")
        assert answer.status == 200
        strict(answer.body)
    for line in client(f"/api/runs/{made.run_id}/stream").body.splitlines():
        strict(line)
    assert share(made.folder, tmp_path / "run.html").stat().st_size > 10_000
    assert client("/api/runs/\ud83d".encode("utf-8", "replace").decode()).status == 404
