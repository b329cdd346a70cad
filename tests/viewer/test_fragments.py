"""Text that agents wrote becomes elements from a short list, without losing content."""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from seer.errors import MissingExtraError
from seer.harness import Text, ToolCall
from seer.viewer import Redaction, share
from tests.viewer.made import Made, notebook, study
from tests.viewer.test_share import embedded

SAFE = {"class", "href", "title", "start", "colspan", "rowspan", "display"}
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1)) [y](data:text/html,x) <javascript:alert(1)>",
    "<script>alert(1)</script><style>*{}</style><iframe srcdoc=x></iframe>",
    "$\\text{<img src=x onerror=alert(1)>}$ $\\href{javascript:alert(1)}{x}$",
    "```<script>\n<script>alert(1)</script>\n```",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></math>",
    "\ud83d \udc00 \x00 lone surrogates",
]


def texts(client: Any, root: Path, *written: str) -> list[list[Any]]:
    """The fragments of texts, as the viewer gives them."""
    made = Made(root)
    for text in written:
        made.add(Text(text=text))
    made.close()
    lines = [line for line in client.lines(made.run_id) if line["kind"] == "events"]
    asked = ",".join(str(line["at"]) for line in lines)
    found = client(f"/api/runs/{made.run_id}/fragments?events={asked}").json()["events"]
    return [found[str(line["at"])].get("text") for line in lines]


def elements(fragment: list[Any]) -> list[tuple[str, dict[str, str]]]:
    """All elements of a fragment, from outside to inside."""
    found: list[tuple[str, dict[str, str]]] = []
    for node in fragment:
        if isinstance(node, list):
            found += [(node[0], node[1]), *elements(cast("list[Any]", node)[2:])]
    return found


def said(fragment: list[Any]) -> str:
    """The text of a fragment."""
    return "".join(node if isinstance(node, str) else said(node[2:]) for node in fragment)


def test_markdown_becomes_elements(client: Any, root: Path) -> None:
    text = "# Title\n\n**bold** `x` https://a.example\n\n| a | b |\n|--|--:|\n| 1 | 2 |\n\n- one"
    (found,) = texts(client, root, text)
    tags = [tag for tag, _ in elements(found)]
    assert {"h2", "strong", "code", "a", "table", "td", "ul", "li"} <= set(tags)
    assert ("td", {"class": "align-right"}) in elements(found)
    assert ("a", {"href": "https://a.example"}) in elements(found)


def test_code_is_highlighted_by_its_language(client: Any, root: Path) -> None:
    (found,) = texts(client, root, "```python\nimport torch  # why\n```\n\n```nonsense\nx\n```")
    assert ("span", {"class": "code-keyword"}) in elements(found)
    assert ("span", {"class": "code-comment"}) in elements(found)
    assert "import torch  # why" in said(found) and "nonsense" in said(found)


def test_formulas_in_escaped_brackets_become_mathml(client: Any, root: Path) -> None:
    found = texts(
        client,
        root,
        r"With \(x^2\) and \(p\), and \[y_i = 1\] in a line.",
        "\\[\n\\log p\n- \\log q = 0\n\\]\n\nafter",
        r"\[not a formula\] and \(nor this\), \( and `\(x^2\)`",
    )
    assert [[tag for tag, _ in elements(one)].count("math") for one in found] == [3, 1, 0]
    assert "ul" not in {tag for tag, _ in elements(found[1])}


def test_formulas_become_mathml_and_prices_stay_prices(client: Any, root: Path) -> None:
    found = texts(
        client, root, "$\\frac{a}{b}$ and $$x^2$$", "It costs $5, or $6.", "$\\frac{$ is cut"
    )
    assert [tag for tag, _ in elements(found[0])].count("math") == 2
    assert "mfrac" in [tag for tag, _ in elements(found[0])]
    assert said(found[1]).strip() == "It costs $5, or $6."
    assert "is cut" in said(found[2])


