"""`Workspace` as the original spells it."""

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import seer.workspace
from src._old import without_meaning

_ROOT = PurePosixPath("/workspace")


class Workspace(seer.workspace.Workspace):
    """A `seer.workspace.Workspace` with the original's spellings."""

    def __init__(
        self,
        *args: Any,
        local_dirs: Sequence[Any] = (),
        local_files: Sequence[Any] = (),
        hidden_model_loading: bool | None = None,
        **options: Any,
    ) -> None:
        without_meaning("Workspace", {"hidden_model_loading": hidden_model_loading})
        super().__init__(
            *args,
            local_dirs=[_placed(entry) for entry in local_dirs],
            local_files=[_placed(entry) for entry in local_files],
            **options,
        )


_Path = str | os.PathLike[str]


def _placed(entry: _Path | tuple[_Path, str]) -> _Path | tuple[_Path, str]:
    """An entry whose target is relative; the original's agents had the folder `/workspace`."""
    if isinstance(entry, (str, os.PathLike)):
        return entry
    source, target = entry
    place = PurePosixPath(target)
    if place.is_absolute():
        place = place.relative_to(_ROOT if place.is_relative_to(_ROOT) else "/")
    return source, str(place)
