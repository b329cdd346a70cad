"""The generated library is valid Python that agrees with the interface."""

# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import asyncio
import importlib
import inspect
import itertools
import keyword
import pydoc
import sys
import textwrap
import types
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seer.errors
from seer.rpc.interface._load import load
from seer.rpc.interface._schema import Function, Parameter, Schema
from seer.rpc.library._stub import docstring, render
from seer.rpc.values import _pack, _restore
from seer.rpc.values._codec import decode, encode, encode_call
from seer.rpc.values._hints import Hint

Library = Callable[..., types.ModuleType]
_numbers = itertools.count()


class FakeGate:
    """Answers calls in this process, through the real encoding."""

    def __init__(self, functions: dict[str, Function] | None = None) -> None:
        self.functions = functions or {}
        self.calls: list[tuple[str, list[Any], dict[str, Any]]] = []
        self.tensors: list[bool] = []

    def call(self, name: str, args: Any, kwargs: Any, *, tensors: bool = False) -> Any:
        self.tensors.append(tensors)
        buffers: list[Any] = []
        given, named = decode(encode_call(name, args, kwargs, buffers), buffers)
        self.calls.append((name, given, dict(named)))
        if name not in self.functions:
            return None
        function = self.functions[name]
        assert function.target is not None
        bound, named = function.bind(given, named)
        result = function.target(*bound, **named)
        if function.is_generator:
            return result
        return decode(encode(result, out := []), out)

    async def acall(self, name: str, args: Any, kwargs: Any, *, tensors: bool = False) -> Any:
        return self.call(name, args, kwargs, tensors=tensors)

    def stream(self, name: str, args: Any, kwargs: Any, *, tensors: bool = False) -> Iterator[Any]:
        for item in self.call(name, args, kwargs, tensors=tensors):
            yield decode(encode(item, out := []), out)

    async def astream(
        self, name: str, args: Any, kwargs: Any, *, tensors: bool = False
    ) -> AsyncIterator[Any]:
        for item in self.stream(name, args, kwargs, tensors=tensors):
            yield item

    def budget(self) -> dict[str, Any]:
        return {"calls": 3}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Serves an interface's text and imports the library made from its schema."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])

    def make(text: str, name: str | None = None) -> types.ModuleType:
        path = tmp_path / "interface.py"
        path.write_text(textwrap.dedent(text))
        interface = load(str(path), name or f"library_{next(_numbers)}")
        schema = Schema.from_json(interface.schema())
        return install(tmp_path / "site", schema, FakeGate(interface.functions), monkeypatch)

    return make


def install(
    site: Path, schema: Schema, gate: FakeGate, monkeypatch: pytest.MonkeyPatch
) -> types.ModuleType:
    shipped: dict[str, Any] = {
        "_seer_gate": types.SimpleNamespace(connect=lambda _: gate, Handle=object),
        "_seer_gate.rpc": types.SimpleNamespace(),
        "_seer_gate.rpc.values": types.SimpleNamespace(),
        "_seer_gate.rpc.values._restore": _restore,
        "_seer_gate.rpc.values._pack": _pack,
        "_seer_gate.errors": seer.errors,
    }
    for name, module in shipped.items():
        monkeypatch.setitem(sys.modules, name, module)
    for path, text in render(schema).items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    module = importlib.import_module(schema.name)
    vars(module)["gate"] = gate
    return module


def test_signatures_docstrings_and_defaults_are_the_functions_own(library: Library) -> None:
    module = library('''
        """Tools to study."""
        @expose
        def get(
            text: str, /, layer: int = 3, *more: float, flag: bool = False, **rest: int
        ) -> dict:
            """Get activations.

            Args:
                text: What to read, "quoted" and \\\\ escaped.
            """
            return {"text": text, "layer": layer, "more": more, "flag": flag, "rest": rest}
    ''')
    get: Any = module.get
    assert str(inspect.signature(get)) == (
        "(text: str, /, layer: int = 3, *more: float, flag: bool = False, **rest: int) -> dict"
    )
    doc = inspect.getdoc(get)
    assert doc is not None
    assert doc.startswith(
        'Get activations.\n\nArgs:\n    text: What to read, "quoted" and \\ escaped.'
    )
    assert module.__doc__ == "Tools to study."
    assert "layer: int = 3" in pydoc.render_doc(get)
    assert sorted(module.__all__) == ["budget", "get", "last_call"]
    assert get("a", 1, 2.5, flag=True, x=3) == {
        "text": "a",
        "layer": 1,
        "more": (2.5,),
        "flag": True,
        "rest": {"x": 3},
    }
    assert module.budget() == {"calls": 3}


