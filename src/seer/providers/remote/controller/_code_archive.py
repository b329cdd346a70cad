"""The archive of Seer's own code that a remote host gets, named by a hash of its content.

It holds the modules that `operations.py` imports: jails, the local provider, the modules in
`onhost`, and those that prepare packages, models and repositories. Its few third-party modules are
pure Python.
"""

import gzip
import hashlib
import importlib.util
import io
import tarfile
from functools import cache
from pathlib import Path

import seer
from seer.errors import ProviderError

_PACKAGES = ("isolation", "providers", "environment")
_ALONE = frozenset({"seer/environment/__init__.py"})
"""Packages whose `__init__` imports modules that a host does not have. The archive has an empty
one."""
_THIRD_PARTY = ("packaging", "dotenv")
_ON_HOST = Path(__file__).parents[1] / "onhost"
_LEAN = ("frames.py", "launcher_bridge.py", "pump.py", "session_server.py")
"""Modules that are also in the package `seer_remote`, because `seer.providers` imports slowly."""


@cache
def code_archive() -> tuple[str, bytes]:
    """The archive's name, and the archive as a gzipped tar."""
    files = _files()
    total = hashlib.sha256()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in sorted(files.items()):
            total.update(f"{len(name)}:{name}{len(data)}:".encode() + data)
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))
    return total.hexdigest()[:32], gzip.compress(packed.getvalue(), 6, mtime=0)


def bootstrap() -> str:
    """The script of the first contact."""
    return (_ON_HOST / "bootstrap.sh").read_text()


def _files() -> dict[str, bytes]:
    root = Path(seer.__file__).parent
    files = {f"seer/{path.name}": path.read_bytes() for path in root.glob("*.py")}
    for package in _PACKAGES:
        for path in (root / package).rglob("*.py"):
            name = f"seer/{path.relative_to(root).as_posix()}"
            files[name] = b"" if name in _ALONE else path.read_bytes()
    files["seer_remote/__init__.py"] = b""
    files.update({f"seer_remote/{name}": (_ON_HOST / name).read_bytes() for name in _LEAN})
    files["seer_remote/cleaning.py"] = files["seer/providers/agent/cleaning.py"]
    for name in _THIRD_PARTY:
        files.update(_module_files(name))
    return files


def _module_files(name: str) -> dict[str, bytes]:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ProviderError(f"the package {name!r} is not installed; reinstall Seer")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*.py")
    }
