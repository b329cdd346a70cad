"""Ready-made interfaces: files to serve as they are, or to copy and change.

    tools = scoped.serve(interfaces.whitebox, name="tools")

An interface is a file, so these names are paths. The functions that they expose are listed in
`docs/interfaces.md`; modules beside the file implement them, and are copied with it.
"""

import shutil
from pathlib import Path as _Path

_FOLDER = _Path(__file__).parent / "toolkit"

blackbox: _Path = _FOLDER / "blackbox.py"
"""What a model writes: generate, sample, chat, tokens and next-token distributions."""
whitebox: _Path = _FOLDER / "whitebox.py"
"""All of `blackbox`, and access to the inside: activations, lenses, patching, probes ..."""

__all__ = ["blackbox", "copy", "whitebox"]


def copy(interface: _Path, folder: str | _Path) -> _Path:
    """Copy an interface with the modules beside it, to change and serve the copy.

    Args:
        interface: `whitebox` or `blackbox`.
        folder: The folder to create; it must not exist yet.

    Returns:
        The copied interface file.

    Raises:
        FileExistsError: The folder exists already.
    """
    shutil.copytree(interface.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return _Path(folder) / interface.name
