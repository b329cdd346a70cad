"""Renders agents' text with libraries, and reduces the result to markup that is safe to show."""

import html
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
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

LONGEST = 100_000
"""Characters; longer texts are shown as plain text."""
LONGEST_CODE = 60_000
MOST_LINKS = 1_000
LONGEST_FORMULA = 2_000
_FORMULA_LINES = 60
_FORMULA_SIGN = re.compile(r"[\\^_=<>+/*|]")
DEEPEST = 80
"""Levels of nested elements; deeper elements are dropped, and their text is kept."""
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
_BLOCK_MARK = re.compile(r"\s*(?:#{1,6}\s+|[-*+>|]\s+|\d{1,9}[.)]\s+)?")


@lru_cache(maxsize=1024)
def _markdown(text: str) -> Fragment:
    return sanitized(_renderer().render(text))


def markdown(text: str) -> Fragment | None:
    """Markdown as a fragment; None if rendering would take too long. HTML in it stays text."""
    # The time to render links grows with the square of their number.
    if len(text) > LONGEST or text.count("[") + text.count("://") > MOST_LINKS:
        return None
    return _markdown(_encodable(text))


@lru_cache(maxsize=1024)
def plain_line(text: str) -> str:
    """The first line of a Markdown text that is not empty, without markup."""
    for line in text[:4_000].splitlines():
        marked = _renderer().renderInline(_encodable(_BLOCK_MARK.sub("", line, count=1)[:1_000]))
        said = " ".join(_said(sanitized(marked)).split())
        if said.strip("-=_*|:` "):
            return said if len(said) <= 160 else said[:159] + "…"
    return ""


def _said(fragment: Fragment) -> str:
    parts = (node if isinstance(node, str) else _said(node[2:]) for node in fragment)
    return "".join(parts)


@lru_cache(maxsize=1024)
def _code(text: str, language: str) -> Fragment:
    return sanitized(_highlighted(text, language))


def code(text: str, language: str) -> Fragment | None:
    """Highlighted code as a fragment; None if it is too long or the language is unknown."""
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


def _encodable(text: str) -> str:
    """The text without lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@lru_cache(maxsize=1)
def _renderer() -> MarkdownIt:
    found = MarkdownIt("js-default", {"html": False, "linkify": True, "highlight": None})
    dollarmath_plugin(found, allow_digits=False, double_inline=True, renderer=_formula)
    found.inline.ruler.before("escape", "seer_math", _bracket_math)
    found.block.ruler.before(
        "fence", "seer_math_block", _bracket_block, {"alt": ["paragraph", "list", "blockquote"]}
    )
    found.add_render_rule("fence", _fence)
    found.add_render_rule("code_block", _fence)
    found.add_render_rule("image", _image)
    found.core.ruler.push("seer", _adapt)
    return found


def _bracket_math(state: Any, silent: bool) -> bool:
    r"""Read `\(...\)` and `\[...\]` in a line of text as formulas."""
    opening = state.src[state.pos : state.pos + 2]
    if opening not in (r"\(", r"\["):
        return False
    closing = r"\)" if opening == r"\(" else r"\]"
    begin = state.pos + 2
    end = state.src.find(closing, begin, min(begin + LONGEST_FORMULA, state.posMax))
    content = state.src[begin:end].strip() if end > 0 else ""
    # Without an operator of a formula, the backslashes only escape brackets.
    if "`" in content or opening in content:
        return False
    if not _FORMULA_SIGN.search(content) and not (opening == r"\(" and len(content) == 1):
        return False
    if not silent:
        kind = "math_inline" if opening == r"\(" else "math_inline_double"
        state.push(kind, "math", 0).content = content
    state.pos = end + 2
    return True


def _bracket_block(state: Any, first: int, last: int, silent: bool) -> bool:
    r"""Read lines from one that begins with `\[` to one that ends with `\]` as a formula."""
    begin = state.bMarks[first] + state.tShift[first]
    if not state.src.startswith(r"\[", begin) or state.sCount[first] - state.blkIndent >= 4:
        return False
    for line in range(first, min(last, first + _FORMULA_LINES)):
        end = state.eMarks[line]
        if not state.src[state.bMarks[line] : end].rstrip().endswith(r"\]"):
            continue
        content = state.src[begin + 2 : end].rstrip()[:-2].strip()
        if r"\]" in content or not _FORMULA_SIGN.search(content):
            return False
        if not silent:
            token = state.push("math_block", "math", 0)
            token.block = True
            token.content = content
            token.map = [first, line + 1]
        state.line = line + 1
        return True
    return False


def _adapt(state: Any) -> None:
    """Move headings one level down, below the page's own, and turn cell alignment into classes."""
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
    """Turn a picture of another site into a link, because the page fetches nothing."""
    token = tokens[index]
    address = str(token.attrs.get("src", ""))
    label = html.escape(token.content or address)
    return f'<a href="{html.escape(address)}">picture: {label}</a>'


def _formula(text: str, options: Mapping[str, Any]) -> str:
    """A formula as MathML; a formula that cannot be parsed is shown as its source."""
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
    """Join neighbours of one class into one span, which keeps fragments small."""
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
    """Reads the well-formed output of nh3 into nested lists."""

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
