"""Layers: folders of changes on top of this host's system, each on top of another.

A layer holds one folder per tree of a container's root. The lowest is this host itself: its
programs (`/usr`), its settings (`/etc`) and the interpreter that runs here; nobody's home, data or
processes.
"""

import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TREES = ("root", "usr", "etc", "python")
"""The trees of a root, in the order in which they are mounted."""
TARGETS = {"root": "/", "usr": "/usr", "etc": "/etc", "python": "/opt/python"}
_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_FOLDERS = ("dev", "home", "mnt", "opt/python", "proc", "root", "run", "sys", "tmp", "usr", "etc")
_MORE = ("var/lib", "var/log", "var/tmp", "var/cache", "srv")


_APT = """#!/bin/sh
for word; do
  case $word in -*|update|install|upgrade) continue ;; esac
  if ! grep -qx "$word" /usr/local/share/packages && ! command -v "$word" >/dev/null; then
    echo "E: Unable to locate package $word" >&2
    exit 100
  fi
  echo "$word is already the newest version."
done
"""


@dataclass(frozen=True)
class Layer:
    """Changes to a root, and the layer that they were made on."""

    id: str
    folder: Path
    below: "Layer | None" = None

    def chain(self) -> "list[Layer]":
        """This layer and all below it, topmost first."""
        found: list[Layer] = []
        layer: Layer | None = self
        while layer is not None:
            found.append(layer)
            layer = layer.below
        return found


class LayerStore:
    """A folder of layers; the lowest is like a bare image with Python."""

    def __init__(self, folder: Path) -> None:
        """Keep layers under `folder`, which is made."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.base = self._base()

    def new(self, below: Layer) -> Layer:
        """An empty layer."""
        made = Layer(f"layer-{secrets.token_hex(8)}", self.folder / secrets.token_hex(8), below)
        for tree in TREES:
            (made.folder / tree).mkdir(parents=True)
        return made

    def copy(self, changes: Layer) -> Layer:
        """A copy of a layer, so that the original may change further. Keeps deletions."""
        made = Layer(
            f"layer-{secrets.token_hex(8)}", self.folder / secrets.token_hex(8), changes.below
        )
        made.folder.mkdir(parents=True)
        # A deletion is a device node in a layer; only an archiving copy keeps it.
        argv = ["cp", "-a", "--reflink=auto", "--"]
        argv += [str(changes.folder / tree) for tree in TREES]
        subprocess.run([*argv, str(made.folder)], check=True, capture_output=True)
        return made

    def remove(self, layer: Layer) -> None:
        """Forget a layer that nothing uses."""
        shutil.rmtree(layer.folder, ignore_errors=True)

    def _base(self) -> Layer:
        base = Layer("layer-base", self.folder / "base")
        root = base.folder / "root"
        for name in (*_FOLDERS, *_MORE):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in _LINKS:
            if Path("/usr", name).is_dir() and not (root / name).is_symlink():
                (root / name).symlink_to(f"usr/{name}")
        for name in ("tmp", "var/tmp"):
            (root / name).chmod(0o1777)
        (root / "root").chmod(0o700)
        programs = base.folder / "usr" / "local" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        for name in ("python", "python3", f"python{version}"):
            if not (programs / name).is_symlink():
                (programs / name).symlink_to(f"/opt/python/bin/python{version}")
        for tree in TREES:
            (base.folder / tree).mkdir(exist_ok=True)
        _offer_packages(base)
        # The interpreter and its library are not in the folder for which they were built.
        libraries = base.folder / "etc" / "ld.so.conf.d"
        libraries.mkdir(exist_ok=True)
        (libraries / "00-python.conf").write_text("/opt/python/lib\n")
        return base


def _offer_packages(base: Layer) -> None:
    """Let images install, without a network, the packages that this host has installed."""
    known = base.folder / "usr" / "local" / "share" / "packages"
    known.parent.mkdir(parents=True, exist_ok=True)
    try:
        text = Path("/var/lib/dpkg/status").read_text(errors="replace")
    except OSError:
        text = ""
    names = [line[9:] for line in text.splitlines() if line.startswith("Package: ")]
    known.write_text("".join(f"{name}\n" for name in names))
    program = base.folder / "usr" / "local" / "bin" / "apt-get"
    program.write_text(_APT)
    program.chmod(0o755)


def lower(tree: str, layers: Sequence[Layer]) -> str:
    """The read-only part of a tree: all layers, and this host below them."""
    hosts = {"usr": "/usr", "etc": "/etc", "python": sys.base_prefix}
    folders = [str(layer.folder / tree) for layer in layers]
    return ":".join([*folders, hosts[tree]] if tree in hosts else folders)
