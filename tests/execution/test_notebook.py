"""Notebook sessions: a real notebook on the host, which a person and the agent share."""

import asyncio
import base64
import json
import os
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from seer._sync import run_sync
from seer.errors import ConfigError, SandboxLostError, SandboxStateError
from seer.execution import (
    CellInfo,
    ExecutionResult,
    NotebookSession,
    acreate_notebook_session,
    create_notebook_session,
)
from seer.execution.notebook._edits import Edit, new_cell
from seer.execution.notebook._jupyter_server import JupyterServer
from seer.execution.notebook._session import NotebookStore
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
    """A session with its server running, for tests that do not damage it."""
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


async def test_ids_of_cells_are_counted_past_those_that_a_person_has_used(tmp_path: Path) -> None:
    store = NotebookStore(tmp_path / "notebook.ipynb")
    for taken in ("c2", "c3"):
        await store.edit(Edit(kind="insert", cell=new_cell(taken, "a person's")))
    ids = [await store.new_id() for _ in range(2)]
    assert ids == ["c1", "c4"]
    await store.edit(Edit(kind="delete", cell_id="c3"))
    assert await store.new_id() == "c5", "an id is not used again"


async def test_a_cell_without_an_id_keeps_the_one_that_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "notebook.ipynb"
    store = NotebookStore(path)
    notebook = await store.read()
    cell = new_cell("", "")
    del cell["id"]
    notebook["cells"] = [{**cell, "source": source} for source in ("a", "b", "a")]
    path.write_text(json.dumps(notebook))
    ids = [cell["id"] for cell in (await store.read())["cells"]]
    assert len({*ids}) == 3
    await store.edit(Edit(kind="source", cell_id=ids[2], source="changed"))
    assert [cell["source"] for cell in (await store.read())["cells"]] == ["a", "b", "changed"]
    nbformat.validate(await store.read())


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
    # Matplotlib prints a warning first where it takes long to find the fonts.
    plot, frame = (CellInfo.from_cell(cell).outputs[-1] for cell in saved(session))
    assert base64.b64decode(plot["data"]["image/png"]).startswith(b"\x89PNG")
    assert "<table" in "".join(frame["data"]["text/html"])


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
    (visited.notebook_path.parent / "beside.html").write_text("<script>1</script>")
    rename = {"path": "elsewhere.ipynb"}
    text = {"type": "file", "format": "text", "content": "x"}
    for method, path, body in [
        ("GET", "/api/terminals", None),
        ("POST", "/api/terminals", None),
        ("GET", f"/nbconvert/html/{person.notebook}", None),
        ("POST", "/api/shutdown", None),
        ("GET", "/api/contents/../secret.txt", None),
        ("GET", "/api/contents/%2e%2e/secret.txt", None),
        ("GET", "/api/contents/beside.html", None),
        ("GET", "/files/../secret.txt", None),
        ("GET", "/files/beside.html", None),
        ("GET", f"/files/{person.notebook}", None),
        ("GET", "/view/beside.html", None),
        ("PUT", "/api/contents/new.txt", text),
        ("PUT", f"/api/contents/{person.notebook}", text),
        ("POST", "/api/contents", {"type": "notebook"}),
        ("POST", "/api/contents", {"copy_from": person.notebook}),
        ("PATCH", f"/api/contents/{person.notebook}", rename),
        ("DELETE", f"/api/contents/{person.notebook}", None),
        ("POST", f"/api/contents/{person.notebook}/trust", None),
        ("GET", "/kernelspecs/seer/log", None),
        ("GET", "/kernelspecs/seer/..%2f..%2fsecret.txt", None),
        ("POST", "/lab/api/build", {}),
        ("POST", "/lab/api/extensions", {"cmd": "install", "extension_name": "jupyterlab-vim"}),
        ("GET", "/lsp/status", None),
    ]:
        status, _ = await person.ask(method, path, body)
        assert status >= 400, (method, path, status)
    expected = {"beside.html", visited.notebook_path.name}
    folder = visited.notebook_path.parent
    # A notebook that is being written has a second file for a moment.
    await await_until(lambda: {path.name for path in folder.iterdir()} == expected, "no more files")
    _, listing = await person.ask("GET", "/api/contents")
    assert [entry["name"] for entry in listing["content"]] == [person.notebook]
    _, specs = await person.ask("GET", "/api/kernelspecs")
    assert list(specs["kernelspecs"]) == ["python3"]
    status, _ = await person.ask("GET", "/api/contents", Authorization="token wrong")
    assert status == 403
    # A website whose name resolves to this address.
    status, _ = await person.ask("GET", "/api/contents", Host="evil.example")
    assert status == 403


