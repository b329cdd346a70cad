"""The behaviour of every session, tested with a session that runs no code.

It implements a session without a kernel, so it needs the internal base classes.
"""

import asyncio
import errno
import os
from html import escape
from pathlib import Path, PurePath
from typing import Any, ClassVar

import pytest

from seer._sync import background_loop, on_loop
from seer.errors import ConfigError, SandboxStateError
from seer.execution import Session, create_local_session, create_notebook_session, open_sessions
from seer.execution import _turns as turns_module
from seer.execution._folders import PrivateFolder
from seer.execution._machine import MachineSource, PreparedMachine
from seer.execution._prepare import SessionParts
from seer.execution._result import Status
from seer.execution._session import SessionKind
from seer.execution._turns import Execution
from seer.workspace import Workspace


class NoMachineSource(MachineSource):
    """A place without a machine."""

    @property
    def workspace_dir(self) -> PurePath:
        return PurePath("/nowhere")

    async def _prepare(self) -> PreparedMachine:
        raise AssertionError("nothing here needs a machine")

    async def _release(self, prepared: PreparedMachine) -> None:
        raise AssertionError("nothing here has a machine")


class EventSession(Session):
    """Runs `wait` (until interrupted), `stubborn` (until killed), `boom`, and prints the rest."""

    kind: ClassVar[SessionKind] = "local"

    def __init__(self) -> None:
        private = PrivateFolder("test")
        machines = NoMachineSource(Workspace(), session_id=private.name, name="events")
        super().__init__(
            SessionParts(name="events", workspace=Workspace(), machines=machines, private=private)
        )
        self.started: list[str] = []
        self._starts = asyncio.Condition()
        self.interrupts = 0
        self.fresh = 0
        self._told = asyncio.Event()
        self._dead = asyncio.Event()
        self._opened()

    async def _run(self, execution: Execution) -> Status:
        async with self._starts:
            self.started.append(execution.code)
            self._starts.notify_all()
        if execution.code == "boom":
            raise RuntimeError("the machinery broke")
        if execution.code in ("wait", "stubborn"):
            event = self._told if execution.code == "wait" else self._dead
            await event.wait()
            event.clear()
            return "error" if execution.code == "wait" else "died"
        execution.capture.stream("stdout", execution.code)
        return "ok"

    async def _send_interrupt(self, execution: Execution) -> None:
        self.interrupts += 1
        self._told.set()

    async def _kill(self, execution: Execution) -> None:
        self._dead.set()
        self._told.set()

    async def _begin_afresh(self) -> None:
        self.fresh += 1

    async def _shut_down(self) -> None:
        self._dead.set()
        self._told.set()

    async def wait_for_start(self, code: str) -> None:
        async with self._starts, asyncio.timeout(30):
            await self._starts.wait_for(lambda: code in self.started)

    def _describe(self) -> str:
        return "# Events"


async def make() -> EventSession:
    async def build() -> EventSession:
        return EventSession()

    return await on_loop(build())


async def running(session: EventSession, code: str) -> None:
    """Wait until `code` has started."""
    await on_loop(session.wait_for_start(code))


async def test_code_runs_and_its_result_can_be_had_again() -> None:
    async with await make() as session:
        result = await session.aexec("hello")
        assert result.ok
        assert result.stdout == "hello"
        assert (await session.aresult(result.result_id)).stdout == "hello"
        assert await session.aread_output(result.result_id, offset=1, length=3) == "ell"
        assert await session.aresult_ids() == [result.result_id]


async def test_blocking_and_awaited_calls_mix() -> None:
    session = await make()
    result = await asyncio.to_thread(session.exec, "one")
    assert result.stdout == "one"
    assert (await session.aexec("two")).stdout == "two"
    await asyncio.to_thread(session.close)


async def test_executions_take_turns_in_order() -> None:
    async with await make() as session:
        first = await session.asubmit("wait")
        others = [await session.asubmit(code) for code in "abc"]
        await running(session, "wait")
        assert (await session.aresult(others[0])).status == "queued"
        assert await session.ainterrupt()
        results = [await session.aresult(other, wait=60) for other in others]
        assert [result.stdout for result in results] == ["a", "b", "c"]
        assert (await session.aresult(first)).status == "interrupted"
        assert session.started == ["wait", "a", "b", "c"]


async def test_an_execution_that_is_interrupted_before_its_turn_never_runs() -> None:
    async with await make() as session:
        await session.asubmit("wait")
        second = await session.asubmit("never")
        await running(session, "wait")
        assert await session.ainterrupt(second)
        await session.ainterrupt()
        assert (await session.aresult(second, wait=60)).status == "interrupted"
        assert session.started == ["wait"]


async def test_interrupting_nothing_says_so() -> None:
    async with await make() as session:
        assert not await session.ainterrupt()
        result = await session.aexec("x")
        assert not await session.ainterrupt(result.result_id)


async def test_a_timeout_interrupts_and_is_called_so() -> None:
    async with await make() as session:
        result = await session.aexec("wait", timeout=0.02)
        assert result.status == "timeout"
        assert "interrupted after 0.02 s" in result.text


async def test_what_ignores_interrupts_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "INTERRUPT_EVERY", 0.02)
    monkeypatch.setattr(turns_module, "GRACE", 0.1)
    async with await make() as session:
        result = await session.aexec("stubborn", timeout=0.02)
        assert result.status == "timeout"
        assert session.interrupts == 5
        assert any("was killed" in note for note in result.notes)
        assert (await session.aexec("next")).ok


