"""Recorded text as fragments that are safe to show: Markdown, code, notebook HTML, differences.

A fragment is JSON, not markup: a string is text, and `[tag, attributes, *children]` is an element.
Agents write the text, so it is hostile. Libraries render it, nh3 removes every element and
attribute that is not listed here, and the page builds elements from what is left without ever
parsing markup.
"""

import difflib
import html
import json
import logging
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any, TypeAlias, cast

import nh3
from latex2mathml.converter import convert as to_mathml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import lex
from pygments.lexer import Lexer
from pygments.lexers import (
    get_lexer_by_name,  # pyright: ignore[reportUnknownVariableType]
)
from pygments.token import Token as Kind
from pygments.util import ClassNotFound

logger = logging.getLogger(__name__)

Fragment: TypeAlias = list[Any]
Fragments: TypeAlias = dict[str, Any]
"""The fragments of one line by the name of the field; a pair of texts has two."""
ReadBlob = Callable[[str], bytes | None]

LONGEST = 100_000
"""Characters; longer texts are shown as they are."""
LONGEST_CODE = 60_000
MOST_LINKS = 1_000
LONGEST_FORMULA = 2_000
DEEPEST = 80
"""Elements inside each other; deeper ones are dropped and their text is kept."""
MOST_WORDS = 4_000
"""Words of a text that are compared with another one."""
_MATH = (
    "math mrow mi mo mn ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover "
    "munderover mtable mtr mtd mstyle mpadded mphantom menclose mmultiscripts"
)
_TAGS = frozenset(
    "a abbr b blockquote br caption code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr i li mark ol p "
    f"pre s small span strong sub sup table tbody td tfoot th thead tr u ul {_MATH}".split()
)
_VOID = frozenset({"br", "hr", "mspace"})
_ATTRIBUTES = {
    "a": {"href", "title"},
    "math": {"display"},
    "mo": {"stretchy", "fence", "separator"},
    "mi": {"mathvariant"},
    "mfrac": {"linethickness"},
    "mspace": {"width"},
    "mtd": {"columnalign"},
    "ol": {"start"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
}
_CODE_CLASSES: Sequence[tuple[Any, str]] = (
    (Kind.Comment, "comment"),
    (Kind.Keyword, "keyword"),
    (Kind.Operator.Word, "keyword"),
    (Kind.Literal.String, "string"),
    (Kind.Literal.Number, "number"),
    (Kind.Name.Decorator, "decorator"),
    (Kind.Name.Builtin.Pseudo, "self"),
    (Kind.Name.Tag, "property"),
    (Kind.Name.Function, "function"),
    (Kind.Name.Class, "function"),
    (Kind.Name.Builtin, "function"),
    (Kind.Name.Exception, "function"),
    (Kind.Name.Variable, "property"),
)
_ALIGNMENTS = {f"text-align:{side}": f"align-{side}" for side in ("left", "center", "right")}
_CLASSES = {
    "div": {"code", "math"},
    "span": {"code-language", "unlinked", *(f"code-{name}" for _, name in _CODE_CLASSES)},
    "td": set(_ALIGNMENTS.values()),
    "th": set(_ALIGNMENTS.values()),
}
_LANGUAGES = {"ipython": "python", "console": "bash", "zsh": "bash", "jsx": "javascript"}
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
_BLOCK_MARK = re.compile(r"\s*(?:#{1,6}\s+|[-*+>|]\s+|\d{1,9}[.)]\s+)?")
_DEEPEST = 6


@lru_cache(maxsize=1024)
def _markdown(text: str) -> Fragment:
    return sanitized(_renderer().render(text))


def markdown(text: str) -> Fragment | None:
    """Markdown as a fragment; None where that would take too long. HTML in it stays text."""
    # The time for links grows with the square of their number.
    if len(text) > LONGEST or text.count("[") + text.count("://") > MOST_LINKS:
        return None
    return _markdown(_encodable(text))


@lru_cache(maxsize=1024)
def plain_line(text: str, longest: int = 160) -> str:
    """The first line of a Markdown text that says something, without its marks."""
    for line in text[:4_000].splitlines():
        marked = _renderer().renderInline(_encodable(_BLOCK_MARK.sub("", line, count=1)[:1_000]))
        said = " ".join(_said(sanitized(marked)).split())
        if said.strip("-=_*|:` "):
            return said if len(said) <= longest else said[: longest - 1] + "…"
    return ""


def _said(fragment: Fragment) -> str:
    parts = (node if isinstance(node, str) else _said(node[2:]) for node in fragment)
    return "".join(parts)


@lru_cache(maxsize=1024)
def _code(text: str, language: str) -> Fragment:
    return sanitized(_highlighted(text, language))


def code(text: str, language: str) -> Fragment | None:
    """Highlighted code as a fragment; None where it is too long or the language is unknown."""
    if len(text) > LONGEST_CODE or _lexer(language) is None:
        return None
    return _code(_encodable(text), language)


def sanitized(markup: str) -> Fragment:
    """HTML as a fragment of the elements and attributes that are allowed."""
    clean = nh3.clean(
        _encodable(markup),
        tags=set(_TAGS),
        attributes=_ATTRIBUTES,
        allowed_classes=_CLASSES,
        url_schemes={"http", "https", "mailto"},
        link_rel=None,
    )
    reader = _Reader()
    reader.feed(clean)
    reader.close()
    return reader.root


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
        read_blob: Returns the bytes of a large value, or None where it is left out.
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
            text = _text(cast("dict[str, Any]", block).get("text"), read_blob) if block else None
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
    source = joined(given.get("source"))
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
    markup = joined(data.get("text/html"))
    if markup:
        return sanitized(markup) if len(markup) <= 3 * LONGEST else None
    return markdown(joined(data.get("text/markdown")))


def joined(value: Any) -> str:
    """A notebook's text, which is a string or a list of lines."""
    return "".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else value or ""


def _pairs(value: Any, path: str = "", depth: int = 0) -> Fragments:
    """Differences of the texts that stand side by side in a result, by their path."""
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


def _encodable(text: str) -> str:
    """The text without lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@lru_cache(maxsize=1)
def _renderer() -> MarkdownIt:
    found = MarkdownIt("js-default", {"html": False, "linkify": True, "highlight": None})
    dollarmath_plugin(found, allow_digits=False, double_inline=True, renderer=_formula)
    found.add_render_rule("fence", _fence)
    found.add_render_rule("code_block", _fence)
    found.add_render_rule("image", _image)
    found.core.ruler.push("seer", _adapt)
    return found


def _adapt(state: Any) -> None:
    """Move headings below the page's own, and express the alignment of cells as classes."""
    for token in cast("list[Token]", state.tokens):
        if token.type in {"heading_open", "heading_close"}:
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        elif token.type in {"th_open", "td_open"}:
            name = _ALIGNMENTS.get(str(token.attrs.pop("style", "")))
            if name:
                token.attrSet("class", name)


def _fence(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    token = tokens[index]
    found = re.match(r"[\w+#.-]{1,24}", token.info)
    language = found[0] if found else ""
    label = f'<span class="code-language">{html.escape(language)}</span>' if language else ""
    body = _highlighted(token.content.rstrip("\n"), language)
    return f'<div class="code">{label}<pre><code>{body}</code></pre></div>'


def _image(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    """A picture of another site is a link: the page fetches nothing."""
    token = tokens[index]
    address = str(token.attrs.get("src", ""))
    label = html.escape(token.content or address)
    return f'<a href="{html.escape(address)}">picture: {label}</a>'


def _formula(text: str, options: Mapping[str, Any]) -> str:
    """A formula as MathML; one that cannot be read is shown as it was written."""
    display = "block" if options.get("display_mode") else "inline"
    if len(text) <= LONGEST_FORMULA:
        try:
            return to_mathml(text, display=display)
        except Exception as error:  # the library's errors have no common base
            logger.debug("a formula cannot be read: %r", error)
    return f"<code>{html.escape(text)}</code>"


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    name = language.lower()
    try:
        return get_lexer_by_name(_LANGUAGES.get(name, name), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def _highlighted(text: str, language: str) -> str:
    lexer = _lexer(language) if language and len(text) <= LONGEST_CODE else None
    if lexer is None:
        return html.escape(text)
    return "".join(map(_span, _merged(cast("Iterable[tuple[Any, str]]", lex(text, lexer)))))


def _span(part: tuple[str, str]) -> str:
    name, text = part
    return f'<span class="code-{name}">{html.escape(text)}</span>' if name else html.escape(text)


def _merged(tokens: Iterable[tuple[Any, str]]) -> Iterable[tuple[str, str]]:
    """Neighbours of one class are one span, which keeps fragments small."""
    last, text = "", ""
    for kind, part in tokens:
        name = next((name for wanted, name in _CODE_CLASSES if kind in wanted), "")
        if name != last and text:
            yield last, text
            text = ""
        last, text = name, text + part
    if text:
        yield last, text


class _Reader(HTMLParser):
    """Reads what nh3 wrote, which is well-formed, into nested lists."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root: Fragment = []
        self._open: list[list[Any]] = [self.root]
        self._too_deep = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len(self._open) > DEEPEST:
            self._too_deep += tag not in _VOID
            return
        element: list[Any] = [tag, {name: value or "" for name, value in attrs}]
        self._open[-1].append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if self._too_deep:
            self._too_deep -= 1
        elif len(self._open) > 1:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].append(data)
