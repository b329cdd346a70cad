"""Checks that a model's folder on this machine has all files that the model's index lists."""

import json
from pathlib import Path
from typing import Any, cast

from seer.errors import ModelError

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_POINTER = b"version https://git-lfs"
"""The beginning of a Git LFS pointer, which replaces a large file that was not fetched."""
_SHOWN = 3


def own_folder(name: str) -> Path:
    """The folder of a model on this machine.

    Raises:
        ModelError: There is no such folder, or files that the model's index lists are missing.
    """
    folder = Path(name).expanduser().resolve()
    if not folder.is_dir():
        raise ModelError(f"model {name!r}: {str(folder)!r} is not a folder")
    weights = _weights(folder)
    for file in weights:
        if _is_pointer(file):
            raise ModelError(
                f"model {name!r}: {file.name!r} is a Git LFS pointer, not the weights; "
                f"run: git -C {folder} lfs pull"
            )
    missing = _missing(folder, {file.name for file in weights})
    if missing:
        more = ", ..." if len(missing) > _SHOWN else ""
        raise ModelError(
            f"model {name!r}: {len(missing)} of its files are not in {str(folder)!r} "
            f"({', '.join(missing[:_SHOWN])}{more}); download the model again"
        )
    return folder


def weight_bytes(folder: Path) -> int:
    """The size of a model's weights."""
    return sum(file.stat().st_size for file in _weights(folder))


def _weights(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in _WEIGHTS and p.is_file())


def _is_pointer(file: Path) -> bool:
    if file.stat().st_size > 1024:
        return False
    with file.open("rb") as opened:
        return opened.read(len(_POINTER)) == _POINTER


def _missing(folder: Path, there: set[str]) -> list[str]:
    """The missing files. The list is empty if the weights are complete in any format."""
    lists = [_listed(index) for index in sorted(folder.glob("*.index.json"))]
    named = [files for files in lists if files]
    if not named or there.difference(*named) or any(files <= there for files in named):
        return []
    return sorted(named[0] - there)


def _listed(index: Path) -> set[str]:
    """The files that an index of weights lists."""
    try:
        content: Any = json.loads(index.read_bytes())
    except (OSError, ValueError):
        return set()
    found: Any = (
        cast("dict[str, Any]", content).get("weight_map") if isinstance(content, dict) else None
    )
    return (
        {str(file) for file in cast("dict[str, Any]", found).values()}
        if isinstance(found, dict)
        else set()
    )
