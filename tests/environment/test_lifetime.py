"""The life of a sandbox under concurrency, interruption, failure and forks.

It uses the background loop, to interrupt a start at chosen moments.
"""

import asyncio
import atexit
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seer import _sync
from seer.environment import Sandbox, SandboxConfig, ScopedSandbox
from seer.environment._start import start
from seer.errors import (
    EndingError,
    InterfaceDiedError,
    ProviderError,
    SandboxLostError,
    SandboxNotFoundError,
    SandboxPausedError,
    SandboxStateError,
)
from seer.execution import (
    acreate_local_session,
    create_cli_session,
    create_local_session,
    open_sessions,
)
from seer.providers import Machine, MachineSpec
from seer.providers.local import LocalProvider
from seer.workspace import Library, Workspace
from tests.waiting import await_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

PLAIN = SandboxConfig(gpu=None, provider="local", network="none")
INTERFACE = (
    "state = []\n\n@expose\ndef add(n: int) -> int:\n    state.append(n)\n    return len(state)\n"
)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A state folder for this test alone, so that leftovers can be attributed to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    assert Sandbox.list(provider="local") == []


@pytest.fixture
def interface(tmp_path: Path) -> Path:
    file = tmp_path / "tools.py"
    file.write_text(INTERFACE)
    return file


