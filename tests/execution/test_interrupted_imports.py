"""An interrupt during an import leaves a session whose packages can still be imported."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seer.execution import (
    ExecutionResult,
    Session,
    acreate_local_session,
    acreate_notebook_session,
)

pytestmark = pytest.mark.full

Open = Callable[[Path], Awaitable[Session]]

HALT = """
import os, signal, sys

def wait_for_signal():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        print("importing", flush=True)
        os.read(reader, 1)
    finally:
        signal.set_wakeup_fd(before)

class Halt:
    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            sys.meta_path.remove(self)
            wait_for_signal()

assert "numpy" not in sys.modules
kept = 1
"""


async def open_local(folder: Path) -> Session:
    return await acreate_local_session(workspace_dir=folder)


async def open_notebook(folder: Path) -> Session:
    return await acreate_notebook_session(
        workspace_dir=folder, notebook_dir=folder.parent / "notes"
    )


async def interrupt_during_import(session: Session, code: str) -> ExecutionResult:
    """Run code, and interrupt it as soon as it prints."""
    loop, importing = asyncio.get_running_loop(), asyncio.Event()

    def on_output(_: object) -> None:
        loop.call_soon_threadsafe(importing.set)

    async with asyncio.timeout(60):
        result_id = await session.asubmit(code, on_output=on_output)
        await importing.wait()
        assert await session.ainterrupt(result_id)
        return await session.aresult(result_id, wait=None)


@pytest.mark.parametrize("opened", [open_local, open_notebook])
@pytest.mark.parametrize("point", ["numpy._core.printoptions", "numpy.lib._npyio_impl"])
async def test_numpy_can_be_imported_after_an_import_that_was_interrupted(
    tmp_path: Path, opened: Open, point: str
) -> None:
    async with await opened(tmp_path / "work") as session:
        assert (await session.aexec(HALT)).ok
        halted = f"sys.meta_path.insert(0, Halt('{point}'))\nimport numpy; kept = 2"
        result = await interrupt_during_import(session, halted)
        assert result.status == "interrupted"
        assert result.error is not None
        assert (result.error.name, result.error.message) == ("KeyboardInterrupt", "")
        assert "import numpy; kept = 2" in result.error.traceback
        code = "import numpy; print(kept, numpy.linalg.det(numpy.eye(2)), sys.getprofile())"
        assert (await session.aexec(code)).stdout == "1 1.0 None\n"


async def test_a_package_that_a_module_of_the_workspace_imports_is_imported_whole(
    tmp_path: Path,
) -> None:
    async with await acreate_local_session(workspace_dir=tmp_path / "work") as session:
        assert (await session.aexec(HALT)).ok
        (tmp_path / "work" / "own.py").write_text("import numpy\nwhile True:\n    pass\n")
        halted = "sys.meta_path.insert(0, Halt('numpy._core.printoptions'))\nimport own"
        result = await interrupt_during_import(session, halted)
        assert result.error is not None
        assert result.error.name == "KeyboardInterrupt"
        assert "own.py" in result.error.traceback
        code = "print('own' in sys.modules); import numpy; print(numpy.ones(2).sum(), kept)"
        assert (await session.aexec(code)).stdout == "False\n2.0 1\n"


async def test_an_endless_import_of_a_module_of_the_workspace_is_interrupted_at_once(
    tmp_path: Path,
) -> None:
    async with await acreate_local_session(workspace_dir=tmp_path / "work") as session:
        endless = "print('importing', flush=True)\nwhile True:\n    pass\n"
        (tmp_path / "work" / "endless.py").write_text(endless)
        result = await interrupt_during_import(session, "kept = 1; import endless")
        assert result.error is not None
        # If an interrupt had been delayed for a while, its message would say so.
        assert (result.error.name, result.error.message) == ("KeyboardInterrupt", "")
        assert not result.notes
        assert (await session.aexec("kept")).value == "1"


async def test_a_package_whose_import_never_ends_is_interrupted_before_the_kernel_is_killed(
    tmp_path: Path,
) -> None:
    async with await acreate_local_session(workspace_dir=tmp_path / "work") as session:
        package = tmp_path / "work" / "site-packages" / "endless"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from endless import loop\n")
        (package / "loop.py").write_text("print('importing', flush=True)\nwhile True:\n    pass\n")
        code = "kept = 1; import sys; sys.path.append('site-packages'); import endless"
        result = await interrupt_during_import(session, code)
        assert result.status == "interrupted"
        assert result.error is not None
        assert result.error.name == "KeyboardInterrupt"
        assert "during the import of endless;" in result.error.message
        assert not any("killed" in note for note in result.notes)
        assert (await session.aexec("print(kept, sys.getprofile())")).stdout == "1 None\n"
