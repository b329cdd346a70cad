"""Saves the notebook whole or not at all: whoever reads the file meanwhile sees a valid one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from seer.execution._notebook_file import write_whole


class WholeFileManager(AsyncLargeFileManager):
    """Jupyter's own manager truncates the file and then writes it; this one replaces it."""

    async def _save_notebook(
        self, os_path: str, nb: Any, capture_validation_error: Any = None
    ) -> None:
        library: Any = nbformat
        text: str = library.writes(
            nb, version=nbformat.NO_CONVERT, capture_validation_error=capture_validation_error
        )
        await asyncio.to_thread(write_whole, Path(os_path), text)