async def test_no_name_starts_a_kernel_outside_the_jail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any request, the answer is the session's own kernel or an error."""
    mark = tmp_path / "started"
    spec = {
        "argv": [sys.executable, "-c", f"open({str(mark)!r}, 'w')"],
        "display_name": "planted",
        "language": "python",
    }
    for folder, name in [
        (tmp_path / "home/.local/share/jupyter/kernels", "in-home"),
        (tmp_path / "home/.ipython/kernels", "in-ipython"),
        (tmp_path / "path/kernels", "in-path"),
        (tmp_path / "data/kernels", "in-data"),
        (tmp_path / "data/kernels", "python3"),
        (tmp_path / "data/kernels", "python3"),
    ]:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "path"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "local-provisioner")
    names: list[object] = ["seer", "python", "ir", "in-home", "in-ipython", "in-path"]
    names += [
        "in-data",
        "python3",
        "PYTHON3",
        "python3 ",
        "./python3",
        "../kernels/in-data",
        "",
        " ",
        None,
    ]
    names += ["sëer", "ｓｅｅｒ", "seer\0", "a" * 5000, str(tmp_path / "path/kernels/in-path")]
    names += [0, True, [], ["python3"], {"name": "python3"}]
    async with await acreate_notebook_session(
        notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    ) as session:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        person = Person(await session.ajupyter_url())
        assert (await run(session, "inside = 'the jail'")).ok
        first = await person.attach_kernel()
        _, sessions = await person.ask("GET", "/api/sessions")
        (opened,) = sessions
        started: set[str] = {first}
        for name in names:
            notebook = {"name": "", "path": person.notebook, "type": "console"}
            for method, path, body in [
                ("POST", "/api/kernels", {"name": name, "path": "..", "env": {"A": "b"}}),
                ("POST", "/api/sessions", {**notebook, "kernel": {"name": name}}),
                ("PATCH", f"/api/sessions/{opened['id']}", {"kernel": {"name": name}}),
            ]:
                status, answer = await person.ask(method, path, body)
                if status < 400:
                    kernel = answer.get("kernel", answer)
                    assert kernel["name"] == "python3", (name, path)
                    started.add(kernel["id"])
        assert started == {first}
        _, kernels = await person.ask("GET", "/api/kernels")
        assert [(kernel["id"], kernel["name"]) for kernel in kernels] == [(first, "python3")]
        async with asyncio.timeout(60):
            assert await person.execute(first, "print(inside)") == "the jail\n"
        server = session._store.server  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        assert server._process is not None  # pyright: ignore[reportPrivateUsage]
        programs = psutil.Process(server._process.pid).children(recursive=True)  # pyright: ignore[reportPrivateUsage]
        assert not [p for p in programs if "ipykernel" in " ".join(p.cmdline())]
    assert not mark.exists()