async def test_cancelling_an_awaited_call_interrupts_the_code() -> None:
    async with await make() as session:
        call = asyncio.create_task(session.aexec("wait"))
        await running(session, "wait")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await session.aexec("next")).ok
        assert session.interrupts >= 1


async def test_a_failure_of_the_machinery_is_a_result_and_not_a_hang(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with await make() as session:
        result = await session.aexec("boom")
        assert result.status == "died"
        assert "the machinery broke" in result.text
        assert "execution e1 failed" in caplog.text
        assert (await session.aexec("next")).ok


async def test_restart_ends_what_runs_and_begins_afresh() -> None:
    async with await make() as session:
        running_id = await session.asubmit("wait")
        await running(session, "wait")
        await session.arestart()
        assert session.fresh == 1
        assert (await session.aresult(running_id, wait=60)).status == "interrupted"


async def test_closing_ends_everything_and_can_be_repeated() -> None:
    session = await make()
    assert session in open_sessions()
    folder = session._private.path  # pyright: ignore[reportPrivateUsage]
    result_id = await session.asubmit("wait")
    await running(session, "wait")
    await session.aclose()
    await session.aclose()
    assert session not in open_sessions()
    assert not folder.exists()
    assert (await session.aresult(result_id)).status == "interrupted"
    with pytest.raises(SandboxStateError, match="is closed"):
        await session.aexec("x")
    with pytest.raises(SandboxStateError, match="is closed"):
        await session.arestart()


async def test_sessions_are_listed_while_others_open_and_close() -> None:
    class Opening(EventSession):
        """While it is looked at, another session opens and closes, as on another thread."""

        others: ClassVar[list[EventSession]] = []

        @property
        def is_orphaned(self) -> bool:
            self.others.append(EventSession())
            return False

    async def build() -> list[EventSession]:
        return [Opening(), EventSession()]

    made = await on_loop(build())
    try:
        assert set(made) <= set(open_sessions())
    finally:
        for session in (*made, *Opening.others):
            await session.aclose()


async def test_only_the_latest_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "KEPT", 3)
    async with await make() as session:
        for number in range(6):
            await session.aexec(str(number))
        kept = await session.aresult_ids()
        assert kept[-1] == "e6"
        assert len(kept) <= 4
        with pytest.raises(LookupError, match="no result 'e1'.*e6"):
            await session.aresult("e1")


async def test_bad_ranges_are_refused() -> None:
    async with await make() as session:
        result = await session.aexec("x")
        for offset, length in ((-1, 5), (0, 0), (0, 1 << 40)):
            with pytest.raises(ValueError, match="offset="):
                await session.aread_output(result.result_id, offset=offset, length=length)


async def test_the_session_describes_itself() -> None:
    async with await make() as session:
        assert session.model_info_text == "# Events\n"
        assert session.name == "events"
        assert session.session_id.startswith("test-")
        assert repr(session) == f"<EventSession 'events' ({session.session_id})>"
        html: str = session._repr_html_()  # pyright: ignore[reportPrivateUsage]
        assert html == f"<code>{escape(repr(session))}</code>"
        assert asyncio.get_running_loop() is not background_loop()


async def test_large_results_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "KEPT_DISK", 100_000)
    async with await make() as session:
        first = await session.aexec("x" * 60_000)
        folder = session._private.outputs  # pyright: ignore[reportPrivateUsage]
        assert len(list(folder.iterdir())) == 1
        await session.aexec("y" * 60_000)
        await session.aexec("z")
        with pytest.raises(LookupError):
            await session.aresult(first.result_id)
        assert len(list(folder.iterdir())) == 1


async def test_more_than_a_queue_of_executions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "WAITING", 3)
    async with await make() as session:
        for _ in range(3):
            await session.asubmit("wait")
        with pytest.raises(SandboxStateError, match="waiting already"):
            await session.asubmit("wait")


async def test_a_session_that_is_abandoned_leaves_no_files() -> None:
    session = await make()
    session.abandon()
    assert not session._private.path.exists()  # pyright: ignore[reportPrivateUsage]
    await session.aclose()


async def test_code_that_is_no_text_is_refused_before_it_runs() -> None:
    async with await make() as session:
        with pytest.raises(ValueError, match="lone surrogate .* at position 5"):
            await session.aexec("print\ud800")
        assert await session.aresult_ids() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", 3), ("workspace", "w"), ("workspace_dir", 3), ("packages", "numpy")],
)
def test_options_of_a_wrong_type_are_refused_before_anything_is_made(
    field: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=f"^{field}={value!r}: must be "):
        create_local_session(**options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_created_is_named_with_the_remedy(
    code: int,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = Path.mkdir

    # Root may write to any folder, so a real one would not do.
    def refuse(self: Path, *arguments: Any, **options: Any) -> None:
        if self.is_relative_to(tmp_path):
            raise OSError(code, os.strerror(code), str(self))
        make(self, *arguments, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match="run the program in another folder") as caught:
        create_local_session(name="x")
    assert str(caught.value.value).startswith(f"{tmp_path}/workspace/x-")
    with pytest.raises(ConfigError, match="choose another workspace_dir$") as caught:
        create_local_session(workspace_dir="mine")
    assert caught.value.value == f"{tmp_path}/mine"
    elsewhere = tmp_path_factory.mktemp("work")
    with pytest.raises(ConfigError, match="^notebook_dir=.*run the program in another folder"):
        create_notebook_session(workspace_dir=elsewhere)
