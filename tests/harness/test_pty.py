"""A chat in a real terminal: interrupts, the status line, history, and leaving."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seer.runs import RunIndex

pytestmark = pytest.mark.full

PROGRAM = '''
import asyncio
from mcp.server import MCPServer
from seer.harness import Call, Limits, Scripted, Step, run_agent_interactive

server = MCPServer("lab")

@server.tool()
async def forever() -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return ""

usage = {"input_tokens": 30, "output_tokens": 12}
agent = Scripted([
    Step(text="first", usage=usage),
    Step(calls=(Call(tool="forever"),)), Step(text="never said"),
    Step(text="you stopped me"),
    Step(calls=(Call(tool="forever"),)), Step(text="never said"),
    Step(text="stopped again"),
    Step(text="still the same talk"),
])
asyncio.run(run_agent_interactive(
    mcp_config={"lab": server}, provider=agent, limits=Limits(tokens=1000), name="chat"))
print("left", flush=True)
'''


ASKS = '''
import asyncio
from mcp.server import MCPServer
from seer.harness import Call, Expect, Scripted, Step, run_agent

server = MCPServer("lab")

@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

async def main():
    add = Call(tool="add", arguments={"a": 40, "b": 2}, expect=Expect(error="any"))
    agent = Scripted([Step(calls=(add, add)), Step(text="done")])
    async for event in run_agent("x", {"lab": server}, provider=agent, approve="ask"):
        print(event.type, getattr(event, "text", ""), flush=True)
asyncio.run(main())
'''

WATCHED = """
import asyncio, os
from seer.environment import SandboxConfig, ScopedSandbox
from seer.harness import Call, Scripted, Step, run_agent

async def main():
    with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        tools = scoped.serve("tools.py", expose_as="mcp")
        for text in ("shown \x1b]0;planted\x07", "quiet by word", "quiet by setting"):
            steps = [Step(text=text, calls=(Call(tool="speak", arguments={"word": text[:5]}),))]
            os.environ["SEER_QUIET"] = "1" if text.endswith("setting") else ""
            show = {"show": False} if text.endswith("word") else {}
            async for event in run_agent("x", tools, provider=Scripted(steps), **show):
                pass
            print("over:", text[:5], flush=True)

asyncio.run(main())
print("left", flush=True)
"""

PROMPT = " turns | "
"""In the line below the prompt, which is there while a person may write."""


class Screen:
    """A program in a terminal, and what it has shown so far."""

    def __init__(self, fd: int, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._fd = fd
        self._shown = ""
        self.raw = b""

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def expect(self, text: str, *, within: float = 60.0) -> None:
        """Wait for a text after those that were already waited for."""
        deadline = time.monotonic() + within
        while text not in self._shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown; shown was:\n{self._shown[-2000:]}"
            if select.select([self._fd], [], [], left)[0]:
                try:
                    data = os.read(self._fd, 65536)
                except OSError:
                    data = b""
                assert data, f"the program ended without {text!r}:\n{self._shown[-2000:]}"
                if b"\x1b[6n" in data:
                    os.write(self._fd, b"\x1b[1;1R")  # the cursor's position
                self.raw += data
                self._shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        self._shown = self._shown.partition(text)[2]


@contextmanager
def terminal(tmp_path: Path, runs: Path, program: str = PROGRAM) -> Generator[Screen]:
    script = tmp_path / "chat.py"
    script.write_text(program)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 100))
    env = {**os.environ, "TERM": "xterm", "SEER_RUNS": str(runs)}
    env["XDG_STATE_HOME"] = str(tmp_path / "state")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        cwd=tmp_path,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Screen(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_escape_and_ctrl_c_interrupt_the_turn_and_keep_the_conversation(
    tmp_path: Path, runs_folder: Path
) -> None:
    with terminal(tmp_path, runs_folder) as screen:
        screen.expect(PROMPT)
        screen.type("hello\r")
        screen.expect("first")
        screen.expect("42 of 1000 tokens")
        for key, answer in (("\x1b", "you stopped me"), ("\x03", "stopped again")):
            screen.type("go\r")
            screen.expect("* forever")
            screen.type(key)
            screen.expect(PROMPT)
            screen.type("what now?\r")
            screen.expect(answer)
            screen.expect(PROMPT)
        screen.type("and?\r")
        screen.expect("still the same talk")
        screen.expect(PROMPT)
        screen.type("/exit\r")
        screen.expect("left")
        assert screen.process.wait(timeout=60) == 0
    [run] = RunIndex(runs_folder).list()
    assert (run.name, run.status) == ("chat", "completed")
    history = (tmp_path / "state" / "seer" / "chat_history").read_text()
    assert "what now?" in history


def test_ctrl_d_leaves_the_chat_and_completes_its_record(tmp_path: Path, runs_folder: Path) -> None:
    with terminal(tmp_path, runs_folder) as screen:
        screen.expect(PROMPT)
        screen.type("hello\r")
        screen.expect("first")
        screen.expect(PROMPT)
        screen.type("\x04")
        screen.expect("left")
        assert screen.process.wait(timeout=60) == 0
    [run] = RunIndex(runs_folder).list()
    assert run.status == "completed"


def test_an_interrupt_of_the_whole_program_closes_the_record_as_cancelled(
    tmp_path: Path, runs_folder: Path
) -> None:
    with terminal(tmp_path, runs_folder) as screen:
        screen.expect(PROMPT)
        screen.type("hello\r")
        screen.expect("first")
        screen.expect(PROMPT)
        screen.type("go\r")
        screen.expect("* forever")
        os.killpg(screen.process.pid, signal.SIGINT)
        screen.process.wait(timeout=60)
    [run] = RunIndex(runs_folder).list()
    assert run.status == "cancelled"


def test_a_person_is_asked_for_approval_in_the_terminal(tmp_path: Path, runs_folder: Path) -> None:
    with terminal(tmp_path, runs_folder, ASKS) as screen:
        screen.expect("add(a=40, b=2)")
        screen.expect("allow this call?")
        screen.type("y\r")
        screen.expect("tool_result 42")
        screen.expect("allow this call?")
        screen.type("it is late\r")
        screen.expect("not made: it is late")
        assert screen.process.wait(timeout=60) == 0


def test_a_run_shows_itself_and_what_its_interface_prints(
    tmp_path: Path, runs_folder: Path
) -> None:
    (tmp_path / "tools.py").write_text(
        "@expose\ndef speak(word: str) -> str:\n    print('spoke', word)\n    return word.upper()\n"
    )
    with terminal(tmp_path, runs_folder, WATCHED) as screen:
        screen.expect("scripted")
        screen.expect("shown ")
        screen.expect("* speak(word='shown')")
        screen.expect("left")
    assert b"SHOWN" in screen.raw and b"tools: spoke shown" in screen.raw
    assert b"\x1b]0;planted" not in screen.raw, "what an agent says does not act on the terminal"
    assert b"quiet by" not in screen.raw
    assert b"* speak" not in screen.raw.partition(b"over: quiet")[2]
