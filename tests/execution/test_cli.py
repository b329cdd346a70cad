"""CLI sessions beyond the contract: jobs, terminals, and commands of any form."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from seer.errors import SandboxLostError, SandboxStateError
from seer.execution import CliSession, ExecutionResult, acreate_cli_session, create_cli_session
from tests.waiting import await_until

pytestmark = pytest.mark.full


@pytest.fixture
async def session(tmp_path: Path) -> AsyncGenerator[CliSession]:
    async with await acreate_cli_session(workspace_dir=tmp_path / "work") as opened:
        yield opened


async def run(session: CliSession, command: str) -> ExecutionResult:
    async with asyncio.timeout(60):
        return await session.aexec(command)


def test_it_works_from_plain_blocking_code(tmp_path: Path) -> None:
    with create_cli_session(workspace_dir=tmp_path / "work") as session:
        assert session.exec("echo $((6 * 7))").stdout == "42\n"


async def test_exit_codes_are_values(session: CliSession) -> None:
    result = await run(session, "exit 3")
    assert (result.status, result.exit_code) == ("error", 3)
    assert result.error is not None
    assert result.error.message == "exit code 3"
    killed = await run(session, "kill -9 $$")
    assert killed.exit_code == -9


async def test_folder_and_environment_last(session: CliSession) -> None:
    await run(session, "mkdir -p sub; cd sub; export COLOUR=blue")
    result = await run(session, "basename $PWD; bash -c 'echo $COLOUR'")
    assert result.stdout == "sub\nblue\n"


async def test_a_command_longer_than_an_argument_may_be_runs(session: CliSession) -> None:
    text = "x" * 300_000
    assert (await run(session, f"echo {text} | wc -c")).stdout.strip() == "300001"


async def test_long_commands_that_run_at_the_same_time_do_not_replace_each_other(
    session: CliSession,
) -> None:
    names = "abcdef"
    jobs = [await session.astart_job(f"echo {name} # " + "x" * 200_000) for name in names]
    async with asyncio.timeout(60):
        results = [await session.aresult(job, wait=None) for job in jobs]
    assert [result.stdout for result in results] == [f"{name}\n" for name in names]


async def test_a_command_with_a_null_character_is_refused(session: CliSession) -> None:
    result = await run(session, "echo a\0b")
    assert result.status == "error"
    assert "NUL" in result.text


async def test_bytes_that_are_no_text_arrive_as_marks(session: CliSession) -> None:
    result = await run(session, r"printf 'a\xffb'; printf '\xc3'; printf '\xa4'")
    assert result.stdout == "a\ufffdbä"


async def test_a_job_runs_beside_other_commands(session: CliSession) -> None:
    await run(session, "greeting=hello; mkfifo gate")
    job = await session.astart_job("read line < gate; echo $greeting $line; greeting=changed")
    assert (await run(session, "echo foreground")).stdout == "foreground\n"
    assert [found.status for found in await session.ajobs()] == ["running"]
    await run(session, "echo go > gate")
    result = await session.aresult(job, wait=30)
    assert (result.status, result.stdout) == ("ok", "hello go\n")
    assert (await run(session, "echo $greeting")).stdout == "hello\n"


async def test_a_job_can_be_stopped(session: CliSession) -> None:
    job = await session.astart_job("sleep 600")
    async with asyncio.timeout(30):
        while (await session.aresult(job, wait=0.05)).status == "queued":
            continue
    assert await session.ainterrupt(job)
    assert (await session.aresult(job)).status == "interrupted"


async def test_what_was_left_in_the_background_lives_on(session: CliSession) -> None:
    result = await run(session, "mkfifo gate; (read x < gate; echo got $x > answer) & echo started")
    assert result.stdout == "started\n"
    await run(session, "echo it > gate")
    async with asyncio.timeout(30):
        while not (await run(session, "cat answer 2>/dev/null")).stdout:
            continue
    assert await session.aread_file("answer") == b"got it\n"


async def test_an_interactive_program_can_be_used(session: CliSession) -> None:
    terminal = await session.aopen_terminal("python3 -q", rows=30, columns=100)
    await terminal.awrite("6 * 7\r")
    shown = ""
    async with asyncio.timeout(30):
        while "42" not in shown:
            shown += await terminal.aread()
    await terminal.aresize(40, 120)
    await terminal.awrite("import os; print(os.get_terminal_size(0))\r")
    async with asyncio.timeout(30):
        while "columns=120" not in shown:
            shown += await terminal.aread()
    assert session.terminal(terminal.terminal_id) is terminal
    await terminal.awrite("exit(5)\r")
    async with asyncio.timeout(30):
        while terminal.exit_code is None:
            shown += await terminal.aread()
    assert terminal.exit_code == 5
    with pytest.raises(SandboxStateError, match="has ended"):
        await terminal.awrite("x")
    await terminal.aclose()
    with pytest.raises(LookupError, match="no terminal"):
        session.terminal(terminal.terminal_id)


async def test_a_terminal_is_a_terminal_and_its_size_is_checked(session: CliSession) -> None:
    terminal = await session.aopen_terminal("test -t 0 && test -t 1 && echo yes-a-tty; sleep 600")
    shown = ""
    async with asyncio.timeout(30):
        while "yes-a-tty" not in shown:
            shown += await terminal.aread()
    with pytest.raises(ValueError, match="rows=0"):
        await terminal.aresize(0, 10)
    await session.arestart()
    assert terminal.exit_code is not None


async def test_state_is_gone_after_a_restart_but_commands_go_on(session: CliSession) -> None:
    await run(session, "cd /; a=1")
    await session.arestart()
    assert (await run(session, 'echo "[$a]"; basename $PWD')).stdout == "[]\nworkspace\n"


async def test_a_session_whose_machine_is_gone_can_be_interrupted_and_closed(
    session: CliSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await session.astart_job("sleep 600")
    process = session._processes  # pyright: ignore[reportPrivateUsage]
    await await_until(lambda: job in process, "the job runs")

    async def gone(*_: object) -> None:
        raise SandboxLostError("the machine is gone")

    for name in ("signal", "kill"):
        monkeypatch.setattr(process[job], name, gone)
    monkeypatch.setattr("seer.execution._turns.INTERRUPT_EVERY", 0.1)
    monkeypatch.setattr("seer.execution._turns.GRACE", 0.1)
    assert await session.ainterrupt(job)
    await session.aclose()
