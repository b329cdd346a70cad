"""Notebook sessions: a real notebook on the host, and a person beside the agent."""

import asyncio
import base64
import json
import stat
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import psutil
import pytest

from seer.execution import (
    CellInfo,
    ExecutionResult,
    NotebookSession,
    acreate_notebook_session,
    create_notebook_session,
)
from tests.execution.person import Person
from tests.waiting import await_until

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupyter_server_ydoc")
pytestmark = pytest.mark.full


@pytest.fixture
async def session(tmp_path: Path) -> AsyncGenerator[NotebookSession]:
    async with await acreate_notebook_session(
        name="my notebook", notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Generator[NotebookSession]:
    """One with its server running, for tests that leave it in order."""
    folder = tmp_path_factory.mktemp("visited")
    with create_notebook_session(
        name="my notebook", notebook_dir=folder / "out", workspace_dir=folder / "work"
    ) as opened:
        yield opened


@pytest.fixture
async def person(visited: NotebookSession) -> Person:
    return Person(await visited.ajupyter_url())


async def run(session: NotebookSession, code: str) -> ExecutionResult:
    async with asyncio.timeout(60):
        return await session.aexec(code)


def saved(session: NotebookSession) -> list[dict[str, object]]:
    notebook = json.loads(session.notebook_path.read_text())
    nbformat.validate(notebook)
    return notebook["cells"]


async def until_saved(session: NotebookSession, source: str) -> None:
    await await_until(
        lambda: source in [_source(cell) for cell in saved(session)], f"a saved cell {source!r}"
    )


def _source(cell: dict[str, object]) -> str:
    return CellInfo.from_cell(cell).source


async def test_each_execution_becomes_a_saved_cell(
    session: NotebookSession, tmp_path: Path
) -> None:
    assert session.notebook_path == tmp_path / "out" / "my-notebook.ipynb"
    first = await run(session, "x = 20; print('hello')")
    await run(session, "x + 1")
    await run(session, "1 / 0")
    cells = saved(session)
    assert [cell["source"] for cell in cells] == ["x = 20; print('hello')", "x + 1", "1 / 0"]
    assert first.extra["cell_id"] == cells[0]["id"]
    assert [cell["execution_count"] for cell in cells] == [1, 2, 3]
    found = [CellInfo.from_cell(cell) for cell in cells]
    kinds = [[output["output_type"] for output in cell.outputs] for cell in found]
    assert kinds == [["stream"], ["execute_result"], ["error"]]


async def test_images_and_tables_are_in_the_saved_notebook(session: NotebookSession) -> None:
    await run(session, "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    await run(session, "import pandas; pandas.DataFrame({'a': [1]})")
    plot, frame = (CellInfo.from_cell(cell).outputs for cell in saved(session))
    assert base64.b64decode(plot[0]["data"]["image/png"]).startswith(b"\x89PNG")
    assert "<table" in "".join(frame[0]["data"]["text/html"])


async def test_cells_can_be_added_run_edited_moved_and_deleted(session: NotebookSession) -> None:
    cell = await session.aadd_cell("print(1)")
    title = await session.aadd_cell("# Title", markdown=True, index=0)
    assert (await session.arun_cell(cell)).stdout == "1\n"
    await session.aedit_cell(cell, "print(2)")
    assert (await session.arun_cell(cell)).stdout == "2\n"
    await session.amove_cell(cell, 0)
    found = await session.acells()
    assert [(info.cell_id, info.kind) for info in found] == [(cell, "code"), (title, "markdown")]
    assert found[0].output_text == "2\n"
    await session.adelete_cell(title)
    assert len(await session.acells()) == 1
    with pytest.raises(ValueError, match="is text"):
        await session.arun_cell(await session.aadd_cell("text", markdown=True))
    with pytest.raises(LookupError, match="no cell 'nope'"):
        await session.arun_cell("nope")


async def test_a_cell_deleted_while_it_runs_is_told(session: NotebookSession) -> None:
    cell = await session.aadd_cell("import time; print('on', flush=True); time.sleep(600)")
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    result_id = await session.asubmit_cell(
        cell, on_output=lambda _: loop.call_soon_threadsafe(started.set)
    )
    async with asyncio.timeout(30):
        await started.wait()
    await session.adelete_cell(cell)
    await session.ainterrupt()
    result = await session.aresult(result_id, wait=30)
    assert any("deleted while it ran" in note for note in result.notes)


async def test_a_person_sees_the_agents_cells_and_neither_loses_any(
    visited: NotebookSession, person: Person
) -> None:
    await run(visited, "a = 1")
    async with await person.open_document() as document:
        await document.wait_for("a = 1")
        await document.add_cell("print('a person wrote this')")
        await run(visited, "b = 2")
        await document.wait_for("b = 2")
        assert set(document.sources()) >= {"a = 1", "print('a person wrote this')", "b = 2"}
    (cell,) = [info for info in await visited.acells() if "person" in info.source]
    assert (await visited.arun_cell(cell.cell_id)).stdout == "a person wrote this\n"
    await until_saved(visited, "print('a person wrote this')")


async def test_a_person_and_the_agent_share_one_kernel(
    visited: NotebookSession, person: Person
) -> None:
    await run(visited, "shared = 'from the agent'")
    kernel = await person.attach_kernel()
    async with asyncio.timeout(60):
        assert await person.execute(kernel, "print(shared); mine = 7") == "from the agent\n"
    assert (await run(visited, "mine")).value == "7"


async def test_a_person_can_interrupt_and_restart(visited: NotebookSession, person: Person) -> None:
    kernel = await person.attach_kernel()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(
        visited.aexec(
            "import time; print('on', flush=True); time.sleep(600)",
            on_output=lambda _: loop.call_soon_threadsafe(started.set),
        )
    )
    async with asyncio.timeout(60):
        await started.wait()
        await person.ask("POST", f"/api/kernels/{kernel}/interrupt")
        result = await running
    assert result.error is not None
    assert result.error.name == "KeyboardInterrupt"
    await run(visited, "gone = 1")
    await person.ask("POST", f"/api/kernels/{kernel}/restart")
    async with asyncio.timeout(60):
        while (await run(visited, "print('gone' in globals())")).stdout != "False\n":
            continue
        assert await person.execute(kernel, "print('again')") == "again\n"


async def test_the_server_offers_nothing_beyond_the_notebook(
    visited: NotebookSession, person: Person
) -> None:
    (visited.notebook_path.parents[1] / "secret.txt").write_text("x")
    for method, path in [
        ("GET", "/api/terminals"),
        ("POST", "/api/terminals"),
        ("GET", f"/nbconvert/html/{person.notebook}"),
        ("POST", "/api/shutdown"),
        ("GET", "/api/contents/../secret.txt"),
        ("GET", "/files/../secret.txt"),
    ]:
        status, _ = await person.ask(method, path)
        assert status >= 400, (method, path, status)
    wanted = {"cmd": "install", "extension_name": "jupyterlab-vim"}
    status, _ = await person.ask("POST", "/lab/api/extensions", wanted)
    assert status >= 400
    _, specs = await person.ask("GET", "/api/kernelspecs")
    assert list(specs["kernelspecs"]) == ["seer"]
    status, _ = await person.ask("GET", "/api/contents", token="wrong")
    assert status == 403


async def test_the_agents_code_cannot_reach_the_server(
    visited: NotebookSession, person: Person
) -> None:
    port = person.base.rpartition(":")[2]
    code = (
        "import socket\n"
        "try:\n"
        f"    socket.create_connection(('127.0.0.1', {port}), 3)\n"
        "    print('reached')\n"
        "except OSError as error:\n"
        "    print('refused')"
    )
    assert (await run(visited, code)).stdout == "refused\n"
    search = f"import subprocess; print(subprocess.run('grep -rl {person.token} /proc/*/environ /run /tmp . 2>/dev/null', shell=True, capture_output=True, text=True).stdout)"  # noqa: E501
    found = (await run(visited, search)).stdout.split()
    assert [path for path in found if not path.startswith("/proc/")] == []


async def test_closing_saves_everything_and_leaves_a_private_file(tmp_path: Path) -> None:
    session = await acreate_notebook_session(
        notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    )
    await session.ajupyter_url()
    await run(session, "last = 1")
    await session.aclose()
    assert [_source(cell) for cell in saved(session)] == ["last = 1"]
    assert stat.S_ISREG(session.notebook_path.stat().st_mode)


async def test_work_goes_on_when_the_server_is_killed(session: NotebookSession) -> None:
    await session.ajupyter_url()
    await run(session, "before = 1")
    await until_saved(session, "before = 1")
    server = session._store.server  # pyright: ignore[reportPrivateUsage]
    assert server is not None
    process = server._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    process.kill()
    assert (await run(session, "after = before + 1; after")).value == "2"
    assert [_source(cell) for cell in saved(session)][-1] == "after = before + 1; after"


async def test_the_server_ends_with_its_controller(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from seer.execution import create_notebook_session\n"
        "session = create_notebook_session(notebook_dir=sys.argv[1], workspace_dir=sys.argv[2])\n"
        "session.exec('kept = 1')\n"
        "session.jupyter_url\n"
        "session.exec('last = 2')\n"
        "print(session._store.server._process.pid, session.notebook_path, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        tmp_path / "out",
        tmp_path / "work",
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    server, path = printed.decode().split()
    await await_until(lambda: not psutil.pid_exists(int(server)), "the end of the server")
    text = await asyncio.to_thread(Path(path).read_text)
    cells = json.loads(text)["cells"]
    assert [CellInfo.from_cell(cell).source for cell in cells] == ["kept = 1", "last = 2"]
