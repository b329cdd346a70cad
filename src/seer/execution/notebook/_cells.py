"""What is known of a notebook's cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, kw_only=True)
class CellInfo:
    """A cell of the notebook."""

    cell_id: str
    kind: str
    """`code`, `markdown` or `raw`."""
    source: str
    execution_count: int | None = None
    outputs: tuple[Mapping[str, Any], ...] = ()
    """As in the notebook format."""

    @classmethod
    def from_cell(cls, cell: Mapping[str, Any]) -> CellInfo:
        """From the notebook format."""
        return cls(
            cell_id=str(cell.get("id", "")),
            kind=str(cell["cell_type"]),
            source=_joined(cell.get("source", "")),
            execution_count=cell.get("execution_count"),
            outputs=tuple(cell.get("outputs", ())),
        )

    @property
    def output_text(self) -> str:
        """The text of its outputs; what has no text is named by its types."""
        return "\n".join(_text_of(output) for output in self.outputs)


def _text_of(output: Mapping[str, Any]) -> str:
    match output.get("output_type"):
        case "stream":
            return _joined(output.get("text", ""))
        case "error":
            return f"{output.get('ename')}: {output.get('evalue')}"
        case _:
            data: Mapping[str, Any] = output.get("data", {})
            if "text/plain" in data:
                return _joined(data["text/plain"])
            return f"[{', '.join(data)}]"


def _joined(text: object) -> str:
    """Text as the notebook format has it: a string, or a list of lines."""
    return "".join(map(str, cast("list[object]", text))) if isinstance(text, list) else str(text)