def test_every_function_has_a_form_to_await(library: Library) -> None:
    module = library("""
        @expose
        def add(a: int, b: int = 2) -> int:
            "Adds."
            return a + b

        @expose
        def count(n: int):
            yield from range(n)
    """)

    async def use() -> tuple[int, list[int]]:
        return await module.add.aio(1), [n async for n in module.count.aio(3)]

    assert asyncio.run(use()) == (3, [0, 1, 2])
    assert list(module.count(2)) == [0, 1]
    assert inspect.signature(module.add.aio) == inspect.signature(module.add)
    assert module.add.aio.__name__ == "add.aio"
    assert module.add.aio.__doc__ == "Adds."
    assert inspect.iscoroutinefunction(module.add.aio)
    assert "AsyncIterator" in str(inspect.signature(module.count.aio))


def test_defaults_of_the_server_are_shown_and_not_sent(library: Library) -> None:
    module = library("""
        MARK = object()
        @expose
        def f(a: object = MARK, b: int = 1, *, c: object = MARK) -> list:
            return [a is MARK, b, c is MARK]
        @expose
        def g(a: object = MARK, b: object = MARK, /) -> list:
            return [a is MARK, b is MARK]
        @expose
        def h(a: object = MARK, *rest: int, k: object = MARK) -> list:
            return [a is MARK, list(rest), k is MARK]
    """)
    assert str(inspect.signature(module.f)) == "(a: Any = ..., b: int = 1, *, c: Any = ...) -> list"
    assert module.f() == [True, 1, True]
    assert module.f(b=2) == [True, 2, True]
    assert module.f(1, c=2) == [False, 1, False]
    assert module.g() == [True, True]
    assert module.g(1) == [False, True]
    assert module.h() == [True, [], True]
    assert module.h(0, 1, 2, k=3) == [False, [1, 2], False]
    assert module.gate.calls[0] == ("f", [], {"b": 1})