def process_file(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


async def test_the_server_runs_without_rights_network_or_files(
    visited: NotebookSession, person: Person
) -> None:
    """Even a kernel that takes over the server by its messages gains nothing."""
    server = visited._store.server  # pyright: ignore[reportPrivateUsage]
    assert server is not None
    assert server._process is not None  # pyright: ignore[reportPrivateUsage]
    root = psutil.Process(server._process.pid)  # pyright: ignore[reportPrivateUsage]
    (process,) = [p for p in (root, *root.children(recursive=True)) if "python" in p.name()]
    status = process_file(process.pid, "status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert f"Max address space         {3 << 30} " in process_file(process.pid, "limits")
    assert fields["NoNewPrivs"] == "1"
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
    assert os.geteuid() != 0 or "0" not in fields["Uid"].split()
    devices = process_file(process.pid, "net/dev")
    assert [line.split(":")[0].strip() for line in devices.splitlines()[2:]] == ["lo"]
    inside = Path(f"/proc/{process.pid}/root")
    assert not (inside / str(visited.notebook_path).lstrip("/")).exists()
    assert not (inside / "root").exists()
    assert not (inside / "jupyter/site-0/seer").exists()
    environment = process_file(process.pid, "environ")
    assert person.token not in environment
    assert not [name for name in ("HF_TOKEN", "ANTHROPIC", "AWS_") if name in environment]


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


async def test_a_notebook_in_the_agents_own_folder_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "work" / "deep"
    with pytest.raises(ConfigError, match="workspace"):
        await acreate_notebook_session(notebook_dir=inside, workspace_dir=tmp_path / "work")


async def test_closing_saves_everything_and_leaves_a_private_file(tmp_path: Path) -> None:
    session = await acreate_notebook_session(
        notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    )
    await session.ajupyter_url()
    await run(session, "last = 1")
    await session.aclose()
    assert [_source(cell) for cell in saved(session)] == ["last = 1"]
    assert stat.S_ISREG(session.notebook_path.stat().st_mode)


async def test_a_server_that_starts_while_its_session_closes_is_closed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await acreate_notebook_session(
        notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    )
    begun, go_on = threading.Event(), threading.Event()
    started: list[JupyterServer] = []
    start = JupyterServer.start

    async def start_late(*args: Any, **options: Any) -> JupyterServer:
        begun.set()
        await asyncio.to_thread(go_on.wait, 60)
        started.append(await start(*args, **options))
        return started[0]

    monkeypatch.setattr(JupyterServer, "start", start_late)
    opening = asyncio.create_task(session.ajupyter_url())
    await asyncio.to_thread(begun.wait, 60)
    closing = asyncio.create_task(session.aclose())
    await await_until(lambda: session.is_closed, "the session closes")
    go_on.set()
    async with asyncio.timeout(60):
        await asyncio.gather(opening, closing)
    assert not started[0].is_alive
    with pytest.raises(SandboxStateError, match="is closed"):
        await session.ajupyter_url()


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


async def test_a_cell_whose_answer_the_server_did_not_live_to_give_is_there_once(
    session: NotebookSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.ajupyter_url()
    server = session._store.server  # pyright: ignore[reportPrivateUsage]
    assert server is not None and server._process is not None  # pyright: ignore[reportPrivateUsage]
    process, edit = server._process, server.edit  # pyright: ignore[reportPrivateUsage]

    async def edit_and_die(wanted: Edit) -> None:
        await edit(wanted)
        process.kill()
        raise SandboxLostError("the answer was lost")

    monkeypatch.setattr(server, "edit", edit_and_die)
    assert (await run(session, "1 + 1")).value == "2"
    assert [_source(cell) for cell in saved(session)] == ["1 + 1"]


async def test_what_a_dying_server_still_saves_does_not_overwrite_a_later_cell(
    session: NotebookSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.ajupyter_url()
    await run(session, "before = 1")
    server = session._store.server  # pyright: ignore[reportPrivateUsage]
    assert server is not None and server._process is not None  # pyright: ignore[reportPrivateUsage]
    process, file = server._process, session._store.file  # pyright: ignore[reportPrivateUsage]
    stale, replace = file.read(), file.replace
    saving, go_on = threading.Event(), threading.Event()

    def replace_late(_: object) -> None:
        saving.set()
        go_on.wait(60)
        replace(stale)

    monkeypatch.setattr(file, "replace", replace_late)
    late = Edit(kind="insert", cell=new_cell("late", "late = 1"))
    person = asyncio.create_task(asyncio.to_thread(lambda: run_sync(server.edit(late))))
    await asyncio.to_thread(saving.wait, 60)
    process.kill()
    await await_until(lambda: process.returncode is not None, "the end of the server")
    work = asyncio.create_task(run(session, "after = 2"))
    await asyncio.wait([work], timeout=1)  # if it wrote too early, it would do so now
    go_on.set()
    await work
    with pytest.raises(SandboxLostError):
        await person
    assert [_source(cell) for cell in saved(session)] == ["before = 1", "after = 2"]


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
