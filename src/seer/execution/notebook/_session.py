"""Notebook sessions: an agent's cells in a real notebook that a person can watch and edit."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from seer._checks import check_type
from seer._sync import from_any_loop, on_loop, run_sync
from seer.environment import ModelHandle
from seer.errors import ConfigError, SandboxLostError
from seer.execution._capture import OnOutput
from seer.execution._machine import MEMORY, Isolation, JailOptions, SandboxLike
from seer.execution._prepare import SessionParts, create_folder, prepare_session, slug
from seer.execution._result import ExecutionResult, Status
from seer.execution._session import SessionKind
from seer.execution._sockets import connect_in_machine
from seer.execution._turns import Execution, check_text
from seer.execution.kernel._kernel import Kernel
from seer.execution.kernel._session import KernelSession
from seer.execution.notebook._edits import (
    CellInfo,
    Edit,
    Notebook,
    as_outputs,
    find_cell,
    new_cell,
    output_size,
    without_large,
)
from seer.execution.notebook._file import NotebookFile
from seer.execution.notebook._jupyter_server import JupyterServer
from seer.providers import Channel
from seer.workspace import Workspace

logger = logging.getLogger(__name__)

_CELL_BYTES = 8 * 1024**2
"""The limit for one cell's outputs in the notebook, so that an agent cannot fill the host's
disk."""
_SAVE_EVERY = 2.0
"""Seconds between two saves of a cell that is still running."""


class NotebookSession(KernelSession):
    """Cells of a notebook on this host, run by a kernel in a jail or a sandbox."""

    kind: ClassVar[SessionKind] = "notebook"

    def __init__(self, parts: SessionParts, path: Path, sandbox: SandboxLike | None) -> None:
        super().__init__(parts)
        self._path = path
        self._store = NotebookStore(path)
        self._server_lock = asyncio.Lock()
        self._models = () if sandbox is None else tuple(sandbox.model_handles)

    # --- what it is -----------------------------------------------------------------------------

    @property
    def notebook_path(self) -> Path:
        """The notebook's file; valid at any moment, saved after every cell."""
        return self._path

    @property
    def jupyter_url(self) -> str:
        """Opens the notebook in JupyterLab; starts the server on first use (some seconds).

        The address holds a token: anyone who has it can edit the notebook and run code in the
        session's kernel.

        Raises:
            MissingExtraError: The extra `notebook` is not installed.
            StartError: The server did not start.
        """
        return run_sync(self.ajupyter_url())

    @from_any_loop
    async def ajupyter_url(self) -> str:
        """Like `jupyter_url`."""
        async with self._server_lock:
            self._check_open()
            server = self._store.server
            if server is None or not server.is_alive:
                if server is not None:
                    await self._store.drop(server)
                server = await JupyterServer.start(
                    self._private.folder(f"jupyter-{secrets.token_hex(3)}"),
                    self._store.file,
                    key=self._signer.key,
                    connect=self._connect_kernel,
                    on_event=self._on_event,
                )
                self._store.server = server
        return server.url

    # --- cells ----------------------------------------------------------------------------------

    def add_cell(self, source: str, *, markdown: bool = False, index: int | None = None) -> str:
        """Add a cell at `index`, or at the end, without running it; returns its id."""
        return run_sync(self.aadd_cell(source, markdown=markdown, index=index))

    @from_any_loop
    async def aadd_cell(
        self, source: str, *, markdown: bool = False, index: int | None = None
    ) -> str:
        """Like `add_cell`."""
        self._check_open()
        check_text(source)
        cell_id = await self._store.new_id()
        cell = new_cell(cell_id, source, markdown=markdown)
        await self._store.edit(Edit(kind="insert", index=index, cell=cell))
        return cell_id

    def run_cell(
        self, cell_id: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> ExecutionResult:
        """Run a cell with its present source; a person may have written it.

        Raises:
            LookupError: There is no such cell.
        """
        return run_sync(self.arun_cell(cell_id, timeout=timeout, on_output=on_output))

    @from_any_loop
    async def arun_cell(
        self,
        cell_id: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Like `run_cell`."""
        result_id = await self.asubmit_cell(cell_id, timeout=timeout, on_output=on_output)
        return await self._turns.complete(self._turns.find(result_id))

    @from_any_loop
    async def asubmit_cell(
        self,
        cell_id: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> str:
        """Put a cell in the queue and return its result's id at once."""
        self._check_runs()
        cells = await self.acells()
        if cells[_index(cells, cell_id)].kind != "code":
            raise ValueError(f"cell {cell_id!r} is text and cannot be run")
        execution = self._turns.submit("", timeout=timeout, on_output=on_output, cell=cell_id)
        return execution.result_id

    def edit_cell(self, cell_id: str, source: str) -> None:
        """Replace a cell's source. Its outputs stay until it runs.

        Raises:
            LookupError: There is no such cell.
        """
        run_sync(self.aedit_cell(cell_id, source))

    @from_any_loop
    async def aedit_cell(self, cell_id: str, source: str) -> None:
        """Like `edit_cell`."""
        check_text(source)
        await self._store.edit(Edit(kind="source", cell_id=cell_id, source=source))

    def delete_cell(self, cell_id: str) -> None:
        """Remove a cell.

        Raises:
            LookupError: There is no such cell.
        """
        run_sync(self._store.edit(Edit(kind="delete", cell_id=cell_id)))

    async def adelete_cell(self, cell_id: str) -> None:
        """Like `delete_cell`."""
        await on_loop(self._store.edit(Edit(kind="delete", cell_id=cell_id)))

    def move_cell(self, cell_id: str, index: int) -> None:
        """Move a cell to another position.

        Raises:
            LookupError: There is no such cell.
        """
        run_sync(self._store.edit(Edit(kind="move", cell_id=cell_id, index=index)))

    async def amove_cell(self, cell_id: str, index: int) -> None:
        """Like `move_cell`."""
        await on_loop(self._store.edit(Edit(kind="move", cell_id=cell_id, index=index)))

    def cells(self) -> list[CellInfo]:
        """All cells in their present state, including those that a person wrote."""
        return run_sync(self.acells())

    @from_any_loop
    async def acells(self) -> list[CellInfo]:
        """Like `cells`."""
        notebook = await self._store.read()
        return [CellInfo.from_cell(cell) for cell in notebook["cells"]]

    # --- what every session does ----------------------------------------------------------------

    async def _run(self, execution: Execution) -> Status:
        if execution.cell:
            cells = await self.acells()
            source = cells[_index(cells, execution.cell)].source
            execution.code = source.encode(errors="replace").decode()
        else:
            execution.cell = await self.aadd_cell(execution.code)
        execution.extra["cell_id"] = execution.cell
        saving = asyncio.create_task(self._save_while_running(execution))
        try:
            return await super()._run(execution)
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            await self._save(execution)

    async def _warm_up(self, kernel: Kernel) -> None:
        if self._models and self.workspace.preload_models:
            prepared = await self._machines.prepared()
            wanted = json.dumps(
                [
                    {
                        "name": m.var_name,
                        "tokenizer": _tokenizer_name(m.var_name),
                        "path": m.path,
                        "base": m.base_path,
                        "known_as": m.name,
                    }
                    for m in self._models
                ]
            )
            script = f"{prepared.inside}/preload_models.py"
            code = (
                f"import runpy\nglobals().update(runpy.run_path({script!r})"
                f"['load_models']({wanted!r}))\ndel runpy"
            )
            logger.info("loading %d model(s) for session %r", len(self._models), self.name)
            await self._run_first(kernel, "loading the models", code)
        await super()._warm_up(kernel)

    async def _shut_down(self) -> None:
        try:
            async with self._server_lock:  # a server that is being started is closed too
                await self._store.close_server()
        finally:
            await super()._shut_down()

    def _describe(self) -> str:
        text = (
            "# Session\n\nYou work in a Jupyter notebook. Each piece of code becomes a cell; "
            "variables last from one cell to the next; plots and displayed images are shown to "
            "you. A person may watch and edit the notebook."
        )
        return text + describe_models(self._models, preloaded=self.workspace.preload_models)

    # --- the machinery --------------------------------------------------------------------------

    async def _save_while_running(self, execution: Execution) -> None:
        """Save the output of a running cell every few seconds, so that a person sees it."""
        saved = 0
        while True:
            await asyncio.sleep(_SAVE_EVERY)
            length = execution.capture.transcript.length
            if length != saved:
                saved = length
                await self._save(execution)

    async def _save(self, execution: Execution) -> None:
        capture = execution.capture
        outputs = as_outputs(capture.outputs, capture.error, capture.execution_count)
        if output_size(outputs) > _CELL_BYTES:
            outputs = without_large(outputs, _CELL_BYTES)
            capture.note("the notebook holds only a part of this large output")
        edit = Edit(
            kind="outputs",
            cell_id=execution.cell,
            outputs=outputs,
            count=capture.execution_count,
        )
        try:
            await self._store.edit(edit)
        except LookupError:
            capture.note("the cell was deleted while it ran, so its output is not in the notebook")

    async def _connect_kernel(self, number: int) -> Channel:
        if self._kernel is None or self._kernel.death is not None:
            raise SandboxLostError("the kernel is not running")
        prepared = await self._machines.prepared()
        return await connect_in_machine(prepared.machine, f"{self._kernel.folder}/z-{number}")

    async def _on_event(self, event: str) -> None:
        """The person pressed a button."""
        if event == "interrupt" and self._kernel is not None:
            await self._kernel.interrupt()
        elif event == "restart":
            await self.arestart()
            async with self._turns.turn:
                await self._living_kernel()


def _index(cells: Sequence[CellInfo], cell_id: str) -> int:
    return find_cell([{"id": cell.cell_id} for cell in cells], cell_id)


def create_notebook_session(
    sandbox: SandboxLike | None = None,
    workspace: Workspace | None = None,
    name: str | None = None,
    *,
    notebook_dir: str | os.PathLike[str] | None = None,
    workspace_dir: str | os.PathLike[str] | None = None,
    packages: Sequence[str] = (),
    isolation: Isolation = "auto",
    memory: int | None = MEMORY,
) -> NotebookSession:
    """Open a notebook session in a sandbox, or in a jail on this machine.

    Args:
        sandbox: A started `Sandbox`; None for a jail on this machine.
        workspace: What the agent can import and read.
        name: What to call it; generated by default.
        notebook_dir: Where the notebook is saved on this host; by default a new folder under
            `./outputs`. It must not be inside the agent's workspace.
        workspace_dir: Without a sandbox, as for `create_local_session`.
        packages: Without a sandbox, as for `create_local_session`.
        isolation: Without a sandbox, as for `create_local_session`.
        memory: Without a sandbox, as for `create_local_session`.

    Raises:
        ConfigError: The notebook's folder is inside the agent's workspace.
        IsolationUnavailableError: No jail works here, so nothing was started.
        SandboxStateError: The sandbox is not running.
        StartError: The kernel did not start.
    """
    jail = JailOptions(
        workspace_dir=workspace_dir, packages=packages, isolation=isolation, memory=memory
    )
    return run_sync(_create(sandbox, workspace, name, notebook_dir, jail))


async def acreate_notebook_session(
    sandbox: SandboxLike | None = None,
    workspace: Workspace | None = None,
    name: str | None = None,
    *,
    notebook_dir: str | os.PathLike[str] | None = None,
    workspace_dir: str | os.PathLike[str] | None = None,
    packages: Sequence[str] = (),
    isolation: Isolation = "auto",
    memory: int | None = MEMORY,
) -> NotebookSession:
    """Like `create_notebook_session`."""
    jail = JailOptions(
        workspace_dir=workspace_dir, packages=packages, isolation=isolation, memory=memory
    )
    return await on_loop(_create(sandbox, workspace, name, notebook_dir, jail))


async def _create(
    sandbox: SandboxLike | None,
    workspace: Workspace | None,
    name: str | None,
    notebook_dir: str | os.PathLike[str] | None,
    jail: JailOptions,
) -> NotebookSession:
    check_type("notebook_dir", notebook_dir, (str, os.PathLike), "a path", none=True)
    async with prepare_session("notebook", sandbox, workspace, name=name, jail=jail) as parts:
        if notebook_dir is None:
            folder = Path("outputs") / f"{slug(parts.name)}-{secrets.token_hex(3)}"
        else:
            folder = Path(notebook_dir)
        agent_dir = parts.machines.workspace_dir
        if isinstance(agent_dir, Path) and folder.resolve().is_relative_to(agent_dir.resolve()):
            # The agent could replace the notebook with a link, which this process would follow.
            raise ConfigError(
                "notebook_dir", str(folder), f"is inside the agent's workspace {agent_dir}"
            )
        path = folder.absolute() / f"{slug(parts.name)}.ipynb"
        create_folder("notebook_dir", path.parent, is_default=notebook_dir is None)
        session = NotebookSession(parts, path, sandbox)
        await session.begin()
    return session


def describe_models(models: Sequence[ModelHandle], *, preloaded: bool) -> str:
    """A paragraph about the models; empty if there are none. Hidden models are not named."""
    lines: list[str] = []
    for model in models:
        name = "a model whose name is withheld" if model.hidden else model.name
        if preloaded:
            tokenizer = _tokenizer_name(model.var_name)
            lines.append(f"- `{model.var_name}` and `{tokenizer}`: {name}, already loaded")
        else:
            lines.append(f"- {name}, in `{model.path}`")
    return "\n\nModels:\n" + "\n".join(lines) if lines else ""


def _tokenizer_name(var_name: str) -> str:
    """The variable that holds the tokenizer of the model in `var_name`."""
    if var_name == "model" or var_name.startswith("model_"):
        return var_name.replace("model", "tokenizer", 1)
    return f"{var_name}_tokenizer"


class NotebookStore:
    """Applies the agent's edits in the same place as the person's, so that none are lost."""

    def __init__(self, path: Path) -> None:
        self.file = NotebookFile(path)
        self.server: JupyterServer | None = None
        """Set while a Jupyter server shows the notebook; it then keeps the file up to date."""
        self._numbers = itertools.count(1)

    async def new_id(self) -> str:
        """An id for a new cell that no cell of the notebook has.

        Ids are counted, because agents name cells by them: a replay and a fork have the same ones.
        """
        taken = {str(cell.get("id")) for cell in (await self.read())["cells"]}
        return next(name for number in self._numbers if (name := f"c{number}") not in taken)

    async def edit(self, edit: Edit) -> None:
        """Apply one change and save it.

        Raises:
            LookupError: The cell no longer exists.
        """
        server = self.server
        if server is not None:
            try:
                await server.edit(edit)
                return
            except SandboxLostError:
                await self.drop(server)
                if edit.kind == "delete":  # it may have applied the edit before it ended
                    with contextlib.suppress(LookupError):
                        await asyncio.to_thread(self.file.edit, edit)
                    return
        await asyncio.to_thread(self.file.edit, edit)

    async def drop(self, server: JupyterServer) -> None:
        """Close a server that was lost. It saved everything, and the file is authoritative now."""
        if self.server is server:
            self.server = None
        await server.close()

    async def close_server(self) -> None:
        """End the server, if there is one. Afterwards the file has the whole document."""
        server, self.server = self.server, None
        if server is None:
            return
        try:
            last = await server.read()
        except SandboxLostError:
            last = None
        await server.close()
        if last is not None:
            await asyncio.to_thread(self.file.replace, last)

    async def read(self) -> Notebook:
        """The notebook as it is now."""
        server = self.server
        if server is not None:
            try:
                return await server.read()
            except SandboxLostError:
                await self.drop(server)
        return await asyncio.to_thread(self.file.read)