def test_classes_named_in_hints_exist_on_the_clients_side(library: Library) -> None:
    module = library('''
        import enum
        from collections.abc import Mapping, Sequence
        from dataclasses import dataclass, field
        from typing import Iterator, Literal, NamedTuple, NotRequired, TypedDict
        import datetime

        class Color(enum.Enum):
            "Colours."
            RED = "red"
            ODD = object()

        class Empty(enum.Enum):
            pass

        class Pair(NamedTuple):
            """A pair."""
            a: int
            b: str = "b"

        class Options(TypedDict):
            "Choices."
            size: NotRequired[int]
            name: str

        Odd = TypedDict("Odd", {"a-b": int})

        @dataclass(kw_only=True)
        class Node:
            """A node."""
            tags: dict = field(default_factory=dict)
            name: str
            color: Color = Color.RED
            pair: Pair | None = None
            children: "list[Node]" = field(default_factory=list)
            when: datetime.date | None = None
            length: int = field(init=False)
            def __post_init__(self):
                self.length = len(self.name)

        @dataclass
        class Nothing:
            pass

        @dataclass
        class Point:
            x: int

        @expose
        def grow(node: Node, options: Options, mode: Literal["a", "b"] = "a") -> Node:
            assert isinstance(node, Node) and node.color is Color.RED
            return Node(name="parent", children=[node], pair=Pair(1), tags={1: 2})
        @expose
        def pairs(colors: Sequence[Color]) -> tuple[dict[str, list[Pair]], Color]:
            return {"a": [Pair(1, "x")]}, colors[0]
        @expose
        def stream() -> Iterator[Point]:
            yield Point(3)
        @expose
        def either(n: int) -> Point | Pair | None | str:
            return [Point(1), Pair(2), None, "x", {"other": 1}][n]
        @expose
        def odd(odd: Odd, empty: Empty | None, nothing: Nothing) -> Mapping[str, set[Color]]:
            return {"a": {Color.RED}}
        @expose
        def bad() -> Point:
            return {"y": 1}
        @expose
        def worse() -> tuple[int, Pair]:
            return [1]
        @expose
        def worst() -> dict[str, Color]:
            return {"a": "purple", "b": []}
        @expose
        def not_dict() -> dict[str, Color]:
            return 3
        @expose
        def partial() -> Node:
            return {"tags": {}}
        @expose
        def typed() -> list[Options]:
            return [{"name": "x"}]
        @expose
        def no_pair() -> Pair:
            return 3
    ''')
    m: Any = module
    assert m.Color.RED.value == "red"
    assert m.Color.ODD.value == "ODD"
    assert m.Color.__doc__ == "Colours."
    assert m.Pair(1) == (1, "b")
    assert m.Options.__doc__ == "Choices."
    assert m.Options.__required_keys__ == {"name"}
    node = m.Node(name="child")
    assert repr(node.color) == "..."
    grown = m.grow(node, {"name": "x"})
    assert isinstance(grown, m.Node)
    assert isinstance(grown.children[0], m.Node)
    assert grown.children[0].color is m.Color.RED
    assert grown.length == 6
    assert isinstance(grown.pair, m.Pair)
    assert m.grow(grown, {"name": "x"}).children[0].name == "parent"
    assert m.pairs([m.Color.ODD]) == ({"a": [m.Pair(1, "x")]}, m.Color.ODD)
    assert list(m.stream()) == [m.Point(3)]
    assert [m.either(n) for n in range(5)] == [m.Point(1), m.Pair(2), None, "x", {"other": 1}]
    assert m.odd({"a-b": 1}, None, m.Nothing()) == {"a": {m.Color.RED}}
    assert m.bad() == {"y": 1}
    assert m.worse() == [1]
    assert m.worst() == {"a": "purple", "b": []}
    assert m.not_dict() == 3
    assert m.partial() == {"tags": {}}
    assert m.typed() == [{"name": "x"}]
    assert m.no_pair() == 3

    async def use() -> list[Any]:
        return [p async for p in m.stream.aio()]

    assert asyncio.run(use()) == [m.Point(3)]


def test_enums_are_what_they_are_on_the_server(library: Library) -> None:
    m: Any = library("""
        import enum

        class Access(enum.IntFlag):
            READ = 1
            WRITE = 2

        class Style(enum.Flag):
            BOLD = enum.auto()
            ITALIC = enum.auto()

        class Level(enum.IntEnum):
            LOW = 1
            HIGH = 2

        class Word(str, enum.Enum):
            YES = "yes"

        @expose
        def both(access: Access, style: Style = Style.BOLD) -> tuple[Access, Style]:
            assert isinstance(access, Access) and isinstance(style, Style)
            return access | Access.WRITE, style | Style.ITALIC
        @expose
        def by(counts: dict[Level, int]) -> dict[Word, dict[Level, int]]:
            assert all(isinstance(level, Level) for level in counts)
            return {Word.YES: counts}
        @expose
        def more(level: Level, word: Word) -> list[Level | Word]:
            assert level < Level.HIGH and word == "yes"
            return [Level.HIGH, Word.YES]
    """)
    access, style = m.both(m.Access.READ)
    assert access == m.Access.READ | m.Access.WRITE == 3
    assert style == m.Style.BOLD | m.Style.ITALIC
    assert m.both(access, style) == (access, style)
    assert m.more(m.Level.LOW, m.Word.YES) == [2, "yes"]
    found = m.by({m.Level.LOW: 3})
    assert found == {m.Word.YES: {m.Level.LOW: 3}}
    assert isinstance(next(iter(found)), m.Word)
    assert isinstance(next(iter(found[m.Word.YES])), m.Level)
    assert m.more(1, "yes") == [m.Level.HIGH, m.Word.YES]


