"""The generated library: a real Python package whose functions call through the gate."""

from __future__ import annotations

from seer.rpc.interface._schema import Schema

from ._stub_code import LibraryText
from ._stub_types import TypesText


def render(schema: Schema, *, module_name: str | None = None) -> dict[str, str]:
    """The files of the library, by path.

    Args:
        schema: The interface.
        module_name: The name to import it by, where it is not the interface's.
    """
    name = schema.name if module_name is None else module_name
    return {
        f"{name}/__init__.py": LibraryText(schema).render(),
        f"{name}/__init__.pyi": TypesText(schema).render(),
        f"{name}/py.typed": "",
    }
