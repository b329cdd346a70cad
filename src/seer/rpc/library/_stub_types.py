"""The types of the generated library, for type checkers and editors: a stub beside the code.

Python's own functions cannot be said to have an attribute `aio`, so a checker is shown a callable
object with that method in the place of each. What `help()` and `inspect` show is the code's.
"""

from __future__ import annotations

from seer.rpc.interface._schema import Function
from seer.rpc.interface._signatures import signature

from ._stub_code import BUDGET, LAST_CALL, LibraryText, docstring


class TypesText(LibraryText):
    """The text of the stub of one library."""

    def render(self) -> str:
        """The whole text."""
        self.server = "..."
        parts = [docstring(self.schema.doc or f"The functions of {self.schema.name}."), ""]
        kinds = self._kinds()
        parts += self._standard_imports(kinds)
        parts += ["from typing import Protocol as _Protocol", *self._module_imports(kinds)]
        if "handle" in kinds:
            parts += ["", "from _seer_gate.rpc.client import Handle as Handle"]
        parts += ["", f"__all__ = {self._exported()!r}", ""]
        for definition in self.types:
            parts += ["", *self._type(definition), ""]
        for function in self.functions:
            parts += ["", *self._function(function), ""]
        parts += ["", "def budget() -> dict[str, Any]:", *_body(BUDGET, "    ")]
        parts += ["", "def last_call() -> str:", *_body(LAST_CALL, "    ")]
        return "\n".join(parts) + "\n"

    def _function(self, function: Function) -> list[str]:
        head = signature(function, default_text=self._default)
        parameters = head.removeprefix(f"{function.name}(")
        comma = ", " if function.parameters else ""
        called = f"__call__(self{comma}{parameters}"
        awaited = f"aio(self{comma}{parameters}"
        if function.is_generator:
            awaited = awaited.replace(" -> Iterator[", " -> AsyncIterator[")
        kind = "def" if function.is_generator else "async def"
        name = f"_{function.name}_function"
        return [
            f"class {name}(_Protocol):",
            f"    def {called}:",
            *_body(function.doc, "        "),
            f"    {kind} {awaited}:",
            *_body(function.doc, "        "),
            "",
            f"{function.name}: {name}",
        ]


def _body(doc: str, indent: str) -> list[str]:
    return [docstring(doc, indent)] if doc else [f"{indent}..."]
