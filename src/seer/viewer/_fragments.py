"""Recorded text as fragments that are safe to show: Markdown, code, notebook HTML, differences.

A fragment is JSON, not markup: a string is text, and `[tag, attributes, *children]` is an element.
Agents write the text, so it is hostile. Libraries render it, nh3 removes every element and
attribute that is not listed (`_render`), and the page builds elements from the rest without ever
parsing markup.
"""

import difflib
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from seer.viewer._render import LONGEST, Fragment, code, markdown, sanitized

Fragments: TypeAlias = dict[str, Any]
"""The fragments of one line, by field name; a pair of texts has two."""
ReadBlob = Callable[[str], bytes | None]

MOST_WORDS = 4_000
"""Longer texts are not compared word by word."""
_CODE_ARGUMENTS = {"code": "python", "source": "python", "script": "python", "command": "bash"}
_PAIRS = (
    ("before", "after"),
    ("baseline", "steered"),
    ("original", "steered"),
    ("unsteered", "steered"),
    ("plain", "steered"),
    ("clean", "patched"),
    ("base", "tuned"),
)
_DEEPEST = 6


def difference(left: str, right: str) -> tuple[Fragment, Fragment]:
    """Two texts; words that only one of them has are in `mark` elements."""
    a, b = (re.findall(r"\s+|[\w'’-]+|[^\w\s]", text) for text in (left, right))
    if max(len(a), len(b)) > MOST_WORDS:
        return [left], [right]
    found: tuple[Fragment, Fragment] = ([], [])
    for kind, a0, a1, b0, b1 in difflib.SequenceMatcher(None, a, b).get_opcodes():
        for side, text in zip(found, ("".join(a[a0:a1]), "".join(b[b0:b1])), strict=True):
            if text:
                side.append(text if kind == "equal" else ["mark", {}, text])
    return found


def line_fragments(kind: str, body: Mapping[str, Any], read_blob: ReadBlob) -> Fragments:
    """The fragments of one line of a record.

    Args:
        kind: `events` or `calls`.
        body: The line in the form it has on disk.
        read_blob: Returns the bytes of a large value, or None if it is left out.
    """
    if kind == "calls":
        text = _text(body.get("result"), read_blob)
        return _pairs(_json(text).get("result")) if text else {}
    found: Fragments = {}
    for field in ("text", "task", "system_prompt"):
        text = _text(body.get(field), read_blob)
        if text:
            found[field] = markdown(textwrap.dedent(text).strip("\n") if field == "task" else text)
    arguments = body.get("arguments")
    if isinstance(arguments, dict):
        found |= _of_arguments(cast("dict[str, Any]", arguments), read_blob)
    content = body.get("content")
    if isinstance(content, list):
        for index, block in enumerate(cast("list[Any]", content)):
            given = cast("dict[str, Any]", block) if isinstance(block, dict) else {}
            text = _text(given.get("text"), read_blob)
            if text and _json(text):
                found[f"content.{index}"] = code(text, "json")
    found |= _pairs(body.get("structured"))
    return {name: fragment for name, fragment in found.items() if fragment is not None}


def _of_arguments(arguments: dict[str, Any], read_blob: ReadBlob) -> Fragments:
    for name, language in _CODE_ARGUMENTS.items():
        text = _text(arguments.get(name), read_blob)
        if text:
            return {"code": code(text.strip("\n").rstrip(), language)}
    return {}


def notebook_fragments(notebook: Mapping[str, Any]) -> list[Fragments]:
    """The fragments of each cell: `source`, and outputs by their index."""
    return [_of_cell(cell) for cell in cast("list[Any]", notebook.get("cells") or [])]


def _of_cell(cell: Any) -> Fragments:
    if not isinstance(cell, dict):
        return {}
    given = cast("dict[str, Any]", cell)
    source = _joined(given.get("source"))
    kind = given.get("cell_type")
    found: Fragments = {}
    if kind != "raw":
        found["source"] = markdown(source) if kind == "markdown" else code(source, "python")
    outputs = given.get("outputs")
    for index, output in enumerate(cast("list[Any]", outputs) if isinstance(outputs, list) else []):
        data = cast("dict[str, Any]", output).get("data") if isinstance(output, dict) else None
        if isinstance(data, dict):
            found[str(index)] = _of_output(cast("dict[str, Any]", data))
    return {name: fragment for name, fragment in found.items() if fragment}


def _of_output(data: dict[str, Any]) -> Fragment | None:
    markup = _joined(data.get("text/html"))
    if markup:
        return sanitized(markup) if len(markup) <= 3 * LONGEST else None
    return markdown(_joined(data.get("text/markdown")))


def _joined(value: Any) -> str:
    """A notebook's text, which is a string or a list of lines; empty for anything else."""
    if isinstance(value, list):
        return "".join(map(str, cast("list[Any]", value)))
    return value if isinstance(value, str) else ""


def _pairs(value: Any, path: str = "", depth: int = 0) -> Fragments:
    """The differences between the texts of each pair in a result, by the pair's path."""
    found: Fragments = {}
    if depth > _DEEPEST:
        return found
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)[:12]):
            found |= _pairs(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        for left, right in _PAIRS:
            texts = given.get(left), given.get(right)
            if isinstance(texts[0], str) and isinstance(texts[1], str):
                found[f"pair:{path}"] = difference(texts[0], texts[1])
                break
        for key, item in given.items():
            found |= _pairs(item, f"{path}.{key}" if path else key, depth + 1)
    return found


def _text(value: Any, read_blob: ReadBlob) -> str | None:
    if isinstance(value, dict):
        reference = cast("dict[str, Any]", value)
        if "$blob" not in reference or reference.get("encoding") == "base64":
            return None
        if int(reference.get("bytes") or 0) > 4 * LONGEST:
            return None
        data = read_blob(str(reference["$blob"]))
        return None if data is None else data.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _json(text: str) -> dict[str, Any]:
    if text.lstrip()[:1] not in {"{", "["} or len(text) > 20 * LONGEST:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"": found}