def test_arrays_in_hints_do_not_import_their_library(library: Library) -> None:
    module = library("""
        from collections.abc import Iterator
        import numpy as np
        from dataclasses import dataclass
        @dataclass
        class Acts:
            values: np.ndarray
        @expose
        def f(a: np.ndarray | None = None) -> Acts:
            return Acts(np.zeros(2))
        @expose
        def g() -> Iterator[np.ndarray]:
            yield np.zeros(2)
    """)
    assert str(inspect.signature(module.f)) == (
        f"(a: 'numpy.ndarray | None' = None) -> {module.__name__}.Acts"
    )
    assert "numpy" not in vars(module)
    assert module.f().values.shape == (2,)
    assert next(module.g()).shape == (2,)


def test_results_hinted_as_tensors_are_asked_for_as_tensors(library: Library) -> None:
    pytest.importorskip("torch")
    module = library("""
        import torch
        from dataclasses import dataclass
        from seer.rpc import Handle
        @dataclass
        class Acts:
            values: dict[str, torch.Tensor]
        @expose
        def f() -> Acts: return Acts({})
        @expose
        def g() -> int: return 1
        @expose
        def h(h: Handle) -> None: ...
    """)
    module.f()
    module.g()
    assert module.gate.tensors == [True, False]


def test_parameters_may_have_the_names_that_the_library_uses(library: Library) -> None:
    module = library("""
        import enum
        class E(enum.Enum):
            A = 1
        M = object()
        @expose
        def f(_gate: int, _given: int, _server: object = M, _map: int = 4) -> int:
            return _gate + _given + _map
        @expose
        def map(item: int, map: int = 1) -> int: return item
        @expose
        def s(item: int):
            yield item
        @expose
        def e(map: int) -> __import__("typing").Iterator[E]:
            yield E.A
    """)
    assert module.f(1, 2) == 7
    assert module.map(3) == 3
    assert list(module.s(3)) == [3]
    assert list(module.e(3)) == [module.E.A]


# --- nothing in a schema can become code -----------------------------------------------------

identifiers = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name)
)
texts = st.text(st.characters(exclude_categories=())) | st.text(st.sampled_from("\"\\\n'ux{}%N# "))
literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(texts, inner, max_size=2)
    ),
    max_leaves=4,
)


def tidy(doc: str) -> str:
    """A docstring without invisible white space and lone surrogates."""
    doc = doc.encode("utf-8", "replace").decode()
    return "\n".join(line.rstrip() for line in inspect.cleandoc(doc).split("\n")).strip()


@given(texts, st.sampled_from(["", "    "]))
@settings(max_examples=100, deadline=None)
def test_any_docstring_reads_as_it_was_written(text: str, indent: str) -> None:
    source = docstring(text, indent)
    scope: dict[str, Any] = {}
    body = f"def f():\n{source}\n" if indent else f"{source}\ndef f(): ..."
    exec(compile(body.encode("utf-8"), "<made>", "exec"), scope)
    got = scope["f"].__doc__ if indent else scope["__doc__"]
    assert tidy(got) == tidy(inspect.cleandoc(text))