class _Held:
    """Holds every start after its machine has started, until the test releases it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.released = asyncio.Event()
        start = LocalProvider.start

        async def held(provider: LocalProvider, spec: Any) -> Machine:
            machine = await start(provider, spec)
            self.reached.set()
            try:
                await self.released.wait()
            except BaseException:
                await machine.terminate()
                raise
            return machine

        monkeypatch.setattr(LocalProvider, "start", held)

    def release(self) -> None:
        _sync.background_loop().call_soon_threadsafe(self.released.set)


def _in_thread(work: Any) -> tuple[threading.Thread, list[BaseException | None]]:
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


async def test_starts_at_once_give_one_machine() -> None:
    sandbox = Sandbox(PLAIN)
    outcomes = await asyncio.gather(*(sandbox.astart() for _ in range(4)), return_exceptions=True)
    try:
        assert len(Sandbox.list(provider="local")) == 1
        assert [o for o in outcomes if o is sandbox] == [sandbox]
        refused = [o for o in outcomes if o is not sandbox]
        assert all(isinstance(o, SandboxStateError) and "started" in str(o) for o in refused)
    finally:
        sandbox.terminate()


def test_terminating_stops_a_start_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    held = _Held(monkeypatch)
    sandbox = Sandbox(PLAIN)
    thread, outcome = _in_thread(sandbox.start)
    assert held.reached.wait(30)
    sandbox.terminate()
    assert Sandbox.list(provider="local") == []
    thread.join(30)
    assert isinstance(outcome[0], SandboxStateError) and "terminated" in str(outcome[0])
    with pytest.raises(SandboxStateError, match="has ended"):
        sandbox.start()


def test_an_interrupted_start_leaves_nothing_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = _Held(monkeypatch)
    sandbox = Sandbox(PLAIN)

    def interrupt() -> None:
        assert held.reached.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread, _ = _in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        sandbox.start()
    thread.join()
    assert Sandbox.list(provider="local") == []
    held.release()
    with sandbox.start():
        assert sandbox.exec("echo on") == "on\n"


async def test_a_cancelled_start_has_left_nothing_once_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = _Held(monkeypatch)
    starting = asyncio.create_task(Sandbox(PLAIN).astart())
    assert await asyncio.to_thread(held.reached.wait, 30)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert Sandbox.list(provider="local") == []


def test_a_start_that_is_cancelled_as_it_ends_leaves_nothing_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox(PLAIN)

    async def cancelled() -> None:
        async def cancel_at_the_end(*args: Any, **kwargs: Any) -> Any:
            started = await start(*args, **kwargs)
            # Runs after the machine has started, and before `astart` is resumed.
            asyncio.get_running_loop().call_soon(starting.cancel)
            return started

        with monkeypatch.context() as patch:
            patch.setattr("seer.environment._sandbox.start", cancel_at_the_end)
            starting = asyncio.create_task(sandbox.astart())
            with pytest.raises(asyncio.CancelledError):
                await starting

    _sync.run_sync(cancelled())
    assert Sandbox.list(provider="local") == []
    with sandbox.start():
        assert sandbox.exec("echo on") == "on\n"


def test_a_failed_terminate_can_be_repeated_and_every_step_is_tried(
    interface: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoped = ScopedSandbox(PLAIN).start()
    scoped.serve(interface)
    machine_id = scoped.sandbox_id
    monkeypatch.setattr("seer.environment.serving._served.Served.stop", _failing("interface"))
    with monkeypatch.context() as patch:
        patch.setattr(type(scoped.machine), "terminate", _failing("machine"))
        with pytest.raises(EndingError, match="interface.*machine") as caught:
            scoped.terminate()
        assert [str(error) for error in caught.value.exceptions] == ["interface", "machine"]
        with pytest.raises(EndingError, match="interface.*machine"):
            scoped.terminate()
    with pytest.raises(ProviderError, match="interface"):
        scoped.terminate()
    with pytest.raises(SandboxNotFoundError):
        ScopedSandbox.from_id(machine_id, provider="local")
    monkeypatch.undo()
    scoped.terminate()


def _failing(what: str) -> Any:
    async def fail(self: object) -> None:
        raise ProviderError(what)

    return fail


def test_an_interrupted_terminate_goes_on_and_can_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox(PLAIN).start()
    reached, goes_on = threading.Event(), asyncio.Event()
    terminate = type(sandbox.machine).terminate

    async def slow(machine: Any) -> None:
        reached.set()
        await goes_on.wait()
        await terminate(machine)

    monkeypatch.setattr(type(sandbox.machine), "terminate", slow)

    def interrupt() -> None:
        assert reached.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread, _ = _in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        sandbox.terminate()
    thread.join()
    assert len(Sandbox.list(provider="local")) == 1
    _sync.background_loop().call_soon_threadsafe(goes_on.set)
    sandbox.terminate()
    assert Sandbox.list(provider="local") == []


# --- forks ----------------------------------------------------------------------------------------


def _start_and_exec(word: str) -> str:
    with Sandbox(PLAIN) as sandbox:
        return str(sandbox.exec(f"echo {word}")).strip()


def test_a_fork_pool_works_after_its_parent_has_used_a_sandbox() -> None:
    with Sandbox(PLAIN) as sandbox:
        sandbox.exec("true")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(_start_and_exec, ["a", "b"]).get(60) == ["a", "b"]
        assert sandbox.exec("echo on") == "on\n"


def test_a_fork_can_neither_use_nor_end_what_its_parent_started(
    interface: Path, tmp_path: Path
) -> None:
    with ScopedSandbox(PLAIN) as sandbox:
        library, other = sandbox.serve(interface), tmp_path / "other"
        with create_local_session(Workspace(libraries=[library]), tmp_path / "work") as session:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    refused = 0
                    for use in (
                        lambda: sandbox.exec("true"),
                        sandbox.terminate,
                        lambda: session.exec("1"),
                        session.close,
                        lambda: create_local_session(Workspace(libraries=[library]), other),
                    ):
                        try:
                            use()
                        except SandboxStateError as error:
                            refused += "fork" in str(error)
                    with sandbox, session:
                        code = 0 if refused == 5 and not open_sessions() else 2
                finally:
                    # Run what a program runs when it exits normally.
                    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert session.exec("import tools; tools.add(1)").value == "1"
            assert sandbox.exec("echo on") == "on\n"


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_closes_with_the_last_sandbox_that_served_its_libraries(
    interface: Path, tmp_path: Path
) -> None:
    with ScopedSandbox(PLAIN) as one, ScopedSandbox(PLAIN) as other:
        first, second = one.serve(interface), other.serve(interface, name="more")
        local = Library.from_code("plain", "x = 1")
        made = [
            create_local_session(Workspace(libraries=libraries), tmp_path / str(number))
            for number, libraries in enumerate(([first], [first, second], [first, local], []))
        ]
        one.terminate()
        assert open_sessions() == made[1:]
        with pytest.raises(SandboxStateError, match="closed"):
            made[0].exec("1")
        assert made[1].exec("import more; more.add(1)").value == "1"
        other.terminate()
        assert open_sessions() == made[2:]
        for session in made:
            session.close()


@pytest.mark.parametrize(
    ("what", "error", "how"),
    [
        ("sandbox", SandboxLostError, "terminated"),
        ("interface", InterfaceDiedError, "its supervisor ended with exit code 0"),
    ],
)
def test_a_session_whose_interface_ends_while_it_opens_says_how_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, error: type[Exception], how: str
) -> None:
    file = tmp_path / "tools.py"
    file.write_text(
        "import os, signal\n\n@expose\ndef end() -> None:\n"
        "    os.kill(os.getppid(), signal.SIGTERM)\n"
    )
    begin = LocalProvider.start
    with ScopedSandbox(PLAIN) as scoped:
        library = scoped.serve(file)

        def end_interface() -> None:
            tools: Any = library.connect()
            with contextlib.suppress(ConnectionError):
                tools.end()

        async def too_late(provider: LocalProvider, spec: MachineSpec) -> Machine:
            (socket,) = spec.gates.values()
            await (scoped.aterminate() if what == "sandbox" else asyncio.to_thread(end_interface))
            await await_until(lambda: not socket.exists(), "the end of the socket")
            return await begin(provider, spec)

        monkeypatch.setattr(LocalProvider, "start", too_late)
        with pytest.raises(error, match=how):
            create_local_session(Workspace(libraries=[library]), tmp_path / "work")
        assert open_sessions() == []


@pytest.mark.parametrize("paused", [False, True])
def test_a_session_in_a_sandbox_closes_with_it(interface: Path, paused: bool) -> None:
    with ScopedSandbox(PLAIN) as scoped, Sandbox(PLAIN) as sandbox:
        library = scoped.serve(interface)
        session = create_cli_session(sandbox, Workspace(libraries=[library]))
        session.exec("true")
        config = scoped.serve(interface, "mcp")
        assert config["tools"]["type"] == "stdio"
        if paused:
            sandbox.pause()
        sandbox.terminate()
        assert open_sessions() == []
        with pytest.raises(SandboxStateError, match="closed"):
            session.exec("true")
        session.close()
        if paused:
            scoped.pause()


async def test_a_session_does_not_count_once_the_loop_it_was_made_in_is_closed(
    tmp_path: Path,
) -> None:
    def main() -> Any:
        async def make() -> Any:
            return await acreate_local_session(workspace_dir=tmp_path / "work")

        return asyncio.run(make())

    session = await asyncio.to_thread(main)
    try:
        assert session not in open_sessions()
        with create_local_session(workspace_dir=tmp_path / "other") as other:
            assert open_sessions() == [other]
    finally:
        await session.aclose()


def test_a_failed_close_of_a_session_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = create_local_session(workspace_dir=tmp_path / "work")
    machine = type(_machine_of(session))
    with monkeypatch.context() as patch:
        patch.setattr(machine, "terminate", _failing("not now"))
        with pytest.raises(ProviderError, match="not now"):
            session.close()
    session.close()


def _machine_of(session: Any) -> Machine:
    return session._machines._prepared.machine


# --- pause ----------------------------------------------------------------------------------------


def test_a_paused_sandbox_refuses_commands_holds_calls_and_goes_on(interface: Path) -> None:
    with ScopedSandbox(PLAIN) as scoped:
        tools: Any = scoped.serve(interface).connect()
        assert tools.add(1) == 1
        scoped.pause()
        assert scoped.paused and Sandbox.list(provider="local")[0].paused
        with pytest.raises(SandboxPausedError, match="resume"):
            scoped.exec("true")
        answers: list[int] = []
        thread, outcome = _in_thread(lambda: answers.append(tools.add(2)))
        thread.join(0.5)
        assert thread.is_alive(), "a paused sandbox has answered"
        scoped.resume()
        thread.join(30)
        assert (answers, outcome) == ([2], [None])
        assert not scoped.paused
        scoped.pause()


def test_a_paused_sandbox_that_is_taken_over_goes_on(interface: Path) -> None:
    scoped = ScopedSandbox(PLAIN).start()
    scoped.serve(interface)
    sandbox_id = scoped.detach()
    scoped.pause()
    taken = ScopedSandbox.from_id(sandbox_id, provider="local")
    try:
        tools: Any = taken.present("tools").connect()
        assert tools.add(5) == 1
    finally:
        taken.terminate()


async def pressed_then_waiting(said: list[str]) -> None:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0)
        said.append("ended")


async def note(said: list[str], word: str) -> None:
    await asyncio.sleep(0)
    said.append(word)


async def by_blocking(said: list[str]) -> None:
    _sync.run_sync(note(said, "cleaned up"))


async def by_awaiting(said: list[str]) -> None:
    await _sync.on_loop(note(said, "cleaned up"))


@pytest.mark.timeout(60)  # instead of the 600 seconds that the coroutine sleeps
@pytest.mark.parametrize("clean_up", [by_blocking, by_awaiting])
def test_an_interrupt_ends_a_blocking_call_inside_a_task(
    clean_up: Callable[[list[str]], Awaitable[None]],
) -> None:
    said: list[str] = []

    async def main() -> None:
        try:
            _sync.run_sync(pressed_then_waiting(said))
        finally:
            await clean_up(said)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert said == ["ended", "cleaned up"]


def test_a_blocking_call_inside_a_task_raises_what_its_coroutine_raises() -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    async def main() -> None:
        _sync.run_sync(fail())

    with pytest.raises(TimeoutError, match="its own"):
        asyncio.run(main())
