"""A script for what a build jail does besides running uv. It uses only the standard library.

`fetch LIST FOLDER` downloads files into a new folder; LIST is a JSON list of (address, file name)
pairs. `copy SOURCE TARGET` copies a project without its developers' environments and caches.
"""

import json
import shutil
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NOT_COPIED = shutil.ignore_patterns(".venv", ".tox", ".nox", "__pycache__", "node_modules")


def fetch(listing: str, folder: str) -> None:
    """Download files, several at a time."""
    Path(folder).mkdir()
    entries: list[tuple[str, str]] = json.loads(Path(listing).read_text())

    def get(entry: tuple[str, str]) -> None:
        urllib.request.urlretrieve(entry[0], Path(folder, entry[1]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(get, entries))


def copy(source: str, target: str) -> None:
    """Copy a project's folder; links stay links."""
    shutil.copytree(source, target, symlinks=True, ignore=_NOT_COPIED)


if __name__ == "__main__":
    {"fetch": fetch, "copy": copy}[sys.argv[1]](*sys.argv[2:])
