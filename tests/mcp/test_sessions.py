"""Sessions through MCP: what an agent can do with the tools, with a real client over stdio."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from seer.execution import (
    Session,
    acreate_cli_session,
    acreate_local_session,
    acreate_notebook_session,
)
from seer.workspace import Library, Workspace

pytestmark = pytest.mark.full

UNTIL = "import os, time\nwhile not os.path.exists('{name}'): time.sleep(0.01)\n"
"""Code that runs until a file is there."""
WORKSPACE = Workspace(libraries=[Library.from_code("helpers", 'def f() -> int:\n    """One."""\n')])


async def client_of(session: Session) -> Client:
    config = await asyncio.to_thread(lambda: session.mcp_config)
    (entry,) = config.values()
    return Client(
        StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])
    )


async def call(client: Client, name: str, **arguments: Any) -> Any:
    async with asyncio.timeout(60):
        return await client.call_tool(name, arguments)


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


def id_in(result: Any) -> str:
    """The id that a result's text names."""
    found = re.search(r"result_id='(\w+)'", text_of(result))
    assert found, text_of(result)
    return found[1]


async def test_an_agent_works_in_python(tmp_path: Path) -> None:
    session = await acreate_local_session(WORKSPACE, tmp_path / "work", "my session")
    async with session, await client_of(session) as client:
        assert "def f() -> int:" in (client.instructions or "")
        assert text_of(await call(client, "python", code="x = 41")).startswith("[done in")
        assert text_of(await call(client, "python", code="x + 1")) == "42\n"
        failed = await call(client, "python", code="1 / 0")
        assert failed.is_error
        assert "ZeroDivisionError" in text_of(failed)
        plot = "import matplotlib.pyplot as plt; plt.plot([1]); plt.show()"
        blocks = (await call(client, "python", code=plot)).content
        assert [block.type for block in blocks] == ["text", "image"]
        long = await call(client, "python", code="print('y' * 50_000)")
        result_id = id_in(long)
        rest = await call(client, "read_output", result_id=result_id, offset=49_990, length=100)
        assert text_of(rest) == "y" * 10 + "\n"
        await call(client, "restart")
        assert "False" in text_of(await call(client, "python", code="'x' in globals()"))


