"""A program in the original's spelling runs on real machines."""

# A type checker finds no hints for the old packages: one has the name of the folder `src`.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false, reportMissingTypeStubs=false

import asyncio
from pathlib import Path

import pytest
from interp_infra.environment import Sandbox, SandboxConfig, ScopedSandbox
from interp_infra.execution import create_cli_session, create_local_session
from interp_infra.execution.local_session import LocalSession
from interp_infra.harness import run_agent
from interp_infra.workspace import Library, Workspace

from seer.harness import Call, RunFinished, Scripted, Step, ToolResult

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = """
@expose
def double(x: int, note: str = None) -> int:
    return 2 * x
"""


def test_a_scoped_program_and_its_session(tmp_path: Path) -> None:
    (tmp_path / "interface.py").write_text(INTERFACE)
    (tmp_path / "cell.py").write_text("import tools\nvalue = tools.double(21)\nprint(value)\n")
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local", rpc_timeout=60))
    scoped.start(workspace=None)
    try:
        servers = scoped.serve(code_file=tmp_path / "interface.py", expose_as="mcp", name="my-lab")
        assert list(servers) == ["my-lab"]
        tools = scoped.serve(tmp_path / "interface.py", "library", "tools")
        assert isinstance(tools, Library) and tools.connect().double(4) == 8
        session = create_local_session(Workspace([tools]), "old", tmp_path / "work")
        assert isinstance(session, LocalSession) and session.sandbox is None
        assert session.workspace_path == session.workspace_dir == tmp_path / "work"
        done = session.exec_file(tmp_path / "cell.py")
        assert done["success"] and done["stdout"] == "42\n" == done.stdout
        assert session.setup() is None and session.setup("print(value)")["stdout"] == "42\n"
        with pytest.warns(UserWarning, match="hidden"):
            assert session.exec("print(1)", hidden=True)["stdout"] == "1\n"
        assert session.exec_shell("echo from a shell")["stdout"] == "from a shell\n"
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            session.exec("1 / 0")
        with pytest.raises(RuntimeError, match="exit code 3"):
            session.exec_shell("exit 3")

        agent = Scripted([Step(calls=(Call("python", {"code": "print(value + 1)"}),))])

        async def run() -> list[object]:
            return [event async for event in run_agent("go on", session.mcp_config, agent)]

        events = asyncio.run(run())
        [result] = [event for event in events if isinstance(event, ToolResult)]
        assert result.text == "43\n"
        assert isinstance(events[-1], RunFinished) and events[-1].reason == "completed"
    finally:
        assert scoped.terminate() is None


def test_a_whole_machine(tmp_path: Path) -> None:
    config = SandboxConfig(gpu=None, provider="local", execution_mode=None, network="none")
    sandbox = Sandbox(config).start(workspace=Workspace([Library("lib", {"lib.py": "A = 1\n"})]))
    try:
        assert sandbox.exec("echo hello", 60) == "hello\n"
        sandbox.write_file("kept.txt", content="kept")
        with pytest.raises(RuntimeError, match="exited with 3"):
            sandbox.exec("exit 3")
        session = create_cli_session(sandbox, name="shell")
        assert session.sandbox is sandbox
        assert session.exec_shell("cat kept.txt")["output"].strip().endswith("kept")
        assert session.workspace.libraries[0].name == "lib"
        session.close()
        # From here on, another process could take it over.
        sandbox = Sandbox.from_id(sandbox.detach(), config)
        assert sandbox.exec("cat kept.txt") == "kept"
    finally:
        snapshot = sandbox.terminate(save_snapshot=True)
    assert snapshot is not None
    restored = Sandbox.from_snapshot(snapshot, config, name="again")
    try:
        assert restored.exec("cat kept.txt") == "kept"
    finally:
        restored.terminate()
    again = Sandbox(config).start(snapshot_image=snapshot)
    try:
        assert again.exec("cat kept.txt") == "kept"
    finally:
        again.terminate()
