"""The server's view of the host's files: the session's notebook, which the controller reads.

There is no folder behind it. Nothing else can be listed, read, written, uploaded, renamed or
downloaded.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from jupyter_server.services.contents.checkpoints import AsyncCheckpoints
from jupyter_server.services.contents.manager import AsyncContentsManager
from tornado.web import HTTPError

from seer.execution.notebook._edits import Notebook, without_trust
from seer.execution.notebook.jupyter.controller import ControllerPipe

Model = dict[str, Any]


class NoCheckpoints(AsyncCheckpoints):
    """The notebook is saved all the time; there are no checkpoints of it."""

    async def list_checkpoints(self, path: str) -> list[Model]:
        """Always empty."""
        return []

    async def create_checkpoint(self, contents_mgr: object, path: str) -> Model:
        """A stand-in, because JupyterLab makes a checkpoint whenever a person saves."""
        return {"id": "none", "last_modified": datetime.now(UTC)}

    async def restore_checkpoint(self, contents_mgr: object, checkpoint_id: str, path: str) -> None:
        """Refused."""
        raise HTTPError(404, "there are no checkpoints")

    async def rename_checkpoint(self, checkpoint_id: str, old_path: str, new_path: str) -> None:
        """Nothing to rename."""

    async def delete_checkpoint(self, checkpoint_id: str, path: str) -> None:
        """Nothing to delete."""


class SessionContents(AsyncContentsManager):
    """A folder with one file in it, which cannot be moved or removed."""

    controller: ClassVar[ControllerPipe]
    notebook: ClassVar[str]
    checkpoints_class = NoCheckpoints

    async def get(
        self,
        path: str,
        content: bool = True,
        type: str | None = None,
        format: str | None = None,
        require_hash: bool = False,
    ) -> Model:
        """The folder, or the notebook."""
        if not path.strip("/"):
            return await self._folder(content, type)
        self._check(path, type)
        found = await self.controller.ask({"do": "load" if content else "stat"})
        return self._model(found["modified"], found.get("notebook"), require_hash=require_hash)

    async def save(self, model: Model, path: str) -> Model:
        """Replace the notebook."""
        self._check(path, model.get("type"))
        if not isinstance(model.get("content"), dict):
            raise HTTPError(400, "a notebook without content")
        notebook: Notebook = model["content"]
        found = await self.controller.ask({"do": "save", "notebook": without_trust(notebook)})
        return self._model(found["modified"], None)

    async def dir_exists(self, path: str) -> bool:
        """Only the root."""
        return not path.strip("/")

    async def file_exists(self, path: str) -> bool:
        """Only the notebook."""
        return path.strip("/") == self.notebook

    async def is_hidden(self, path: str) -> bool:
        """Always False: neither the root nor the notebook is hidden."""
        return False

    async def delete_file(self, path: str) -> None:
        """Refused."""
        raise HTTPError(403, "the session's notebook cannot be deleted")

    async def rename_file(self, old_path: str, new_path: str) -> None:
        """Refused."""
        raise HTTPError(403, "the session's notebook cannot be renamed")

    async def trust_notebook(self, path: str) -> None:
        """Refused: its outputs come from an agent's kernel."""
        raise HTTPError(403, "outputs of an agent's notebook are not trusted")

    async def resolve_path(self, path: str) -> str | None:
        """Reveal no path of the host."""
        return None

    def get_extra_handlers(self) -> list[object]:
        """Return no handlers besides the API: nothing is served as a page."""
        return []

    def get_kernel_path(self, path: str, model: Model | None = None) -> Literal[""]:
        """The kernel has its own folder, in its jail."""
        return ""

    def _check(self, path: str, kind: str | None) -> None:
        if path.strip("/") != self.notebook:
            raise HTTPError(404, "there is only the session's notebook here")
        if kind not in (None, "notebook"):
            raise HTTPError(400, f"the notebook is not a {kind}", reason="bad type")

    async def _folder(self, content: bool, kind: str | None) -> Model:
        if kind not in (None, "directory"):
            raise HTTPError(400, "the root is a directory", reason="bad type")
        found = await self.controller.ask({"do": "stat"})
        entry = self._model(found["modified"], None)
        return {
            **entry,
            "name": "",
            "path": "",
            "type": "directory",
            "writable": False,
            "content": [entry] if content else None,
            "format": "json" if content else None,
        }

    def _model(
        self, modified: int, notebook: Notebook | None, *, require_hash: bool = False
    ) -> Model:
        when = datetime.fromtimestamp(modified / 1e9, UTC)
        if notebook is not None:
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell.setdefault("metadata", {})["trusted"] = False
        return {
            "name": self.notebook,
            "path": self.notebook,
            "type": "notebook",
            "writable": True,
            "created": when,
            "last_modified": when,
            "content": notebook,
            "format": "json" if notebook is not None else None,
            "mimetype": None,
            "size": None,
            "hash": hashlib.sha256(str(modified).encode()).hexdigest() if require_hash else None,
            "hash_algorithm": "sha256" if require_hash else None,
        }