async def test_work_longer_than_a_clients_patience_is_not_lost(tmp_path: Path) -> None:
    session = await acreate_local_session(workspace_dir=tmp_path / "work")
    async with session, await client_of(session) as client:
        code = "for n in range(4): print(n, flush=True)\n" + UNTIL.format(name="one") + "'over'"
        early = await call(client, "python", code=code, wait=0.2)
        assert text_of(early).startswith(("[running", "[queued"))
        (tmp_path / "work" / "one").touch()
        done = await call(client, "get_result", result_id=id_in(early))
        assert text_of(done) == "0\n1\n2\n3\n'over'\n"
        slow = await call(client, "python", code=UNTIL.format(name="two") + "'kept'", wait=0.2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.call_tool("get_result", {"result_id": id_in(slow)})
        (tmp_path / "work" / "two").touch()
        assert text_of(await call(client, "get_result", result_id=id_in(slow))) == "'kept'\n"
        unknown = await call(client, "get_result", result_id="e99")
        assert unknown.is_error
        assert "no result 'e99'" in text_of(unknown)


async def test_cancelling_a_call_interrupts_its_code(tmp_path: Path) -> None:
    session = await acreate_local_session(workspace_dir=tmp_path / "work")
    async with session, await client_of(session) as client:
        await call(client, "python", code="kept = 1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.call_tool("python", {"code": "while True: pass"})
        assert text_of(await call(client, "python", code="kept")) == "1\n"


async def test_a_model_sees_all_that_a_client_may_show_it(tmp_path: Path) -> None:
    """Claude Code, Codex and pydantic-ai show only structured content where there is some."""
    session = await acreate_local_session(workspace_dir=tmp_path / "work")
    async with session, await client_of(session) as client:
        for code in ("print('seen')", "1 / 0", "None"):
            assert (await call(client, "python", code=code)).structured_content is None


async def test_an_agent_can_interrupt_its_own_work(tmp_path: Path) -> None:
    session = await acreate_local_session(workspace_dir=tmp_path / "work")
    async with session, await client_of(session) as client:
        await call(client, "python", code="while True: pass", wait=0.5)
        assert text_of(await call(client, "interrupt")) == "interrupted"
        assert text_of(await call(client, "interrupt")) == "nothing was running"
        assert text_of(await call(client, "python", code="1")) == "1\n"


async def test_two_agents_share_one_session(tmp_path: Path) -> None:
    session = await acreate_local_session(workspace_dir=tmp_path / "work")
    async with session, await client_of(session) as one, await client_of(session) as two:
        await call(one, "python", code="total = 0")
        await asyncio.gather(
            *(call(c, "python", code="total += 1; total") for _ in range(10) for c in (one, two))
        )
        assert text_of(await call(two, "python", code="total")) == "20\n"


async def test_an_agent_works_in_a_shell(tmp_path: Path) -> None:
    session = await acreate_cli_session(workspace_dir=tmp_path / "work")
    async with session, await client_of(session) as client:
        await call(client, "shell", command="mkdir sub; cd sub; export A=1")
        result = await call(client, "shell", command="basename $PWD; echo $A; exit 3")
        assert text_of(result) == "sub\n1\n[exit code 3]"
        assert not result.is_error
        job = await call(client, "shell", command="sleep 600", background=True)
        job_id = id_in(job)
        assert job_id in text_of(await call(client, "list_jobs"))
        assert text_of(await call(client, "interrupt", result_id=job_id)) == "interrupted"
        opened = await call(client, "terminal_open", command="python3 -q", wait=5)
        shown = text_of(opened)
        terminal = shown.rpartition("[terminal ")[2].partition(":")[0]
        async with asyncio.timeout(30):
            shown += text_of(
                await call(client, "terminal_write", terminal_id=terminal, text="6 * 7\n")
            )
            while "42" not in shown:
                shown += text_of(await call(client, "terminal_read", terminal_id=terminal))
        await call(client, "terminal_close", terminal_id=terminal)
        gone = await call(client, "terminal_read", terminal_id=terminal)
        assert gone.is_error


async def test_an_agent_works_in_a_notebook(tmp_path: Path) -> None:
    session = await acreate_notebook_session(
        notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    )
    async with session, await client_of(session) as client:
        first = await call(client, "add_code_cell", source="x = 1; x")
        head, _, output = text_of(first).partition("\n")
        assert output == "1\n"
        cell = head.removeprefix("[cell ").removesuffix("]")
        await call(client, "add_markdown_cell", source="# Title", index=0)
        edited = await call(client, "edit_cell", cell_id=cell, source="x = 2; x")
        assert text_of(edited) == f"[cell {cell}]\n2\n"
        assert text_of(await call(client, "run_cell", cell_id=cell)) == f"[cell {cell}]\n2\n"
        listed = text_of(await call(client, "list_cells"))
        assert listed.index("# Title") < listed.index("x = 2; x")
        await call(client, "move_cell", cell_id=cell, index=0)
        assert "[outputs]\n2" in text_of(await call(client, "read_cell", cell_id=cell))
        await call(client, "delete_cell", cell_id=cell)
        missing = await call(client, "run_cell", cell_id=cell)
        assert missing.is_error
        assert [info.source for info in await session.acells()] == ["# Title"]


async def test_a_wait_that_is_refused_starts_nothing(tmp_path: Path) -> None:
    shell = await acreate_cli_session(workspace_dir=tmp_path / "shell")
    notebook = await acreate_notebook_session(
        notebook_dir=tmp_path / "out", workspace_dir=tmp_path / "work"
    )
    async with shell, notebook, await client_of(shell) as one, await client_of(notebook) as two:
        for client, tool, argument in (
            (one, "shell", {"command": "true"}),
            (one, "terminal_open", {"command": "cat"}),
            (two, "add_code_cell", {"source": "1"}),
        ):
            refused = await call(client, tool, **argument, wait=-1)
            assert text_of(refused) == "wait=-1.0: must be 0 to 86400 seconds"
        assert await shell.aresult_ids() == []
        with pytest.raises(LookupError, match="open terminals: none"):
            shell.terminal("t1")
        assert await notebook.acells() == []


async def test_a_closed_session_closes_its_tools(tmp_path: Path) -> None:
    session = await acreate_cli_session(workspace_dir=tmp_path / "work")
    async with await client_of(session) as client:
        await call(client, "shell", command="true")
        await session.aclose()
        with pytest.raises(Exception, match=r"(?i)clos|lost|ended|end of"):
            await call(client, "shell", command="true")
