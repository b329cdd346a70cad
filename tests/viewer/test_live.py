"""A run in another process can be watched while it runs, get messages, and be stopped."""

import os
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import expect

from seer.runs import Run
from tests.viewer.browsing import MARKS, Watched, go, viewing
from tests.viewer.made import study

pytestmark = MARKS

AGENT = """
import asyncio, sys
from seer.harness import Limits, Scripted, Step, run_agent
async def main():
    steps = [Step(text="first words"), Step(text="second words"), Step(text="third words")]
    run = run_agent(task="talk", provider=Scripted(steps), interactive=True, record=sys.argv[1],
                    limits=Limits(turns=5), name="live one")
    async for event in run:
        print(event.type, flush=True)
asyncio.run(main())
"""


ASKS = """
import asyncio, sys
from mcp.server import MCPServer
from seer.harness import Call, Expect, Scripted, Step, run_agent
server = MCPServer("lab")
@server.tool()
def double(number: int) -> int:
    return 2 * number
async def main():
    calls = [Call(tool="double", arguments={"number": n}, expect=Expect(error="any"))
             for n in (21, 4)]
    agent = Scripted([Step(calls=tuple(calls)), Step(text="the end")])
    async for event in run_agent("go", {"lab": server}, provider=agent, approve="ask",
                                 record=sys.argv[1]):
        print(event.type, flush=True)
asyncio.run(main())
"""


def test_a_live_run_in_another_process_is_seen_spoken_to_and_stopped(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    folder = tmp_path / "runs"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
    }
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(folder)],
        stdout=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
    )
    try:
        assert agent.stdout is not None
        for line in agent.stdout:
            if line.strip() == b"waiting":
                break
        with viewing(page, folder, allow_control=True) as viewer:
            go(page, viewer)
            expect(page.locator(".status-running")).to_be_visible()
            page.keyboard.press("Enter")
            expect(page.locator(".entry-text")).to_contain_text("first words")
            page.fill(".message textarea", "go on please")
            page.keyboard.press("Enter")
            expect(page.locator(".entry-user_message")).to_contain_text("go on please")
            expect(page.locator(".transcript")).to_contain_text("second words")
            page.keyboard.press("Escape")
            page.click(".tabs button[data-name=budget]")
            page.locator(".limit", has_text="Turns").locator("button").click()
            page.fill("dialog input", "9")
            page.click("dialog button.primary")
            expect(page.locator(".limit", has_text="Turns")).to_contain_text("/ 9")
            page.click("button.danger")
            page.click("dialog button.danger")
            expect(page.locator(".entry-run_finished")).to_contain_text("cancelled")
            expect(page.locator(".top .status-cancelled")).to_be_visible()
            expect(page.locator(".message")).to_have_count(0)
        assert agent.wait(timeout=60) == 0
        (found,) = folder.glob("*/run.json")
        assert Run(found.parent).meta["limits"]["turns"] == 9
    finally:
        agent.kill()
        agent.wait()
        if agent.stdout is not None:
            agent.stdout.close()


def test_a_score_that_is_given_after_the_end_appears_on_the_page(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    made = study(tmp_path, close=False)
    with viewing(page, tmp_path) as viewer:
        go(page, viewer, f"#/run/{made.run_id}")
        expect(page.locator(".top .status-running")).to_be_visible()
        made.close()
        expect(page.locator(".top .status-completed")).to_be_visible()
        expect(page.locator(".top-facts")).not_to_contain_text("score")
        Run(made.folder).set_score(0.75)
        expect(page.locator(".top-facts")).to_contain_text("score0.75")


def test_a_person_approves_and_denies_calls_on_the_page(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    folder = tmp_path / "runs"
    agent = subprocess.Popen(
        [sys.executable, "-c", ASKS, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    try:
        assert agent.stdout is not None
        for line in agent.stdout:
            if line.strip() == b"approval_asked":
                break
        with viewing(page, folder, allow_control=True) as viewer:
            go(page, viewer)
            expect(page.locator(".status-running")).to_be_visible()
            page.keyboard.press("Enter")
            page.fill(".message textarea", "and then stop")
            page.keyboard.press("Enter")
            # The script has no further reply after which it could get a message.
            expect(page.locator(".toast")).to_contain_text("a script gets messages only after")
            # The browser also reports the refusal, status 409, as an error.
            assert len(watched.errors) == 1 and "409" in watched.errors.pop()
            page.click(".approval button.primary")
            expect(page.locator(".transcript")).to_contain_text("Approved by a person")
            page.fill(".approval input", "too small")
            page.click(".approval button.danger")
            expect(page.locator(".transcript")).to_contain_text("Denied by a person: too small")
            expect(page.locator(".transcript")).to_contain_text("the end")
            expect(page.locator(".pending")).to_have_count(0)
        assert agent.wait(timeout=60) == 0
        (found,) = folder.glob("*/run.json")
        given = [event for event in Run(found.parent).events() if event["type"] == "approval_given"]
        assert [(event["approved"], event["reason"]) for event in given] == [
            (True, ""),
            (False, "too small"),
        ]
    finally:
        agent.kill()
        agent.wait()
        if agent.stdout is not None:
            agent.stdout.close()


WORKS = """
import asyncio, sys
from mcp.server import MCPServer
from seer.harness import Call, Scripted, Step, run_agent
server = MCPServer("lab")
@server.tool()
async def forever() -> str:
    print("inside", flush=True)
    await asyncio.Event().wait()
async def main():
    agent = Scripted([Step(calls=(Call("forever"),)), Step(text="a reply"), Step(text="the end")])
    async for event in run_agent("go", {"lab": server}, provider=agent, record=sys.argv[1]):
        pass
asyncio.run(main())
"""


def test_a_message_from_the_command_line_is_on_the_page_until_it_is_settled(
    watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    folder = tmp_path / "runs"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
    }
    agent = subprocess.Popen(
        [sys.executable, "-c", WORKS, str(folder)],
        stdout=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
    )

    def seer(*arguments: str) -> None:
        (found,) = folder.glob("*/run.json")
        verb, *more = arguments
        command = [sys.executable, "-m", "seer", "runs", verb, str(found.parent), *more]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True)

    try:
        assert agent.stdout is not None
        assert agent.stdout.readline().strip() == b"inside"
        with viewing(page, folder, allow_control=True) as viewer:
            go(page, viewer)
            expect(page.locator(".status-running")).to_be_visible()
            page.keyboard.press("Enter")
            seer("say", "look at layer 5")
            expect(page.locator(".pending")).to_have_text("waitinglook at layer 5")
            page.fill(".message textarea", "and at layer 6")
            page.keyboard.press("Enter")
            expect(page.locator(".pending")).to_have_count(2)
            seer("stop")
            lost = page.locator(".entry-message_not_delivered")
            expect(lost).to_have_count(2)
            expect(lost.first).to_contain_text("the run ended first (cancelled)")
            expect(lost.first).to_contain_text("look at layer 5")
            expect(page.locator(".pending")).to_have_count(0)
        assert agent.wait(timeout=60) == 0
    finally:
        agent.kill()
        agent.wait()
        if agent.stdout is not None:
            agent.stdout.close()