@given(
    st.lists(
        st.tuples(identifiers, texts, literals), min_size=1, max_size=3, unique_by=lambda t: t[0]
    )
)
@settings(max_examples=60, deadline=None)
def test_any_schema_becomes_a_module_that_only_defines(
    found: list[tuple[str, str, Any]],
) -> None:
    functions: dict[str, Function] = {}
    for name, doc, default in found:
        parameter = Parameter("x", "positional_or_keyword", Hint("any"), default=repr(default))
        functions[name] = Function(name, (parameter,), Hint("literal", detail=(doc,)), doc=doc)
    schema = Schema.from_json(Schema("tools", functions, doc=found[0][1]).to_json())
    text = render(schema)["tools/__init__.py"]
    tree = compile(text.encode(), "<library>", "exec")
    gate = FakeGate()
    shipped: Any = types.SimpleNamespace(connect=lambda _: gate)
    scope: dict[str, Any] = {"__name__": "tools"}
    before = sys.modules.get("_seer_gate")
    sys.modules["_seer_gate"] = shipped
    try:
        exec(tree, scope)
    finally:
        sys.modules.pop("_seer_gate")
        if before is not None:
            sys.modules["_seer_gate"] = before
    assert gate.calls == []
    for name, doc, default in found:
        function = scope[name]
        if name not in ("budget", "last_call"):
            assert inspect.signature(function).parameters["x"].default == default
            assert tidy(function.__doc__ or "") == tidy(inspect.cleandoc(doc))


def deep_hint() -> Any:
    hint: Any = "int"
    for _ in range(5000):
        hint = {"kind": "list", "args": [hint]}
    return hint


EVIL = "x): pass\nimport os\ndef f("


def schema_json() -> dict[str, Any]:
    function = {
        "name": "f",
        "doc": "",
        "parameters": [
            {
                "name": "x",
                "kind": "keyword_only",
                "hint": "int",
                "default": None,
                "note": "",
                "batched": False,
            }
        ],
        "returns": {"kind": "named", "detail": "T"},
        "is_async": False,
        "is_generator": False,
        "options": {},
    }
    types_json = {"T": {"kind": "record", "doc": "", "fields": [["a", "int", "1", True]]}}
    return {
        "version": 1,
        "name": "tools",
        "doc": "",
        "source_hash": "",
        "types": types_json,
        "functions": [function],
    }


def test_the_schema_below_is_fine_as_it_stands() -> None:
    assert list(Schema.from_json(schema_json()).functions) == ["f"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["name"], EVIL),
        (["name"], "class"),
        (["version"], 2),
        (["types"], 3),
        (["types"], {}),
        (["types"], {EVIL: {"kind": "enum", "doc": "", "fields": []}}),
        (["types", "T", "kind"], "code"),
        (["types", "T", "base"], "os.system"),
        (["types", "T", "fields", 0, 0], EVIL),
        (["types", "T", "fields", 0, 2], "__import__('os')"),
        (["types", "T", "fields", 0, 1], {"kind": "named", "detail": EVIL}),
        (["functions", 0, "name"], EVIL),
        (["functions", 0, "returns"], {"kind": "named", "detail": "Other"}),
        (["functions", 0, "returns"], {"kind": "literal", "detail": "print()"}),
        (["functions", 0, "parameters", 0, "name"], EVIL),
        (["functions", 0, "parameters", 0, "name"], None),
        (["functions", 0, "parameters", 0, "kind"], "any"),
        (["functions", 0, "parameters", 0, "default"], "print('hi')"),
        (["functions", 0, "parameters", 0, "default"], "1)"),
        (["functions", 0, "parameters", 0, "default"], 3),
        (["functions", 0, "parameters", 0, "hint"], {"kind": EVIL}),
        (["functions", 0, "parameters", 0, "hint"], {}),
        (["functions", 0, "parameters", 0, "hint"], {"kind": "dict", "args": ["int"]}),
        (["functions", 0, "parameters", 0, "hint"], {"kind": "int", "args": ["int"]}),
        (["functions", 0, "parameters", 0, "hint"], {"kind": "literal", "detail": "1)"}),
        (["functions", 0, "parameters", 0, "hint"], {"kind": "literal", "detail": "({},)"}),
        (["functions", 0, "parameters", 0, "hint"], {"kind": "literal", "detail": "3"}),
        (["functions", 0, "parameters", 0, "hint"], deep_hint()),
        (["functions", 0, "options"], {"timeout": -1}),
        (["functions", 0, "options"], {"evil": 1}),
    ],
)
def test_a_schema_with_anything_but_names_and_literals_is_refused(
    path: list[Any], value: Any
) -> None:
    found = schema_json()
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ValueError):
        Schema.from_json(found)
