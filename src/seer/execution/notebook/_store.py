"""The notebook, wherever its truth lies now: in the file, or in the document a person has open."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path

from seer.errors import SandboxLostError
from seer.execution.notebook._edits import Edit, Notebook
from seer.execution.notebook._file import NotebookFile
from seer.execution.notebook._jupyter_server import JupyterServer


class NotebookStore:
    """Applies the agent's edits where a person's edits are, so that neither is lost."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = NotebookFile(path)
        self.server: JupyterServer | None = None
        """Set while a Jupyter server shows the notebook; it then keeps the file up to date."""

    async def edit(self, edit: Edit) -> None:
        """Apply one change and save it.

        Raises:
            LookupError: The cell is not there any more.
        """
        if self.server is not None:
            try:
                await self.server.edit(edit)
                return
            except SandboxLostError:
                self.server = None  # it saved all it had; from here on the file is the truth
                if edit.kind == "delete":  # it may have done that before it ended
                    with contextlib.suppress(LookupError):
                        await asyncio.to_thread(self.file.edit, edit)
                    return
        await asyncio.to_thread(self.file.edit, edit)

    async def close_server(self) -> None:
        """End the server, if there is one; the file then holds all that the document held."""
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
        if self.server is not None:
            try:
                return await self.server.read()
            except SandboxLostError:
                self.server = None
        return await asyncio.to_thread(self.file.read)


def new_cell_id() -> str:
    """A fresh id for a cell."""
    return secrets.token_hex(4)
