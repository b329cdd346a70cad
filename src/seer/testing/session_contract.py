"""The contract of a session, as tests that a test module inherits.

Subclass `SessionContract` in a test module, and implement the methods that open your kind of
session and that give code in its language. Pytest, with anyio's plugin, runs the tests.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from seer.errors import RemoteFileError, SandboxStateError
from seer.execution import ExecutionResult, Session, StreamText, open_sessions
from seer.execution._result import OutputPart
from seer.workspace import Library, Skill, Workspace

HELPERS = Library.from_code(
    "helpers", 'def double(n: int) -> int:\n    """Twice."""\n    return 2 * n\n'
)
SKILL = Skill.from_text("be-kind", description="How to be kind.", body="Be kind.")


class SessionContract(ABC):
    """The contract. Override the abstract methods."""

    patience = 60.0
    """The time limit of one step, in seconds."""

    @abstractmethod
    async def open(self, workspace: Workspace, folder: Path) -> Session:
        """Open a session in `folder`, an empty folder for this test."""

    @abstractmethod
    def say(self, text: str) -> str:
        """Code that prints a line; `text` has no quotes in it."""

    @abstractmethod
    def say_error(self, text: str) -> str:
        """Code that prints a line to standard error."""

    @abstractmethod
    def remember(self, name: str, text: str) -> str:
        """Code that puts text into a variable."""

    @abstractmethod
    def recall(self, name: str) -> str:
        """Code that prints the variable, or nothing if it is unset."""

    @abstractmethod
    def fail(self) -> str:
        """Code that ends with an error."""

    @abstractmethod
    def sleep(self, seconds: float) -> str:
        """Code that sleeps."""

    @abstractmethod
    def spin(self) -> str:
        """Code that computes forever."""

    @abstractmethod
    def deaf(self) -> str:
        """Code that runs forever and ignores an interrupt."""

    @abstractmethod
    def count(self, lines: int) -> str:
        """Code that prints `line 0` and so on."""

    @abstractmethod
    def use_library(self) -> str:
        """Code that prints `helpers.double(21)`."""

    @abstractmethod
    def write(self, path: str, text: str) -> str:
        """Code that writes a file."""

    @abstractmethod
    def read(self, path: str) -> str:
        """Code that prints a file."""

    def workspace(self) -> Workspace:
        """The workspace of the sessions."""
        return Workspace(libraries=[HELPERS], skills=[SKILL])

    @pytest.fixture
    async def session(self, tmp_path: Path) -> AsyncGenerator[Session]:
        """An open session."""
        opened = await self.open(self.workspace(), tmp_path)
        try:
            yield opened
        finally:
            await opened.aclose()

    async def run(self, session: Session, code: str) -> ExecutionResult:
        """Run code to its end."""
        async with asyncio.timeout(self.patience):
            return await session.aexec(code)

    async def start(self, session: Session, code: str) -> str:
        """Submit code that first prints `started`, and wait for that output."""
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def listen(output: OutputPart) -> None:
            if isinstance(output, StreamText) and "started" in output.text:
                loop.call_soon_threadsafe(started.set)

        result_id = await session.asubmit(f"{self.say('started')}\n{code}", on_output=listen)
        async with asyncio.timeout(self.patience):
            await started.wait()
        return result_id

    # --- the contract -------------------------------------------------------------------------

    async def test_code_prints_to_both_streams(self, session: Session) -> None:
        result = await self.run(session, f"{self.say('out')}\n{self.say_error('err')}")
        assert result.ok
        assert result.stdout == "out\n"
        assert result.stderr == "err\n"
        assert result.error is None
        assert result.duration > 0

    async def test_variables_last_from_one_execution_to_the_next(self, session: Session) -> None:
        await self.run(session, self.remember("kept", "for later"))
        assert (await self.run(session, self.recall("kept"))).stdout.strip() == "for later"

    async def test_an_error_is_told_and_the_session_goes_on(self, session: Session) -> None:
        await self.run(session, self.remember("kept", "x"))
        result = await self.run(session, self.fail())
        assert result.status == "error"
        assert result.error is not None
        assert "\x1b" not in result.text
        assert (await self.run(session, self.recall("kept"))).stdout.strip() == "x"

    async def test_output_is_streamed_while_the_code_runs(self, session: Session) -> None:
        result_id = await self.start(session, self.sleep(600))
        result = await session.aresult(result_id)
        assert result.status == "running"
        assert "started" in result.text
        await session.ainterrupt()

    @pytest.mark.parametrize("kind", ["sleep", "spin"])
    async def test_an_interrupt_ends_what_runs_and_keeps_the_state(
        self, session: Session, kind: str
    ) -> None:
        await self.run(session, self.remember("kept", "still here"))
        code = self.sleep(600) if kind == "sleep" else self.spin()
        result_id = await self.start(session, code)
        assert await session.ainterrupt()
        result = await session.aresult(result_id, wait=self.patience)
        assert result.status == "interrupted"
        assert (await self.run(session, self.recall("kept"))).stdout.strip() == "still here"

    async def test_a_timeout_ends_what_runs_and_keeps_what_was_printed(
        self, session: Session
    ) -> None:
        code = f"{self.say('before')}\n{self.sleep(600)}"
        async with asyncio.timeout(self.patience):
            result = await session.aexec(code, timeout=4.0)
        assert result.status == "timeout"
        assert "before" in result.stdout

    async def test_what_does_not_heed_an_interrupt_is_killed(self, session: Session) -> None:
        result_id = await self.start(session, self.deaf())
        async with asyncio.timeout(self.patience):
            assert await session.ainterrupt()
            result = await session.aresult(result_id, wait=self.patience)
        assert result.status == "interrupted"
        assert (await self.run(session, self.say("alive"))).stdout == "alive\n"

    async def test_long_output_is_shortened_and_can_be_read_whole(self, session: Session) -> None:
        result = await self.run(session, self.count(20_000))
        whole = "".join(f"line {n}\n" for n in range(20_000))
        assert len(result.text) < 25_000
        assert f"read_output(result_id={result.result_id!r}" in result.text
        read = ""
        while piece := await session.aread_output(
            result.result_id, offset=len(read), length=65_536
        ):
            read += piece
        assert read == whole

    async def test_executions_of_many_clients_take_turns(self, session: Session) -> None:
        codes = [self.say(f"number {n}") for n in range(12)]
        async with asyncio.timeout(self.patience):
            results = await asyncio.gather(*(session.aexec(code) for code in codes))
        assert [result.stdout for result in results] == [f"number {n}\n" for n in range(12)]
        assert len({result.result_id for result in results}) == 12

    async def test_a_restart_forgets_variables_and_keeps_files(self, session: Session) -> None:
        await self.run(session, self.remember("gone", "x"))
        await self.run(session, self.write("kept.txt", "still here"))
        async with asyncio.timeout(self.patience):
            await session.arestart()
        assert (await self.run(session, self.recall("gone"))).stdout.strip() == ""
        assert (await self.run(session, self.read("kept.txt"))).stdout.strip() == "still here"

    async def test_a_restart_ends_what_runs(self, session: Session) -> None:
        result_id = await self.start(session, self.sleep(600))
        async with asyncio.timeout(self.patience):
            await session.arestart()
            result = await session.aresult(result_id, wait=self.patience)
        assert result.status == "interrupted"
        assert (await self.run(session, self.say("alive"))).ok

    async def test_libraries_can_be_imported(self, session: Session) -> None:
        assert (await self.run(session, self.use_library())).stdout == "42\n"

    async def test_skills_and_files_lie_in_the_workspace(self, session: Session) -> None:
        skill = await session.aread_file(".claude/skills/be-kind/SKILL.md")
        assert b"Be kind." in skill
        await session.awrite_file("data/in.txt", b"handed over")
        assert (await self.run(session, self.read("data/in.txt"))).stdout.strip() == "handed over"
        with pytest.raises(RemoteFileError):
            await session.aread_file("no-such-file")

    async def test_the_agent_is_told_what_there_is(self, session: Session) -> None:
        text = session.model_info_text
        assert "def double(n: int) -> int:" in text
        assert "be-kind" in text

    async def test_two_sessions_share_nothing(self, session: Session, tmp_path: Path) -> None:
        folder = tmp_path / "second"
        folder.mkdir()
        async with await self.open(self.workspace(), folder) as other:
            await self.run(session, self.remember("mine", "x"))
            assert (await self.run(other, self.recall("mine"))).stdout.strip() == ""
            assert session.session_id != other.session_id
            assert {session, other} <= set(open_sessions())
        assert other not in open_sessions()

    async def test_closing_ends_what_runs(self, tmp_path: Path) -> None:
        session = await self.open(self.workspace(), tmp_path)
        await self.start(session, self.sleep(600))
        async with asyncio.timeout(self.patience):
            await session.aclose()
            await session.aclose()
        with pytest.raises(SandboxStateError):
            await session.aexec(self.say("x"))
