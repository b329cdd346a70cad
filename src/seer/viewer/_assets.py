"""The page's own files, served unchanged, and joined into one script for a shared run.

There is no build step. The scripts are plain ES modules. For a shared run each module becomes a
function that returns its exports. Only one form of import and export is supported; a module that
uses another one is an error.
"""

import posixpath
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

FOLDERS = ("", "css", "data", "draw", "pages", "panels", "text")
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w/-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^\s*(?:import\b|export\b).*$", re.MULTILINE)


def _root() -> Traversable:
    return files("seer.viewer") / "static"


@cache
def assets() -> dict[str, tuple[bytes, str]]:
    """Every file of the page with its media type, by the path in its address."""
    found: dict[str, tuple[bytes, str]] = {}
    for folder in FOLDERS:
        for item in (_root() / folder).iterdir():
            kind = TYPES.get(item.name.rpartition(".")[2])
            if item.is_file() and kind is not None:
                found[posixpath.join(folder, item.name)] = (item.read_bytes(), kind)
    return found


def stylesheet() -> str:
    """All styles as one text, in the order in which the page links them."""
    page = assets()["index.html"][0].decode()
    names = re.findall(r'href="(css/[\w-]+\.css)"', page)
    return "\n".join(assets()[name][0].decode() for name in names)


def bundle(entry: str = "main.js") -> str:
    """All scripts as one text without imports.

    Raises:
        ValueError: A module has a circular import, or an unsupported import or export.
    """
    parts: list[str] = []
    _add(entry, parts, done=set(), above=())
    return '"use strict";\n' + "\n".join(parts)


def _add(name: str, parts: list[str], *, done: set[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"circular import: {' → '.join((*above, name))}")
    if name in done:
        return
    done.add(name)
    source = assets()[name][0].decode()
    for found in _IMPORT.finditer(source):
        _add(_resolve(name, found[2]), parts, done=done, above=(*above, name))
    exports = [found[1] for found in _EXPORT.finditer(source)]
    body = _IMPORT.sub(
        lambda m: f"const {{{_renamed(m[1])}}} = {_variable(_resolve(name, m[2]))};", source
    )
    body = _EXPORT.sub("", body)
    if left := _LEFT.search(body):
        raise ValueError(f"{name}: unsupported form: {left[0].strip()!r}")
    parts.append(
        f"const {_variable(name)} = (() => {{\n{body}\nreturn {{{', '.join(exports)}}};\n}})();"
    )


def _resolve(name: str, imported: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _variable(name: str) -> str:
    return "module_" + re.sub(r"[/-]", "_", name.removesuffix(".js"))


def _renamed(names: str) -> str:
    return names.replace(" as ", ": ").rstrip().rstrip(",")