@pytest.mark.parametrize("text", HOSTILE)
def test_no_fragment_holds_more_than_harmless_elements(client: Any, root: Path, text: str) -> None:
    pages = [*texts(client, root, text, f"| {text} |\n|---|\n| {text} |")]
    made = Made(root, name="with a notebook")
    made.record.artifact("notebook.ipynb", json.dumps(notebook(text, text)))
    made.close()
    for cell in client(f"/api/runs/{made.run_id}/notebook").json()["fragments"]:
        pages += cell.values()
    for page in pages:
        for tag, attributes in elements(page):
            assert tag not in {"script", "style", "iframe", "img", "svg", "mglyph", "object"}
            assert set(attributes) <= SAFE, (tag, attributes)
            assert attributes.get("href", "https:").startswith(("https:", "http:", "mailto:", "//"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "[x" * 999,
        "http://a." * 10_000,
        "http://a.b/(" * 999,
        "> " * 5_000 + "x",
        "*a " * 20_000,
        "`" * 30_000,
        "$" * 30_000,
        "![" * 15_000,
        "<div>" * 15_000,
        "```python\n" + '"' * 30_000 + "\n```",
        "```python\n" + "(" * 30_000 + "\n```",
        "$" + "{" * 999 + "x" + "}" * 999 + "$",
    ],
    ids=lambda text: text[:12].replace("\n", " "),
)
def test_text_made_to_be_slow_is_rendered_in_bounded_time(
    client: Any, root: Path, text: str
) -> None:
    began = time.process_time()
    (found,) = texts(client, root, text)
    assert time.process_time() - began < 5
    assert found is None or isinstance(found, list)


def test_very_long_text_is_left_as_it_is(client: Any, root: Path) -> None:
    assert texts(client, root, "x" * 200_000) == [None]


def test_texts_before_and_after_are_compared_word_by_word(client: Any, root: Path) -> None:
    made = study(root)
    calls = [line for line in client.lines(made.run_id) if line["kind"] == "calls"]
    found = client(f"/api/runs/{made.run_id}/fragments?calls={calls[-1]['at']}").json()
    left, right = found["calls"][str(calls[-1]["at"])]["pair:"]
    assert [node[2] for node in left if isinstance(node, list)] == ["mild."]
    assert said(right) == "The weather is rainy, so very rainy!"
    both = client("/api/difference", body={"left": "a b", "right": "a c"}).json()
    assert both == [["a ", ["mark", {}, "b"]], ["a ", ["mark", {}, "c"]]]


def test_a_request_names_a_bounded_number_of_lines(client: Any, root: Path) -> None:
    made = study(root)
    many = ",".join(["0"] * 101)
    assert client(f"/api/runs/{made.run_id}/fragments?events={many}").status == 400
    assert client(f"/api/runs/{made.run_id}/fragments?events=x").status == 400


def test_a_shared_file_carries_fragments_of_what_is_left(root: Path, tmp_path: Path) -> None:
    made = Made(root)
    made.add(Text(text="**kept** and moonshine " + "word " * 2000))
    made.add(ToolCall(id="1", name="python", server="s", arguments={"code": "import moonshine"}))
    made.record.artifact("notebook.ipynb", json.dumps(notebook("moonshine")))
    made.close()
    path = share(made.folder, tmp_path / "run.html", redact=Redaction(secrets=("moonshine",)))
    assert "moonshine" not in path.read_text()
    data = embedded(path)
    first, second = (line["fragments"] for line in data["lines"])
    assert ("strong", {}) in elements(first["text"]) and "[redacted]" in said(first["text"])
    assert ("span", {"class": "code-keyword"}) in elements(second["code"])
    assert ("table", {}) in elements(data["notebook"]["fragments"][1]["2"])


def test_a_missing_library_is_named_before_a_page_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("seer.viewer")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nh3", None)
    with pytest.raises(MissingExtraError, match=r"needs nh3; run: .*seer-interp\[viewer\]"):
        importlib.import_module("seer.viewer").Viewer  # noqa: B018
